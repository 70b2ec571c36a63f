/* ∂S_{t−1} = α_t ∂S_t α'_t + q_t⊗∂o_t,    ∂q_t = S_t ∂o_t,    ∂k_t = ∂S_t v_t,    ∂v_t = ∂S_tᵀ k_t
 * ∂log α_t[k] = Σ_v α_t[k] S_{t−1}[k, v] ∂S_t[k, v]
 *
 * The gradients of the memory with decays, T elements at a time, blocks from the last to the first.
 * In a block, the memories before its chunks are recomputed from its checkpoint while the gradients
 * of outputs read them; then ∂S runs back over the chunks. Memories are stored transposed here, V × K,
 * so that only ∂v needs sums along a vector. decay_gradient.h does what is left within a chunk.
 */
#pragma once

#include "decay_forward.h"
#include "decay_gradient.h"

namespace threefold {
namespace decay {

/* The buffers of one thread; on a null buffer it only counts the size of the workspace. */
template <typename real>
struct BackwardBuffers {
    Side<real> keys, values;
    Other<real> for_keys, for_values;
    /* Value columns whose memories are recomputed together: [tile, K] for each chunk. */
    int64_t tile;
    real *memories, *turned, *grads;

    BackwardBuffers(Workspace<real> &workspace, const Inputs<real> &in, const Tasks &tasks)
        : keys(keys_side(workspace, in)),
          values(values_side(workspace, in, tasks.columns)),
          for_keys(workspace, in.keys),
          for_values(workspace, tasks.columns),
          tile(cached_columns<real>(keys.width, values.width)),
          memories(workspace.take(block_chunks * tile * keys.width)),
          turned(workspace.take(chunk_width<real> * keys.width)),
          grads(workspace.take(tasks.together * values.width * keys.width)) {}

    /* The memory before a chunk; [V, K], the gradient of that of a task after it. */
    Rows<real> memory(int64_t number) const {
        return {memories + number * tile * keys.width, keys.width};
    }
    Rows<real> grad(int64_t task) const {
        return {grads + task * values.reader.stride * keys.width, keys.width};
    }
};

/* Pointers to the gradients. Those that are sums over heads of a group, parts of columns or rows are
 * written as separate copies, and summed in order at the end. */
template <typename real>
struct Gradients {
    real *query, *key, *value, *log_decay, *log_decay_value, *bonus, *state;
};

/* A tile of value columns of one task, for the passes over the chunks of a block. */
template <typename real>
struct BackwardTile {
    const BackwardBuffers<real> &buffers;
    const Side<real> &keys, &values;
    Rows<real> grad;
    int64_t count, column, width;
    bool decays_of_keys, decays_of_values;

    /* The memory before each chunk, and what is read from it. */
    void forwards() const {
        for (int64_t t = 0; t < count; t += chunk) {
            const Rows<real> memory = buffers.memory(t / chunk);
            product<real, true>(buffers.for_keys.read.at(t, 0), values.reader_before.at(t, column),
                                memory, width, keys.width);
            if (values.decaying != Decaying::none)
                meet(buffers.for_values.read.at(t, column), keys.reader_before.at(t, 0), memory);
            if (t + chunk < count)
                update<real>(buffers.memory(t / chunk + 1), memory,
                             values.writer_after.at(t, column), keys.writer_after.at(t, 0),
                             decays(t), width, keys.width);
        }
    }

    /* The gradient of the memory after each chunk, and its products with the writers. */
    void backwards() const {
        for (int64_t t = whole_chunks(count) - chunk; t >= 0; t -= chunk) {
            product<real, true>(buffers.for_keys.met.at(t, 0), values.writer_after.at(t, column),
                                grad, width, keys.width);
            meet(buffers.for_values.met.at(t, column), keys.writer_after.at(t, 0), grad);
            if (decays_of_keys) both_for_keys(t);
            if (decays_of_values) both_for_values(t);
            update<real>(grad, grad, values.reader_before.at(t, column),
                         keys.reader_before.at(t, 0), decays(t), width, keys.width);
        }
    }

private:
    Decays<real> decays(int64_t t) const {
        return {values.whole_of(t / chunk, column), keys.whole_of(t / chunk)};
    }

    /* to[T, V] = the products of a chunk's keys or queries with a memory [V, K]. */
    void meet(Rows<real> to, Rows<const real> of_chunk, Rows<const real> memory) const {
        turn<real>(buffers.turned, of_chunk, keys.width);
        product_turned<real>(to, buffers.turned, memory, width, keys.width);
    }

    /* both[k] += Σ_v S[k, v]·∂S[k, v]·(decay of v) */
    void both_for_keys(int64_t t) const {
        constexpr int64_t lanes = lanes_of<real>;
        const Rows<const real> memory = buffers.memory(t / chunk), gradient = grad;
        const real *decay = decays(t).rows;
        for (int64_t k = 0; k < keys.width; k += 2 * lanes) {
            /* Several sums, because with one each addition would wait for the previous one. */
            Vector<real> sum[2][4] = {};
            for (int64_t v = 0; v < width; v += 4)
                for (int i = 0; i < 4; ++i) {
                    const real *a = memory[v + i] + k, *b = gradient[v + i] + k;
                    const real factor = decay ? decay[v + i] : 1;
                    sum[0][i] += load(a) * (load(b) * factor);
                    sum[1][i] += load(a + lanes) * (load(b + lanes) * factor);
                }
            real *both = buffers.for_keys.both[t / chunk] + k;
            for (int i = 0; i < 2; ++i)
                store(both + i * lanes, load(both + i * lanes) + ((sum[i][0] + sum[i][1]) +
                                                                  (sum[i][2] + sum[i][3])));
        }
    }

    /* both[v] = Σ_k S[k, v]·∂S[k, v]·(decay of k) */
    void both_for_values(int64_t t) const {
        const Rows<const real> memory = buffers.memory(t / chunk), gradient = grad;
        const real *decay = decays(t).columns;
        for (int64_t v = 0; v < width; ++v) {
            Vector<real> sum[chunk] = {};
            for (int64_t k = 0; k < keys.width; k += lanes_of<real>) {
                const Vector<real> here = load(memory[v] + k) * load(gradient[v] + k);
                sum[0] += decay ? here * load(decay + k) : here;
            }
            real sums[chunk];
            add_lanes<real>(sum, sums);
            buffers.for_values.both[t / chunk][column + v] = sums[0];
        }
    }
};

template <typename real>
struct Backward {
    const Inputs<real> &in;
    const Tasks &tasks;
    Field<real> grad_out;
    const real *grad_state, *checkpoints;
    /* With the copies in place of query, key, log_decay and bonus. */
    Gradients<real> to;

    /* Tasks of one row, block by block. */
    void run(int64_t first, int64_t count, const BackwardBuffers<real> &buffers) const {
        const FlushDenormals flush;
        const int64_t length = in.length_of(tasks.task(first).row);
        for (int64_t i = 0; i < count; ++i) begin(buffers, i, tasks.task(first + i));
        for (Place at{first, (blocks_of(length) - 1) * block_length}; at.t >= 0;
             at = at.after(first, count, -block_length))
            block(tasks.task(at.index), buffers, at.index - first, at.t,
                  at.after(first, count, -block_length));
        for (int64_t i = 0; i < count; ++i) end(buffers, i, tasks.task(first + i), length);
    }

private:
    void begin(const BackwardBuffers<real> &buffers, int64_t index, const Task &task) const {
        const int64_t memory = in.state_of(task.row, task.head);
        load_transposed(buffers.grad(index), padded<real>(task.count),
                        grad_state + memory + task.first, task.count);
        if (in.bonus) fill<real>(bonus_of(task), 0, in.keys, 0);
    }

    void end(const BackwardBuffers<real> &buffers, int64_t index, const Task &task,
             int64_t length) const {
        const Rows<real> grad = buffers.grad(index);
        real *state = to.state ? to.state + in.state_of(task.row, task.head) + task.first : nullptr;
        for (int64_t k = 0; state && k < in.keys; ++k)
            for (int64_t v = 0; v < task.count; ++v) state[k * in.values + v] = grad[v][k];
        /* Nothing depends on padding. */
        const SideGradients<real> keys = key_gradients(task, 0), values = value_gradients(task, 0);
        clear(keys.reader, length, in.keys);
        clear(keys.writer, length, in.keys);
        clear(keys.log_decay, length, in.decays);
        clear(values.writer, length, task.count);
        clear(values.log_decay, length, task.count);
    }

    void clear(Rows<real> rows, int64_t from, int64_t size) const {
        for (int64_t t = from; rows.data && t < in.length; ++t) fill<real>(rows[t], 0, size, 0);
    }

    /* to[rows, K] = the transposed of `columns` columns of a memory, and zeros around it. */
    void load_transposed(Rows<real> to, int64_t rows, const real *from, int64_t columns) const {
        constexpr int64_t lanes = lanes_of<real>;
        fill<real>(to.data, 0, rows * to.stride, 0);
        for (int64_t k = 0; k < in.keys; k += lanes)
            for (int64_t v = 0; v < columns; v += lanes) {
                if (k + lanes <= in.keys && v + lanes <= columns) {
                    Vector<real> square[lanes];
                    for (int i = 0; i < lanes; ++i) square[i] = load(from + (k + i) * in.values + v);
                    transpose<real>(square);
                    for (int i = 0; i < lanes; ++i) store(to[v + i] + k, square[i]);
                    continue;
                }
                for (int64_t i = k; i < std::min(in.keys, k + lanes); ++i)
                    for (int64_t j = v; j < std::min(columns, v + lanes); ++j)
                        to[j][i] = from[i * in.values + j];
            }
    }

    /* A copy of a gradient [B, L, heads, size], from element t of a task on. */
    Rows<real> rows_of(real *data, int64_t copy, int64_t heads, int64_t head, int64_t size,
                       const Task &task, int64_t t) const {
        if (!data) return {};
        const int64_t element = (copy * in.batch + task.row) * in.length + t;
        return {data + (element * heads + head) * size, heads * size};
    }

    real *bonus_of(const Task &task) const {
        return to.bonus + ((task.row * tasks.parts + task.part) * in.heads + task.head) * in.keys;
    }

    SideGradients<real> key_gradients(const Task &task, int64_t t) const {
        const int64_t each = in.heads_of_group(), group = task.head / each;
        const int64_t copy = task.head % each * tasks.parts + task.part;
        return {rows_of(to.query, copy, in.groups, group, in.keys, task, t),
                rows_of(to.key, copy, in.groups, group, in.keys, task, t),
                rows_of(to.log_decay, task.part, in.heads, task.head, in.decays, task, t),
                in.bonus ? bonus_of(task) : nullptr};
    }

    SideGradients<real> value_gradients(const Task &task, int64_t t) const {
        const auto rows = [&](real *data) {
            return rows_of(data ? data + task.first : nullptr, 0, in.heads, task.head, in.values,
                           task, t);
        };
        return {{}, rows(to.value), rows(to.log_decay_value), nullptr};
    }

    void fetch(const Task &task, int64_t first) const {
        in.keys_of(task, first).fetch(0, block_length);
        in.values_of(task, first, grad_out).fetch(0, block_length);
        if (first < 0) return;
        const real *memory = checkpoints + in.checkpoint_of(task.row, task.head, first) + task.first;
        decay::fetch<real>({memory, in.values, task.count, in.keys}, 0, in.keys);
    }

    void prepare(const Task &task, const Side<real> &keys, const Side<real> &values, int64_t first,
                 int64_t count) const {
        const SideElements<real> of_keys = in.keys_of(task, first);
        const SideElements<real> of_values = in.values_of(task, first, grad_out);
        if (in.bonus)
            pack<real>({keys.bonus, 0}, 0, 1, keys.width,
                       {in.bonus + task.head * in.keys, 0, in.keys, 1});
        for (int64_t t = 0; t < count; t += chunk) {
            pack(keys, of_keys, t);
            pack(values, of_values, t);
            for (const Side<real> *side : {&keys, &values}) {
                prepare_readers(*side, t);
                prepare_writers(*side, t);
            }
        }
    }

    void block(const Task &task, const BackwardBuffers<real> &buffers, int64_t index, int64_t first,
               Place next) const {
        const Side<real> &keys = buffers.keys, values = buffers.values.narrowed(task.count);
        const int64_t count = std::min(block_length, in.length_of(task.row) - first);
        const SideGradients<real> of_keys = key_gradients(task, first);
        const SideGradients<real> of_values = value_gradients(task, first);
        prepare(task, keys, values, first, count);
        buffers.for_keys.clear(count);
        const real *memory = checkpoints + in.checkpoint_of(task.row, task.head, first) + task.first;
        for (int64_t column = 0; column < values.width; column += buffers.tile) {
            const int64_t width = std::min(buffers.tile, values.width - column);
            const BackwardTile<real> tile{buffers,           keys,
                                          values,            buffers.grad(index).at(column, 0),
                                          count,             column,
                                          width,             to.log_decay != nullptr,
                                          to.log_decay_value != nullptr};
            if (column == 0) fetch(tasks.task(next.index), next.t);
            load_transposed(buffers.memory(0), width, memory + column,
                            std::min(width, task.count - column));
            tile.forwards();
            tile.backwards();
        }
        differentiate_keys(keys, buffers.for_keys, values.scores, count, of_keys);
        differentiate_values(values, buffers.for_values, keys.scores, count, of_values);
    }
};

}  // namespace decay
}  // namespace threefold
