/* rnn      h = φ(a)                                      a = x + U h₋, gate by gate
 * lstm     c = f c₋ + i g,         h = o tanh(c)         i, f, o = σ(a),  g = tanh(a)
 * gru      h = z h₋ + (1−z) n                            r, z = σ(a),  n = tanh(x + U(r h₋))
 * slstm    c = f c₋ + i z,  n = f n₋ + i,  h = o c/n     i = e^a,  f, o = σ(a),  z = tanh(a)
 * memory   h = φ(a) or h₋ + g (tanh(a) − h₋),  m = a     units h with a linear memory m
 * refined  c = g c₋ + (1−g) n,     g = f² + 2 r f (1−f)  f, r = σ(a): the LSTM and GRU of UR gates
 * euler    h = a₀ + ε tanh(a₁)                           a₀ = (I + ε A) h₋
 *
 * What each cell does to one vector of units, and its derivative. A cell names how many gates it
 * has, how many parts it carries (the first is h), and how many numbers a unit saves of every
 * element for the backward pass; `slot` is the index of a part among them.
 *   forward(x, u, part, extra, kept)       x inputs and u = U h₋ of the gates; parts in and out
 *   backward(kept, before, h, extra, part, grad, product)   gradients: of the parts after the element
 *            in, of those before it out, but for U; of the inputs; of the products U h₋
 */
#pragma once

#include "common.h"

namespace threefold {
namespace cell {

template <typename real>
inline Vector<real> slope_of_sigmoid(Vector<real> gate) {
    return gate * (real(1) - gate);
}

template <typename real>
inline Vector<real> slope_of_tanh(Vector<real> value) {
    return real(1) - value * value;
}

enum Activation { tanh_, relu_, sigmoid_, identity_ };

template <typename real, Activation activation>
struct Rnn {
    using V = Vector<real>;
    static constexpr int gates = 1, parts = 1, kept = 0, extras = 0;
    static constexpr int slot[] = {-1};
    static constexpr bool two_phases = false;

    static void forward(const V *x, const V *u, V *part, const V *, V *) {
        const V a = x[0] + u[0];
        if constexpr (activation == tanh_) part[0] = hyperbolic_tangent<real>(a);
        else if constexpr (activation == relu_) part[0] = a < real(0) ? V{} : a;
        else if constexpr (activation == sigmoid_) part[0] = sigmoid<real>(a);
        else part[0] = a;
    }
    static void backward(const V *, const V *, V h, const V *, V *part, V *grad, V *product) {
        if constexpr (activation == tanh_) grad[0] = part[0] * slope_of_tanh<real>(h);
        else if constexpr (activation == relu_) grad[0] = h <= real(0) ? V{} : part[0];
        else if constexpr (activation == sigmoid_) grad[0] = part[0] * slope_of_sigmoid<real>(h);
        else grad[0] = part[0];
        product[0] = grad[0];
        part[0] = V{};
    }
};

/* modReLU: h = sign(a) max(|a| + b, 0); extra is b. */
template <typename real>
struct RnnModRelu {
    using V = Vector<real>;
    static constexpr int gates = 1, parts = 1, kept = 0, extras = 1;
    static constexpr int slot[] = {-1};
    static constexpr bool two_phases = false;

    static void forward(const V *x, const V *u, V *part, const V *extra, V *) {
        const V a = x[0] + u[0];
        const V size = (a < real(0) ? -a : a) + extra[0];
        const V with_sign = a < real(0) ? -size : size;
        /* NaN is neither: it stays. */
        part[0] = a == real(0) ? V{} : with_sign;
        part[0] = size <= real(0) ? V{} : part[0];
    }
    static void backward(const V *, const V *, V h, const V *, V *part, V *grad, V *product) {
        grad[0] = h == real(0) ? V{} : part[0];
        product[0] = grad[0];
        part[0] = V{};
    }
};

/* One step of Euler's method of size ε, which is extra; the first product is (I + ε A) h₋. */
template <typename real>
struct Euler {
    using V = Vector<real>;
    static constexpr int gates = 2, parts = 1, kept = 1, extras = 1;
    static constexpr int slot[] = {-1};
    static constexpr bool two_phases = false;

    static void forward(const V *x, const V *u, V *part, const V *extra, V *keep) {
        keep[0] = hyperbolic_tangent<real>(x[1] + u[1]);
        part[0] = x[0] + u[0] + extra[0] * keep[0];
    }
    static void backward(const V *keep, const V *, V, const V *extra, V *part, V *grad,
                         V *product) {
        grad[0] = part[0];
        grad[1] = part[0] * extra[0] * slope_of_tanh<real>(keep[0]);
        part[0] = V{};
        product[0] = grad[0];
        product[1] = grad[1];
    }
};

/* Extra are the peepholes of i, f and o. */
template <typename real, bool peepholes>
struct Lstm {
    using V = Vector<real>;
    static constexpr int gates = 4, parts = 2, kept = 5, extras = peepholes ? 3 : 0;
    static constexpr int slot[] = {-1, 4};
    static constexpr bool two_phases = false;

    static void forward(const V *x, const V *u, V *part, const V *extra, V *keep) {
        V a[4];
        for (int g = 0; g < 4; ++g) a[g] = x[g] + u[g];
        if constexpr (peepholes) {
            a[0] += extra[0] * part[1];
            a[1] += extra[1] * part[1];
        }
        keep[0] = sigmoid<real>(a[0]);
        keep[1] = sigmoid<real>(a[1]);
        keep[2] = hyperbolic_tangent<real>(a[2]);
        keep[4] = part[1] = keep[1] * part[1] + keep[0] * keep[2];
        if constexpr (peepholes) a[3] += extra[2] * part[1];
        keep[3] = sigmoid<real>(a[3]);
        part[0] = keep[3] * hyperbolic_tangent<real>(part[1]);
    }
    static void backward(const V *keep, const V *before, V, const V *extra, V *part, V *grad,
                         V *product) {
        const V i = keep[0], f = keep[1], g = keep[2], o = keep[3];
        const V squashed = hyperbolic_tangent<real>(keep[4]);
        grad[3] = part[0] * squashed * slope_of_sigmoid<real>(o);
        V cell = part[1] + part[0] * o * slope_of_tanh<real>(squashed);
        if constexpr (peepholes) cell += grad[3] * extra[2];
        grad[0] = cell * g * slope_of_sigmoid<real>(i);
        grad[1] = cell * before[1] * slope_of_sigmoid<real>(f);
        grad[2] = cell * i * slope_of_tanh<real>(g);
        part[1] = cell * f;
        if constexpr (peepholes) part[1] += grad[0] * extra[0] + grad[1] * extra[1];
        part[0] = V{};
        for (int k = 0; k < 4; ++k) product[k] = grad[k];
    }
};

template <typename real>
struct CoupledLstm {
    using V = Vector<real>;
    static constexpr int gates = 3, parts = 2, kept = 4, extras = 0;
    static constexpr int slot[] = {-1, 3};
    static constexpr bool two_phases = false;

    static void forward(const V *x, const V *u, V *part, const V *, V *keep) {
        keep[0] = sigmoid<real>(x[0] + u[0]);
        keep[1] = hyperbolic_tangent<real>(x[1] + u[1]);
        keep[2] = sigmoid<real>(x[2] + u[2]);
        keep[3] = part[1] = keep[0] * part[1] + sigmoid<real>(-(x[0] + u[0])) * keep[1];
        part[0] = keep[2] * hyperbolic_tangent<real>(part[1]);
    }
    static void backward(const V *keep, const V *before, V, const V *, V *part, V *grad,
                         V *product) {
        const V f = keep[0], g = keep[1], o = keep[2];
        const V squashed = hyperbolic_tangent<real>(keep[3]);
        const V cell = part[1] + part[0] * o * slope_of_tanh<real>(squashed);
        grad[0] = cell * (before[1] - g) * slope_of_sigmoid<real>(f);
        grad[1] = cell * (real(1) - f) * slope_of_tanh<real>(g);
        grad[2] = part[0] * squashed * slope_of_sigmoid<real>(o);
        part[1] = cell * f;
        part[0] = V{};
        for (int k = 0; k < 3; ++k) product[k] = grad[k];
    }
};

/* A gate f that r refines: the past's share g = f² + 2 r f (1−f), and 1 − g without cancellation. */
template <typename real>
struct Refined {
    using V = Vector<real>;
    V f, rest, r, r_rest;

    static Refined of(V a, V b) {
        return {sigmoid<real>(a), sigmoid<real>(-a), sigmoid<real>(b), sigmoid<real>(-b)};
    }
    static Refined of_gates(V f, V r) { return {f, real(1) - f, r, real(1) - r}; }
    V past() const { return f * (f + real(2) * r * rest); }
    V present() const { return rest * (rest + real(2) * r_rest * f); }
    /* Derivatives of g by the pre-activations of f and r. */
    V by_f() const { return real(2) * (f * r_rest + r * rest) * f * rest; }
    V by_r() const { return real(2) * f * rest * r * r_rest; }
};

/* Gates in the order f, r, n, o. */
template <typename real>
struct UrLstm {
    using V = Vector<real>;
    static constexpr int gates = 4, parts = 2, kept = 5, extras = 0;
    static constexpr int slot[] = {-1, 4};
    static constexpr bool two_phases = false;

    static void forward(const V *x, const V *u, V *part, const V *, V *keep) {
        const auto g = Refined<real>::of(x[0] + u[0], x[1] + u[1]);
        keep[0] = g.f;
        keep[1] = g.r;
        keep[2] = hyperbolic_tangent<real>(x[2] + u[2]);
        keep[3] = sigmoid<real>(x[3] + u[3]);
        keep[4] = part[1] = g.past() * part[1] + g.present() * keep[2];
        part[0] = keep[3] * hyperbolic_tangent<real>(part[1]);
    }
    static void backward(const V *keep, const V *before, V, const V *, V *part, V *grad,
                         V *product) {
        const auto g = Refined<real>::of_gates(keep[0], keep[1]);
        const V n = keep[2], o = keep[3];
        const V squashed = hyperbolic_tangent<real>(keep[4]);
        const V cell = part[1] + part[0] * o * slope_of_tanh<real>(squashed);
        const V share = cell * (before[1] - n);
        grad[0] = share * g.by_f();
        grad[1] = share * g.by_r();
        grad[2] = cell * g.present() * slope_of_tanh<real>(n);
        grad[3] = part[0] * squashed * slope_of_sigmoid<real>(o);
        part[1] = cell * g.past();
        part[0] = V{};
        for (int k = 0; k < 4; ++k) product[k] = grad[k];
    }
};

/* z as the share of the past, also where the pre-activation is that of the new share. */
template <typename real, bool writes>
inline Vector<real> keeping(Vector<real> a) {
    return sigmoid<real>(writes ? -a : a);
}

template <typename real, bool writes>
inline Vector<real> slope_of_keeping(Vector<real> keep) {
    return writes ? -slope_of_sigmoid<real>(keep) : slope_of_sigmoid<real>(keep);
}

/* torch's GRU: n = tanh(x + r (U h₋ + b)); extra is b. */
template <typename real, bool writes>
struct GruAfter {
    using V = Vector<real>;
    static constexpr int gates = 3, parts = 1, kept = 4, extras = 1;
    static constexpr int slot[] = {-1};
    static constexpr bool two_phases = false;

    static void forward(const V *x, const V *u, V *part, const V *extra, V *keep) {
        keep[0] = sigmoid<real>(x[0] + u[0]);
        keep[1] = keeping<real, writes>(x[1] + u[1]);
        keep[3] = u[2] + extra[0];
        keep[2] = hyperbolic_tangent<real>(x[2] + keep[0] * keep[3]);
        part[0] = keep[2] + keep[1] * (part[0] - keep[2]);
    }
    static void backward(const V *keep, const V *before, V, const V *, V *part, V *grad,
                         V *product) {
        const V r = keep[0], z = keep[1], n = keep[2];
        grad[1] = part[0] * (before[0] - n) * slope_of_keeping<real, writes>(z);
        grad[2] = part[0] * (real(1) - z) * slope_of_tanh<real>(n);
        grad[0] = grad[2] * keep[3] * slope_of_sigmoid<real>(r);
        part[0] = part[0] * z;
        product[0] = grad[0];
        product[1] = grad[1];
        product[2] = grad[2] * r;
    }
};

/* The paper's GRU: n = tanh(x + U(r h₋)) needs r before its product is begun. */
template <typename real, bool writes>
struct Gru {
    using V = Vector<real>;
    static constexpr int gates = 3, parts = 1, kept = 3, extras = 0;
    static constexpr int slot[] = {-1};
    static constexpr bool two_phases = true;

    /* Both read `seen`, h₋ after dropout. */
    static V reset(const V *x, const V *u) { return sigmoid<real>(x[0] + u[0]); }
    static void forward(const V *x, const V *u, V *part, const V *, V *keep) {
        keep[0] = u[0];
        keep[1] = keeping<real, writes>(x[1] + u[1]);
        keep[2] = hyperbolic_tangent<real>(x[2] + u[2]);
        part[0] = keep[2] + keep[1] * (part[0] - keep[2]);
    }
    static void backward(const V *keep, const V *before, V, const V *, V *part, V *grad,
                         V *product) {
        const V z = keep[1], n = keep[2];
        grad[1] = part[0] * (before[0] - n) * slope_of_keeping<real, writes>(z);
        grad[2] = part[0] * (real(1) - z) * slope_of_tanh<real>(n);
        part[0] = part[0] * z;
        product[1] = grad[1];
        product[2] = grad[2];
    }
    /* `moved` is the gradient of r ⊙ seen. */
    static void reset_backward(V r, V seen, V moved, V &grad, V &grad_seen) {
        grad = moved * seen * slope_of_sigmoid<real>(r);
        grad_seen = moved * r;
    }
};

/* Gates in the order reset, f, r, n; the reset gate as in Gru. */
template <typename real>
struct UrGru {
    using V = Vector<real>;
    static constexpr int gates = 4, parts = 1, kept = 4, extras = 0;
    static constexpr int slot[] = {-1};
    static constexpr bool two_phases = true;

    static V reset(const V *x, const V *u) { return Gru<real, false>::reset(x, u); }
    static void forward(const V *x, const V *u, V *part, const V *, V *keep) {
        const auto g = Refined<real>::of(x[1] + u[1], x[2] + u[2]);
        keep[0] = u[0];
        keep[1] = g.f;
        keep[2] = g.r;
        keep[3] = hyperbolic_tangent<real>(x[3] + u[3]);
        part[0] = g.past() * part[0] + g.present() * keep[3];
    }
    static void backward(const V *keep, const V *before, V, const V *, V *part, V *grad,
                         V *product) {
        const auto g = Refined<real>::of_gates(keep[1], keep[2]);
        const V n = keep[3], share = part[0] * (before[0] - n);
        grad[1] = share * g.by_f();
        grad[2] = share * g.by_r();
        grad[3] = part[0] * g.present() * slope_of_tanh<real>(n);
        part[0] = part[0] * g.past();
        for (int k = 1; k < 4; ++k) product[k] = grad[k];
    }
    static void reset_backward(V r, V seen, V moved, V &grad, V &grad_seen) {
        Gru<real, false>::reset_backward(r, seen, moved, grad, grad_seen);
    }
};

/* Numbers of a vector in float64, as one or two vectors. */
template <typename real>
struct Doubles {
    static constexpr int count = sizeof(double) / sizeof(real);
    typedef real Half __attribute__((vector_size(THREEFOLD_VECTOR_BYTES / count)));
    Vector<double> part[count];

    static Doubles of(Vector<real> x) {
        Half half[count];
        __builtin_memcpy(half, &x, sizeof x);
        Doubles wide;
        for (int k = 0; k < count; ++k)
            wide.part[k] = __builtin_convertvector(half[k], Vector<double>);
        return wide;
    }
    Vector<real> rounded() const {
        Half half[count];
        for (int k = 0; k < count; ++k) half[k] = __builtin_convertvector(part[k], Half);
        Vector<real> x;
        __builtin_memcpy(&x, half, sizeof x);
        return x;
    }
};

/* Gates in the order z, i, f, o; parts h, c/n, and ν = log n in two numbers, −inf if empty.
 * b = i/n = σ(log i − log f − ν₋),  c/n = c₋/n₋ + b (z − c₋/n₋). */
template <typename real>
struct Slstm {
    using V = Vector<real>;
    using D = Doubles<real>;
    static constexpr int gates = 4, parts = 4, kept = 6, extras = 0;
    static constexpr int slot[] = {-1, 5, -1, -1};
    static constexpr bool two_phases = false;

    static void forward(const V *x, const V *u, V *part, const V *, V *keep) {
        const D xi = D::of(x[1]), ui = D::of(u[1]), xf = D::of(x[2]), uf = D::of(u[2]);
        const D high = D::of(part[2]), low = D::of(part[3]);
        D share, rest, logarithm;
        for (int k = 0; k < D::count; ++k) {
            const Vector<double> log_input = xi.part[k] + ui.part[k];
            const Vector<double> log_decay = (high.part[k] + low.part[k]) -
                                             softplus<double>(-(xf.part[k] + uf.part[k]));
            const Vector<double> odds = log_input - log_decay;
            /* σ(odds), σ(−odds) and log(e^log_input + e^log_decay) from one exponential. */
            const Vector<double> distance = odds > 0.0 ? odds : -odds;
            const Vector<double> ratio = exponential_normal<double>(-distance);
            const Vector<double> most = 1.0 / (1.0 + ratio), least = ratio * most;
            share.part[k] = odds > 0.0 ? most : least;
            rest.part[k] = odds > 0.0 ? least : most;
            logarithm.part[k] =
                (odds > 0.0 ? log_input : log_decay) + log_one_plus<double>(ratio);
        }
        keep[0] = hyperbolic_tangent<real>(x[0] + u[0]);
        keep[1] = share.rounded();
        keep[2] = rest.rounded();
        keep[3] = sigmoid<real>(x[3] + u[3]);
        keep[4] = sigmoid<real>(-(x[2] + u[2]));
        keep[5] = part[1] = part[1] + keep[1] * (keep[0] - part[1]);
        part[0] = keep[3] * part[1];
        part[2] = logarithm.rounded();
        const D carried = D::of(part[2]);
        for (int k = 0; k < D::count; ++k) logarithm.part[k] -= carried.part[k];
        part[3] = logarithm.rounded();
    }
    static void backward(const V *keep, const V *before, V, const V *, V *part, V *grad,
                         V *product) {
        const V z = keep[0], share = keep[1], rest = keep[2], o = keep[3];
        const V ratio = part[1] + part[0] * o;
        const V moved = ratio * (z - before[1]) * share * rest;
        const V log_decay = part[2] * rest - moved;
        grad[0] = ratio * share * slope_of_tanh<real>(z);
        grad[1] = moved + part[2] * share;
        grad[2] = log_decay * keep[4];
        grad[3] = part[0] * keep[5] * slope_of_sigmoid<real>(o);
        part[0] = part[3] = V{};
        part[1] = ratio * rest;
        part[2] = log_decay;
        for (int k = 0; k < 4; ++k) product[k] = grad[k];
    }
};

/* Units whose `extra` is above 0 are numbers of a linear memory, m = a; the others h = tanh(a). */
template <typename real>
struct RnnMemory {
    using V = Vector<real>;
    static constexpr int gates = 1, parts = 1, kept = 0, extras = 1;
    static constexpr int slot[] = {-1};
    static constexpr bool two_phases = false;

    static void forward(const V *x, const V *u, V *part, const V *extra, V *) {
        const V a = x[0] + u[0];
        part[0] = extra[0] > real(0) ? a : hyperbolic_tangent<real>(a);
    }
    static void backward(const V *, const V *, V h, const V *extra, V *part, V *grad, V *product) {
        grad[0] = extra[0] > real(0) ? part[0] : part[0] * slope_of_tanh<real>(h);
        product[0] = grad[0];
        part[0] = V{};
    }
};

/* The same for gated units, h = h₋ + g (tanh(a) − h₋); the gate of a memory's number is unused. */
template <typename real>
struct GatedMemory {
    using V = Vector<real>;
    static constexpr int gates = 2, parts = 1, kept = 2, extras = 1;
    static constexpr int slot[] = {-1};
    static constexpr bool two_phases = false;

    static void forward(const V *x, const V *u, V *part, const V *extra, V *keep) {
        const V a = x[0] + u[0];
        keep[0] = hyperbolic_tangent<real>(a);
        keep[1] = sigmoid<real>(x[1] + u[1]);
        part[0] = extra[0] > real(0) ? a : part[0] + keep[1] * (keep[0] - part[0]);
    }
    static void backward(const V *keep, const V *before, V, const V *extra, V *part, V *grad,
                         V *product) {
        const V of_candidate = part[0] * keep[1] * slope_of_tanh<real>(keep[0]);
        const V of_gate = part[0] * (keep[0] - before[0]) * slope_of_sigmoid<real>(keep[1]);
        grad[0] = extra[0] > real(0) ? part[0] : of_candidate;
        grad[1] = extra[0] > real(0) ? V{} : of_gate;
        part[0] = extra[0] > real(0) ? V{} : part[0] * (real(1) - keep[1]);
        product[0] = grad[0];
        product[1] = grad[1];
    }
};

}  // namespace cell
}  // namespace threefold
