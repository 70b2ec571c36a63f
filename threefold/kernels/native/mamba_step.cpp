/* x, gate = W_in u · x = silu(conv(x)) · δ, B, C = W_select x · Δ = softplus(W_delta δ + bias)
 * S = e^{ΔA} ⊙ S₋ + w B x,   y = W_out ((C·S + D x) · silu(gate)),   A = −e^{A_log}
 *
 * One element of a whole Mamba layer in one call. It is made of the kernels that a caller could
 * have called one after another, so it has their bits, without the way back between them.
 */
#include "common.h"

namespace threefold {
namespace {

/* The kernels of one scalar type. */
template <typename real>
struct Kernels;
template <>
struct Kernels<float> {
    static constexpr auto linear = threefold_linear_f32;
    static constexpr auto convolve = threefold_short_convolution_forward_f32;
    static constexpr auto scan = threefold_selective_scan_forward_f32;
};
template <>
struct Kernels<double> {
    static constexpr auto linear = threefold_linear_f64;
    static constexpr auto convolve = threefold_short_convolution_forward_f64;
    static constexpr auto scan = threefold_selective_scan_forward_f64;
};

template <typename real>
struct Weights {
    const real *input, *conv, *conv_bias, *select, *delta, *delta_bias, *A_log, *D, *out;
};

template <typename real>
struct Step {
    const Weights<real> weights;
    int64_t rows, width, channels, size, taps, rank, hold, threads;
    /* Handed out from here on, in order. */
    real *workspace;

    real *take(int64_t numbers) {
        real *taken = workspace;
        workspace += numbers;
        return taken;
    }

    static int64_t padded(int64_t inputs) { return (inputs + 31) / 32 * 32; }

    int status() const {
        const bool fits = rows >= 0 && width > 0 && channels > 0 && size > 0 && rank > 0;
        return fits ? THREEFOLD_OK : THREEFOLD_BAD_SIZE;
    }

    /* A = −e^{A_log}. */
    const real *rates() {
        real *A = take(channels * size);
        const int64_t count = channels * size;
        split(vectors_of<real>(count), useful_threads(threads, count), [&](int64_t first, int64_t last) {
            for_each_vector<real>(first, last, count, [&](int64_t i, auto lanes) {
                lanes.store(A + i, -exponential<real>(lanes.load(weights.A_log + i)));
            });
        });
        return A;
    }

    /* The first `count` of each row's `stride` numbers, side by side. */
    const real *columns(const real *from, int64_t count, int64_t stride) {
        real *to = take(rows * count);
        for (int64_t row = 0; row < rows; ++row)
            std::copy_n(from + row * stride, count, to + row * count);
        return to;
    }

    int run(real *y, real *new_memory, real *new_conv, const real *x, const real *memory,
            const real *conv) {
        using Of = Kernels<real>;
        if (const int status = this->status()) return status;
        const int64_t selected_size = rank + 2 * size;
        real *filled = take(rows * padded(std::max({width, channels, rank})));
        real *projected = take(rows * 2 * channels), *convolved = take(rows * channels);
        real *selected = take(rows * selected_size), *delta = take(rows * channels);
        real *read = take(rows * channels), *turned = take(taps * channels);
        const real *gate = projected + channels;
        const real *B = selected + rank, *C = B + size;
        Of::linear(projected, filled, x, weights.input, nullptr, rows, width, 2 * channels, threads);
        if (const int status = Of::convolve(convolved, new_conv, turned, projected, weights.conv,
                                            weights.conv_bias, conv, nullptr, rows, 1, channels, taps,
                                            2 * channels, 1, threads))
            return status;
        Of::linear(selected, filled, convolved, weights.select, nullptr, rows, channels,
                   selected_size, threads);
        Of::linear(delta, filled, columns(selected, rank, selected_size), weights.delta, nullptr,
                   rows, rank, channels, threads);
        Of::scan(read, new_memory, nullptr, nullptr, convolved, delta, rates(), B, C, weights.D,
                 gate, weights.delta_bias, memory, nullptr, rows, 1, channels, size, channels,
                 channels, selected_size, selected_size, 2 * channels, 1, hold, 0, threads);
        return Of::linear(y, filled, read, weights.out, nullptr, rows, channels, width, threads);
    }
};

}  // namespace
}  // namespace threefold

#define DEFINE(real, suffix)                                                                       \
    int threefold_mamba_step_##suffix(                                                             \
        real *y, real *new_memory, real *new_conv, real *workspace, const real *x,                 \
        const real *memory, const real *conv, const real *input_weight, const real *conv_weight,   \
        const real *conv_bias, const real *select_weight, const real *delta_weight,                \
        const real *delta_bias, const real *A_log, const real *D, const real *out_weight,          \
        int64_t batch, int64_t width, int64_t channels, int64_t size, int64_t taps, int64_t rank,  \
        int64_t hold, int64_t threads) {                                                           \
        return threefold::Step<real>{{input_weight, conv_weight, conv_bias, select_weight,         \
                                      delta_weight, delta_bias, A_log, D, out_weight},             \
                                     batch, width, channels, size, taps, rank, hold, threads,      \
                                     workspace}                                                    \
            .run(y, new_memory, new_conv, x, memory, conv);                                        \
    }
THREEFOLD_FOR_BOTH(DEFINE)
