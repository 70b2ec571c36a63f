/* What the memories with decays and those that erase share: rows of tiles, inputs with strides, the
 * workspace of a thread, and how value columns are divided among threads.
 */
#pragma once

#include "common.h"
#include "transpose.h"

namespace threefold {

/* Elements between two checkpoints of a memory. */
constexpr int64_t block_length = 64;
inline int64_t blocks_of(int64_t length) { return (length + block_length - 1) / block_length; }

template <typename real>
constexpr int64_t tile_columns = 2 * lanes_of<real>;

/* A size rounded up to full tiles. */
template <typename real>
inline int64_t padded(int64_t size) {
    return (size + tile_columns<real> - 1) / tile_columns<real> * tile_columns<real>;
}

/* Rows of numbers, `stride` apart. */
template <typename real>
struct Rows {
    real *data;
    int64_t stride;

    real *operator[](int64_t row) const { return data + row * stride; }
    Rows at(int64_t row, int64_t column) const { return {data + row * stride + column, stride}; }
    operator Rows<const real>() const { return {data, stride}; }
};

/* A vector anywhere in memory. Unlike a copy of bytes, which may touch anything, it only touches
 * numbers of its kind, so that pointers and sizes stay in registers around it. */
template <typename real>
struct Anywhere;
template <>
struct Anywhere<float> {
    typedef float Vector __attribute__((vector_size(THREEFOLD_VECTOR_BYTES), aligned(4)));
};
template <>
struct Anywhere<double> {
    typedef double Vector __attribute__((vector_size(THREEFOLD_VECTOR_BYTES), aligned(8)));
};

template <typename real>
inline Vector<real> load(const real *from) {
    return *reinterpret_cast<const typename Anywhere<real>::Vector *>(from);
}

template <typename real>
inline void store(real *to, Vector<real> vector) {
    *reinterpret_cast<typename Anywhere<real>::Vector *>(to) = vector;
}

/* Hands out pieces of a buffer that the caller owns; with a null buffer it counts their size. */
template <typename real>
struct Workspace {
    real *base;
    int64_t used = 0;

    real *take(int64_t count) {
        constexpr int64_t line = 64 / sizeof(real);
        real *piece = base ? base + used : nullptr;
        used += (count + line - 1) / line * line;
        return piece;
    }
};

/* [B, L, heads, size] with any strides but the last, which is 1. */
template <typename real>
struct Field {
    const real *data;
    const int64_t *strides;

    const real *at(int64_t row, int64_t t, int64_t head) const {
        return data + row * strides[0] + t * strides[1] + head * strides[2];
    }
};

/* Value columns first … first + count of one head of one row. */
struct Task {
    int64_t row, head, part, first, count;
};

/* Into how many parts the value columns of each memory are cut, at most `tiles`, so that no thread
 * waits for long. Each part repeats what is done for all columns, this share of the whole. */
inline int64_t choose_parts(int64_t memories, int64_t tiles, int64_t threads, double repeated) {
    int64_t parts = 1;
    double best = 0;
    for (int64_t n = 1; n <= std::max<int64_t>(1, std::min(tiles, threads)); ++n) {
        const double rounds = double((memories * n + threads - 1) / threads);
        const double time = rounds * (repeated + 1.0 / double(n));
        if (n > 1 && time >= best) continue;
        best = time;
        parts = n;
    }
    return parts;
}

}  // namespace threefold
