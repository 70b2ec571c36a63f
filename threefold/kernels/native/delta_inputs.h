/* delta     S_t = (I − β_t k_t k_tᵀ) Diag(α_t) S_{t−1} + β_t k_t⊗v_t        o_t = S_tᵀ q_t
 * rank one  S_t = (Diag(α_t) + a_t b_tᵀ) S_{t−1} + k_t⊗v_t
 *
 * The inputs of a memory that erases, and how threads divide them: a task is one head of one row, or
 * a part of its value columns, which are independent of each other in the memory.
 */
#pragma once

#include "delta_products.h"
#include "denormals.h"

namespace threefold {
namespace delta {

/* Elements that are applied to the memory together: enough that matrix products do most of the work,
 * few enough that the interaction of the elements costs little in comparison. */
constexpr int chunk = 4;
constexpr int64_t block_chunks = block_length / chunk;
/* Value columns are divided among threads in multiples of this. */
constexpr int64_t unit_columns = 16;

template <typename real>
inline Rows<real> take_rows(Workspace<real> &own, int64_t count, int64_t size) {
    const int64_t stride = row_size<real>(size);
    return {own.take(count * stride), stride};
}

template <typename real>
struct Inputs {
    Field<real> query, key, value, log_decay, strength, write, read;
    const real *state;
    const int64_t *lengths;
    int64_t batch, length, heads, groups, keys, values;
    /* Numbers of log_decay an element has: K, 1, or 0 where there is none. */
    int64_t decays;
    int64_t parts, threads;

    int64_t length_of(int64_t row) const { return lengths ? lengths[row] : length; }
    int64_t group_of(int64_t head) const { return head / (heads / groups); }
    /* Of [B, L, H]. */
    int64_t element(int64_t row, int64_t t, int64_t head) const {
        return (row * length + t) * heads + head;
    }
    /* Of [B, H, K, V]. */
    int64_t memory(int64_t row, int64_t head) const { return (row * heads + head) * keys * values; }
    /* Of [B, H, blocks − 1, K, V]: the memory before block 1, 2, … */
    int64_t checkpoint(int64_t row, int64_t head, int64_t block) const {
        return ((row * heads + head) * (blocks_of(length) - 1) + block - 1) * keys * values;
    }

    int status() const {
        if (batch < 0 || length < 1 || heads < 1 || groups < 1 || heads % groups || keys < 1 ||
            values < 1 || (decays != 0 && decays != 1 && decays != keys) || parts < 1 ||
            parts > (values + unit_columns - 1) / unit_columns)
            return THREEFOLD_BAD_SIZE;
        for (int64_t row = 0; row < batch; ++row)
            if (length_of(row) < 0 || length_of(row) > length) return THREEFOLD_BAD_LENGTH;
        return THREEFOLD_OK;
    }
};

/* How B × H × parts tasks are shared among threads. */
struct Tasks {
    int64_t batch, heads, parts, values, threads, together;

    template <typename real>
    explicit Tasks(const Inputs<real> &in)
        : batch(in.batch), heads(in.heads), parts(in.parts), values(in.values) {
        const int64_t work = in.batch * in.heads * in.length * in.keys * in.values / 4;
        threads = std::max<int64_t>(1, std::min(useful_threads(in.threads, work), count()));
        /* Heads lie side by side in what is read and written, so that some are done together, block
         * by block: a long sequence is walked through once for all of them. */
        const int64_t memory = in.keys * columns() * int64_t(sizeof(real));
        together = std::max<int64_t>(1, std::min<int64_t>(4, 131072 / memory));
    }

    int64_t count() const { return batch * heads * parts; }

    /* The most columns that a task has. */
    int64_t columns() const {
        const int64_t units = (values + unit_columns - 1) / unit_columns;
        return (units + parts - 1) / parts * unit_columns;
    }

    Task task(int64_t index) const {
        const int64_t units = (values + unit_columns - 1) / unit_columns;
        const int64_t part = index % parts, memory = index / parts;
        const int64_t first = units * part / parts * unit_columns;
        const int64_t last = std::min(values, units * (part + 1) / parts * unit_columns);
        return {memory / heads, memory % heads, part, first, last - first};
    }

    /* body(thread, first task, number of tasks), these being of one row. */
    template <typename Body>
    void run(const Body &body) const {
        split(threads, threads, [&](int64_t begin, int64_t end) {
            const FlushDenormals flush;
            for (int64_t thread = begin; thread < end; ++thread) {
                const int64_t first = count() * thread / threads;
                const int64_t last = count() * (thread + 1) / threads;
                for (int64_t i = first, some; i < last; i += some) {
                    some = std::min({together, last - i, heads * parts - i % (heads * parts)});
                    body(thread, i, some);
                }
            }
        });
    }
};

/* A row of `size` numbers, with zeros after it where whole tiles end. Rows are short, so calls to
 * memcpy would cost more than the copying. */
template <typename real>
inline void copy_row(real *to, const real *from, int64_t size) {
    constexpr int64_t lanes = lanes_of<real>;
    const int64_t whole = size / lanes * lanes, end = padded<real>(size);
    for (int64_t i = 0; i < whole; i += lanes) store(to + i, load(from + i));
    for (int64_t i = whole; i < end; i += lanes) store(to + i, Vector<real>{});
    for (int64_t i = whole; i < size; ++i) to[i] = from[i];
}

template <typename real>
inline void fill_row(real *to, real value, int64_t size) {
    const Vector<real> vector = splat<real>(value);
    for (int64_t i = 0; i < padded<real>(size); i += lanes_of<real>) store(to + i, vector);
}

/* Copies the `size` numbers of a padded row to a row without padding. */
template <typename real>
inline void give_row(real *to, const real *from, int64_t size) {
    constexpr int64_t lanes = lanes_of<real>;
    const int64_t whole = size / lanes * lanes;
    for (int64_t i = 0; i < whole; i += lanes) store(to + i, load(from + i));
    for (int64_t i = whole; i < size; ++i) to[i] = from[i];
}

}  // namespace delta
}  // namespace threefold
