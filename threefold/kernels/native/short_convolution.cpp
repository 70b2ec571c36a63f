/* y_t = bias + Σ_k weight_k · x_{t−K+1+k},  optionally followed by SiLU
 *
 * A causal depthwise convolution, with the K−1 inputs before x as its state.
 * Vectors run over channels. A window of K inputs moves along time; it starts with the state and
 * ends as the new state, so neither border is a special case. Time is divided into short blocks, and
 * all channels of a block are done before the next, so x is read in memory order.
 */
#include "common.h"

namespace threefold {
namespace {

constexpr int64_t most_taps = 64;

/* What forward and backward both read. */
template <typename real>
struct Inputs {
    const real *x, *weight, *bias, *state;
    const int64_t *lengths;
    int64_t batch, length, channels, taps;
    /* Elements of x lie this far apart, through all rows. */
    int64_t stride;
    bool silu;
    int64_t threads;
    /* [K, D]: the taps of neighbouring channels side by side. */
    real *turned_weight;

    int64_t length_of(int64_t row) const { return lengths ? lengths[row] : length; }

    /* Long enough that at the end of a block the window holds no element of the state. */
    int64_t block() const { return std::max<int64_t>(4, taps); }

    int status() const {
        if (batch < 0 || length < 0 || channels < 0 || taps < 1 || taps > most_taps)
            return THREEFOLD_BAD_SIZE;
        for (int64_t row = 0; row < batch; ++row)
            if (length_of(row) < 0 || length_of(row) > length) return THREEFOLD_BAD_LENGTH;
        return THREEFOLD_OK;
    }

    /* Element s ≥ −(K−1) of one row: the state comes before x. */
    template <typename Lanes>
    Vector<real> element(int64_t row, int64_t s, int64_t channel, Lanes lanes) const {
        if (s >= 0) return lanes.load(x + (row * length + s) * stride + channel);
        if (!state) return Vector<real>{};
        return lanes.load(state + ((row + 1) * (taps - 1) + s) * channels + channel);
    }
};

/* The K inputs that one output sees, with their weights, for one vector of channels.
 * Taps = 0 means that their number is only known at run time. */
template <typename real, typename Lanes, int Taps>
struct Window {
    static constexpr int capacity = Taps ? Taps : most_taps;
    const Inputs<real> &inputs;
    const int64_t row, channel;
    const Lanes lanes;
    const int taps = Taps ? Taps : int(inputs.taps);
    Vector<real> bias, weight[capacity], value[capacity];

    /* The window just before time t, with its last slot free. */
    Window(const Inputs<real> &in, int64_t row, int64_t channel, Lanes lanes, int64_t t)
        : inputs(in), row(row), channel(channel), lanes(lanes) {
        bias = in.bias ? lanes.load(in.bias + channel) : Vector<real>{};
        for (int k = 0; k < taps; ++k)
            weight[k] = lanes.load(in.turned_weight + k * in.channels + channel);
        for (int k = 0; k < taps - 1; ++k) value[k] = in.element(row, t - taps + 1 + k, channel, lanes);
    }

    int64_t offset(int64_t t) const { return (row * inputs.length + t) * inputs.channels + channel; }

    Vector<real> output(int64_t t) {
        value[taps - 1] = inputs.element(row, t, channel, lanes);
        Vector<real> sum = bias;
        for (int k = 0; k < taps; ++k) sum += weight[k] * value[k];
        return sum;
    }

    void advance() {
        for (int k = 0; k < taps - 1; ++k) value[k] = value[k + 1];
    }
};

/* Without this the weights of neighbouring channels are K apart; it pays off even for one element. */
template <typename real>
void turn_weight(const Inputs<real> &in, int64_t threads) {
    split(vectors_of<real>(in.channels), threads, [&](int64_t first, int64_t last) {
        for_each_vector<real>(first, last, in.channels, [&](int64_t channel, auto lanes) {
            for (int64_t k = 0; k < in.taps; ++k)
                lanes.store(in.turned_weight + k * in.channels + channel,
                            lanes.load_strided(in.weight + channel * in.taps + k, in.taps));
        });
    });
}

/* Outputs do not exist at padding. */
template <typename real, typename Lanes>
void clear(real *y, int64_t first, int64_t last, int64_t channels, Lanes lanes) {
    for (int64_t t = first; t < last; ++t) lanes.store(y + t * channels, Vector<real>{});
}

template <typename real, int Taps>
struct Forward {
    const Inputs<real> &in;
    real *y, *new_state;

    template <typename Lanes>
    void block(int64_t row, int64_t channel, Lanes lanes, int64_t start, int64_t end) const {
        Window<real, Lanes, Taps> window(in, row, channel, lanes, start);
        for (int64_t t = start; t < end; ++t) {
            const Vector<real> output = window.output(t);
            lanes.store(y + window.offset(t), in.silu ? silu<real>(output) : output);
            window.advance();
        }
    }

    template <typename Lanes>
    void finish(int64_t row, int64_t channel, Lanes lanes, int64_t end) const {
        clear(y + row * in.length * in.channels + channel, end, in.length, in.channels, lanes);
        const int64_t kept = in.taps - 1;
        for (int64_t k = 0; k < kept; ++k)
            lanes.store(new_state + (row * kept + k) * in.channels + channel,
                        in.element(row, end - kept + k, channel, lanes));
    }
};

template <typename real, int Taps>
struct Backward {
    const Inputs<real> &in;
    real *grad_x, *grad_state, *partial;
    const real *grad_y, *grad_new_state;

    /* Where the gradient of element s ≥ −(K−1) belongs. */
    real *slot(int64_t row, int64_t s, int64_t channel) const {
        if (s >= 0) return grad_x + (row * in.length + s) * in.channels + channel;
        return grad_state + ((row + 1) * (in.taps - 1) + s) * in.channels + channel;
    }

    /* Sums over time of one row: the K weights' gradients, then the bias's. */
    real *sum(int64_t row, int64_t k, int64_t channel) const {
        return partial + (row * (in.taps + 1) + k) * in.channels + channel;
    }

    /* A gradient that still lacks later outputs waits in its slot between two blocks. */
    template <typename Lanes>
    void block(int64_t row, int64_t channel, Lanes lanes, int64_t start, int64_t end) const {
        Window<real, Lanes, Taps> window(in, row, channel, lanes, start);
        const int taps = window.taps;
        Vector<real> waiting[window.capacity], sums[window.capacity + 1];
        for (int k = 0; k < taps - 1; ++k)
            waiting[k] = start ? lanes.load(slot(row, start - taps + 1 + k, channel)) : Vector<real>{};
        for (int k = 0; k <= taps; ++k)
            sums[k] = start ? lanes.load(sum(row, k, channel)) : Vector<real>{};
        for (int64_t t = start; t < end; ++t) {
            const Vector<real> output = window.output(t);
            Vector<real> grad = lanes.load(grad_y + window.offset(t));
            if (in.silu) grad *= silu_slope<real>(output);
            waiting[taps - 1] = Vector<real>{};
            for (int k = 0; k < taps; ++k) {
                sums[k] += grad * window.value[k];
                waiting[k] += grad * window.weight[k];
            }
            sums[taps] += grad;
            lanes.store(slot(row, t - taps + 1, channel), waiting[0]);
            for (int k = 0; k < taps - 1; ++k) waiting[k] = waiting[k + 1];
            window.advance();
        }
        for (int k = 0; k < taps - 1; ++k)
            lanes.store(slot(row, end - taps + 1 + k, channel), waiting[k]);
        for (int k = 0; k <= taps; ++k) lanes.store(sum(row, k, channel), sums[k]);
    }

    /* The last K−1 elements are also the new state. */
    template <typename Lanes>
    void finish(int64_t row, int64_t channel, Lanes lanes, int64_t end) const {
        clear(grad_x + row * in.length * in.channels + channel, end, in.length, in.channels, lanes);
        const int64_t kept = in.taps - 1;
        for (int64_t k = 0; k < kept; ++k) {
            real *place = slot(row, end - kept + k, channel);
            const real *grad = grad_new_state + (row * kept + k) * in.channels + channel;
            lanes.store(place, lanes.load(place) + lanes.load(grad));
        }
    }
};

/* Runs a pass over every row, block of time and vector of channels. */
template <typename real, typename Pass>
void run(const Inputs<real> &in, const Pass &pass) {
    const int64_t threads = useful_threads(in.threads, in.batch * in.length * in.channels);
    turn_weight(in, threads);
    const auto body = [&](int64_t row, int64_t first, int64_t last) {
        const int64_t end = in.length_of(row);
        int64_t start = 0;
        /* At least once: a row without elements still has a state and sums to write. */
        do {
            const int64_t stop = std::min(end, start + in.block());
            for_each_vector<real>(first, last, in.channels, [&](int64_t channel, auto lanes) {
                pass.block(row, channel, lanes, start, stop);
            });
            start = stop;
        } while (start < end);
        for_each_vector<real>(first, last, in.channels, [&](int64_t channel, auto lanes) {
            pass.finish(row, channel, lanes, end);
        });
    };
    split_rows(in.batch, vectors_of<real>(in.channels), threads, body);
}

template <typename real>
int forward(const Inputs<real> &in, real *y, real *new_state) {
    if (const int status = in.status()) return status;
    if (in.taps == 4)
        run(in, Forward<real, 4>{in, y, new_state});
    else
        run(in, Forward<real, 0>{in, y, new_state});
    return THREEFOLD_OK;
}

/* The rows' sums are added in the order of the rows, whatever thread computed them. */
template <typename real>
void add_rows(const Inputs<real> &in, real *grad_weight, real *grad_bias, const real *partial) {
    const int64_t taps = in.taps;
    const int64_t threads = useful_threads(in.threads, in.batch * (taps + 1) * in.channels);
    split(vectors_of<real>(in.channels), threads, [&](int64_t first, int64_t last) {
        for_each_vector<real>(first, last, in.channels, [&](int64_t channel, auto lanes) {
            for (int64_t k = 0; k <= taps; ++k) {
                Vector<real> sum = {};
                for (int64_t row = 0; row < in.batch; ++row)
                    sum += lanes.load(partial + (row * (taps + 1) + k) * in.channels + channel);
                if (k < taps)
                    lanes.store_strided(grad_weight + channel * taps + k, taps, sum);
                else
                    lanes.store(grad_bias + channel, sum);
            }
        });
    });
}

template <typename real>
int backward(const Inputs<real> &in, real *grad_x, real *grad_weight, real *grad_bias,
             real *grad_state, const real *grad_y, const real *grad_new_state) {
    if (const int status = in.status()) return status;
    real *partial = in.turned_weight + in.taps * in.channels;
    if (in.taps == 4)
        run(in, Backward<real, 4>{in, grad_x, grad_state, partial, grad_y, grad_new_state});
    else
        run(in, Backward<real, 0>{in, grad_x, grad_state, partial, grad_y, grad_new_state});
    add_rows(in, grad_weight, grad_bias, partial);
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace threefold

#define DEFINE(real, suffix)                                                                       \
    int threefold_short_convolution_forward_##suffix(                                              \
        real *y, real *new_state, real *workspace, const real *x, const real *weight,              \
        const real *bias, const real *state, const int64_t *lengths, int64_t batch,                \
        int64_t length, int64_t channels, int64_t taps, int64_t stride, int64_t silu,              \
        int64_t threads) {                                                                         \
        return threefold::forward<real>({x, weight, bias, state, lengths, batch, length, channels, \
                                         taps, stride, silu != 0, threads, workspace},             \
                                        y, new_state);                                             \
    }                                                                                              \
    int threefold_short_convolution_backward_##suffix(                                             \
        real *grad_x, real *grad_weight, real *grad_bias, real *grad_state, real *workspace,       \
        const real *grad_y, const real *grad_new_state, const real *x, const real *weight,         \
        const real *bias, const real *state, const int64_t *lengths, int64_t batch,                \
        int64_t length, int64_t channels, int64_t taps, int64_t stride, int64_t silu,              \
        int64_t threads) {                                                                         \
        return threefold::backward<real>(                                                          \
            {x, weight, bias, state, lengths, batch, length, channels, taps, stride, silu != 0,    \
             threads, workspace},                                                                  \
            grad_x, grad_weight, grad_bias, grad_state, grad_y, grad_new_state);                   \
    }                                                                                              \
    int threefold_short_convolution_workspace_##suffix(int64_t *numbers, int64_t batch,            \
                                                       int64_t channels, int64_t taps,             \
                                                       int64_t backward, int64_t) {                \
        if (batch < 0 || channels < 0 || taps < 1) return THREEFOLD_BAD_SIZE;                      \
        *numbers = (taps + (backward ? batch * (taps + 1) : 0)) * channels;                        \
        return THREEFOLD_OK;                                                                       \
    }
THREEFOLD_FOR_BOTH(DEFINE)
