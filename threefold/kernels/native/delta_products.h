/* C = A·B,   S = D ⊙ S + Aᵀ·B,   C = A·Sᵀ,   d = Σ_rows R ⊙ S        A of a few rows, S a memory
 *
 * The products of a few elements with a memory. They are computed in tiles of
 * 4 rows × 2 vectors, whose 8 sums stay in registers: each number that is loaded is used several
 * times, so the arithmetic is the limit and not the cache. Every size is padded to whole tiles by
 * the caller, and the padding holds zeros.
 */
#pragma once

#include "memory_tiles.h"

namespace threefold {
namespace delta {

/* From one row to the next: whole tiles of every variant, and an odd number of cache lines, so that
 * a column of tiles does not fall into few sets of the cache. */
template <typename real>
inline int64_t row_size(int64_t size) {
    constexpr int64_t line = 64 / sizeof(real);
    return (size + 2 * line - 1) / (2 * line) * (2 * line) + line;
}

/* C[T, columns] = A[T, inner]·B[inner, columns]. */
template <int T, typename real>
THREEFOLD_APART void product(Rows<real> c, Rows<const real> a, Rows<const real> b, int64_t inner,
                             int64_t columns) {
    constexpr int rows = T < 4 ? T : 4;
    constexpr int64_t lanes = lanes_of<real>;
    for (int64_t column = 0; column < columns; column += 2 * lanes)
        for (int t = 0; t < T; t += rows) {
            Vector<real> sum[rows][2] = {};
            const real *left = a[t], *right = b[0] + column;
            for (int64_t i = 0; i < inner; ++i, right += b.stride) {
                const Vector<real> first = load(right), second = load(right + lanes);
                for (int r = 0; r < rows; ++r) {
                    sum[r][0] += left[r * a.stride + i] * first;
                    sum[r][1] += left[r * a.stride + i] * second;
                }
            }
            for (int r = 0; r < rows; ++r)
                for (int v = 0; v < 2; ++v) store(c[t + r] + column + v * lanes, sum[r][v]);
        }
}

/* Which numbers of a memory share a decay. */
enum class Decay { by_row, by_column };

/* to[rows, columns] = decay ⊙ from + A[T, rows]ᵀ·B[T, columns]; to may be from. */
template <int T, Decay By, typename real>
THREEFOLD_APART void update(Rows<real> to, Rows<const real> from, Rows<const real> a,
                            Rows<const real> b, const real *decay, int64_t rows, int64_t columns) {
    constexpr int64_t lanes = lanes_of<real>;
    for (int64_t row = 0; row < rows; row += 4)
        for (int64_t column = 0; column < columns; column += 2 * lanes) {
            Vector<real> sum[4][2];
            for (int r = 0; r < 4; ++r)
                for (int v = 0; v < 2; ++v) {
                    const int64_t at = column + v * lanes;
                    sum[r][v] = load(from[row + r] + at);
                    if constexpr (By == Decay::by_row)
                        sum[r][v] *= decay[row + r];
                    else
                        sum[r][v] *= load(decay + at);
                }
            for (int t = 0; t < T; ++t) {
                const Vector<real> first = load(b[t] + column);
                const Vector<real> second = load(b[t] + column + lanes);
                for (int r = 0; r < 4; ++r) {
                    sum[r][0] += a[t][row + r] * first;
                    sum[r][1] += a[t][row + r] * second;
                }
            }
            for (int r = 0; r < 4; ++r)
                for (int v = 0; v < 2; ++v) store(to[row + r] + column + v * lanes, sum[r][v]);
        }
}

/* d[columns] = Σ_rows A ⊙ B. */
template <typename real>
THREEFOLD_APART void sum_of_products(real *d, Rows<const real> a, Rows<const real> b, int64_t rows,
                                     int64_t columns) {
    constexpr int64_t lanes = lanes_of<real>;
    for (int64_t column = 0; column < columns; column += 2 * lanes) {
        Vector<real> sum[2][2] = {};
        for (int64_t row = 0; row < rows; row += 2)
            for (int r = 0; r < 2; ++r)
                for (int v = 0; v < 2; ++v) {
                    const int64_t at = column + v * lanes;
                    sum[r][v] += load(a[row + r] + at) * load(b[row + r] + at);
                }
        for (int v = 0; v < 2; ++v) store(d + column + v * lanes, sum[0][v] + sum[1][v]);
    }
}

/* to[column][row] = from[row][column]: full squares in registers, the edges one by one. */
template <typename real>
void turn(Rows<real> to, Rows<const real> from, int64_t rows, int64_t columns) {
    constexpr int64_t lanes = lanes_of<real>;
    const int64_t whole_rows = rows / lanes * lanes, whole_columns = columns / lanes * lanes;
    for (int64_t row = 0; row < whole_rows; row += lanes)
        for (int64_t column = 0; column < whole_columns; column += lanes) {
            Vector<real> square[lanes];
            for (int i = 0; i < lanes; ++i) square[i] = load(from[row + i] + column);
            transpose<real>(square);
            for (int i = 0; i < lanes; ++i) store(to[column + i] + row, square[i]);
        }
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t column = row < whole_rows ? whole_columns : 0; column < columns; ++column)
            to[column][row] = from[row][column];
}

/* sums[i] = the sum of the lanes of vectors[i], for Count of them. */
template <int Count, typename real>
inline void store_sums_of_lanes(real *sums, const Vector<real> *vectors) {
    constexpr int lanes = lanes_of<real>;
    for (int first = 0; first < Count; first += lanes) {
        constexpr int here = Count < lanes ? Count : lanes;
        Vector<real> square[lanes] = {};
        for (int i = 0; i < here; ++i) square[i] = vectors[first + i];
        const Vector<real> found = sums_of_lanes<real>(square);
        __builtin_memcpy(sums + first, &found, here * sizeof(real));
    }
}

/* C[T, rows] = A[T, columns]·S[rows, columns]ᵀ. */
template <int T, typename real>
THREEFOLD_APART void product_transposed(Rows<real> c, Rows<const real> a, Rows<const real> s,
                                        int64_t rows, int64_t columns) {
    for (int64_t row = 0; row < rows; row += 4)
        for (int t = 0; t < T; t += 2) {
            Vector<real> sum[8] = {};
            for (int64_t column = 0; column < columns; column += lanes_of<real>) {
                const Vector<real> first = load(a[t] + column), second = load(a[t + 1] + column);
                for (int r = 0; r < 4; ++r) {
                    const Vector<real> here = load(s[row + r] + column);
                    sum[r] += first * here;
                    sum[4 + r] += second * here;
                }
            }
            real sums[8];
            store_sums_of_lanes<8>(sums, sum);
            for (int i = 0; i < 2; ++i)
                __builtin_memcpy(c[t + i] + row, sums + i * 4, 4 * sizeof(real));
        }
}

}  // namespace delta
}  // namespace threefold
