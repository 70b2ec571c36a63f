/* S_t = Diag(α_t) S_{t−1} Diag(α'_t) + k_t⊗v_t,   o_t = S_tᵀ q_t
 *
 * The inputs of the memory with decays, and how threads divide them: a task is one head of one row,
 * or a part of its value columns, which are independent of each other in the memory.
 */
#pragma once

#include "decay_tiles.h"

namespace threefold {
namespace decay {

constexpr int64_t block_chunks = block_length / chunk;
/* `count` rounded up to full chunks; the added elements do nothing. */
inline int64_t whole_chunks(int64_t count) { return (count + chunk - 1) / chunk * chunk; }

/* `count` elements of one row and head of a tensor, each `size` numbers. */
template <typename real>
struct Elements {
    const real *data = nullptr;
    int64_t stride = 0, size = 0, count = 0;
};

/* Prefetches elements first … last. Heads are adjacent in memory, so the elements of one head are too
 * far apart for the hardware prefetcher. */
template <typename real>
inline void fetch(const Elements<real> &elements, int64_t first, int64_t last) {
    for (int64_t t = first; t < std::min(last, elements.count); ++t)
        for (int64_t i = 0; i < elements.size; i += int64_t(64 / sizeof(real)))
            __builtin_prefetch(elements.data + t * elements.stride + i, 0, 2);
}

/* What the elements of a task have on the keys' side or on the values' side. */
template <typename real>
struct SideElements {
    Elements<real> reader, writer, log_decay;

    void fetch(int64_t first, int64_t last) const {
        for (const Elements<real> *each : {&reader, &writer, &log_decay})
            decay::fetch(*each, first, last);
    }
};

template <typename real>
struct Inputs {
    Field<real> query, key, value, log_decay, log_decay_value;
    const real *bonus, *state;
    const int64_t *lengths;
    int64_t batch, length, heads, groups, keys, values;
    /* Numbers of log_decay an element has: K, 1, or 0 where there is none. */
    int64_t decays;
    int64_t threads;

    int64_t length_of(int64_t row) const { return lengths ? lengths[row] : length; }
    int64_t heads_of_group() const { return heads / groups; }
    /* Of [B, H, K, V]. */
    int64_t state_of(int64_t row, int64_t head) const {
        return (row * heads + head) * keys * values;
    }
    /* Of [B, H, blocks, K, V], the memory before t. */
    int64_t checkpoint_of(int64_t row, int64_t head, int64_t t) const {
        return ((row * heads + head) * blocks_of(length) + t / block_length) * keys * values;
    }

    /* What a task reads of the block from `first` on: queries, keys and their decays, ... */
    SideElements<real> keys_of(const Task &task, int64_t first) const {
        const int64_t group = task.head / heads_of_group();
        return {elements(query, task, group, first, 0, keys),
                elements(key, task, group, first, 0, keys),
                elements(log_decay, task, task.head, first, 0, decays)};
    }
    /* ... gradients of outputs if there are, values and their decays. */
    SideElements<real> values_of(const Task &task, int64_t first, Field<real> grad_out = {}) const {
        return {elements(grad_out, task, task.head, first, task.first, task.count),
                elements(value, task, task.head, first, task.first, task.count),
                elements(log_decay_value, task, task.head, first, task.first, task.count)};
    }

    int status() const {
        if (batch < 0 || length < 1 || heads < 1 || groups < 1 || heads % groups || keys < 1 ||
            values < 1 || (decays != 0 && decays != 1 && decays != keys))
            return THREEFOLD_BAD_SIZE;
        for (int64_t row = 0; row < batch; ++row)
            if (length_of(row) < 0 || length_of(row) > length) return THREEFOLD_BAD_LENGTH;
        return THREEFOLD_OK;
    }

private:
    Elements<real> elements(const Field<real> &field, const Task &task, int64_t head, int64_t first,
                            int64_t column, int64_t size) const {
        const int64_t count = std::min(block_length, length_of(task.row) - first);
        if (!field.data || first < 0 || count <= 0) return {};
        return {field.at(task.row, first, head) + column, field.strides[1], size, count};
    }
};

/* Block `t` of task `index`, and what comes after it: the next of some tasks, or the next block. */
struct Place {
    int64_t index, t;

    Place after(int64_t first, int64_t count, int64_t step) const {
        return index + 1 < first + count ? Place{index + 1, t} : Place{first, t + step};
    }
};

/* How B × H memories are divided into tasks for threads. */
struct Tasks {
    int64_t memories, heads, values, threads, parts = 1, columns = 0, together = 1;

    template <typename real>
    static Tasks of(const Inputs<real> &in) {
        const int64_t numbers = in.batch * in.heads * in.length * in.keys * in.values / 8;
        Tasks tasks{in.batch * in.heads, in.heads, in.values, useful_threads(in.threads, numbers)};
        tasks.choose_columns(padded<real>(in.values) / tile_columns<real>, tile_columns<real>);
        /* Heads lie side by side in their inputs, so that some are done together, block by block,
         * if their memories fit into the cache. */
        const int64_t memory = in.keys * tasks.columns * int64_t(sizeof(real));
        tasks.together = std::max<int64_t>(1, std::min<int64_t>(4, 65536 / memory));
        return tasks;
    }

    int64_t count() const { return memories * parts; }
    int64_t pieces() const { return std::max<int64_t>(1, std::min(threads, count())); }

    Task task(int64_t index) const {
        const int64_t memory = index / parts, part = index % parts, first = part * columns;
        return {memory / heads, memory % heads, part, first, std::min(columns, values - first)};
    }

    /* body(piece, first task, number of tasks), these being of one row. */
    template <typename Body>
    void run(const Body &body) const {
        const int64_t row = heads * parts;
        split(pieces(), pieces(), [&](int64_t begin, int64_t end) {
            for (int64_t piece = begin; piece < end; ++piece) {
                const int64_t last = count() * (piece + 1) / pieces();
                for (int64_t i = count() * piece / pieces(), some; i < last; i += some) {
                    some = std::min({together, last - i, row - i % row});
                    body(piece, i, some);
                }
            }
        });
    }

private:
    void choose_columns(int64_t tiles, int64_t tile) {
        const int64_t wanted = choose_parts(memories, tiles, threads, 0.2);
        columns = (tiles + wanted - 1) / wanted * tile;
        parts = (values + columns - 1) / columns;
    }
};

/* Columns of a memory of `rows` rows that fit in the nearest cache with their operands. */
template <typename real>
inline int64_t cached_columns(int64_t rows, int64_t columns) {
    constexpr int64_t bytes = 16384;
    const int64_t fit = bytes / int64_t(sizeof(real)) / rows / tile_columns<real> * tile_columns<real>;
    return std::min(columns, std::max(tile_columns<real>, fit));
}

}  // namespace decay
}  // namespace threefold
