/* y_t = gate_t (Σ_m kernel_m x_{t−m} + skip x_t),  first ≤ t < S,  by Fourier transforms of n points
 *
 * Overlap-save: a block of n inputs gives n − K + 1 outputs, so a filter as long as the sequence
 * takes one block and a short one many. One thread takes two vectors of channels at a time through
 * load, transform, product, transform and store; its working set is 2 n points, and the filter is
 * transformed once for all rows. The backward pass works on the same blocks: the gradient of x is
 * added up from them, that of the filter is added up as frequencies and transformed back once. A gate
 * multiplies outputs as they are stored, and their gradients as they are loaded.
 */
#include "fourier.h"

namespace threefold {
namespace {

template <typename real>
struct Blocks {
    const real *x, *kernel, *skip, *gate, *twiddle;
    int64_t batch, source, channels, taps, size, first, gate_step;

    int64_t groups() const { return groups_of<real>(channels); }
    int64_t outputs() const { return source - first; }
    int64_t advance() const { return size - taps + 1; }
    int64_t buffer() const { return size * place<real>; }
    int64_t output(int64_t row, int64_t t) const { return row * outputs() + t - first; }

    int status() const {
        const bool right = batch >= 0 && channels >= 0 && taps >= 1 && first >= 0 && first <= source &&
                           is_power_of_two(size) && size >= taps && (!gate || gate_step >= channels);
        return right ? THREEFOLD_OK : THREEFOLD_BAD_SIZE;
    }

    void load_kernel(real *k, Channels<real> group) const {
        for (int64_t m = 0; m < taps; ++m) group.load(kernel + m, taps).store(k + m * place<real>);
        clear_places(k, taps, size);
        transform(k, size, twiddle);
    }

    /* The block whose first output is element t begins at t − K + 1, with zeros before 0. */
    void load_inputs(real *z, int64_t row, int64_t t, Channels<real> group) const {
        const int64_t begin = t - taps + 1;
        const int64_t from = std::max<int64_t>(0, -begin), to = std::max(from, std::min(size, source - begin));
        clear_places(z, 0, from);
        for (int64_t j = from; j < to; ++j)
            group.load(x + (row * source + begin + j) * channels).store(z + j * place<real>);
        clear_places(z, to, size);
    }

    Complex<real> gated(Complex<real> value, int64_t at, Channels<real> group) const {
        return gate ? value.each_times(group.load(gate + at * gate_step)) : value;
    }

    /* Gradients of a block's outputs, at the points of the outputs. */
    void load_gradients(real *z, const real *grad_y, int64_t row, int64_t t, Channels<real> group) const {
        const int64_t count = std::min(advance(), source - t);
        clear_places(z, 0, taps - 1);
        for (int64_t j = 0, at = output(row, t); j < count; ++j, ++at)
            gated(group.load(grad_y + at * channels), at, group).store(z + (taps - 1 + j) * place<real>);
        clear_places(z, taps - 1 + count, size);
    }

    void store_outputs(real *y, real *before, const real *z, int64_t row, int64_t t,
                       Channels<real> group) const {
        const int64_t count = std::min(advance(), source - t);
        const Complex<real> direct = skip ? group.load(skip) : Complex<real>{};
        for (int64_t j = 0, at = output(row, t); j < count; ++j, ++at) {
            Complex<real> value = Complex<real>::load(z + (taps - 1 + j) * place<real>);
            if (skip)
                value = value + direct.each_times(group.load(x + (row * source + t + j) * channels));
            if (before) group.store(before + at * channels, value);
            group.store(y + at * channels, gated(value, at, group));
        }
    }

    void add_gradients(real *grad_x, const real *z, int64_t row, int64_t t, Channels<real> group) const {
        const int64_t begin = t - taps + 1;
        const int64_t from = std::max<int64_t>(0, -begin), to = std::min(size, source - begin);
        for (int64_t j = from; j < to; ++j) {
            real *at = grad_x + (row * source + begin + j) * channels;
            group.store(at, group.load(at) + Complex<real>::load(z + j * place<real>));
        }
    }
};

template <typename real>
int forward(real *y, real *before, real *workspace, const Blocks<real> &blocks, int64_t threads) {
    if (const int status = blocks.status()) return status;
    const int64_t items = blocks.groups() * blocks.batch, pieces = std::min(threads, items);
    split(pieces, threads, [&](int64_t first_piece, int64_t last_piece) {
        for (int64_t piece = first_piece; piece < last_piece; ++piece) {
            real *k = workspace + piece * 2 * blocks.buffer(), *z = k + blocks.buffer();
            int64_t loaded = -1;
            for (int64_t item = items * piece / pieces; item < items * (piece + 1) / pieces; ++item) {
                const int64_t row = item % blocks.batch;
                const Channels<real> group(item / blocks.batch, blocks.channels);
                if (loaded != group.channel) blocks.load_kernel(k, group);
                loaded = group.channel;
                for (int64_t t = blocks.first; t < blocks.source; t += blocks.advance()) {
                    blocks.load_inputs(z, row, t, group);
                    transform(z, blocks.size, blocks.twiddle);
                    multiply<real, false>(z, z, k, blocks.size, real(1) / real(blocks.size));
                    transform_back(z, blocks.size, blocks.twiddle);
                    blocks.store_outputs(y, before, z, row, t, group);
                }
            }
        }
    });
    return THREEFOLD_OK;
}

/* Initialises ∂x with the contribution of `skip`; returns ∂skip of this row. */
template <typename real>
Complex<real> begin_gradient(real *grad_x, const real *grad_y, const Blocks<real> &blocks, int64_t row,
                             Channels<real> group) {
    constexpr int64_t run = 64;
    const int64_t elements = row * blocks.source, channels = blocks.channels;
    const int64_t unread = blocks.skip ? blocks.first : blocks.source;
    for (int64_t t = 0; t < unread; ++t) group.store(grad_x + (elements + t) * channels, Complex<real>{});
    const Complex<real> direct = blocks.skip ? group.load(blocks.skip) : Complex<real>{};
    Complex<real> total = {};
    /* Partial sums of short runs, then their sum: small numbers are not lost in a large one. */
    for (int64_t begin = unread; begin < blocks.source; begin += run) {
        Complex<real> sum = {};
        for (int64_t t = begin; t < std::min(begin + run, blocks.source); ++t) {
            const int64_t at = blocks.output(row, t), here = (elements + t) * channels;
            const Complex<real> grad = blocks.gated(group.load(grad_y + at * channels), at, group);
            group.store(grad_x + here, grad.each_times(direct));
            sum = sum + grad.each_times(group.load(blocks.x + here));
        }
        total = total + sum;
    }
    return total;
}

template <typename real>
int backward(real *grad_x, real *grad_kernel, real *grad_skip, real *workspace, const real *grad_y,
             const Blocks<real> &blocks, int64_t threads) {
    if (const int status = blocks.status()) return status;
    const int64_t groups = blocks.groups(), pieces = std::min(threads, groups), n = blocks.size;
    const real scale = real(1) / real(n);
    split(pieces, threads, [&](int64_t first_piece, int64_t last_piece) {
        for (int64_t piece = first_piece; piece < last_piece; ++piece) {
            real *k = workspace + piece * 4 * blocks.buffer(), *z = k + blocks.buffer();
            real *g = z + blocks.buffer(), *sum = g + blocks.buffer();
            for (int64_t index = groups * piece / pieces; index < groups * (piece + 1) / pieces; ++index) {
                const Channels<real> group(index, blocks.channels);
                blocks.load_kernel(k, group);
                clear_places(sum, 0, n);
                Complex<real> of_skip = {};
                for (int64_t row = 0; row < blocks.batch; ++row) {
                    of_skip = of_skip + begin_gradient(grad_x, grad_y, blocks, row, group);
                    for (int64_t t = blocks.first; t < blocks.source; t += blocks.advance()) {
                        blocks.load_inputs(z, row, t, group);
                        blocks.load_gradients(g, grad_y, row, t, group);
                        transform(z, n, blocks.twiddle);
                        transform(g, n, blocks.twiddle);
                        multiply<real, true, true>(sum, g, z, n, scale);
                        multiply<real, true>(g, g, k, n, scale);
                        transform_back(g, n, blocks.twiddle);
                        blocks.add_gradients(grad_x, g, row, t, group);
                    }
                }
                if (blocks.skip) group.store(grad_skip, of_skip);
                transform_back(sum, n, blocks.twiddle);
                for (int64_t m = 0; m < blocks.taps; ++m)
                    group.store(grad_kernel + m, Complex<real>::load(sum + m * place<real>), blocks.taps);
            }
        }
    });
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace threefold

#define SIZES                                                                                        \
    int64_t batch, int64_t source, int64_t channels, int64_t taps, int64_t size, int64_t first,      \
        int64_t gate_step
#define BLOCKS                                                                                       \
    {                                                                                                \
        x, kernel, skip, gate, twiddle, batch, source, channels, taps, size, first, gate_step        \
    }
#define DEFINE(real, suffix)                                                                         \
    int threefold_long_convolution_forward_##suffix(                                                 \
        real *y, real *before, real *workspace, const real *x, const real *kernel, const real *skip, \
        const real *gate, const real *twiddle, SIZES, int64_t threads) {                             \
        return threefold::forward<real>(y, before, workspace, BLOCKS, threads);                      \
    }                                                                                                \
    int threefold_long_convolution_backward_##suffix(                                                \
        real *grad_x, real *grad_kernel, real *grad_skip, real *workspace, const real *grad_y,       \
        const real *x, const real *kernel, const real *skip, const real *gate, const real *twiddle,  \
        SIZES, int64_t threads) {                                                                    \
        return threefold::backward<real>(grad_x, grad_kernel, grad_skip, workspace, grad_y, BLOCKS,  \
                                         threads);                                                   \
    }

THREEFOLD_FOR_BOTH(DEFINE)
