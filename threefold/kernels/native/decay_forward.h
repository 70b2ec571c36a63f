/* o_t = S₀ᵀ (q_t α_1⋯α_t) + Σ_{s≤t} scores_st v_s
 * S_T = (α_1⋯α_T) S₀ + Σ_s (k_s α_{s+1}⋯α_T)⊗v_s
 *
 * The memory with decays, T elements at a time. What depends on keys alone is computed for a block of
 * 64 elements; then, tile by tile of value columns, the block passes over a memory that stays in the
 * nearest cache.
 */
#pragma once

#include <atomic>

#include "decay_side.h"
#include "denormals.h"

namespace threefold {
namespace decay {

template <typename real>
inline Side<real> keys_side(Workspace<real> &workspace, const Inputs<real> &in) {
    const Decaying decaying = in.decays == 0   ? Decaying::none
                              : in.decays == 1 ? Decaying::shared
                                               : Decaying::each;
    return Side<real>(workspace, in.keys, decaying, in.bonus);
}

template <typename real>
inline Side<real> values_side(Workspace<real> &workspace, const Inputs<real> &in, int64_t columns) {
    return Side<real>(workspace, columns, in.log_decay_value.data ? Decaying::each : Decaying::none);
}

/* The buffers of one thread; on a null buffer it only counts the size of the workspace. */
template <typename real>
struct ForwardBuffers {
    Side<real> keys, values;
    int64_t tile, tiles;
    /* What a chunk reads from the memory, [T, tile]; memories as tiles [K, tile], one after another,
     * for each task. */
    Rows<real> read;
    real *memories;

    ForwardBuffers(Workspace<real> &workspace, const Inputs<real> &in, const Tasks &tasks)
        : keys(keys_side(workspace, in)),
          values(values_side(workspace, in, tasks.columns)),
          tile(cached_columns<real>(keys.width, values.width)),
          tiles((values.width + tile - 1) / tile),
          read{workspace.take(chunk * tile), tile},
          memories(workspace.take(tasks.together * tiles * keys.width * tile)) {}

    Rows<real> memory(int64_t task, int64_t number) const {
        return {memories + (task * tiles + number) * keys.width * tile, tile};
    }
};

template <typename real>
struct Forward {
    const Inputs<real> &in;
    const Tasks &tasks;
    real *out, *new_state, *checkpoints;
    /* Whether a log-decay was positive. */
    std::atomic<bool> &growth;

    /* Tasks of one row, block by block. */
    void run(int64_t first, int64_t count, const ForwardBuffers<real> &buffers) const {
        const FlushDenormals flush;
        const int64_t length = in.length_of(tasks.task(first).row);
        for (int64_t i = 0; i < count; ++i) load_memory(buffers, i, tasks.task(first + i));
        for (Place at{first, 0}; at.t < length; at = at.after(first, count, block_length)) {
            const Task task = tasks.task(at.index);
            if (checkpoints)
                store_memory(buffers, at.index - first, task,
                             checkpoints + in.checkpoint_of(task.row, task.head, at.t));
            block(task, buffers, at.index - first, at.t, at.after(first, count, block_length));
        }
        for (int64_t i = 0; i < count; ++i) end(buffers, i, tasks.task(first + i), length);
    }

private:
    Rows<real> out_of(const Task &task, int64_t t) const {
        const int64_t head = (task.row * in.length + t) * in.heads + task.head;
        return {out + head * in.values + task.first, in.heads * in.values};
    }

    /* The new state, also as the checkpoints of blocks that have no elements; outputs at padding. */
    void end(const ForwardBuffers<real> &buffers, int64_t index, const Task &task,
             int64_t length) const {
        store_memory(buffers, index, task, new_state + in.state_of(task.row, task.head));
        for (int64_t block = blocks_of(length); checkpoints && block < blocks_of(in.length); ++block)
            store_memory(buffers, index, task,
                         checkpoints + in.checkpoint_of(task.row, task.head, block * block_length));
        for (int64_t t = length; t < in.length; ++t) fill<real>(out_of(task, t)[0], 0, task.count, 0);
    }

    void load_memory(const ForwardBuffers<real> &buffers, int64_t index, const Task &task) const {
        const real *from = nullptr;
        if (in.state) from = in.state + in.state_of(task.row, task.head) + task.first;
        for (int64_t i = 0; i < buffers.tiles; ++i) {
            const int64_t first = i * buffers.tile, left = task.count - first;
            const bool given = from && left > 0;
            pack(buffers.memory(index, i), 0, buffers.keys.width, buffers.tile,
                 Elements<real>{given ? from + first : nullptr, in.values,
                                given ? std::min(buffers.tile, left) : 0, in.keys});
        }
    }

    void store_memory(const ForwardBuffers<real> &buffers, int64_t index, const Task &task,
                      real *to) const {
        for (int64_t first = 0; first < task.count; first += buffers.tile) {
            const int64_t size = std::min(buffers.tile, task.count - first);
            const Rows<real> tile = buffers.memory(index, first / buffers.tile);
            for (int64_t k = 0; k < in.keys; ++k)
                for_each_vector<real>(0, vectors_of<real>(size), size, [&](int64_t i, auto lanes) {
                    lanes.store(to + k * in.values + task.first + first + i, load(tile[k] + i));
                });
        }
    }

    void block(const Task &task, const ForwardBuffers<real> &buffers, int64_t index, int64_t first,
               Place next) const {
        const SideElements<real> next_keys = in.keys_of(tasks.task(next.index), next.t);
        const SideElements<real> next_values = in.values_of(tasks.task(next.index), next.t);
        const Side<real> &keys = buffers.keys, values = buffers.values.narrowed(task.count);
        const int64_t count = std::min(block_length, in.length_of(task.row) - first);
        prepare(task, keys, values, first, count);
        for (int64_t column = 0; column < values.width; column += buffers.tile) {
            const int64_t width = std::min(buffers.tile, values.width - column);
            const Rows<real> memory = buffers.memory(index, column / buffers.tile);
            for (int64_t t = 0; t < count; t += chunk) {
                const int64_t number = t / chunk;
                if (column == 0) {
                    next_keys.fetch(t, t + chunk);
                    next_values.fetch(t, t + chunk);
                }
                product<real, false>(buffers.read, keys.reader_before.at(t, 0), memory, keys.width,
                                     width);
                const Rows<real> to = out_of(task, first + t).at(0, column);
                values.decaying == Decaying::none
                    ? emit<false>(to, buffers.read, keys.scores_of(t), values, t, count, column)
                    : emit<true>(to, buffers.read, keys.scores_of(t), values, t, count, column);
                update<real>(memory, memory, keys.writer_after.at(t, 0),
                             values.writer_after.at(t, column),
                             {keys.whole_of(number), values.whole_of(number, column)}, keys.width,
                             width);
            }
        }
    }

    void prepare(const Task &task, const Side<real> &keys, const Side<real> &values, int64_t first,
                 int64_t count) const {
        const SideElements<real> of_keys = in.keys_of(task, first);
        const SideElements<real> of_values = in.values_of(task, first);
        bool grows = false;
        if (in.bonus)
            pack<real>({keys.bonus, 0}, 0, 1, keys.width,
                       {in.bonus + task.head * in.keys, 0, in.keys, 1});
        for (int64_t t = 0; t < count; t += chunk) {
            grows |= pack(keys, of_keys, t);
            grows |= pack(values, of_values, t);
            prepare_readers(keys, t);
            prepare_writers(keys, t);
            prepare_writers(values, t);
        }
        if (grows) growth.store(true, std::memory_order_relaxed);
    }

    /* The outputs of a chunk: what it reads from the memory, and from its own elements up to t. */
    template <bool Each>
    void emit(Rows<real> to, Rows<const real> read, const real *scores, const Side<real> &values,
              int64_t first, int64_t count, int64_t column) const {
        const Rows<const real> writer = values.writer.at(first, column);
        const Rows<const real> decays = Each ? values.decay.at(first, column) : Rows<real>{};
        const int64_t size = std::min(read.stride, values.size - column), last = count - first;
        for_each_vector<real>(0, vectors_of<real>(size), size, [&](int64_t i, auto lanes) {
            Vector<real> written[chunk], start = splat<real>(1);
            for (int s = 0; s < chunk; ++s) written[s] = load(writer[s] + i);
            for (int t = 0; t < chunk; ++t) {
                Vector<real> sum = load(read[t] + i);
                if (Each) {
                    const Vector<real> decay = load(decays[t] + i);
                    start *= decay;
                    sum *= start;
                    for (int s = 0; s < t; ++s) written[s] *= decay;
                }
                for (int s = 0; s <= t; ++s) sum += scores[s * chunk + t] * written[s];
                if (t < last) lanes.store(to[t] + i, sum);
            }
        });
    }
};

}  // namespace decay
}  // namespace threefold
