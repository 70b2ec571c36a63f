/* y_i = Σ_{m ≤ i} kernel_m x_{i−m} one element at a time, n elements in O(n log² n)
 *
 * Relaxed multiplication: before element i, let U be the largest power of two that divides i. The
 * last U inputs are convolved with the taps 1 … 2U−1 and the U outputs from i on are added to
 * `pending`. Each pair of an input and a later output is in exactly one of these tiles. Small tiles
 * are summed directly, larger ones are cyclic convolutions of 2U points with a stored spectrum.
 * van der Hoeven 1997, "Lazy Multiplication of Formal Power Series"; Oncescu et al. 2024, "Flash
 * Inference".  `pending` from i on depends only on tiles that end at the prefixes of i's binary
 * digits, so it can be recomputed from the past inputs with the same bits.
 */
#include "fourier.h"

namespace threefold {
namespace {

/* Tiles below this are summed directly. */
constexpr int64_t smallest_transform = 64;

inline int64_t lowest_bit(int64_t n) { return n & -n; }

/* Offset of a tile's spectrum: 2·64 + 2·128 + … points of all groups come before it. */
template <typename real>
inline int64_t spectrum_offset(int64_t tile, int64_t group, int64_t channels) {
    const int64_t before = 2 * tile - 2 * smallest_transform;
    return (groups_of<real>(channels) * before + group * 2 * tile) * place<real>;
}

template <typename real>
struct Online {
    const real *near, *spectra, *twiddle;
    int64_t channels;

    /* Adds what inputs before `end` contribute to outputs from `end` on. */
    void add_tile(real *pending, const real *past, int64_t end, int64_t tile, int64_t index, real *z) const {
        const Channels<real> group(index, channels);
        if (tile < smallest_transform) return sum_tile(pending, past, end, tile, group);
        for (int64_t s = 0; s < tile; ++s)
            group.load(past + (end - tile + s) * channels).store(z + s * place<real>);
        clear_places(z, tile, 2 * tile);
        transform(z, 2 * tile, twiddle);
        const real *k = spectra + spectrum_offset<real>(tile, index, channels);
        multiply<real, false>(z, z, k, 2 * tile, real(0.5) / real(tile));
        transform_back(z, 2 * tile, twiddle);
        for (int64_t r = 0; r < tile; ++r) {
            real *at = pending + (end + r) * channels;
            group.store(at, group.load(at) + Complex<real>::load(z + (tile - 1 + r) * place<real>));
        }
    }

    void sum_tile(real *pending, const real *past, int64_t end, int64_t tile, Channels<real> group) const {
        for (int64_t r = 0; r < tile; ++r) {
            real *at = pending + (end + r) * channels;
            Complex<real> sum = group.load(at);
            for (int64_t s = 0; s < tile; ++s) {
                const Complex<real> x = group.load(past + (end - tile + s) * channels);
                const Complex<real> tap = group.load(near + (r + tile - s) * channels);
                sum = {sum.re + x.re * tap.re, sum.im + x.im * tap.im};
            }
            group.store(at, sum);
        }
    }

    /* All tiles that reach beyond `position`, except the one that ends there. */
    void rebuild(real *pending, const real *past, int64_t position, int64_t index, real *z) const {
        int64_t end = 0;
        for (int64_t rest = position - lowest_bit(position); end < rest;) {
            int64_t tile = lowest_bit(rest);
            while ((tile << 1) <= rest - end) tile <<= 1;
            end += tile;
            add_tile(pending, past, end, tile, index, z);
        }
    }
};

template <typename real>
int spectrum(real *spectra, const real *kernel, const real *twiddle, int64_t channels, int64_t taps,
             int64_t tile, int64_t threads) {
    if (channels < 0 || taps < 1 || tile < smallest_transform || !is_power_of_two(tile))
        return THREEFOLD_BAD_SIZE;
    split(groups_of<real>(channels), threads, [&](int64_t first, int64_t last) {
        for (int64_t index = first; index < last; ++index) {
            const Channels<real> group(index, channels);
            real *z = spectra + spectrum_offset<real>(tile, index, channels);
            const int64_t count = std::min(taps, 2 * tile) - 1;
            for (int64_t m = 0; m < count; ++m)
                group.load(kernel + m + 1, taps).store(z + m * place<real>);
            clear_places(z, count, 2 * tile);
            transform(z, 2 * tile, twiddle);
        }
    });
    return THREEFOLD_OK;
}

/* A row that gets no element in this call has −1 − position as its position. */
inline int64_t element_of(int64_t position) { return position < 0 ? -1 - position : position; }

template <typename real>
int advance(real *y, real *pending, real *inputs, real *workspace, const real *x, const real *skip,
            const int64_t *positions, const Online<real> &online, int64_t batch, int64_t pending_row,
            int64_t inputs_row, bool rebuild, int64_t threads) {
    const int64_t channels = online.channels, groups = groups_of<real>(channels), items = groups * batch;
    int64_t largest = 1;
    for (int64_t row = 0; row < batch; ++row) {
        const int64_t position = element_of(positions[row]);
        if (position == 0) continue;
        int64_t tile = lowest_bit(position);
        if (rebuild)
            while (tile * 2 <= position) tile *= 2;
        largest = std::max(largest, tile);
    }
    const int64_t pieces = std::min(useful_threads(threads, 2 * largest * channels * batch), items);
    split(pieces, pieces, [&](int64_t first_piece, int64_t last_piece) {
        for (int64_t piece = first_piece; piece < last_piece; ++piece) {
            real *z = workspace + piece * 2 * largest * place<real>;
            for (int64_t item = items * piece / pieces; item < items * (piece + 1) / pieces; ++item) {
                const int64_t row = item / groups, index = item % groups;
                const int64_t position = element_of(positions[row]);
                real *ahead = pending + row * pending_row;
                real *behind = inputs + row * inputs_row;
                const Channels<real> group(index, channels);
                if (rebuild) online.rebuild(ahead, behind, position, index, z);
                if (positions[row] < 0) continue;
                if (position > 0)
                    online.add_tile(ahead, behind, position, lowest_bit(position), index, z);
                const Complex<real> here = group.load(x + row * channels);
                group.store(behind + position * channels, here);
                Complex<real> tap = group.load(online.near);
                if (skip) tap = tap + group.load(skip);
                const Complex<real> sum = group.load(ahead + position * channels);
                group.store(y + row * channels, {sum.re + here.re * tap.re, sum.im + here.im * tap.im});
            }
        }
    });
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace threefold

#define DEFINE(real, suffix)                                                                         \
    int threefold_online_convolution_spectrum_##suffix(                                              \
        real *spectra, const real *kernel, const real *twiddle, int64_t channels, int64_t taps,      \
        int64_t tile, int64_t threads) {                                                             \
        return threefold::spectrum<real>(spectra, kernel, twiddle, channels, taps, tile, threads);  \
    }                                                                                                \
    int threefold_online_convolution_##suffix(                                                       \
        real *y, real *pending, real *inputs, real *workspace, const real *x, const real *near,      \
        const real *skip, const real *spectra, const real *twiddle, const int64_t *positions,        \
        int64_t batch, int64_t channels, int64_t pending_row, int64_t inputs_row, int64_t rebuild,   \
        int64_t threads) {                                                                           \
        return threefold::advance<real>(y, pending, inputs, workspace, x, skip, positions,           \
                                        {near, spectra, twiddle, channels}, batch, pending_row,      \
                                        inputs_row, rebuild != 0, threads);                          \
    }

THREEFOLD_FOR_BOTH(DEFINE)
