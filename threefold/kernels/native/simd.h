/* e^x = 2^n · e^r,  n = round(x / ln 2),  |r| ≤ ln 2 / 2
 * σ(x) = 1 / (1 + e^−x),  silu(x) = x·σ(x),  softplus(x) = max(x, 0) + log(1 + e^−|x|)
 * tanh(x) = (e^2x − 1) / (e^2x + 1)
 *
 * Vectors as wide as the instruction set this file is compiled for, and the functions the kernels
 * need on them. They are GCC vector extensions, so nothing depends on the auto-vectoriser. NaN gives
 * NaN everywhere, and nothing here may be compiled with -ffinite-math-only or -ffast-math.
 */
#pragma once

#include <cstdint>

#if defined(__AVX512F__)
#define THREEFOLD_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define THREEFOLD_VECTOR_BYTES 32
#else
#define THREEFOLD_VECTOR_BYTES 16
#endif

namespace threefold {

/* Vector types and the constants of e^x for one scalar type. */
template <typename real>
struct Simd;

template <>
struct Simd<float> {
    typedef float Vector __attribute__((vector_size(THREEFOLD_VECTOR_BYTES)));
    typedef uint32_t Bits __attribute__((vector_size(THREEFOLD_VECTOR_BYTES)));
    static constexpr int mantissa = 23, bias = 127;
    /* Adding 1.5·2^23 rounds to an integer and leaves that integer in the low bits. */
    static constexpr float rounder = 12582912.0f;
    /* e^x is 0 below the lowest and inf above the highest; 2^−127 is about e^lowest_normal. */
    static constexpr float lowest = -104.0f, lowest_normal = -88.0f, highest = 89.0f;
    /* ln 2 in two parts, the first short enough for n·ln2_high to be exact without FMA. */
    static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    /* e^r = 1 + r + r²·Σ_k coefficient[k]·r^k: minimax, relative error 3e-9. */
    static constexpr int terms = 5;
    static constexpr float coefficient[terms] = {0.49999993412485344f, 0.16666520107783464f,
                                                 0.041668394214295565f, 0.008368780414505245f,
                                                 0.0013814466888519492f};
    /* 2^r = 1 + r·Σ_k power[k]·r^k for |r| ≤ 1/2: minimax, relative error 3e-9. */
    static constexpr int power_terms = 6;
    static constexpr float power[power_terms] = {0.6931472149680279f,    0.24022652782887737f,
                                                 0.055503105510137972f,  0.0096176929729930623f,
                                                 0.0013406643902351759f, 0.00015594678161326619f};
    /* log(1 + u) = 2·Σ_k s^(2k+1) / (2k+1) with s = u / (2 + u) ≤ 1/3. */
    static constexpr int logarithm_terms = 8;
};

template <>
struct Simd<double> {
    typedef double Vector __attribute__((vector_size(THREEFOLD_VECTOR_BYTES)));
    typedef uint64_t Bits __attribute__((vector_size(THREEFOLD_VECTOR_BYTES)));
    static constexpr int mantissa = 52, bias = 1023;
    static constexpr double rounder = 6755399441055744.0;
    static constexpr double lowest = -746.0, lowest_normal = -709.0, highest = 710.0;
    static constexpr double ln2_high = 6.93145751953125e-1, ln2_low = 1.42860682030941723212e-6;
    /* The Taylor series: 1/(k+2)!. */
    static constexpr int terms = 12;
    static constexpr double coefficient[terms] = {
        1.0 / 2,         1.0 / 6,          1.0 / 24,          1.0 / 120,
        1.0 / 720,       1.0 / 5040,       1.0 / 40320,       1.0 / 362880,
        1.0 / 3628800.0, 1.0 / 39916800.0, 1.0 / 479001600.0, 1.0 / 6227020800.0};
    /* The Taylor series: (ln 2)^(k+1) / (k+1)!. */
    static constexpr int power_terms = 13;
    static constexpr double power[power_terms] = {
        0.69314718055994531, 0.24022650695910071, 0.05550410866482158,
        0.0096181291076284772, 0.0013333558146428443, 0.0001540353039338161,
        1.525273380405984e-5, 1.3215486790144309e-6, 1.01780860092397e-7,
        7.0549116208011233e-9, 4.4455382718708115e-10, 2.5678435993488205e-11,
        1.3691488853904129e-12};
    static constexpr int logarithm_terms = 17;
};

template <typename real>
using Vector = typename Simd<real>::Vector;
template <typename real>
using Bits = typename Simd<real>::Bits;
template <typename real>
constexpr int lanes_of = THREEFOLD_VECTOR_BYTES / sizeof(real);

template <typename real>
inline Vector<real> splat(real value) {
    return value - Vector<real>{};
}

/* How many of a vector's lanes are real: all of them. */
template <typename real>
struct Whole {
    Vector<real> load(const real *from) const {
        Vector<real> vector;
        __builtin_memcpy(&vector, from, sizeof vector);
        return vector;
    }
    void store(real *to, Vector<real> vector) const { __builtin_memcpy(to, &vector, sizeof vector); }
    Vector<real> load_strided(const real *from, int64_t stride) const {
        Vector<real> vector;
        for (int lane = 0; lane < lanes_of<real>; ++lane) vector[lane] = from[lane * stride];
        return vector;
    }
    void store_strided(real *to, int64_t stride, Vector<real> vector) const {
        for (int lane = 0; lane < lanes_of<real>; ++lane) to[lane * stride] = vector[lane];
    }
};

/* How many of a vector's lanes are real: the first `count`. The rest hold zeros and are never
 * read from memory nor written to it, so the end of a buffer needs no padding. */
template <typename real>
struct Part {
    int count;
    Vector<real> load(const real *from) const { return load_strided(from, 1); }
    void store(real *to, Vector<real> vector) const { store_strided(to, 1, vector); }
    Vector<real> load_strided(const real *from, int64_t stride) const {
        Vector<real> vector = {};
        for (int lane = 0; lane < count; ++lane) vector[lane] = from[lane * stride];
        return vector;
    }
    void store_strided(real *to, int64_t stride, Vector<real> vector) const {
        for (int lane = 0; lane < count; ++lane) to[lane * stride] = vector[lane];
    }
};

/* 2^n for an integer n given as n + rounder. An exponent of −127 gives 0, one of +128 inf
 * (−1023 and +1024 in float64): the bits of the exponent just outside the normal range. */
template <typename real>
inline Vector<real> power_of_two(Vector<real> shifted) {
    using S = Simd<real>;
    const Bits<real> n = (Bits<real>)shifted - (Bits<real>)splat<real>(S::rounder);
    return (Vector<real>)((n + S::bias) << S::mantissa);
}

/* x moved into [lowest, highest]. A comparison with NaN is false, so NaN passes both. */
template <typename real>
inline Vector<real> clamp(Vector<real> x, real lowest, real highest) {
    x = x < lowest ? splat<real>(lowest) : x;
    return x > highest ? splat<real>(highest) : x;
}

/* x / ln 2 rounded to an integer, plus the rounder. */
template <typename real>
inline Vector<real> shifted_exponent(Vector<real> x) {
    return x * real(1.44269504088896340736) + Simd<real>::rounder;
}

/* e^(x − n·ln 2), the even and the odd terms of the series side by side. */
template <typename real>
inline Vector<real> exponential_of_rest(Vector<real> x, Vector<real> n) {
    using S = Simd<real>;
    const Vector<real> r = (x - n * S::ln2_high) - n * S::ln2_low;
    const Vector<real> square = r * r;
    Vector<real> even = splat<real>(S::coefficient[(S::terms - 1) / 2 * 2]);
    Vector<real> odd = splat<real>(S::coefficient[S::terms / 2 * 2 - 1]);
    for (int k = (S::terms - 1) / 2 * 2 - 2; k >= 0; k -= 2) even = even * square + S::coefficient[k];
    for (int k = S::terms / 2 * 2 - 3; k > 0; k -= 2) odd = odd * square + S::coefficient[k];
    return (even + odd * r) * square + (r + real(1));
}

/* 1–2 ulp; −inf gives 0, +inf gives inf, results below the normal range lose bits gradually. */
template <typename real>
inline Vector<real> exponential(Vector<real> x) {
    using S = Simd<real>;
    x = clamp<real>(x, S::lowest, S::highest);
    const Vector<real> n = shifted_exponent<real>(x) - S::rounder;
    /* 2^n may leave the range where the product does not, so it is multiplied in two halves. */
    const Vector<real> half = n * real(0.5) + S::rounder;
    const Vector<real> rest = (n - (half - S::rounder)) + S::rounder;
    return exponential_of_rest<real>(x, n) * power_of_two<real>(half) * power_of_two<real>(rest);
}

/* A third cheaper: where e^x is (almost) denormal it is 0, or inf from 2^(highest n + ½).
 * For decays and gates, which are then 0 or 1 to the last bit anyway. */
template <typename real>
inline Vector<real> exponential_normal(Vector<real> x) {
    using S = Simd<real>;
    x = clamp<real>(x, S::lowest_normal, S::highest);
    const Vector<real> shifted = shifted_exponent<real>(x);
    return exponential_of_rest<real>(x, shifted - S::rounder) * power_of_two<real>(shifted);
}

/* 2^x = scale·(1 + rest), in two parts so that 2^x − 1 keeps its digits near x = 0. */
template <typename real>
struct Power {
    Vector<real> scale, rest;

    Vector<real> value() const { return (rest + real(1)) * scale; }
    Vector<real> minus_one() const { return rest * scale + (scale - real(1)); }
};

/* For −127 ≤ x ≤ 128 (−1023 … 1024 in float64), the ends giving 0 and inf, or NaN. Cheaper than
 * e^x: no product by 1/ln 2, and x minus its nearest integer is exact. */
template <typename real>
inline Power<real> power(Vector<real> x) {
    using S = Simd<real>;
    constexpr real rounder = S::rounder + S::bias;
    const Vector<real> shifted = x + rounder;
    const Vector<real> r = x - (shifted - rounder);
    Vector<real> series = splat<real>(S::power[S::power_terms - 1]);
    for (int k = S::power_terms - 2; k >= 0; --k) series = series * r + S::power[k];
    return {(Vector<real>)((Bits<real>)shifted << S::mantissa), series * r};
}

/* From 2^64 on the quotient is ±1; below, e^2x − 1 keeps its digits near x = 0. */
template <typename real>
inline Vector<real> hyperbolic_tangent(Vector<real> x) {
    const Vector<real> less_one =
        power<real>(clamp<real>(x * real(2 * 1.44269504088896340736), -64, 64)).minus_one();
    return less_one / (less_one + real(2));
}

/* x, protected from being fused with the next operation: the same bits wherever it is used. */
template <typename real>
inline Vector<real> rounded(Vector<real> x) {
#if defined(__x86_64__)
    asm("" : "+v"(x));
#elif defined(__aarch64__)
    asm("" : "+w"(x));
#endif
    return x;
}

template <typename real>
inline Vector<real> sigmoid(Vector<real> x) {
    return real(1) / (real(1) + exponential_normal<real>(-x));
}

template <typename real>
inline Vector<real> silu(Vector<real> x) {
    return x / (real(1) + exponential_normal<real>(-x));
}

/* silu′(x) = σ(x)·(1 + x·(1 − σ(x))) */
template <typename real>
inline Vector<real> silu_slope(Vector<real> x) {
    const Vector<real> gate = sigmoid<real>(x);
    return gate * (real(1) + x * (real(1) - gate));
}

/* log(1 + u) for 0 ≤ u ≤ 1. */
template <typename real>
inline Vector<real> log_one_plus(Vector<real> u) {
    using S = Simd<real>;
    const Vector<real> s = u / (u + real(2));
    const Vector<real> square = s * s;
    Vector<real> series = splat<real>(real(1) / (2 * S::logarithm_terms - 1));
    for (int k = S::logarithm_terms - 2; k >= 0; --k)
        series = series * square + real(1) / (2 * k + 1);
    return real(2) * s * series;
}

template <typename real>
inline Vector<real> softplus(Vector<real> x) {
    const Vector<real> positive = x > real(0) ? x : Vector<real>{};
    const Vector<real> magnitude = x > real(0) ? x : -x;
    return positive + log_one_plus<real>(exponential_normal<real>(-magnitude));
}

}  // namespace threefold
