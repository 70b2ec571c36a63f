/* o = Σ_j a_j v_j,  a = softmax_j(scale q·k_j + bias),  j over a history that has just grown by one
 *
 * The keys and values of a head lie one after another, with room behind them. Scores are computed for a
 * block of elements at a time; what was summed before is scaled down when a larger score follows, so
 * no memory grows with the history.
 */
#include <cmath>
#include <limits>

#include "common.h"

namespace threefold {
namespace {

/* Elements whose scores are computed together. */
constexpr int64_t block = 64;

template <typename real>
real add_lanes(Vector<real> vector) {
    real sum = 0;
    for (int lane = 0; lane < lanes_of<real>; ++lane) sum += vector[lane];
    return sum;
}

template <typename real>
real dot(const real *a, const real *b, int64_t size) {
    Vector<real> sum = {};
    for_each_vector<real>(0, vectors_of<real>(size), size, [&](int64_t at, auto lanes) {
        sum += lanes.load(a + at) * lanes.load(b + at);
    });
    return add_lanes<real>(sum);
}

template <typename real>
struct Head {
    const real *query, *keys, *values, *bias;
    int64_t key_size, value_size, bias_size;
    real scale, slope;

    /* Scores of the elements first … last − 1, and the largest; the newest element is at `newest`. */
    real scores(real *to, int64_t first, int64_t last, int64_t newest) const {
        real largest = -std::numeric_limits<real>::infinity();
        for (int64_t at = first; at < last; ++at) {
            const int64_t distance = newest - at;
            real score = scale * dot<real>(query, keys + at * key_size, key_size) -
                         slope * real(distance);
            if (bias) score += bias[std::min(distance, bias_size - 1)];
            to[at - first] = score;
            if (score > largest || score != score) largest = score;
        }
        return largest;
    }

    void add(real *out, const real *weights, int64_t first, int64_t last) const {
        for_each_vector<real>(0, vectors_of<real>(value_size), value_size, [&](int64_t at, auto lanes) {
            Vector<real> sum = lanes.load(out + at);
            for (int64_t j = first; j < last; ++j)
                sum += weights[j - first] * lanes.load(values + j * value_size + at);
            lanes.store(out + at, sum);
        });
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
