/* feature = share of the elements t at which  Σ_d (3 Σ_{g∈kernel} x_{t+(g−4)δ} − Σ_g x_{t+(g−4)δ}) > bias
 *
 * MiniRocket's features. The 84 kernels have nine weights, three of them 2 and six −1, at a distance of
 * δ elements; d runs over the channels of a kernel. Σ_g is the same for all kernels of a δ, so a kernel
 * is three additions. Every second kernel counts only the elements that it covers as a whole.
 */
#include "common.h"

namespace threefold {
namespace random_convolutions {
namespace {

constexpr int64_t taps = 9, kernels = 84;

template <typename real>
struct Inputs {
    const real *series, *biases; /* series [B, D, L] */
    const int64_t *lengths, *dilations, *counts, *channel_counts, *channels;
    int64_t batch, depth, length, dilations_count, features, threads;

    int64_t length_of(int64_t row) const { return lengths ? lengths[row] : length; }
    int64_t reach() const { /* elements before and behind the series that are 0 */
        int64_t widest = 0;
        for (int64_t i = 0; i < dilations_count; ++i) widest = std::max(widest, dilations[i]);
        return taps / 2 * widest;
    }
    int64_t padded() const { return length + 2 * reach() + lanes_of<real>; }

    int status() const {
        if (batch < 0 || depth < 1 || length < 1 || dilations_count < 0) return THREEFOLD_BAD_SIZE;
        int64_t sum = 0;
        for (int64_t i = 0; i < dilations_count; ++i) {
            if (dilations[i] < 1 || dilations[i] > length || counts[i] < 0) return THREEFOLD_BAD_SIZE;
            sum += kernels * counts[i];
        }
        const int64_t *channel = channels;
        for (int64_t i = 0; i < kernels * dilations_count; ++i)
            for (int64_t n = 0; n < channel_counts[i]; ++n, ++channel)
                if (*channel < 0 || *channel >= depth) return THREEFOLD_BAD_SIZE;
        for (int64_t row = 0; row < batch; ++row)
            if (length_of(row) < 0 || length_of(row) > length) return THREEFOLD_BAD_LENGTH;
        return sum == features ? THREEFOLD_OK : THREEFOLD_BAD_SIZE;
    }
};

/* Numbers of a thread: 3x and x of every channel, with zeros around them; Σ_g; a kernel's response. */
template <typename real>
int64_t numbers_of_thread(int64_t depth, int64_t padded, int64_t length) {
    const int64_t rounded = vectors_of<real>(length) * lanes_of<real>;
    return 2 * depth * padded + (depth + 1) * rounded;
}

template <typename real>
struct Row {
    const Inputs<real> &in;
    real *tripled, *plain, *sums, *response;
    int64_t reach, padded, rounded, length;

    Row(const Inputs<real> &inputs, real *workspace)
        : in(inputs), reach(inputs.reach()), padded(inputs.padded()),
          rounded(vectors_of<real>(inputs.length) * lanes_of<real>) {
        tripled = workspace;
        plain = tripled + in.depth * padded;
        sums = plain + in.depth * padded;
        response = sums + in.depth * rounded;
        std::fill(tripled, sums, real(0));
    }

    void load(int64_t row) {
        length = in.length_of(row);
        for (int64_t channel = 0; channel < in.depth; ++channel) {
            const real *from = in.series + (row * in.depth + channel) * in.length;
            real *once = plain + channel * padded + reach, *thrice = tripled + channel * padded + reach;
            for (int64_t t = 0; t < in.length; ++t) {
                const real x = t < length ? from[t] : real(0);
                once[t] = x;
                thrice[t] = 3 * x;
            }
        }
    }

    /* −Σ_g x_{t+(g−4)δ}: the middle first, then the others from left to right. */
    void sum(int64_t dilation) {
        for (int64_t channel = 0; channel < in.depth; ++channel) {
            const real *x = plain + channel * padded + reach;
            real *to = sums + channel * rounded;
            for (int64_t t = 0; t < length; ++t) {
                real total = -x[t];
                for (int64_t g = 0; g < taps; ++g)
                    if (g != taps / 2) total -= x[t + (g - taps / 2) * dilation];
                to[t] = total;
            }
        }
    }

    void respond(const int64_t *kernel, int64_t dilation, const int64_t *channels, int64_t count) {
        for (int64_t n = 0; n < count; ++n) {
            const real *x = tripled + channels[n] * padded + reach;
            const real *base = sums + channels[n] * rounded;
            const real *a = x + (kernel[0] - taps / 2) * dilation;
            const real *b = x + (kernel[1] - taps / 2) * dilation;
            const real *c = x + (kernel[2] - taps / 2) * dilation;
            for (int64_t t = 0; t < length; ++t) {
                const real here = base[t] + a[t] + b[t] + c[t];
                response[t] = n ? response[t] + here : here;
            }
        }
    }

    /* How many of the responses first … last − 1 are above the bias. */
    int64_t above(real bias, int64_t first, int64_t last) const {
        constexpr int64_t lanes = lanes_of<real>;
        Bits<real> counted = {};
        const Vector<real> limit = splat<real>(bias);
        int64_t t = first, sum = 0;
        for (; t + lanes <= last; t += lanes)
            counted -= (Bits<real>)(Whole<real>{}.load(response + t) > limit);
        for (; t < last; ++t) sum += response[t] > bias;
        for (int64_t lane = 0; lane < lanes; ++lane) sum += int64_t(counted[lane]);
        return sum;
    }

    void features(real *to) {
        const real *bias = in.biases;
        const int64_t *channels = in.channels, *channel_counts = in.channel_counts;
        for (int64_t i = 0; i < in.dilations_count; ++i) {
            const int64_t dilation = in.dilations[i], edge = taps / 2 * dilation;
            sum(dilation);
            int64_t number = 0, kernel[3];
            for (kernel[0] = 0; kernel[0] < taps; ++kernel[0])
                for (kernel[1] = kernel[0] + 1; kernel[1] < taps; ++kernel[1])
                    for (kernel[2] = kernel[1] + 1; kernel[2] < taps; ++kernel[2], ++number) {
                        respond(kernel, dilation, channels, *channel_counts);
                        channels += *channel_counts++;
                        const bool inside = (i + number) % 2;
                        const int64_t first = inside ? edge : 0, last = length - first;
                        for (int64_t n = 0; n < in.counts[i]; ++n, ++bias)
                            *to++ = last > first ? real(above(*bias, first, last)) / real(last - first) : 0;
                    }
        }
    }
};

template <typename real>
int run(const Inputs<real> &in, real *features, real *workspace) {
    if (const int status = in.status()) return status;
    const int64_t threads =
        std::min(useful_threads(in.threads, in.batch * in.length * in.features), std::max<int64_t>(1, in.batch));
    const int64_t size = numbers_of_thread<real>(in.depth, in.padded(), in.length);
    split(threads, threads, [&](int64_t begin, int64_t end) {
        for (int64_t piece = begin; piece < end; ++piece) {
            Row<real> row{in, workspace + piece * size};
            for (int64_t i = in.batch * piece / threads; i < in.batch * (piece + 1) / threads; ++i) {
                row.load(i);
                row.features(features + i * in.features);
            }
        }
    });
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace random_convolutions
}  // namespace threefold

#define DEFINE(real, suffix)                                                                       \
    int threefold_random_convolutions_##suffix(                                                    \
        real *features, real *workspace, const real *series, const real *biases,                   \
        const int64_t *lengths, const int64_t *dilations, const int64_t *counts,                   \
        const int64_t *channel_counts, const int64_t *channels, int64_t batch, int64_t depth,      \
        int64_t length, int64_t dilations_count, int64_t features_count, int64_t threads) {        \
        return threefold::random_convolutions::run<real>(                                          \
            {series, biases, lengths, dilations, counts, channel_counts, channels, batch, depth,   \
             length, dilations_count, features_count, threads},                                    \
            features, workspace);                                                                  \
    }                                                                                              \
    int threefold_random_convolutions_workspace_##suffix(                                          \
        int64_t *numbers, int64_t depth, int64_t length, int64_t widest, int64_t threads) {        \
        if (depth < 1 || length < 1 || widest < 0 || threads < 1) return THREEFOLD_BAD_SIZE;       \
        const int64_t reach = threefold::random_convolutions::taps / 2 * widest;                   \
        *numbers = threads * threefold::random_convolutions::numbers_of_thread<real>(              \
                                 depth, length + 2 * reach + threefold::lanes_of<real>, length);   \
        return THREEFOLD_OK;                                                                       \
    }
THREEFOLD_FOR_BOTH(DEFINE)
