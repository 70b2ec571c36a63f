/* h_t = a_t ⊙ h_{t−1} + b_t,   G_t = ∂h_t + conj(a_{t+1}) ⊙ G_{t+1}:   ∂b_t = G_t,  ∂a_t = G_t conj(h_{t−1})
 *
 * Each channel is independent, real or complex. Threads divide rows and channels; each runs along
 * time with its channels' numbers in the cache, and reads and writes everything else once.
 */
#include "common.h"
#include "denormals.h"

namespace threefold {
namespace {

/* A real number, or a real and an imaginary part. */
template <typename real, int planes>
struct Number {
    Vector<real> plane[planes];

    template <typename Lanes>
    static Number load(const real *from, int64_t distance, Lanes lanes) {
        Number x;
        for (int p = 0; p < planes; ++p) x.plane[p] = lanes.load(from + p * distance);
        return x;
    }
    template <typename Lanes>
    void store(real *to, int64_t distance, Lanes lanes) const {
        for (int p = 0; p < planes; ++p) lanes.store(to + p * distance, plane[p]);
    }
    Number operator+(const Number &other) const {
        Number sum;
        for (int p = 0; p < planes; ++p) sum.plane[p] = plane[p] + other.plane[p];
        return sum;
    }
    Number operator*(const Number &b) const {
        if constexpr (planes == 1) return {{plane[0] * b.plane[0]}};
        else
            return {{plane[0] * b.plane[0] - plane[1] * b.plane[1],
                     plane[0] * b.plane[1] + plane[1] * b.plane[0]}};
    }
    Number conjugate() const {
        if constexpr (planes == 1) return *this;
        else return {{plane[0], -plane[1]}};
    }
};

template <typename real>
struct Inputs {
    const real *decay, *state;
    const int64_t *lengths;
    int64_t batch, length, channels;
    bool fixed;
    int64_t threads;

    int64_t length_of(int64_t row) const { return lengths ? lengths[row] : length; }
    int status() const {
        if (batch < 0 || length < 0 || channels < 1) return THREEFOLD_BAD_SIZE;
        for (int64_t row = 0; row < batch; ++row)
            if (length_of(row) < 0 || length_of(row) > length) return THREEFOLD_BAD_LENGTH;
        return THREEFOLD_OK;
    }
};

template <typename real, int planes>
struct Pass : Inputs<real> {
    using Value = Number<real, planes>;

    int64_t width() const { return planes * this->channels; }
    int64_t element(int64_t row, int64_t t) const { return (row * this->length + t) * width(); }
    template <typename Lanes>
    Value at(const real *from, int64_t channel, Lanes lanes) const {
        return Value::load(from + channel, this->channels, lanes);
    }
    template <typename Lanes>
    void put(real *to, int64_t channel, const Value &value, Lanes lanes) const {
        value.store(to + channel, this->channels, lanes);
    }
    template <typename Lanes>
    Value decay_at(int64_t row, int64_t t, int64_t channel, Lanes lanes) const {
        return at(this->decay + (this->fixed ? 0 : element(row, t)), channel, lanes);
    }
    /* body(row, first, last) with vectors first … last of a row's channels. */
    template <typename Body>
    void share(const Body &body) const {
        const int64_t work = this->batch * this->length * width();
        split_rows(this->batch, vectors_of<real>(this->channels),
                   useful_threads(this->threads, work),
                   [&](int64_t row, int64_t first, int64_t last) {
                       const FlushDenormals flush;
                       body(row, first, last);
                   });
    }
    template <typename Body>
    void each(int64_t first, int64_t last, const Body &body) const {
        for_each_vector<real>(first, last, this->channels, body);
    }
    /* Zeros in `to` [B, L, …] after a row's end. */
    void clear(real *to, int64_t row, int64_t first, int64_t last) const {
        for (int64_t t = this->length_of(row); t < this->length; ++t)
            each(first, last, [&](int64_t channel, auto lanes) {
                put(to + element(row, t), channel, Value{}, lanes);
            });
    }
};

template <typename real, int planes>
int forward(const Inputs<real> &in, real *out, real *new_state, const real *write) {
    const Pass<real, planes> pass{in};
    pass.share([&](int64_t row, int64_t first, int64_t last) {
        real *carried = new_state + row * pass.width();
        pass.each(first, last, [&](int64_t channel, auto lanes) {
            pass.put(carried, channel,
                     pass.at(in.state + row * pass.width(), channel, lanes), lanes);
        });
        for (int64_t t = 0; t < in.length_of(row); ++t)
            pass.each(first, last, [&](int64_t channel, auto lanes) {
                const int64_t e = pass.element(row, t);
                const auto h = pass.decay_at(row, t, channel, lanes) *
                                   pass.at(carried, channel, lanes) +
                               pass.at(write + e, channel, lanes);
                pass.put(carried, channel, h, lanes);
                pass.put(out + e, channel, h, lanes);
            });
        pass.clear(out, row, first, last);
    });
    return THREEFOLD_OK;
}

template <typename real, int planes>
struct Backward : Pass<real, planes> {
    using Value = Number<real, planes>;
    real *grad_decay, *grad_write, *grad_state;
    const real *grad_out, *grad_new_state, *out;

    template <typename Lanes>
    void update(int64_t row, int64_t t, int64_t channel, Lanes lanes) const {
        const int64_t e = this->element(row, t), r = row * this->width();
        Value grad = this->at(grad_state + r, channel, lanes);
        if (grad_out) grad = grad + this->at(grad_out + e, channel, lanes);
        const real *before = t ? out + this->element(row, t - 1) : this->state + r;
        const Value of_decay = grad * this->at(before, channel, lanes).conjugate();
        this->put(grad_write + e, channel, grad, lanes);
        if (this->fixed)
            this->put(grad_decay + r, channel,
                      this->at(grad_decay + r, channel, lanes) + of_decay, lanes);
        else
            this->put(grad_decay + e, channel, of_decay, lanes);
        this->put(grad_state + r, channel,
                  grad * this->decay_at(row, t, channel, lanes).conjugate(), lanes);
    }
    int run() const {
        this->share([&](int64_t row, int64_t first, int64_t last) {
            const int64_t r = row * this->width();
            this->each(first, last, [&](int64_t channel, auto lanes) {
                const Value start =
                    grad_new_state ? this->at(grad_new_state + r, channel, lanes) : Value{};
                this->put(grad_state + r, channel, start, lanes);
                if (this->fixed) this->put(grad_decay + r, channel, Value{}, lanes);
            });
            for (int64_t t = this->length_of(row) - 1; t >= 0; --t)
                this->each(first, last, [&](int64_t channel, auto lanes) {
                    update(row, t, channel, lanes);
                });
            this->clear(grad_write, row, first, last);
            if (!this->fixed) this->clear(grad_decay, row, first, last);
        });
        return THREEFOLD_OK;
    }
};

}  // namespace
}  // namespace threefold

#define DEFINE(real, suffix)                                                                       \
    int threefold_diagonal_recurrence_forward_##suffix(                                            \
        real *out, real *new_state, const real *decay, const real *write, const real *state,       \
        const int64_t *lengths, int64_t batch, int64_t length, int64_t planes, int64_t channels,   \
        int64_t fixed, int64_t threads) {                                                          \
        const threefold::Inputs<real> in{decay,    state,      lengths, batch, length,             \
                                         channels, fixed != 0, threads};                           \
        if (const int status = in.status()) return status;                                         \
        if (planes == 1) return threefold::forward<real, 1>(in, out, new_state, write);            \
        if (planes == 2) return threefold::forward<real, 2>(in, out, new_state, write);            \
        return THREEFOLD_BAD_SIZE;                                                                 \
    }                                                                                              \
    int threefold_diagonal_recurrence_backward_##suffix(                                           \
        real *grad_decay, real *grad_write, real *grad_state, const real *grad_out,                \
        const real *grad_new_state, const real *out, const real *decay, const real *state,         \
        const int64_t *lengths, int64_t batch, int64_t length, int64_t planes, int64_t channels,   \
        int64_t fixed, int64_t threads) {                                                          \
        const threefold::Inputs<real> in{decay,    state,      lengths, batch, length,             \
                                         channels, fixed != 0, threads};                           \
        if (const int status = in.status()) return status;                                         \
        if (planes == 1)                                                                           \
            return threefold::Backward<real, 1>{{in},     grad_decay,     grad_write, grad_state,  \
                                                grad_out, grad_new_state, out}                     \
                .run();                                                                            \
        if (planes == 2)                                                                           \
            return threefold::Backward<real, 2>{{in},     grad_decay,     grad_write, grad_state,  \
                                                grad_out, grad_new_state, out}                     \
                .run();                                                                            \
        return THREEFOLD_BAD_SIZE;                                                                 \
    }
THREEFOLD_FOR_BOTH(DEFINE)
