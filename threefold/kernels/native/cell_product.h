/* y_ro = Σ_i x_ri · M_io        for the few rows of a batch, again and again with the same M
 *
 * The matrix is packed in tiles of columns, [tile][i][columns of the tile], so that it is read in
 * the order in which it is used. Every sum runs over i from first to last: a row's bits depend
 * neither on the other rows nor on threads.
 */
#pragma once

#include "common.h"

namespace threefold {
namespace cell {

/* Vectors in a tile, and rows that share a load of it: as many as keep their sums in registers. */
constexpr int tile_vectors = 3;
constexpr int64_t most_rows = 4;

template <typename real>
constexpr int64_t tile_width = tile_vectors * lanes_of<real>;

template <typename real>
inline int64_t padded(int64_t columns) {
    return (columns + tile_width<real> - 1) / tile_width<real> * tile_width<real>;
}

/* Rows of numbers, `stride` apart. */
template <typename real>
struct Rows {
    real *data;
    int64_t stride;

    real *at(int64_t row) const { return data + row * stride; }
    Rows from(int64_t row, int64_t column) const { return {at(row) + column, stride}; }
};

template <typename real>
struct Packed {
    const real *data;
    int64_t inner, outer;

    int64_t size() const { return inner * padded<real>(outer); }

    template <int Count, int Tiles>
    void some(int64_t first, Rows<const real> x, Rows<real> y) const {
        constexpr Whole<real> whole;
        Vector<real> sum[Count][Tiles * tile_vectors] = {};
        const real *tile = data + first * inner;
        for (int64_t i = 0; i < inner; ++i) {
            Vector<real> column[Tiles * tile_vectors];
            for (int v = 0; v < Tiles * tile_vectors; ++v)
                column[v] = whole.load(tile + v / tile_vectors * inner * tile_width<real> +
                                       i * tile_width<real> + v % tile_vectors * lanes_of<real>);
            for (int r = 0; r < Count; ++r) {
                const Vector<real> value = splat<real>(x.at(r)[i]);
                for (int v = 0; v < Tiles * tile_vectors; ++v) sum[r][v] += value * column[v];
            }
        }
        for (int r = 0; r < Count; ++r)
            for (int v = 0; v < Tiles * tile_vectors; ++v)
                whole.store(y.at(r) + first + v * lanes_of<real>, sum[r][v]);
    }

    /* A few rows take several tiles at once, so that enough sums run in parallel. */
    template <int Count>
    int64_t few(int64_t first, Rows<const real> x, Rows<real> y) const {
        constexpr int tiles = Count == 1 ? 3 : Count == 2 ? 2 : 1;
        const int64_t columns = tiles * tile_width<real>;
        if (first + columns <= padded<real>(outer)) {
            some<Count, tiles>(first, x, y);
            return columns;
        }
        some<Count, 1>(first, x, y);
        return tile_width<real>;
    }

    int64_t step(int64_t count, int64_t first, Rows<const real> x, Rows<real> y) const {
        switch (count) {
            case 1: return few<1>(first, x, y);
            case 2: return few<2>(first, x, y);
            case 3: return few<3>(first, x, y);
            default: return few<4>(first, x, y);
        }
    }

    /* y [rows, padded(outer)] = x [rows, inner] M; a tile serves all rows before the next. */
    void multiply(int64_t rows, Rows<const real> x, Rows<real> y) const {
        const int64_t groups = (rows + most_rows - 1) / most_rows;
        for (int64_t first = 0; first < padded<real>(outer);) {
            int64_t columns = padded<real>(outer);
            for (int64_t group = 0; group < groups; ++group) {
                const int64_t begin = rows * group / groups, end = rows * (group + 1) / groups;
                columns = std::min(
                    columns, step(end - begin, first, x.from(begin, 0), y.from(begin, 0)));
            }
            first += columns;
        }
    }
};

}  // namespace cell
}  // namespace threefold
