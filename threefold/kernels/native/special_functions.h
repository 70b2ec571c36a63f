/* x = n·π/2 + r, |r| ≤ π/4:  sin x and cos x are ± sin r or ± cos r;   erf x = 2/√π ∫₀ˣ e^{−t²} dt
 *
 * Functions that only small kernels need, on the vectors of simd.h.
 */
#pragma once

#include <cmath>
#include <limits>

#include "simd.h"

namespace threefold {

/* Half as many floats as a vector has, as many as there are doubles. */
typedef float FloatHalf __attribute__((vector_size(THREEFOLD_VECTOR_BYTES / 2)));

/* The sine of x + quarter·π/2 for |x| ≤ 10⁶, within 2e-16. The coefficients are fdlibm's. */
inline Vector<double> sine_of_quarters(Vector<double> x, uint64_t quarter) {
    using S = Simd<double>;
    const Vector<double> shifted = x * 6.36619772367581382433e-01 + S::rounder;
    const Vector<double> n = shifted - S::rounder;
    /* π/2 in parts of 33 bits, whose products with n are exact. */
    Vector<double> r = x - n * 1.57079632673412561417e+00;
    r = r - n * 6.07710050630396597660e-11;
    r = r - n * 2.02226624879595063154e-21;
    const Vector<double> z = r * r;
    Vector<double> odd = splat<double>(1.58969099521155010221e-10);
    odd = odd * z - 2.50507602534068634195e-08;
    odd = odd * z + 2.75573137070700676789e-06;
    odd = odd * z - 1.98412698298579493134e-04;
    odd = odd * z + 8.33333333332248946124e-03;
    odd = odd * z - 1.66666666666666324348e-01;
    odd = r + r * z * odd;
    Vector<double> even = splat<double>(-1.13596475577881948265e-11);
    even = even * z + 2.08757232129817482790e-09;
    even = even * z - 2.75573143513906633035e-07;
    even = even * z + 2.48015872894767294178e-05;
    even = even * z - 1.38888888888741095749e-03;
    even = even * z + 4.16666666666666019037e-02;
    even = (1.0 - 0.5 * z) + z * z * even;
    const Bits<double> turn = (Bits<double>)shifted + quarter;
    const Vector<double> found = (turn & 1) != 0 ? even : odd;
    return (Vector<double>)((Bits<double>)found ^ ((turn & 2) << 62));
}

/* The same for any x: where it is large, one number after another. */
template <typename real, typename Function>
inline Vector<real> sine_of_quarters(Vector<real> x, uint64_t quarter, const Function &exact) {
    Vector<real> y;
    if constexpr (sizeof(real) == 8) {
        y = sine_of_quarters(x, quarter);
    } else {
        FloatHalf half[2];
        __builtin_memcpy(half, &x, sizeof half);
        for (FloatHalf &part : half)
            part = __builtin_convertvector(
                sine_of_quarters(__builtin_convertvector(part, Vector<double>), quarter), FloatHalf);
        __builtin_memcpy(&y, half, sizeof half);
    }
    for (int lane = 0; lane < lanes_of<real>; ++lane)
        if (!(x[lane] >= real(-1e6) && x[lane] <= real(1e6))) y[lane] = exact(x[lane]);
    return y;
}

template <typename real>
inline Vector<real> sine(Vector<real> x) {
    return sine_of_quarters<real>(x, 0, [](real one) { return std::sin(one); });
}

template <typename real>
inline Vector<real> cosine(Vector<real> x) {
    return sine_of_quarters<real>(x, 1, [](real one) { return std::cos(one); });
}

/* For float: e^{P(|x|)} beyond 475/512, x + x·P(x²) below; minimax, 1 ulp. */
template <typename real>
inline Vector<real> error_function(Vector<real> x) {
    Vector<real> y;
    if constexpr (sizeof(real) == 8) {
        for (int lane = 0; lane < lanes_of<real>; ++lane) y[lane] = std::erf(x[lane]);
    } else {
        const Vector<real> t = x < real(0) ? -x : x, s = x * x;
        Vector<real> tail = t * -1.72853470e-5f + 3.83197126e-4f;
        tail = tail * s + (t * -3.88396438e-3f + 2.42546219e-2f);
        tail = tail * t - 1.06777877e-1f;
        tail = tail * t - 6.34846687e-1f;
        tail = tail * t - 1.28717512e-1f;
        tail = real(1) - exponential_normal<real>(clamp<real>(tail * t - t, -80, 0));
        Vector<real> middle = s * -5.96761703e-4f + 4.99119423e-3f;
        middle = middle * s - 2.67681349e-2f;
        middle = middle * s + 1.12819925e-1f;
        middle = middle * s - 3.76125336e-1f;
        middle = middle * s + 1.28379166e-1f;
        y = t > 0.927734375f ? (x < real(0) ? -tail : tail) : x + x * middle;
    }
    return y;
}

}  // namespace threefold
