/* C (+)= A·B,   S = D ⊙ S + Aᵀ·B,   C = A·Sᵀ        for A and C of T rows, T = 8
 *
 * The three products of a few elements with a memory S. They are computed in
 * tiles of 4 rows × 2 vectors, whose 8 sums stay in registers: each number that is loaded is used
 * several times, so the arithmetic is the limit, not the cache. Every size is padded to whole
 * tiles by the caller; the padding must hold numbers, 0 where they are summed over.
 */
#pragma once

#include "memory_tiles.h"

/* Functions whose arrays become registers only if they are inlined. */
#define THREEFOLD_WITHIN inline __attribute__((always_inline))

namespace threefold {
namespace decay {

/* T: elements that are applied to the memory together. */
constexpr int chunk = 8;
constexpr int tile_rows = 4;

/* The sums of a tile, C[4, 2 vectors] (+)= A[4, inner]·B[inner, 2 vectors]. Not inlined, because the
 * loop needs every register. */
template <typename real, bool Add>
THREEFOLD_APART void product_tile(Rows<real> c, Rows<const real> a, Rows<const real> b,
                                  int64_t inner) {
    constexpr int64_t lanes = lanes_of<real>;
    Vector<real> sum[tile_rows][2];
#pragma GCC unroll 4
    for (int r = 0; r < tile_rows; ++r) {
        sum[r][0] = Add ? load(c[r]) : Vector<real>{};
        sum[r][1] = Add ? load(c[r] + lanes) : Vector<real>{};
    }
    const real *left[tile_rows] = {a[0], a[1], a[2], a[3]}, *right = b[0];
    for (int64_t i = 0; i < inner; ++i, right += b.stride) {
        const Vector<real> first = load(right), second = load(right + lanes);
        for (int r = 0; r < tile_rows; ++r) {
            sum[r][0] += left[r][i] * first;
            sum[r][1] += left[r][i] * second;
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < tile_rows; ++r) {
        store(c[r], sum[r][0]);
        store(c[r] + lanes, sum[r][1]);
    }
}

/* C[T, columns] = A[T, inner]·B[inner, columns], or that added to C. */
template <typename real, bool Add>
inline void product(Rows<real> c, Rows<const real> a, Rows<const real> b, int64_t inner,
                    int64_t columns) {
    for (int64_t column = 0; column < columns; column += tile_columns<real>)
        for (int t = 0; t < chunk; t += tile_rows)
            product_tile<real, Add>(c.at(t, column), a.at(t, 0), b.at(0, column), inner);
}

/* What the memory is multiplied by: one number for each row, for each column, or null. */
template <typename real>
struct Decays {
    const real *rows, *columns;
};

template <typename real, bool ByRow, bool ByColumn>
inline void update(Rows<real> to, Rows<const real> from, Rows<const real> a, Rows<const real> b,
                   Decays<real> decays, int64_t rows, int64_t columns) {
    constexpr int64_t lanes = lanes_of<real>;
    for (int64_t row = 0; row < rows; row += tile_rows)
        for (int64_t column = 0; column < columns; column += tile_columns<real>) {
            Vector<real> sum[tile_rows][2];
            for (int r = 0; r < tile_rows; ++r) {
                sum[r][0] = load(from[row + r] + column);
                sum[r][1] = load(from[row + r] + column + lanes);
                if (ByRow) sum[r][0] *= decays.rows[row + r];
                if (ByRow) sum[r][1] *= decays.rows[row + r];
                if (ByColumn) sum[r][0] *= load(decays.columns + column);
                if (ByColumn) sum[r][1] *= load(decays.columns + column + lanes);
            }
            for (int s = 0; s < chunk; ++s) {
                const Vector<real> first = load(b[s] + column);
                const Vector<real> second = load(b[s] + column + lanes);
                for (int r = 0; r < tile_rows; ++r) {
                    sum[r][0] += a[s][row + r] * first;
                    sum[r][1] += a[s][row + r] * second;
                }
            }
            for (int r = 0; r < tile_rows; ++r) {
                store(to[row + r] + column, sum[r][0]);
                store(to[row + r] + column + lanes, sum[r][1]);
            }
        }
}

/* to[rows, columns] = decays ⊙ from + A[T, rows]ᵀ·B[T, columns]; to may be from. */
template <typename real>
inline void update(Rows<real> to, Rows<const real> from, Rows<const real> a, Rows<const real> b,
                   Decays<real> decays, int64_t rows, int64_t columns) {
    if (decays.rows && decays.columns)
        update<real, true, true>(to, from, a, b, decays, rows, columns);
    else if (decays.rows)
        update<real, true, false>(to, from, a, b, decays, rows, columns);
    else if (decays.columns)
        update<real, false, true>(to, from, a, b, decays, rows, columns);
    else
        update<real, false, false>(to, from, a, b, decays, rows, columns);
}

template <typename real>
constexpr auto every_lane = std::make_integer_sequence<int, lanes_of<real>>{};

/* Of each pair of neighbouring groups of `Group` lanes: those of a added up in the first, those of
 * b in the second. The first two shuffles stay in their lanes: a blend each. */
template <typename real, int Group, int... lane>
inline Vector<real> add_neighbours(Vector<real> a, Vector<real> b,
                                   std::integer_sequence<int, lane...>) {
    constexpr int n = lanes_of<real>;
    const Vector<real> kept = pick<real, (lane & Group ? n + lane : lane)...>(a, b);
    const Vector<real> crossed = pick<real, (lane & Group ? lane : n + lane)...>(a, b);
    return kept + pick<real, (lane ^ Group)...>(crossed, crossed);
}

/* sums[i] = the sum of the lanes of vectors[i], i < T, which are used up. */
template <typename real, int Group = 1, int Count = chunk>
inline void add_lanes(Vector<real> *vectors, real *sums) {
    constexpr int lanes = lanes_of<real>;
    if constexpr (Count > 1 && Group < lanes) {
        for (int i = 0; i < Count / 2; ++i)
            vectors[i] = add_neighbours<real, Group>(vectors[2 * i], vectors[2 * i + 1],
                                                     every_lane<real>);
        add_lanes<real, 2 * Group, Count / 2>(vectors, sums);
    } else if constexpr (Group == lanes) {
        for (int i = 0; i < Count; ++i) store(sums + i * lanes, vectors[i]);
    } else {
        for (int i = 0; i < chunk; ++i) {
            sums[i] = vectors[0][i];
            for (int lane = i + chunk; lane < lanes; lane += chunk) sums[i] += vectors[0][lane];
        }
    }
}

/* A chunk's numbers side by side, and how many vectors they fill. */
template <typename real>
constexpr int chunk_vectors = chunk > lanes_of<real> ? chunk / lanes_of<real> : 1;
template <typename real>
constexpr int chunk_width = chunk_vectors<real> * lanes_of<real>;

/* to[columns, T] = from[T, columns]ᵀ */
template <typename real>
inline void turn(real *to, Rows<const real> from, int64_t columns) {
    if constexpr (chunk == lanes_of<real>) {
        for (int64_t column = 0; column < columns; column += chunk, to += chunk * chunk) {
            Vector<real> square[chunk];
            for (int t = 0; t < chunk; ++t) square[t] = load(from[t] + column);
            transpose<real>(square);
            for (int i = 0; i < chunk; ++i) store(to + i * chunk, square[i]);
        }
    } else {
        for (int64_t column = 0; column < columns; ++column, to += chunk_width<real>) {
            for (int t = 0; t < chunk; ++t) to[t] = from[t][column];
            for (int t = chunk; t < chunk_width<real>; ++t) to[t] = 0;
        }
    }
}

/* C[T, rows] = A[T, columns]·S[rows, columns]ᵀ, A being turned: [columns, T]. */
template <typename real>
THREEFOLD_APART void product_turned(Rows<real> c, const real *turned, Rows<const real> s,
                                    int64_t rows, int64_t columns) {
    constexpr int vectors = chunk_vectors<real>, some = 8 / vectors, lanes = lanes_of<real>;
    for (int64_t row = 0; row < rows; row += some) {
        Vector<real> sum[some][vectors] = {};
        const real *left = s[row], *right = turned;
        for (int64_t column = 0; column < columns; ++column, right += chunk_width<real>)
            for (int r = 0; r < some; ++r)
                for (int v = 0; v < vectors; ++v)
                    sum[r][v] += left[r * s.stride + column] * load(right + v * lanes);
        if constexpr (chunk == lanes) {
            Vector<real> square[chunk];
            for (int r = 0; r < chunk; ++r) square[r] = sum[r][0];
            transpose<real>(square);
            for (int t = 0; t < chunk; ++t) store(c[t] + row, square[t]);
        } else {
            for (int t = 0; t < chunk; ++t)
                for (int r = 0; r < some; ++r) c[t][row + r] = sum[r][t / lanes][t % lanes];
        }
    }
}

}  // namespace decay
}  // namespace threefold
