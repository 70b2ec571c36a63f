/* c_t = (I − A/2t)⁻¹ ((I + A/2t) c_{t−1} + B f_t/t),  f = w h,  h from x + R [h; c]₋
 *
 * Gated units coupled with LegS's projection of the values f that they write.
 * A = −(r_n r_k below the diagonal, n+1 on it), B = r, r_n = √(2n+1), so with s = 1/2t the system (I − sA) y = c + s B f is solved from the first
 * number to the last with one running sum, and c_t = 2y − c; its transpose from the last to the
 * first. Both solve and c are in double: an element changes c by only 1/t of its size
 * and nothing decays, so rounding errors would add up. Threads divide the rows.
 */
#include <cmath>

#include "cell_product.h"
#include "denormals.h"

namespace threefold {
namespace cell {
namespace {

/* The update of one projection by one element. */
struct LegS {
    int64_t order;
    double half;  /* 1/2t */

    LegS(int64_t order_, int64_t count) : order(order_), half(0.5 / double(count)) {}

    static double root(int64_t n) { return std::sqrt(2.0 * double(n) + 1.0); }
    double pivot(int64_t n) const { return 1.0 / (1.0 + half * double(n + 1)); }

    template <typename real>
    void move(double *exact, real *c, double said) const {
        double sum = 0;
        for (int64_t n = 0; n < order; ++n) {
            const double r = root(n), y = (exact[n] + half * r * (said - sum)) * pivot(n);
            sum += r * y;
            exact[n] = 2 * y - exact[n];
            c[n] = real(exact[n]);
        }
    }
    /* Turns the gradient of c after the update into that of c before it; returns that of f. */
    template <typename real>
    double move_back(real *grad) const {
        double sum = 0;
        for (int64_t n = order - 1; n >= 0; --n) {
            const double r = root(n), z = (2 * double(grad[n]) - half * r * sum) * pivot(n);
            sum += r * z;
            grad[n] = real(z - double(grad[n]));
        }
        return half * sum;
    }
};

template <typename real>
struct Scaled {
    using V = Vector<real>;
    const real *matrix, *say, *state;
    const int64_t *position, *lengths;
    int64_t batch, length, hidden, memories, order, threads;
    real *workspace;

    int64_t size() const { return hidden + memories * order; }
    int64_t length_of(int64_t row) const { return lengths ? lengths[row] : length; }
    int64_t longest(int64_t begin, int64_t end) const {
        int64_t most = 0;
        for (int64_t row = begin; row < end; ++row) most = std::max(most, length_of(row));
        return most;
    }
    int64_t element(int64_t row, int64_t t) const { return row * length + t; }
    LegS legs(int64_t row, int64_t t) const { return {order, position[row] + t + 1}; }
    int status() const {
        if (batch < 0 || length < 0 || hidden < 1 || memories < 1 || order < 1)
            return THREEFOLD_BAD_SIZE;
        for (int64_t row = 0; row < batch; ++row)
            if (length_of(row) < 0 || length_of(row) > length || position[row] < 0)
                return THREEFOLD_BAD_LENGTH;
        return THREEFOLD_OK;
    }
    int64_t useful() const {
        return threefold::useful_threads(threads, batch * length * 2 * hidden);
    }

    /* In the workspace: c of all rows in double, the packed matrix, then for each row what goes into a
     * product and comes out. */
    double *exact(int64_t row) const {
        return reinterpret_cast<double *>(workspace) + row * memories * order;
    }
    int64_t exact_size() const { return batch * memories * order * sizeof(double) / sizeof(real); }
    real *matrices() const { return workspace + exact_size(); }
    Packed<real> ahead() const { return {matrices(), size(), 2 * hidden}; }
    Packed<real> back() const { return {matrices(), 2 * hidden, size()}; }
    int64_t packed() const {
        return std::max(Packed<real>{nullptr, size(), 2 * hidden}.size(),
                        Packed<real>{nullptr, 2 * hidden, size()}.size());
    }
    int64_t buffer() const { return 2 * hidden + size() + 2 * tile_width<real>; }
    int64_t numbers() const { return exact_size() + packed() + batch * 2 * buffer(); }
    Rows<real> given(int64_t row) const {
        return {matrices() + packed() + row * 2 * buffer(), 2 * buffer()};
    }
    Rows<real> made(int64_t row) const { return {given(row).data + buffer(), 2 * buffer()}; }

    void pack(bool backward) const {
        const auto shape = backward ? back() : ahead();
        const int64_t width = tile_width<real>, columns = padded<real>(shape.outer);
        for (int64_t first = 0; first < columns; first += width)
            for (int64_t i = 0; i < shape.inner; ++i)
                for (int64_t o = first; o < first + width; ++o) {
                    real *to = matrices() + first * shape.inner + i * width + (o - first);
                    const bool real_one = o < shape.outer;
                    *to = !real_one ? real(0) : matrix[backward ? i * size() + o : o * size() + i];
                }
    }
};

template <typename real>
struct ScaledForward : Scaled<real> {
    using V = Vector<real>;
    real *out, *new_state, *kept;
    const real *inputs;

    void update(int64_t row, int64_t t) const {
        const int64_t e = this->element(row, t), hidden = this->hidden;
        const real *x = inputs + e * 2 * hidden, *product = this->made(row).data;
        real *h = new_state + row * this->size();
        for_each_vector<real>(0, vectors_of<real>(hidden), hidden, [&](int64_t u, auto lanes) {
            const V a = hyperbolic_tangent<real>(lanes.load(x + u) + lanes.load(product + u));
            const V gate =
                sigmoid<real>(lanes.load(x + hidden + u) + lanes.load(product + hidden + u));
            const V before = lanes.load(h + u);
            lanes.store(h + u, before + gate * (a - before));
            if (!kept) return;
            lanes.store(kept + e * 2 * hidden + u, a);
            lanes.store(kept + (e * 2 + 1) * hidden + u, gate);
        });
        for (int64_t m = 0; m < this->memories; ++m) {
            double said = 0;
            for (int64_t u = 0; u < hidden; ++u)
                said += double(this->say[m * hidden + u]) * double(h[u]);
            const int64_t at = m * this->order;
            this->legs(row, t).move(this->exact(row) + at, h + hidden + at, said);
        }
        std::copy_n(h, this->size(), out + e * this->size());
    }
    void rows(int64_t begin, int64_t end) const {
        const FlushDenormals flush;
        const int64_t size = this->size(), hidden = this->hidden;
        std::copy_n(this->state + begin * size, (end - begin) * size, new_state + begin * size);
        for (int64_t row = begin; row < end; ++row)
            std::copy_n(this->state + row * size + hidden, size - hidden, this->exact(row));
        for (int64_t t = 0, last = this->longest(begin, end); t < last; ++t) {
            this->ahead().multiply(end - begin, {new_state + begin * size, size},
                                   this->made(begin));
            for (int64_t row = begin; row < end; ++row)
                if (t < this->length_of(row)) update(row, t);
        }
        for (int64_t row = begin; row < end; ++row) {
            const int64_t e = this->element(row, this->length_of(row));
            const int64_t missing = this->length - this->length_of(row);
            std::fill_n(out + e * size, missing * size, real(0));
            if (kept) std::fill_n(kept + e * 2 * hidden, missing * 2 * hidden, real(0));
        }
    }
    int run() const {
        if (const int status = this->status()) return status;
        this->pack(false);
        split(this->batch, this->useful(), [&](int64_t b, int64_t e) { rows(b, e); });
        return THREEFOLD_OK;
    }
};

template <typename real>
struct ScaledBackward : Scaled<real> {
    using V = Vector<real>;
    real *grad_inputs, *grad_said, *grad_state;
    const real *grad_out, *grad_new_state, *out, *kept;

    void update(int64_t row, int64_t t) const {
        const int64_t e = this->element(row, t), hidden = this->hidden, size = this->size();
        real *grad = grad_state + row * size, *into = this->given(row).data;
        if (grad_out)
            for (int64_t u = 0; u < size; ++u) grad[u] += grad_out[e * size + u];
        for (int64_t m = 0; m < this->memories; ++m) {
            const real said = real(this->legs(row, t).move_back(grad + hidden + m * this->order));
            grad_said[e * this->memories + m] = said;
            for (int64_t u = 0; u < hidden; ++u) grad[u] += said * this->say[m * hidden + u];
        }
        const real *before = t ? out + (e - 1) * size : this->state + row * size;
        const real *keep = kept + e * 2 * hidden;
        for_each_vector<real>(0, vectors_of<real>(hidden), hidden, [&](int64_t u, auto lanes) {
            const V a = lanes.load(keep + u), gate = lanes.load(keep + hidden + u);
            const V g = lanes.load(grad + u);
            const V of_a = g * gate * (real(1) - a * a);
            const V of_gate = g * (a - lanes.load(before + u)) * gate * (real(1) - gate);
            lanes.store(grad + u, g * (real(1) - gate));
            for (real *to : {into, grad_inputs + e * 2 * hidden}) {
                lanes.store(to + u, of_a);
                lanes.store(to + hidden + u, of_gate);
            }
        });
    }
    void rows(int64_t begin, int64_t end) const {
        const FlushDenormals flush;
        const int64_t size = this->size(), hidden = this->hidden;
        for (int64_t row = begin; row < end; ++row) {
            std::fill_n(this->given(row).data, 2 * hidden, real(0));
            const int64_t e = this->element(row, this->length_of(row));
            const int64_t missing = this->length - this->length_of(row);
            std::fill_n(grad_inputs + e * 2 * hidden, missing * 2 * hidden, real(0));
            std::fill_n(grad_said + e * this->memories, missing * this->memories, real(0));
            if (grad_new_state)
                std::copy_n(grad_new_state + row * size, size, grad_state + row * size);
            else
                std::fill_n(grad_state + row * size, size, real(0));
        }
        for (int64_t t = this->longest(begin, end) - 1; t >= 0; --t) {
            for (int64_t row = begin; row < end; ++row)
                if (t < this->length_of(row)) update(row, t);
            const Rows<real> given = this->given(begin);
            this->back().multiply(end - begin, {given.data, given.stride}, this->made(begin));
            for (int64_t row = begin; row < end; ++row) {
                if (t >= this->length_of(row)) continue;
                const real *came = this->made(row).data;
                for (int64_t u = 0; u < size; ++u) grad_state[row * size + u] += came[u];
            }
        }
    }
    int run() const {
        if (const int status = this->status()) return status;
        this->pack(true);
        split(this->batch, this->useful(), [&](int64_t b, int64_t e) { rows(b, e); });
        return THREEFOLD_OK;
    }
};

}  // namespace
}  // namespace cell
}  // namespace threefold

#define DEFINE(real, suffix)                                                                       \
    int threefold_legs_recurrence_forward_##suffix(                                              \
        real *out, real *new_state, real *kept, real *workspace, const real *inputs,               \
        const real *matrix, const real *say, const real *state, const int64_t *position,           \
        const int64_t *lengths, int64_t batch, int64_t length, int64_t hidden, int64_t memories,   \
        int64_t order, int64_t threads) {                                                          \
        return threefold::cell::ScaledForward<real>{{matrix, say, state, position, lengths, batch, \
                                                     length, hidden, memories, order, threads,     \
                                                     workspace},                                   \
                                                    out, new_state, kept, inputs}                  \
            .run();                                                                                \
    }                                                                                              \
    int threefold_legs_recurrence_backward_##suffix(                                             \
        real *grad_inputs, real *grad_said, real *grad_state, real *workspace,                     \
        const real *grad_out, const real *grad_new_state, const real *out, const real *kept,       \
        const real *matrix, const real *say, const real *state, const int64_t *position,           \
        const int64_t *lengths, int64_t batch, int64_t length, int64_t hidden, int64_t memories,   \
        int64_t order, int64_t threads) {                                                          \
        return threefold::cell::ScaledBackward<real>{                                              \
            {matrix, say, state, position, lengths, batch, length, hidden, memories, order,        \
             threads, workspace},                                                                  \
            grad_inputs, grad_said, grad_state, grad_out, grad_new_state, out, kept}               \
            .run();                                                                                \
    }                                                                                              \
    int threefold_legs_recurrence_workspace_##suffix(int64_t *numbers, int64_t batch,            \
                                                       int64_t hidden, int64_t memories,           \
                                                       int64_t order, int64_t threads) {           \
        *numbers = threefold::cell::Scaled<real>{nullptr, nullptr, nullptr,  nullptr, nullptr,     \
                                                 batch,   0,       hidden,   memories, order,      \
                                                 threads, nullptr}                                 \
                       .numbers();                                                                 \
        return THREEFOLD_OK;                                                                       \
    }
THREEFOLD_FOR_BOTH(DEFINE)
