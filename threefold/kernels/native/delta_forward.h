/* m, o = readers·S_0 + what the chunk itself wrote;   S_C = D_{0→C} S_0 + writersᵀ·x
 *
 * The forward pass of some value columns of each of some heads: a chunk of C elements at a time, each
 * column independently, so that any split of the columns gives the same bits.
 */
#pragma once

#include "delta_elements.h"

namespace threefold {
namespace delta {

template <typename real>
struct Outputs {
    real *out, *new_state;
    /* m for every element and the memory before every block; null where they are not wanted. */
    real *moved, *checkpoints;
};

template <typename real, int C, int W>
struct ForwardBuffers {
    Elements<real, C, W> elements;
    /* [K, columns] of each task, and of the present one. */
    Rows<real> memories, memory;
    /* [2C, columns]: m, then o; [W·C, columns]; [C, columns]. */
    Rows<real> reads, written, value;

    ForwardBuffers(Workspace<real> &workspace, const Inputs<real> &in, const Tasks &tasks)
        : elements(workspace, in.keys),
          memories(take_rows(workspace, tasks.together * padded<real>(in.keys), tasks.columns())),
          memory(memories),
          reads(take_rows(workspace, 2 * C, tasks.columns())),
          written(take_rows(workspace, W * C, tasks.columns())),
          value(take_rows(workspace, C, tasks.columns())) {}

    void turn_to(int64_t task) { memory.data = memories[task * padded<real>(elements.keys)]; }
};

template <typename real, int C, int W>
struct Forward {
    using Buffers = ForwardBuffers<real, C, W>;
    const Inputs<real> &in;
    const Outputs<real> &to;

    void run(const Tasks &tasks, int64_t first, int64_t count, Buffers buffers) const {
        const int64_t end = in.length_of(tasks.task(first).row);
        const auto each = [&](const auto &body) {
            for (int64_t i = 0; i < count; ++i) {
                buffers.turn_to(i);
                body(tasks.task(first + i));
            }
        };
        each([&](const Task &task) { begin(task, buffers); });
        for (int64_t block = 0; block < blocks_of(end); ++block)
            each([&](const Task &task) { run_block(task, buffers, block, end); });
        each([&](const Task &task) {
            save(task, buffers, to.new_state + in.memory(task.row, task.head));
            finish(task, end);
        });
    }

private:
    void run_block(const Task &task, Buffers &buffers, int64_t block, int64_t end) const {
        if (to.checkpoints && block)
            save(task, buffers, to.checkpoints + in.checkpoint(task.row, task.head, block));
        const int64_t last = std::min(end, (block + 1) * block_length);
        for (int64_t first = block * block_length; first < last; first += C)
            advance(task, buffers, first, std::min<int64_t>(C, end - first));
    }

    real *place(real *rows, const Task &task, int64_t t) const {
        return rows + in.element(task.row, t, task.head) * in.values + task.first;
    }

    void begin(const Task &task, Buffers &buffers) const {
        const int64_t from = in.memory(task.row, task.head) + task.first;
        for (int64_t i = 0; i < padded<real>(in.keys); ++i)
            if (in.state && i < in.keys)
                copy_row(buffers.memory[i], in.state + from + i * in.values, task.count);
            else
                fill_row(buffers.memory[i], real(0), task.count);
    }

    void save(const Task &task, const Buffers &buffers, real *state) const {
        for (int64_t i = 0; i < in.keys; ++i)
            give_row(state + i * in.values + task.first, buffers.memory[i], task.count);
    }

    /* Zeros for padding elements. */
    void finish(const Task &task, int64_t end) const {
        for (real *rows : {to.out, to.moved})
            for (int64_t t = end; rows && t < in.length; ++t)
                std::fill_n(place(rows, task, t), task.count, real(0));
        for (int64_t block = std::max<int64_t>(1, blocks_of(end));
             to.checkpoints && block < blocks_of(in.length); ++block)
            for (int64_t i = 0; i < in.keys; ++i)
                std::fill_n(to.checkpoints + in.checkpoint(task.row, task.head, block) +
                                i * in.values + task.first,
                            task.count, real(0));
    }

    void advance(const Task &task, Buffers &buffers, int64_t first, int64_t count) const {
        const int64_t columns = padded<real>(task.count);
        auto &elements = buffers.elements;
        elements.prepare(in, task.row, task.head, first, count);
        product<2 * C, real>(buffers.reads, elements.readers, buffers.memory, in.keys, columns);
        real strength[C] = {};
        for (int t = 0; t < C; ++t) {
            if (t >= count) {
                fill_row(buffers.value[t], real(0), task.count);
                continue;
            }
            copy_row(buffers.value[t], in.value.at(task.row, first + t, task.head) + task.first,
                     task.count);
            if constexpr (W == 1) strength[t] = *in.strength.at(task.row, first + t, task.head);
        }
        for (int64_t at = 0; at < columns; at += lanes_of<real>) follow(buffers, strength, at);
        /* Padding elements must not write, even if the memory contains NaN. */
        for (int64_t t = count; t < C; ++t)
            for (int w = 0; w < W; ++w)
                fill_row(buffers.written[w * C + t], real(0), task.count);
        update<W * C, Decay::by_row, real>(buffers.memory, buffers.memory, elements.writers,
                                           buffers.written, elements.whole, padded<real>(in.keys),
                                           columns);
        for (int t = 0; t < count; ++t) {
            give_row(place(to.out, task, first + t), buffers.reads[C + t], task.count);
            if (to.moved)
                give_row(place(to.moved, task, first + t), buffers.reads[t], task.count);
        }
    }

    /* One vector of columns: each element sees what those before it in the chunk wrote. */
    void follow(Buffers &buffers, const real *strength, int64_t at) const {
        const auto &elements = buffers.elements;
        Vector<real> x[W][C];
        for (int t = 0; t < C; ++t) {
            Vector<real> moved = load(buffers.reads[t] + at);
            Vector<real> out = load(buffers.reads[C + t] + at);
            for (int w = 0; w < W; ++w)
                for (int s = 0; s < t; ++s) {
                    moved += elements.reading(w, t, s) * x[w][s];
                    out += elements.querying(w, t, s) * x[w][s];
                }
            const Vector<real> value = load(buffers.value[t] + at);
            x[0][t] = W == 1 ? strength[t] * (value - moved) : moved;
            if constexpr (W == 2) x[1][t] = value;
            for (int w = 0; w < W; ++w) {
                out += elements.querying(w, t, t) * x[w][t];
                store(buffers.written[w * C + t] + at, x[w][t]);
            }
            store(buffers.reads[t] + at, moved);
            store(buffers.reads[C + t] + at, out);
        }
    }
};

}  // namespace delta
}  // namespace threefold
