/* s = w ⊙ s₋ + b u,   y = Σ_n c_n · s_n + D u        for each channel, one element of each row
 *
 * One pass over the states. The products of as many channels as a vector has lanes are kept, and added
 * without a sum across lanes; the numbers of those channels stay in the nearest cache for all rows.
 */
#include "common.h"
#include "denormals.h"
#include "transpose.h"

namespace threefold {
namespace {

template <typename real>
using Lane = std::make_integer_sequence<int, lanes_of<real>>;

/* Of 2·lanes numbers, every second one from `offset` on. */
template <typename real, int offset, int... lane>
inline Vector<real> unzip(Vector<real> a, Vector<real> b, std::integer_sequence<int, lane...>) {
    return pick<real, (2 * lane + offset)...>(a, b);
}

/* Numbers of a and b in turns, from their number `offset` on. */
template <typename real, int offset, int... lane>
inline Vector<real> zip(Vector<real> a, Vector<real> b, std::integer_sequence<int, lane...>) {
    return pick<real, (offset + lane / 2 + lane % 2 * lanes_of<real>)...>(a, b);
}

/* Complex numbers of one channel, n of them: the real parts, then the imaginary ones, or in pairs. */
template <typename real>
struct Complex {
    Vector<real> re, im;

    static Complex load(const real *from, int64_t n, int64_t at, bool pairs, Whole<real> lanes) {
        if (!pairs) return {lanes.load(from + at), lanes.load(from + n + at)};
        const Vector<real> a = lanes.load(from + 2 * at);
        const Vector<real> b = lanes.load(from + 2 * at + lanes_of<real>);
        return {unzip<real, 0>(a, b, Lane<real>{}), unzip<real, 1>(a, b, Lane<real>{})};
    }
    static Complex load(const real *from, int64_t n, int64_t at, bool pairs, Part<real> lanes) {
        if (!pairs) return {lanes.load(from + at), lanes.load(from + n + at)};
        return {lanes.load_strided(from + 2 * at, 2), lanes.load_strided(from + 2 * at + 1, 2)};
    }
    void store(real *to, int64_t n, int64_t at, bool pairs, Whole<real> lanes) const {
        if (!pairs) {
            lanes.store(to + at, re);
            lanes.store(to + n + at, im);
            return;
        }
        lanes.store(to + 2 * at, zip<real, 0>(re, im, Lane<real>{}));
        lanes.store(to + 2 * at + lanes_of<real>, zip<real, lanes_of<real> / 2>(re, im, Lane<real>{}));
    }
    void store(real *to, int64_t n, int64_t at, bool pairs, Part<real> lanes) const {
        lanes.store_strided(pairs ? to + 2 * at : to + at, pairs ? 2 : 1, re);
        lanes.store_strided(pairs ? to + 2 * at + 1 : to + n + at, pairs ? 2 : 1, im);
    }
};

template <typename real>
struct FilterStep {
    real *y, *new_state;
    const real *x, *state, *factor, *write, *read, *skip;
    int64_t batch, channels, numbers;

    /* What the new state of a channel adds to y, before the sum over lanes. */
    template <bool pairs>
    Vector<real> channel(int64_t row, int64_t h) const {
        const int64_t n = numbers, own = 2 * n * h, at_state = 2 * n * (row * channels + h);
        const real u = x[row * channels + h];
        Vector<real> sum = {};
        for_each_vector<real>(0, vectors_of<real>(n), n, [&](int64_t at, auto lanes) {
            using Number = Complex<real>;
            const Number w = Number::load(factor + own, n, at, false, lanes);
            const Number b = Number::load(write + own, n, at, false, lanes);
            const Number c = Number::load(read + own, n, at, false, lanes);
            const Number s = Number::load(state + at_state, n, at, pairs, lanes);
            const Number after{w.re * s.re - w.im * s.im + b.re * u,
                               w.re * s.im + w.im * s.re + b.im * u};
            after.store(new_state + at_state, n, at, pairs, lanes);
            sum += c.re * after.re + c.im * after.im;
        });
        return sum;
    }

    template <bool pairs>
    void some(int64_t row, int64_t first, int64_t count) const {
        constexpr int lanes = lanes_of<real>;
        Vector<real> square[lanes] = {};
        for (int64_t i = 0; i < count; ++i) square[i] = channel<pairs>(row, first + i);
        const int64_t at = row * channels + first;
        const auto finish = [&](auto part) {
            Vector<real> sum = sums_of_lanes<real>(square);
            if (skip) sum += part.load(skip + first) * part.load(x + at);
            part.store(y + at, sum);
        };
        if (count == lanes) finish(Whole<real>{});
        else finish(Part<real>{int(count)});
    }

    template <bool pairs>
    int run(int64_t threads) const {
        if (batch < 0 || channels < 1 || numbers < 1) return THREEFOLD_BAD_SIZE;
        constexpr int64_t lanes = lanes_of<real>;
        const int64_t useful = useful_threads(threads, 2 * batch * channels * numbers);
        split(vectors_of<real>(channels), useful, [&](int64_t first, int64_t last) {
            const FlushDenormals flush;
            for (int64_t h = first * lanes; h < std::min(last * lanes, channels); h += lanes)
                for (int64_t row = 0; row < batch; ++row)
                    some<pairs>(row, h, std::min(lanes, channels - h));
        });
        return THREEFOLD_OK;
    }
};

}  // namespace
}  // namespace threefold

#define DEFINE(real, suffix)                                                                       \
    int threefold_filter_step_##suffix(                                                            \
        real *y, real *new_state, const real *x, const real *state, const real *factor,            \
        const real *write, const real *read, const real *skip, int64_t batch, int64_t channels,    \
        int64_t numbers, int64_t pairs, int64_t threads) {                                         \
        const threefold::FilterStep<real> step{y,    new_state, x,     state,    factor, write,    \
                                               read, skip,      batch, channels, numbers};         \
        return pairs ? step.template run<true>(threads) : step.template run<false>(threads);       \
    }
THREEFOLD_FOR_BOTH(DEFINE)
