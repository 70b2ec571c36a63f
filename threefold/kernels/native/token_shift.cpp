/* y_n,t = x_t + (x_{t−1} − x_t) ⊙ share_n,  x_{−1} = state
 *
 * N mixtures of each element and the one before it, all from one reading of x. Threads share rows
 * and vectors of channels; each runs along time, so that the gradient of an element also receives the
 * contribution of the next one, and the sums of the shares' gradients have a fixed order.
 */
#include "common.h"

namespace threefold {
namespace {

template <typename real>
struct Inputs {
    const real *x, *share, *state;
    const int64_t *lengths;
    int64_t shares, batch, length, channels, threads;

    int64_t length_of(int64_t row) const { return lengths ? lengths[row] : length; }

    int status() const {
        if (shares < 0 || batch < 0 || length < 0 || channels < 0) return THREEFOLD_BAD_SIZE;
        for (int64_t row = 0; row < batch; ++row)
            if (length_of(row) < 0 || length_of(row) > length) return THREEFOLD_BAD_LENGTH;
        return THREEFOLD_OK;
    }

    int64_t place(int64_t row, int64_t t, int64_t channel) const {
        return (row * length + t) * channels + channel;
    }
    int64_t place(int64_t n, int64_t row, int64_t t, int64_t channel) const {
        return place(n * batch + row, t, channel);
    }
    /* Element t ≥ −1 of a row: the state comes before x. */
    template <typename Lanes>
    Vector<real> element(int64_t row, int64_t t, int64_t channel, Lanes lanes) const {
        if (t >= 0) return lanes.load(x + place(row, t, channel));
        return state ? lanes.load(state + row * channels + channel) : Vector<real>{};
    }

    /* body(row, t, channel, lanes) along the time of each row, then finish(row, end, channel, lanes);
     * t goes to L, past the row's end. */
    template <typename Body, typename Finish>
    void along(const Body &body, const Finish &finish) const {
        const int64_t useful = useful_threads(threads, shares * batch * length * channels);
        split_rows(batch, vectors_of<real>(channels), useful, [&](int64_t row, int64_t first,
                                                                  int64_t last) {
            for (int64_t t = 0; t < length; ++t)
                for_each_vector<real>(first, last, channels, [&](int64_t channel, auto lanes) {
                    body(row, t, channel, lanes);
                });
            for_each_vector<real>(first, last, channels, [&](int64_t channel, auto lanes) {
                finish(row, length_of(row), channel, lanes);
            });
        });
    }
};

template <typename real>
int forward(const Inputs<real> &in, real *y, real *new_state) {
    if (const int status = in.status()) return status;
    const auto mix = [&](int64_t row, int64_t t, int64_t channel, auto lanes) {
        const bool real_element = t < in.length_of(row);
        const Vector<real> none = {};
        const Vector<real> here = real_element ? in.element(row, t, channel, lanes) : none;
        const Vector<real> change =
            real_element ? in.element(row, t - 1, channel, lanes) - here : none;
        for (int64_t n = 0; n < in.shares; ++n) {
            const Vector<real> share = lanes.load(in.share + n * in.channels + channel);
            lanes.store(y + in.place(n, row, t, channel), here + change * share);
        }
    };
    in.along(mix, [&](int64_t row, int64_t end, int64_t channel, auto lanes) {
        lanes.store(new_state + row * in.channels + channel, in.element(row, end - 1, channel, lanes));
    });
    return THREEFOLD_OK;
}

template <typename real>
struct Backward {
    const Inputs<real> &in;
    real *grad_x, *grad_state, *sums;
    const real *grad_y, *grad_new_state;

    /* Where the gradient of element t ≥ −1 belongs. */
    real *slot(int64_t row, int64_t t, int64_t channel) const {
        return t < 0 ? grad_state + row * in.channels + channel : grad_x + in.place(row, t, channel);
    }
    template <typename Lanes>
    static void add(real *to, Vector<real> more, Lanes lanes) {
        lanes.store(to, lanes.load(to) + more);
    }

    template <typename Lanes>
    void element(int64_t row, int64_t t, int64_t channel, Lanes lanes) const {
        if (t == 0) clear(row, channel, lanes);
        if (t >= in.length_of(row)) return lanes.store(slot(row, t, channel), Vector<real>{});
        const Vector<real> change =
            in.element(row, t - 1, channel, lanes) - in.element(row, t, channel, lanes);
        Vector<real> whole = {}, shared = {};
        for (int64_t n = 0; n < in.shares; ++n) {
            const Vector<real> grad = lanes.load(grad_y + in.place(n, row, t, channel));
            whole += grad;
            shared += grad * lanes.load(in.share + n * in.channels + channel);
            add(sums + (row * in.shares + n) * in.channels + channel, grad * change, lanes);
        }
        lanes.store(slot(row, t, channel), whole - shared);
        add(slot(row, t - 1, channel), shared, lanes);
    }

    template <typename Lanes>
    void clear(int64_t row, int64_t channel, Lanes lanes) const {
        lanes.store(slot(row, -1, channel), Vector<real>{});
        for (int64_t n = 0; n < in.shares; ++n)
            lanes.store(sums + (row * in.shares + n) * in.channels + channel, Vector<real>{});
    }

    /* The last element is also the new state. */
    template <typename Lanes>
    void finish(int64_t row, int64_t end, int64_t channel, Lanes lanes) const {
        const real *grad = grad_new_state + row * in.channels + channel;
        add(slot(row, end - 1, channel), lanes.load(grad), lanes);
    }
};

template <typename real>
int backward(const Inputs<real> &in, real *grad_x, real *grad_share, real *grad_state,
             real *workspace, const real *grad_y, const real *grad_new_state) {
    if (const int status = in.status()) return status;
    if (in.length < 1) return THREEFOLD_BAD_SIZE;
    const Backward<real> pass{in, grad_x, grad_state, workspace, grad_y, grad_new_state};
    in.along([&](int64_t row, int64_t t, int64_t channel,
                 auto lanes) { pass.element(row, t, channel, lanes); },
             [&](int64_t row, int64_t end, int64_t channel, auto lanes) {
                 pass.finish(row, end, channel, lanes);
             });
    /* The rows' sums are added in the order of the rows, whatever thread computed them. */
    for (int64_t i = 0; i < in.shares * in.channels; ++i) {
        real sum = 0;
        for (int64_t row = 0; row < in.batch; ++row)
            sum += workspace[row * in.shares * in.channels + i];
        grad_share[i] = sum;
    }
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace threefold

#define DEFINE(real, suffix)                                                                       \
    int threefold_token_shift_forward_##suffix(                                                    \
        real *y, real *new_state, const real *x, const real *share, const real *state,             \
        const int64_t *lengths, int64_t shares, int64_t batch, int64_t length, int64_t channels,   \
        int64_t threads) {                                                                         \
        return threefold::forward<real>(                                                           \
            {x, share, state, lengths, shares, batch, length, channels, threads}, y, new_state);   \
    }                                                                                              \
    int threefold_token_shift_backward_##suffix(                                                   \
        real *grad_x, real *grad_share, real *grad_state, real *workspace, const real *grad_y,     \
        const real *grad_new_state, const real *x, const real *share, const real *state,           \
        const int64_t *lengths, int64_t shares, int64_t batch, int64_t length, int64_t channels,   \
        int64_t threads) {                                                                         \
        return threefold::backward<real>(                                                          \
            {x, share, state, lengths, shares, batch, length, channels, threads}, grad_x,          \
            grad_share, grad_state, workspace, grad_y, grad_new_state);                            \
    }                                                                                              \
    int threefold_token_shift_workspace_##suffix(int64_t *numbers, int64_t shares, int64_t batch,  \
                                                 int64_t channels, int64_t) {                      \
        if (shares < 0 || batch < 0 || channels < 0) return THREEFOLD_BAD_SIZE;                    \
        *numbers = shares * batch * channels; /* the gradient of each share in each row */         \
        return THREEFOLD_OK;                                                                       \
    }
THREEFOLD_FOR_BOTH(DEFINE)
