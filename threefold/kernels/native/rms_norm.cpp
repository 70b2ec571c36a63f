/* y = u / √(mean(u²) + eps) ⊙ weight ⊙ silu(gate),  u = x;  or without the last factor, u = x ⊙ silu(gate)
 *
 * Rows of numbers scaled to length √D: one pass to measure and one to write. With û = u·r and h the
 * gradient of û:  ∂u = r·(h − û·mean(h·û)). The weight's gradient is summed in pieces of rows whose
 * number does not depend on the threads, and the pieces are added in order.
 */
#include <cmath>

#include "common.h"

namespace threefold {
namespace {

template <typename real>
struct Inputs {
    const real *x, *weight, *gate;
    int64_t rows, size, groups;
    bool first; /* the gate comes before the norm */
    int64_t threads;
    real eps;

    int status() const {
        const bool bad = rows < 0 || size < 1 || groups < 1 || rows % groups;
        return bad ? THREEFOLD_BAD_SIZE : THREEFOLD_OK;
    }

    template <typename Lanes>
    Vector<real> weight_at(int64_t row, int64_t at, Lanes lanes) const {
        return weight ? lanes.load(weight + row % groups * size + at) : splat<real>(1);
    }
    template <typename Lanes>
    Vector<real> gate_at(int64_t row, int64_t at, Lanes lanes) const {
        return lanes.load(gate + row * size + at);
    }
    /* The number that is normalised. */
    template <typename Lanes>
    Vector<real> inner(int64_t row, int64_t at, Lanes lanes) const {
        const Vector<real> u = lanes.load(x + row * size + at);
        return gate && first ? u * silu<real>(gate_at(row, at, lanes)) : u;
    }
    /* The factor of the normalised number. */
    template <typename Lanes>
    Vector<real> factor(int64_t row, int64_t at, Lanes lanes) const {
        const Vector<real> w = weight_at(row, at, lanes);
        return gate && !first ? w * silu<real>(gate_at(row, at, lanes)) : w;
    }

    /* body(at, lanes) for every vector of a row. */
    template <typename Body>
    void along(const Body &body) const {
        for_each_vector<real>(0, vectors_of<real>(size), size, body);
    }

    real squares(int64_t row, real scale) const {
        Vector<real> sum = {};
        along([&](int64_t at, auto lanes) {
            const Vector<real> u = inner(row, at, lanes) * scale;
            sum += u * u;
        });
        return add_lanes(sum);
    }

    real largest(int64_t row) const {
        Vector<real> most = {};
        along([&](int64_t at, auto lanes) {
            const Vector<real> u = inner(row, at, lanes);
            const Vector<real> magnitude = u < real(0) ? -u : u;
            most = magnitude > most ? magnitude : most;
        });
        real found = most[0];
        for (int lane = 1; lane < lanes_of<real>; ++lane) found = std::max<real>(found, most[lane]);
        return found;
    }

    /* 1 / √(mean(u²) + eps), computed again from scaled numbers where the squares overflow. */
    real reciprocal(int64_t row) const {
        const real mean = squares(row, 1) / real(size);
        if (std::isfinite(mean)) return 1 / std::sqrt(mean + eps);
        const real scale = 1 / largest(row);
        return scale / std::sqrt(squares(row, scale) / real(size) + eps * scale * scale);
    }

    static real add_lanes(Vector<real> vector) {
        real sum = 0;
        for (int lane = 0; lane < lanes_of<real>; ++lane) sum += vector[lane];
        return sum;
    }
};

template <typename real>
int forward(const Inputs<real> &in, real *y) {
    if (const int status = in.status()) return status;
    split(in.rows, useful_threads(in.threads, in.rows * in.size), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const real r = in.reciprocal(row);
            in.along([&](int64_t at, auto lanes) {
                lanes.store(y + row * in.size + at,
                            in.inner(row, at, lanes) * r * in.factor(row, at, lanes));
            });
        }
    });
    return THREEFOLD_OK;
}

template <typename real>
struct Backward {
    const Inputs<real> &in;
    real *grad_x, *grad_gate;
    const real *grad_y;

    /* One row; its part of the weight's gradient is added to `sums`. */
    void row(int64_t row, real *sums) const {
        const real r = in.reciprocal(row);
        Vector<real> products = {};
        in.along([&](int64_t at, auto lanes) {
            const Vector<real> grad = lanes.load(grad_y + row * in.size + at);
            products += grad * in.factor(row, at, lanes) * (in.inner(row, at, lanes) * r);
        });
        const real mean = Inputs<real>::add_lanes(products) / real(in.size);
        in.along([&](int64_t at, auto lanes) { vector(row, at, lanes, r, mean, sums); });
    }

    template <typename Lanes>
    void vector(int64_t row, int64_t at, Lanes lanes, real r, real mean, real *sums) const {
        const int64_t place = row * in.size + at;
        const Vector<real> grad = lanes.load(grad_y + place);
        const Vector<real> normed = in.inner(row, at, lanes) * r;
        const Vector<real> inner = r * (grad * in.factor(row, at, lanes) - normed * mean);
        Vector<real> weighted = grad * normed;
        if (!in.gate) {
            lanes.store(grad_x + place, inner);
        } else {
            const Vector<real> gate = in.gate_at(row, at, lanes);
            const Vector<real> open = silu<real>(gate), slope = silu_slope<real>(gate);
            lanes.store(grad_x + place, in.first ? inner * open : inner);
            lanes.store(grad_gate + place,
                        slope * (in.first ? inner * lanes.load(in.x + place)
                                          : weighted * in.weight_at(row, at, lanes)));
            if (!in.first) weighted *= open;
        }
        real *sum = sums + row % in.groups * in.size + at;
        lanes.store(sum, lanes.load(sum) + weighted);
    }
};

/* The sum over rows for the weight's gradient is made in pieces, independent of the threads. */
inline int64_t pieces_of(int64_t rows) { return std::max<int64_t>(1, std::min<int64_t>(32, rows)); }

template <typename real>
int backward(const Inputs<real> &in, real *grad_x, real *grad_weight, real *grad_gate,
             real *workspace, const real *grad_y) {
    if (const int status = in.status()) return status;
    const int64_t pieces = pieces_of(in.rows);
    const int64_t threads = useful_threads(in.threads, in.rows * in.size);
    const int64_t weights = in.groups * in.size;
    const Backward<real> pass{in, grad_x, grad_gate, grad_y};
    split(pieces, threads, [&](int64_t begin, int64_t end) {
        for (int64_t piece = begin; piece < end; ++piece) {
            real *sums = workspace + piece * weights;
            std::fill(sums, sums + weights, real(0));
            for (int64_t row = in.rows * piece / pieces; row < in.rows * (piece + 1) / pieces; ++row)
                pass.row(row, sums);
        }
    });
    split(weights, useful_threads(in.threads, pieces * weights), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            real sum = 0;
            for (int64_t piece = 0; piece < pieces; ++piece) sum += workspace[piece * weights + i];
            grad_weight[i] = sum;
        }
    });
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace threefold

#define DEFINE(real, suffix)                                                                      \
    int threefold_rms_norm_forward_##suffix(                                                      \
        real *y, const real *x, const real *weight, const real *gate, int64_t rows, int64_t size, \
        int64_t groups, int64_t gate_first, int64_t threads, double eps) {                        \
        return threefold::forward<real>(                                                          \
            {x, weight, gate, rows, size, groups, gate_first != 0, threads, real(eps)}, y);       \
    }                                                                                             \
    int threefold_rms_norm_backward_##suffix(                                                     \
        real *grad_x, real *grad_weight, real *grad_gate, real *workspace, const real *grad_y,    \
        const real *x, const real *weight, const real *gate, int64_t rows, int64_t size,          \
        int64_t groups, int64_t gate_first, int64_t threads, double eps) {                        \
        return threefold::backward<real>(                                                         \
            {x, weight, gate, rows, size, groups, gate_first != 0, threads, real(eps)}, grad_x,   \
            grad_weight, grad_gate, workspace, grad_y);                                           \
    }                                                                                             \
    int threefold_rms_norm_workspace_##suffix(int64_t *numbers, int64_t rows, int64_t size,       \
                                              int64_t groups, int64_t) {                          \
        if (rows < 0 || size < 1 || groups < 1) return THREEFOLD_BAD_SIZE;                        \
        *numbers = threefold::pieces_of(rows) * groups * size;                                    \
        return THREEFOLD_OK;                                                                      \
    }
THREEFOLD_FOR_BOTH(DEFINE)
