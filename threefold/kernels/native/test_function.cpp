/* y = f(x), so that the tests can compare the functions of simd.h with float64. */
#include "common.h"
#include "special_functions.h"

namespace threefold {
namespace {

template <typename real>
Vector<real> apply(int64_t function, Vector<real> x) {
    constexpr real bias = Simd<real>::bias;
    switch (function) {
        case 0: return exponential<real>(x);
        case 1: return exponential_normal<real>(x);
        case 2: return sigmoid<real>(x);
        case 3: return silu<real>(x);
        case 4: return silu_slope<real>(x);
        case 5: return softplus<real>(x);
        case 6: return power<real>(clamp<real>(x, -bias, bias + 1)).value();
        case 7: return power<real>(clamp<real>(x, -bias, bias + 1)).minus_one();
        case 9: return sine<real>(x);
        case 10: return cosine<real>(x);
        case 11: return error_function<real>(x);
        default: return hyperbolic_tangent<real>(x);
    }
}

template <typename real>
int test_function(real *y, const real *x, int64_t count, int64_t function, int64_t threads) {
    if (count < 0 || function < 0 || function > 11) return THREEFOLD_BAD_SIZE;
    split(vectors_of<real>(count), threads, [&](int64_t first, int64_t last) {
        for_each_vector<real>(first, last, count, [&](int64_t at, auto lanes) {
            lanes.store(y + at, apply<real>(function, lanes.load(x + at)));
        });
    });
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace threefold

#define DEFINE(real, suffix)                                                                    \
    int threefold_test_function_##suffix(real *y, const real *x, int64_t count,                 \
                                         int64_t function, int64_t threads) {                   \
        return threefold::test_function<real>(y, x, count, function, threads);                  \
    }
THREEFOLD_FOR_BOTH(DEFINE)
