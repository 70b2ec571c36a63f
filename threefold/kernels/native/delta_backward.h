/* G_t = ∂/∂S_t = D_{t→C} G_C + Σ_{r≥t} D_{t→r} q_r⊗∂o_r + Σ_{r>t} D_{t→r−1} b_r⊗∂m_r
 *   ∂x_t = G_tᵀ w_t,   ∂w_t = G_t x_t,   ∂q_t = S_t ∂o_t,   ∂b_t = S_{t−1} ∂m_t
 *   ∂log α_t = Σ_v (Diag(α_t) S_{t−1}) ⊙ G_t
 *
 * The gradients of some value columns of some heads. Memories inside a block are recomputed from the
 * checkpoint before it and from m, which the forward pass saved; then its chunks are taken last to
 * first. Here memories are stored as [V, K]: sums over values need no shuffles.
 */
#pragma once

#include "delta_elements.h"

namespace threefold {
namespace delta {

/* What the backward pass writes; each has the parts of a head side by side, [parts, B, L, H, …]. */
template <typename real>
struct Gradients {
    real *query, *key, *value, *log_decay, *strength, *write, *read, *state;
};

/* What it reads besides the inputs. */
template <typename real>
struct Given {
    Field<real> grad_out;
    const real *grad_new_state, *moved, *checkpoints;
};

template <typename real, int W>
struct BackwardBuffers {
    static constexpr int C = chunk;
    Elements<real, C, W> elements[block_chunks];
    /* S before each chunk of the block, and G, of each task and of the present one: [columns, K]. */
    Rows<real> memories[block_chunks], adjoints, adjoint;
    /* v − m, for ∂β [C, columns]; x and ∂x [W·C, columns]; ∂m, then ∂o [2C, columns]. */
    Rows<real> error, written, grad_written, incoming;
    /* G·x [W·C, K]; S·∂m, then S·∂o [2C, K]; Σ_v S ⊙ G [K]. */
    Rows<real> from_adjoint, from_memory;
    real *both;
    /* x_s·∂m_t and x_s·∂o_t: [W, C, C]. */
    real *written_moved, *written_out;
    /* Gradients of q, log α, b [C, K] and w [W·C, K]. */
    Rows<real> query, decay, read, write;

    BackwardBuffers(Workspace<real> &workspace, const Inputs<real> &in, const Tasks &tasks)
        : BackwardBuffers(workspace, in, tasks, std::make_index_sequence<block_chunks>{}) {}

    void turn_to(int64_t task) { adjoint.data = adjoints[task * rows]; }

private:
    int64_t rows;

    template <size_t... i>
    BackwardBuffers(Workspace<real> &workspace, const Inputs<real> &in, const Tasks &tasks,
                    std::index_sequence<i...>)
        : elements{(void(i), Elements<real, C, W>(workspace, in.keys))...},
          rows(padded<real>(tasks.columns())) {
        const int64_t keys = in.keys, columns = tasks.columns();
        for (auto &memory : memories) memory = take_rows(workspace, rows, keys);
        adjoint = adjoints = take_rows(workspace, tasks.together * rows, keys);
        error = take_rows(workspace, C, columns);
        for (Rows<real> *each : {&written, &grad_written}) *each = take_rows(workspace, W * C, columns);
        incoming = take_rows(workspace, 2 * C, columns);
        from_adjoint = take_rows(workspace, W * C, keys);
        from_memory = take_rows(workspace, 2 * C, keys);
        both = take_rows(workspace, 1, keys).data;
        written_moved = workspace.take(W * C * C);
        written_out = workspace.take(W * C * C);
        for (Rows<real> *each : {&query, &decay, &read}) *each = take_rows(workspace, C, keys);
        write = take_rows(workspace, W * C, keys);
    }
};

template <typename real, int W>
struct Backward {
    static constexpr int C = chunk;
    static constexpr int64_t lanes = lanes_of<real>;
    using Buffers = BackwardBuffers<real, W>;
    const Inputs<real> &in;
    const Gradients<real> &to;
    const Given<real> &given;

    void run(const Tasks &tasks, int64_t first, int64_t count, Buffers buffers) const {
        const int64_t end = in.length_of(tasks.task(first).row);
        const auto each = [&](const auto &body) {
            for (int64_t i = 0; i < count; ++i) {
                buffers.turn_to(i);
                body(tasks.task(first + i));
            }
        };
        each([&](const Task &task) {
            turn_in(task, buffers.adjoint, given.grad_new_state + memory(task));
        });
        for (int64_t block = blocks_of(end) - 1; block >= 0; --block)
            each([&](const Task &task) {
                remember(task, buffers, block, end);
                for (int64_t i = chunks_of(block, end) - 1; i >= 0; --i)
                    go_back(task, buffers, i, block * block_length + i * C, end);
            });
        each([&](const Task &task) {
            turn<real>({to.state + memory(task), in.values}, buffers.adjoint, task.count, in.keys);
            for (int64_t t = end; t < in.length; ++t) clear(task, t);
        });
    }

private:
    /* Of [B, H, K, V]. */
    int64_t memory(const Task &task) const {
        return in.memory(task.row, task.head) + task.first;
    }

    static int64_t chunks_of(int64_t block, int64_t end) {
        return (std::min(block_length, end - block * block_length) + C - 1) / C;
    }

    /* [K, V] becomes [V, K], zeros where there is none. */
    void turn_in(const Task &task, Rows<real> memory, const real *from) const {
        for (int64_t v = 0; v < padded<real>(task.count); ++v)
            if (!from || v >= task.count)
                fill_row(memory[v], real(0), in.keys);
            else
                std::fill(memory[v] + in.keys, memory[v] + padded<real>(in.keys), real(0));
        if (from) turn<real>(memory, {from, in.values}, in.keys, task.count);
    }

    /* The memories before the chunks of a block, from the one before the block. */
    void remember(const Task &task, Buffers &buffers, int64_t block, int64_t end) const {
        const real *start = nullptr;
        if (block > 0)
            start = given.checkpoints + in.checkpoint(task.row, task.head, block) + task.first;
        else if (in.state)
            start = in.state + in.memory(task.row, task.head) + task.first;
        turn_in(task, buffers.memories[0], start);
        const int64_t chunks = chunks_of(block, end);
        for (int64_t i = 0; i < chunks; ++i) {
            const int64_t first = block * block_length + i * C;
            auto &elements = buffers.elements[i];
            elements.prepare(in, task.row, task.head, first, std::min<int64_t>(C, end - first));
            if (i + 1 == chunks) break;
            take_written(task, buffers, first, end);
            update<W * C, Decay::by_column, real>(
                buffers.memories[i + 1], buffers.memories[i], buffers.written, elements.writers,
                elements.whole, padded<real>(task.count), padded<real>(in.keys));
        }
    }

    /* x of a chunk, from v and m. */
    void take_written(const Task &task, Buffers &buffers, int64_t first, int64_t end) const {
        for (int t = 0; t < C; ++t) {
            real *written = buffers.written[t], *last = buffers.written[(W - 1) * C + t];
            real *error = buffers.error[t];
            if (first + t >= end) {
                for (real *row : {written, last, error}) fill_row(row, real(0), task.count);
                continue;
            }
            copy_row(W == 1 ? error : last,
                     in.value.at(task.row, first + t, task.head) + task.first, task.count);
            copy_row(written, given.moved + place(task, first + t), task.count);
            if constexpr (W == 2) continue;
            const real strength = *in.strength.at(task.row, first + t, task.head);
            for (int64_t v = 0; v < padded<real>(task.count); v += lanes) {
                const Vector<real> difference = load(error + v) - load(written + v);
                store(error + v, difference);
                store(written + v, strength * difference);
            }
        }
    }

    /* Of [B, L, H, V]. */
    int64_t place(const Task &task, int64_t t) const {
        return in.element(task.row, t, task.head) * in.values + task.first;
    }

    void take_grad_out(const Task &task, Buffers &buffers, int64_t first, int64_t end) const {
        for (int t = 0; t < C; ++t) {
            real *row = buffers.incoming[C + t];
            if (first + t < end)
                copy_row(row, given.grad_out.at(task.row, first + t, task.head) + task.first,
                         task.count);
            else
                fill_row(row, real(0), task.count);
        }
    }

    /* One chunk: from G after it to G before it, with the gradients of its elements. */
    void go_back(const Task &task, Buffers &buffers, int64_t i, int64_t first, int64_t end) const {
        const int64_t columns = padded<real>(task.count), keys = padded<real>(in.keys);
        const auto &elements = buffers.elements[i];
        take_written(task, buffers, first, end);
        take_grad_out(task, buffers, first, end);
        product_transposed<W * C, real>(buffers.grad_written, elements.writers, buffers.adjoint,
                                        columns, keys);
        follow(task, buffers, elements, first, end);
        meet(buffers, columns);
        product<W * C, real>(buffers.from_adjoint, buffers.written, buffers.adjoint, columns, keys);
        product<2 * C, real>(buffers.from_memory, buffers.incoming, buffers.memories[i], columns,
                             keys);
        if (in.decays)
            sum_of_products<real>(buffers.both, buffers.memories[i], buffers.adjoint, columns,
                                  keys);
        else
            fill_row(buffers.both, real(0), in.keys);
        for (int64_t at = 0; at < keys; at += lanes) gather(buffers, elements, at);
        give(task, buffers, first, end);
        update<2 * C, Decay::by_column, real>(buffers.adjoint, buffers.adjoint, buffers.incoming,
                                              elements.readers, elements.whole, columns, keys);
    }

    /* ∂x and ∂m of the elements, and ∂β with them. */
    void follow(const Task &task, Buffers &buffers, const Elements<real, C, W> &elements,
                int64_t first, int64_t end) const {
        real strength[C] = {};
        for (int t = 0; t < C; ++t)
            if (first + t >= end)
                /* Padding elements must not receive anything from G, not even NaN. */
                for (int w = 0; w < W; ++w)
                    fill_row(buffers.grad_written[w * C + t], real(0), task.count);
            else if (W == 1)
                strength[t] = *in.strength.at(task.row, first + t, task.head);
        Vector<real> of_strength[C] = {};
        for (int64_t v = 0; v < padded<real>(task.count); v += lanes)
            follow(buffers, elements, strength, of_strength, v);
        if constexpr (W == 1) {
            real sums[C];
            store_sums_of_lanes<C>(sums, of_strength);
            for (int t = 0; t < C && first + t < end; ++t)
                to.strength[slot(task, first + t)] = sums[t];
        }
    }

    /* One vector of columns, last element to first: each sees what later ones read of it. */
    static void follow(Buffers &buffers, const Elements<real, C, W> &elements, const real *strength,
                       Vector<real> *of_strength, int64_t v) {
        Vector<real> grad_moved[C], grad_out[C];
        for (int t = C - 1; t >= 0; --t) {
            grad_out[t] = load(buffers.incoming[C + t] + v);
            Vector<real> grad[W];
            for (int w = 0; w < W; ++w) {
                grad[w] = load(buffers.grad_written[w * C + t] + v);
                grad[w] += elements.querying(w, t, t) * grad_out[t];
                for (int r = t + 1; r < C; ++r) {
                    grad[w] += elements.querying(w, r, t) * grad_out[r];
                    grad[w] += elements.reading(w, r, t) * grad_moved[r];
                }
            }
            if constexpr (W == 1) {
                of_strength[t] += grad[0] * load(buffers.error[t] + v);
                grad[0] *= strength[t];
                grad_moved[t] = -grad[0];
            } else {
                grad_moved[t] = grad[0];
            }
            store(buffers.incoming[t] + v, grad_moved[t]);
            /* The last is ∂v: of x = β (v − m), or of v itself. */
            store(buffers.grad_written[(W - 1) * C + t] + v, grad[W - 1]);
        }
    }

    /* Of [parts, B, L, H]. */
    int64_t slot(const Task &task, int64_t t) const {
        return task.part * in.batch * in.length * in.heads + in.element(task.row, t, task.head);
    }

    /* x_s·∂m_t and x_s·∂o_t for s ≤ t. */
    void meet(Buffers &buffers, int64_t columns) const {
        for (int ws = 0; ws < W * C; ++ws) {
            Vector<real> sums[2 * C] = {};
            for (int64_t v = 0; v < columns; v += lanes) {
                const Vector<real> x = load(buffers.written[ws] + v);
                for (int t = 0; t < 2 * C; ++t) sums[t] += x * load(buffers.incoming[t] + v);
            }
            real found[2 * C];
            store_sums_of_lanes<2 * C>(found, sums);
            give_row(buffers.written_moved + ws * C, found, C);
            give_row(buffers.written_out + ws * C, found + C, C);
        }
    }

    /* Gradients of one vector of keys. */
    struct Sums {
        Vector<real> query[C] = {}, read[C] = {}, decay[C] = {};
    };

    /* One source of the memory: what was there before the chunk (s = −1, `start` = 1), or what
     * element s wrote (`start` = w_s). Its share in what later elements read, its share in their
     * decays, and the gradient of the source itself; `end` is what G after the chunk says to it. */
    template <int s, typename Moved, typename Out>
    static Vector<real> trace(Sums &sums, const Elements<real, C, W> &elements, int64_t at,
                              Vector<real> start, Vector<real> end, const Moved &moved,
                              const Out &out) {
        Vector<real> here[C + 1];
        if constexpr (s >= 0) sums.query[s] += start * out(s);
        for (int t = s + 1; t < C; ++t) {
            sums.read[t] += start * moved(t);
            start *= load(elements.decay[t] + at);
            here[t] = start;
            sums.query[t] += start * out(t);
        }
        for (int t = C - 1; t > s; --t) {
            end += load(elements.query[t] + at) * out(t);
            sums.decay[t] += here[t] * end;
            end = load(elements.decay[t] + at) * end + load(elements.read[t] + at) * moved(t);
        }
        if constexpr (s >= 0) end += load(elements.query[s] + at) * out(s);
        return end;
    }

    template <int... s>
    static void trace_written(Buffers &buffers, const Elements<real, C, W> &elements, Sums &sums,
                              int w, int64_t at, std::integer_sequence<int, s...>) {
        (store(buffers.write[w * C + s] + at,
               trace<s>(
                   sums, elements, at, load(elements.write[w * C + s] + at),
                   load(buffers.from_adjoint[w * C + s] + at),
                   [&](int t) { return buffers.written_moved[(w * C + s) * C + t]; },
                   [&](int t) { return buffers.written_out[(w * C + s) * C + t]; })),
         ...);
    }

    void gather(Buffers &buffers, const Elements<real, C, W> &elements, int64_t at) const {
        Sums sums;
        trace<-1>(
            sums, elements, at, splat<real>(1), load(buffers.both + at),
            [&](int t) { return load(buffers.from_memory[t] + at); },
            [&](int t) { return load(buffers.from_memory[C + t] + at); });
        for (int w = 0; w < W; ++w)
            trace_written(buffers, elements, sums, w, at, std::make_integer_sequence<int, C>{});
        for (int t = 0; t < C; ++t) {
            if constexpr (W == 1) {
                /* b = α⊙k: the gradient of b goes to both. */
                sums.decay[t] += load(elements.read[t] + at) * sums.read[t];
                store(buffers.write[t] + at, load(buffers.write[t] + at) +
                                                 load(elements.decay[t] + at) * sums.read[t]);
            }
            store(buffers.query[t] + at, sums.query[t]);
            store(buffers.read[t] + at, sums.read[t]);
            store(buffers.decay[t] + at, sums.decay[t]);
        }
    }

    /* Writes the gradients of a chunk's elements to the outputs. */
    void give(const Task &task, const Buffers &buffers, int64_t first, int64_t end) const {
        const int64_t keys = in.keys;
        for (int t = 0; t < C && first + t < end; ++t) {
            const int64_t at = slot(task, first + t);
            give_row(to.value + place(task, first + t), buffers.grad_written[(W - 1) * C + t],
                     task.count);
            give_row(to.query + at * keys, buffers.query[t], keys);
            give_row(to.key + at * keys, buffers.write[(W - 1) * C + t], keys);
            if constexpr (W == 2) {
                give_row(to.write + at * keys, buffers.write[t], keys);
                give_row(to.read + at * keys, buffers.read[t], keys);
            }
            if (in.decays == 1) to.log_decay[at] = sum(buffers.decay[t], keys);
            if (in.decays == keys && in.decays > 1)
                give_row(to.log_decay + at * keys, buffers.decay[t], keys);
        }
    }

    static real sum(const real *row, int64_t size) {
        Vector<real> sums = {};
        for (int64_t i = 0; i < padded<real>(size); i += lanes) sums += load(row + i);
        real total;
        store_sums_of_lanes<1>(&total, &sums);
        return total;
    }

    /* Elements at padding have no gradients. */
    void clear(const Task &task, int64_t t) const {
        const int64_t at = slot(task, t), keys = in.keys;
        std::fill_n(to.value + place(task, t), task.count, real(0));
        for (real *rows : {to.query, to.key, to.write, to.read})
            if (rows) std::fill_n(rows + at * keys, keys, real(0));
        if (to.log_decay) std::fill_n(to.log_decay + at * in.decays, in.decays, real(0));
        if (to.strength) to.strength[at] = 0;
    }
};

}  // namespace delta
}  // namespace threefold
