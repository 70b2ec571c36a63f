/* y = silu(gate) ⊙ x,   ∂x = ∂y ⊙ silu(gate),   ∂gate = ∂y ⊙ x ⊙ silu′(gate)
 *
 * The product of a gated layer in one pass over memory, which is all that it costs.
 */
#include "common.h"

namespace threefold {
namespace {

template <typename real, typename Body>
int each_vector(int64_t count, int64_t threads, const Body &body) {
    if (count < 0) return THREEFOLD_BAD_SIZE;
    split(vectors_of<real>(count), useful_threads(threads, count), [&](int64_t first, int64_t last) {
        for_each_vector<real>(first, last, count, body);
    });
    return THREEFOLD_OK;
}

template <typename real>
int forward(real *y, const real *gate, const real *x, int64_t count, int64_t threads) {
    return each_vector<real>(count, threads, [&](int64_t at, auto lanes) {
        lanes.store(y + at, silu<real>(lanes.load(gate + at)) * lanes.load(x + at));
    });
}

template <typename real>
int backward(real *grad_gate, real *grad_x, const real *grad_y, const real *gate, const real *x,
             int64_t count, int64_t threads) {
    return each_vector<real>(count, threads, [&](int64_t at, auto lanes) {
        const Vector<real> grad = lanes.load(grad_y + at), g = lanes.load(gate + at);
        const Vector<real> open = sigmoid<real>(g);
        lanes.store(grad_x + at, grad * g * open);
        lanes.store(grad_gate + at,
                    grad * lanes.load(x + at) * open * (real(1) + g * (real(1) - open)));
    });
}

}  // namespace
}  // namespace threefold

#define DEFINE(real, suffix)                                                                      \
    int threefold_swiglu_forward_##suffix(real *y, const real *gate, const real *x, int64_t count, \
                                          int64_t threads) {                                      \
        return threefold::forward<real>(y, gate, x, count, threads);                              \
    }                                                                                             \
    int threefold_swiglu_backward_##suffix(real *grad_gate, real *grad_x, const real *grad_y,     \
                                           const real *gate, const real *x, int64_t count,        \
                                           int64_t threads) {                                     \
        return threefold::backward<real>(grad_gate, grad_x, grad_y, gate, x, count, threads);     \
    }
THREEFOLD_FOR_BOTH(DEFINE)
