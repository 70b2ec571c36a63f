/* o = Σ_j a_j v_j,  a = softmax_j(scale q·k_j + bias),  j over a history that has just grown by one
 *
 * The keys and values of a head lie one after another, with room behind them. Scores are computed for a
 * block of elements at a time; what was summed before is scaled down when a larger score follows, so
 * no memory grows with the history.
 */
#include <cmath>
#include <limits>

#include "common.h"
#include "transpose.h"

namespace threefold {
namespace {

/* Elements whose scores are computed together. */
constexpr int64_t block = 64;

template <typename real>
struct Head {
    const real *query, *keys, *values, *bias;
    int64_t key_size, value_size, bias_size;
    real scale, slope;

    /* q·k of `count` elements from number `first` on, at most as many as a vector has lanes. */
    Vector<real> products(int64_t first, int64_t count) const {
        Vector<real> square[lanes_of<real>] = {};
        for (int64_t j = 0; j < count; ++j) {
            const real *key = keys + (first + j) * key_size;
            for_each_vector<real>(0, vectors_of<real>(key_size), key_size, [&](int64_t at, auto lanes) {
                square[j] += lanes.load(query + at) * lanes.load(key + at);
            });
        }
        return sums_of_lanes<real>(square);
    }

    /* Scores of the elements first … last − 1, and the largest; the newest element is at `newest`. */
    real scores(real *to, int64_t first, int64_t last, int64_t newest) const {
        constexpr int64_t lanes = lanes_of<real>;
        real largest = -std::numeric_limits<real>::infinity();
        for (int64_t at = first; at < last; at += lanes) {
            const int64_t count = std::min(lanes, last - at);
            const Vector<real> found = scale * (count == lanes ? products(at, lanes) : products(at, count));
            for (int64_t j = 0; j < count; ++j) {
                const int64_t distance = newest - at - j;
                real score = found[j] - slope * real(distance);
                if (bias) score += bias[std::min(distance, bias_size - 1)];
                to[at - first + j] = score;
                if (score > largest || score != score) largest = score;
            }
        }
        return largest;
    }

    /* `vectors` vectors of the output; elements in turns go to one of two sums, which run side by side. */
    template <int vectors, typename Lanes>
    void add_columns(real *out, const real *weights, int64_t first, int64_t last, Lanes lanes) const {
        Vector<real> sum[2][vectors] = {};
        const real *row = values + first * value_size;
        int64_t j = 0;
        const auto take = [&](int turn) {
            for (int v = 0; v < vectors; ++v)
                sum[turn][v] += weights[j] * lanes.load(row + v * lanes_of<real>);
            row += value_size;
            ++j;
        };
        while (j + 2 <= last - first) take(0), take(1);
        if (j < last - first) take(0);
        for (int v = 0; v < vectors; ++v) {
            real *to = out + v * lanes_of<real>;
            lanes.store(to, lanes.load(to) + (sum[0][v] + sum[1][v]));
        }
    }

    void add(real *out, const real *weights, int64_t first, int64_t last) const {
        constexpr int64_t lanes = lanes_of<real>, together = 4;
        Head part = *this;
        int64_t at = 0;
        const auto move = [&](int64_t count) { at += count, part.values += count; };
        for (; at + together * lanes <= value_size; move(together * lanes))
            part.template add_columns<together>(out + at, weights, first, last, Whole<real>{});
        for (; at + lanes <= value_size; move(lanes))
            part.template add_columns<1>(out + at, weights, first, last, Whole<real>{});
        if (at < value_size)
            part.template add_columns<1>(out + at, weights, first, last,
                                         Part<real>{int(value_size - at)});
    }

    void multiply(real *out, real factor) const {
        for_each_vector<real>(0, vectors_of<real>(value_size), value_size, [&](int64_t at, auto lanes) {
            lanes.store(out + at, lanes.load(out + at) * factor);
        });
    }

    void read(real *out, int64_t oldest, int64_t newest) const {
        real weights[block + lanes_of<real>] = {};
        real most = -std::numeric_limits<real>::infinity(), total = 0;
        for (int64_t i = 0; i < value_size; ++i) out[i] = 0;
        for (int64_t first = oldest; first <= newest; first += block) {
            const int64_t last = std::min(first + block, newest + 1), count = last - first;
            const real here = scores(weights, first, last, newest);
            if (here > most || here != here) {
                const real factor = total ? std::exp(most - here) : real(0);
                if (total) multiply(out, factor);
                total *= factor;
                most = here;
            }
            for (int64_t at = 0; at < count; at += lanes_of<real>) {
                const Vector<real> made =
                    exponential<real>(Whole<real>{}.load(weights + at) - splat<real>(most));
                Whole<real>{}.store(weights + at, made);
            }
            for (int64_t at = 0; at < count; ++at) total += weights[at];
            add(out, weights, first, last);
        }
        multiply(out, 1 / total);
    }
};

template <typename real>
void append(real *history, const real *row, const int64_t *starts, int64_t batch, int64_t groups,
            int64_t room, int64_t size) {
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t g = 0; g < groups; ++g)
            for (int64_t i = 0; i < size; ++i)
                history[((b * groups + g) * room + starts[b]) * size + i] =
                    row[(b * groups + g) * size + i];
}

/* The sizes of a step, and where its elements are. */
struct Places {
    const int64_t *key_starts, *value_starts;
    const double *position;
    int64_t batch, heads, groups, key_size, value_size, window, bias_row, bias_size, key_room,
        value_room;

    /* Elements that row b reads besides the new one. */
    int64_t past(int64_t b) const { return std::min(int64_t(position[b]), window - 1); }

    int status() const {
        if (batch < 0 || groups < 1 || heads % groups || key_size < 1 || value_size < 1)
            return THREEFOLD_BAD_SIZE;
        for (int64_t b = 0; b < batch; ++b) {
            if (!(position[b] >= 0) || key_starts[b] < past(b) || value_starts[b] < past(b))
                return THREEFOLD_BAD_INDEX;
            if (key_starts[b] >= key_room || value_starts[b] >= value_room)
                return THREEFOLD_BAD_INDEX;
        }
        return THREEFOLD_OK;
    }
    int64_t work() const {
        int64_t read = batch;
        for (int64_t b = 0; b < batch; ++b) read += past(b);
        return heads * read * (key_size + value_size) / 4;
    }
};

template <typename real>
int step(real *out, real *keys, real *values, const real *query, const real *key, const real *value,
         const real *bias, const real *slopes, const Places &at, int64_t threads, real scale) {
    if (const int status = at.status()) return status;
    append(keys, key, at.key_starts, at.batch, at.groups, at.key_room, at.key_size);
    append(values, value, at.value_starts, at.batch, at.groups, at.value_room, at.value_size);
    const int64_t useful = useful_threads(threads, at.work());
    split(at.batch * at.heads, useful, [&](int64_t first, int64_t last) {
        for (int64_t item = first; item < last; ++item) {
            const int64_t b = item / at.heads, h = item % at.heads;
            const int64_t group = b * at.groups + h / (at.heads / at.groups);
            /* Where the values begin if they are counted as the keys are. */
            const int64_t begin = group * at.value_room + at.value_starts[b] - at.key_starts[b];
            const Head<real> head{query + item * at.key_size,
                                  keys + group * at.key_room * at.key_size,
                                  values + begin * at.value_size,
                                  bias ? bias + b * at.bias_row + h * at.bias_size : nullptr,
                                  at.key_size,
                                  at.value_size,
                                  at.bias_size,
                                  scale,
                                  slopes ? slopes[h] : real(0)};
            head.read(out + item * at.value_size, at.key_starts[b] - at.past(b), at.key_starts[b]);
        }
    });
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace threefold

#define DEFINE(real, suffix)                                                                         \
    int threefold_history_step_##suffix(                                                             \
        real *out, real *keys, real *values, const real *query, const real *key, const real *value,  \
        const real *bias, const real *slopes, const int64_t *key_starts,                             \
        const int64_t *value_starts, const double *position, int64_t batch, int64_t heads,           \
        int64_t groups, int64_t key_size, int64_t value_size, int64_t window, int64_t bias_row,      \
        int64_t bias_size, int64_t key_room, int64_t value_room, int64_t threads, double scale) {    \
        const threefold::Places at{key_starts, value_starts, position,  batch,    heads,             \
                                   groups,     key_size,     value_size, window,  bias_row,          \
                                   bias_size,  key_room,     value_room};                            \
        return threefold::step<real>(out, keys, values, query, key, value, bias, slopes, at,         \
                                     threads, real(scale));                                          \
    }
THREEFOLD_FOR_BOTH(DEFINE)
