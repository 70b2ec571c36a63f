/* workspace = [packed matrices | for each row: results of the products, then what they read]
 *
 * What the forward and backward passes of a nonlinear recurrence share: their inputs, the matrices
 * packed for one phase of products, and the layout of the workspace.
 */
#pragma once

#include "cell_product.h"

namespace threefold {
namespace cell {

template <typename real>
struct Inputs {
    const real *recurrent, *state, *extra, *mask;
    const int64_t *lengths;
    int64_t batch, length, hidden, blocks, threads;

    int64_t size() const { return hidden / blocks; }
    int64_t length_of(int64_t row) const { return lengths ? lengths[row] : length; }
    int64_t longest(int64_t begin, int64_t end) const {
        int64_t most = 0;
        for (int64_t row = begin; row < end; ++row) most = std::max(most, length_of(row));
        return most;
    }
    int status() const {
        if (batch < 0 || length < 0 || hidden < 1 || blocks < 1 || hidden % blocks)
            return THREEFOLD_BAD_SIZE;
        for (int64_t row = 0; row < batch; ++row)
            if (length_of(row) < 0 || length_of(row) > length) return THREEFOLD_BAD_LENGTH;
        return THREEFOLD_OK;
    }
};

/* body(block, index in the block, index in the row, lanes) for all units. */
template <typename real, typename Body>
inline void for_each_unit(const Inputs<real> &in, const Body &body) {
    const int64_t size = in.size();
    for (int64_t block = 0; block < in.blocks; ++block)
        for_each_vector<real>(0, vectors_of<real>(size), size, [&](int64_t place, auto lanes) {
            body(block, place, block * size + place, lanes);
        });
}

template <typename real>
inline void clear(real *numbers, int64_t count) {
    std::fill(numbers, numbers + count, real(0));
}

/* The matrices of gates first … last − 1: h to gates forward, gates' gradients to h's backward. */
template <typename real>
struct Phase {
    int64_t first, last, size, gates;
    bool backward;

    int64_t span() const { return (last - first) * size; }
    Packed<real> shape() const {
        return backward ? Packed<real>{nullptr, span(), size} : Packed<real>{nullptr, size, span()};
    }
    /* Numbers that one block's results take in a row. */
    int64_t results() const { return padded<real>(shape().outer); }

    void pack(real *to, const real *recurrent, int64_t blocks, int64_t threads) const {
        split(blocks * results() / tile_width<real>, threads, [&](int64_t begin, int64_t end) {
            for (int64_t tile = begin; tile < end; ++tile) {
                const int64_t block = tile * tile_width<real> / results();
                const int64_t column = tile * tile_width<real> % results();
                const real *from = recurrent + (block * gates + first) * size * size;
                fill(to + tile * tile_width<real> * shape().inner, from, column);
            }
        });
    }
    void fill(real *to, const real *from, int64_t column) const {
        const auto [data, inner, outer] = shape();
        for (int64_t i = 0; i < inner; ++i)
            for (int64_t o = column; o < column + tile_width<real>; ++o)
                *to++ = o < outer ? (backward ? from[i * size + o] : from[o * size + i]) : real(0);
    }
    /* For each block, y [rows, results] = x [rows, …] times its matrix. */
    void multiply(const real *packed, int64_t blocks, int64_t rows, Rows<const real> x,
                  int64_t distance, Rows<real> y) const {
        Packed<real> matrix = shape();
        for (int64_t block = 0; block < blocks; ++block) {
            matrix.data = packed + block * matrix.size();
            matrix.multiply(rows, x.from(0, block * distance), y.from(0, block * results()));
        }
    }
};

/* Layout of the workspace: packed matrices, then buffers of each row. */
template <typename real, typename Cell>
struct Plan {
    const Inputs<real> &in;
    bool backward;

    static constexpr int first_gates = Cell::two_phases ? Cell::gates - 1 : Cell::gates;

    Phase<real> first() const { return {0, first_gates, in.size(), Cell::gates, backward}; }
    Phase<real> second() const {
        return {first_gates, Cell::gates, in.size(), Cell::gates, backward};
    }
    int64_t packed_first() const { return in.blocks * first().shape().size(); }
    int64_t packed_second() const { return in.blocks * second().shape().size(); }
    int64_t results() const { return in.blocks * (first().results() + second().results()); }
    /* After the results: what the products read. */
    int64_t row() const { return results() + (backward ? Cell::gates : 2) * in.hidden; }
    int64_t size() const { return packed_first() + packed_second() + in.batch * row(); }
    int64_t useful_threads() const {
        const int64_t work = in.batch * in.length * Cell::gates * in.hidden;
        return threefold::useful_threads(in.threads, work);
    }
};

template <typename real, typename Cell>
struct Pass {
    using V = Vector<real>;
    Inputs<real> in;
    real *workspace;
    bool is_backward;

    Plan<real, Cell> plan() const { return {in, is_backward}; }
    const real *matrix(int phase) const { return workspace + phase * plan().packed_first(); }
    Rows<real> buffers(int64_t row = 0) const {
        const int64_t packed = plan().packed_first() + plan().packed_second();
        return Rows<real>{workspace + packed, plan().row()}.from(row, 0);
    }
    /* Results of a phase for one block of a row. */
    real *result(int64_t row, int phase, int64_t block) const {
        const auto p = plan();
        const int64_t before = phase ? in.blocks * p.first().results() : 0;
        const int64_t each = phase ? p.second().results() : p.first().results();
        return buffers().at(row) + before + block * each;
    }
    Rows<real> read(int64_t row, int64_t part = 0) const {
        return buffers(row).from(0, plan().results() + part * in.hidden);
    }
    void pack() const {
        const auto p = plan();
        const int64_t threads = p.useful_threads();
        p.first().pack(workspace, in.recurrent, in.blocks, threads);
        if (Cell::two_phases)
            p.second().pack(workspace + p.packed_first(), in.recurrent, in.blocks, threads);
    }
    void multiply(int phase, int64_t begin, int64_t end, Rows<const real> x,
                  int64_t distance) const {
        const auto p = phase ? plan().second() : plan().first();
        p.multiply(matrix(phase), in.blocks, end - begin, x, distance,
                   {result(begin, phase, 0), plan().row()});
    }
    int64_t element(int64_t row, int64_t t) const { return row * in.length + t; }
    template <typename Lanes>
    void load_extra(V *extra, int64_t unit, Lanes lanes) const {
        for (int e = 0; e < Cell::extras; ++e)
            extra[e] = lanes.load(in.extra + e * in.hidden + unit);
    }
    template <typename Lanes>
    V masked(V x, int64_t row, int64_t unit, Lanes lanes) const {
        return in.mask ? x * lanes.load(in.mask + row * in.hidden + unit) : x;
    }
};

}  // namespace cell
}  // namespace threefold
