/* Z_f = Σ_j z_j w^{jf},  w = e^{−2πi/n},  n a power of two;  z = a + i b for two real signals a, b
 *
 * Fourier transforms for convolutions of many channels. A vector holds neighbouring channels, so the
 * sequence is read in memory order and nothing is shuffled within a vector. Two vectors of real
 * channels are the real and imaginary parts of one complex signal. Frequencies come out in
 * bit-reversed order, are multiplied and transformed back in that order: nothing is ever reordered.
 *
 * `twiddle` holds, for n = 4, 8, 16, … one after another and j < n/4, the numbers w^j, w^2j, w^3j.
 */
#pragma once

#include "common.h"

namespace threefold {

template <typename real>
struct Complex {
    Vector<real> re, im;
    static Complex load(const real *from) {
        return {Whole<real>{}.load(from), Whole<real>{}.load(from + lanes_of<real>)};
    }
    void store(real *to) const {
        Whole<real>{}.store(to, re);
        Whole<real>{}.store(to + lanes_of<real>, im);
    }
    Complex operator+(Complex other) const { return {re + other.re, im + other.im}; }
    Complex operator-(Complex other) const { return {re - other.re, im - other.im}; }
    Complex operator*(Complex other) const {
        return {re * other.re - im * other.im, re * other.im + im * other.re};
    }
    Complex operator*(real number) const { return {re * number, im * number}; }
    /* As two vectors of real channels. */
    Complex each_times(Complex other) const { return {re * other.re, im * other.im}; }
    /* times w, or its conjugate, for w at two numbers in memory */
    Complex turned(const real *w) const { return {re * w[0] - im * w[1], re * w[1] + im * w[0]}; }
    Complex turned_back(const real *w) const {
        return {re * w[0] + im * w[1], im * w[0] - re * w[1]};
    }
    Complex times_i() const { return {-im, re}; }
    Complex conjugate() const { return {re, -im}; }
};

/* Numbers that one point of a complex signal takes, and the channels it holds. */
template <typename real>
constexpr int64_t place = 2 * lanes_of<real>;

/* Transforms up to this size are done stage by stage, larger ones by quarters: the cache's size. */
constexpr int64_t in_cache = 256;

inline int64_t twiddle_offset(int64_t n) { return 6 * (n / 4 - 1); }

/* Two stages of decimation in frequency at once. */
template <typename real>
inline void quarter(real *z, int64_t n, const real *twiddle) {
    using C = Complex<real>;
    const int64_t step = n / 4 * place<real>;
    const real *w = twiddle + twiddle_offset(n);
    for (int64_t j = 0; j < n / 4; ++j, z += place<real>, w += 6) {
        const C x0 = C::load(z), x1 = C::load(z + step);
        const C x2 = C::load(z + 2 * step), x3 = C::load(z + 3 * step);
        const C sum = x0 + x2, rest = x0 - x2, other = x1 + x3, turn = (x1 - x3).times_i();
        (sum + other).store(z);
        (sum - other).turned(w + 2).store(z + step);
        (rest - turn).turned(w).store(z + 2 * step);
        (rest + turn).turned(w + 4).store(z + 3 * step);
    }
}

/* The inverse of `quarter`, times 4. */
template <typename real>
inline void join_quarters(real *z, int64_t n, const real *twiddle) {
    using C = Complex<real>;
    const int64_t step = n / 4 * place<real>;
    const real *w = twiddle + twiddle_offset(n);
    for (int64_t j = 0; j < n / 4; ++j, z += place<real>, w += 6) {
        const C y0 = C::load(z), y1 = C::load(z + step).turned_back(w + 2);
        const C y2 = C::load(z + 2 * step).turned_back(w);
        const C y3 = C::load(z + 3 * step).turned_back(w + 4);
        const C even = y0 + y1, odd = y0 - y1, sum = y2 + y3, turn = (y2 - y3).times_i();
        (even + sum).store(z);
        (odd + turn).store(z + step);
        (even - sum).store(z + 2 * step);
        (odd - turn).store(z + 3 * step);
    }
}

/* Sums and differences of neighbours: the last stage of sizes that are not a power of four. */
template <typename real>
inline void halve(real *z, int64_t n) {
    using C = Complex<real>;
    for (int64_t j = 0; j < n; j += 2, z += 2 * place<real>) {
        const C a = C::load(z), b = C::load(z + place<real>);
        (a + b).store(z);
        (a - b).store(z + place<real>);
    }
}

template <typename real>
void transform(real *z, int64_t n, const real *twiddle) {
    if (n > in_cache) {
        quarter(z, n, twiddle);
        for (int64_t part = 0; part < 4; ++part)
            transform(z + part * (n / 4) * place<real>, n / 4, twiddle);
        return;
    }
    int64_t size = n;
    for (; size >= 4; size /= 4)
        for (int64_t at = 0; at < n; at += size) quarter(z + at * place<real>, size, twiddle);
    if (size == 2) halve(z, n);
}

/* z ← n times the signal whose frequencies, in bit-reversed order, are z. */
template <typename real>
void transform_back(real *z, int64_t n, const real *twiddle) {
    if (n > in_cache) {
        for (int64_t part = 0; part < 4; ++part)
            transform_back(z + part * (n / 4) * place<real>, n / 4, twiddle);
        join_quarters(z, n, twiddle);
        return;
    }
    /* Not a power of four: `transform` ended with halves. */
    const bool halved = (n & 0x2AAAAAAAAAAAAAAALL) != 0;
    if (halved) halve(z, n);
    for (int64_t size = halved ? 8 : 4; size <= n; size *= 4)
        for (int64_t at = 0; at < n; at += size) join_quarters(z + at * place<real>, size, twiddle);
}

/* out ← scale · (a_z·a_k + i b_z·b_k) at the frequencies f and −f, with the conjugates of a_k and
 * b_k instead if `Correlate`; added to what is there if `Add`. */
template <typename real, bool Correlate, bool Add>
inline void multiply_pair(real *out, const real *z, const real *k, int64_t p, int64_t q, real scale) {
    using C = Complex<real>;
    const int64_t at = p * place<real>, mirror = q * place<real>;
    const C zf = C::load(z + at), zm = C::load(z + mirror).conjugate();
    const C kf = C::load(k + at), km = C::load(k + mirror).conjugate();
    const real quarter_scale = scale * real(0.25);
    C first = kf + km, second = kf - km;
    if (Correlate) {
        first = first.conjugate();
        second = second.conjugate();
    } else {
        second = second * real(-1);
    }
    const C a = (first * (zf + zm)) * quarter_scale, b = (second * (zf - zm)) * quarter_scale;
    C here = a + b.times_i(), there = a.conjugate() + b.conjugate().times_i();
    if (Add) {
        here = here + C::load(out + at);
        if (p != q) there = there + C::load(out + mirror);
    }
    here.store(out + at);
    if (p != q) there.store(out + mirror);
}

/* The same for all n frequencies. In bit-reversed order those of p in [2^k, 2^{k+1}) and of
 * 3·2^k − 1 − p are opposite. `out` may be z. */
template <typename real, bool Correlate, bool Add = false>
void multiply(real *out, const real *z, const real *k, int64_t n, real scale) {
    multiply_pair<real, Correlate, Add>(out, z, k, 0, 0, scale);
    if (n > 1) multiply_pair<real, Correlate, Add>(out, z, k, 1, 1, scale);
    for (int64_t block = 2; block < n; block *= 2)
        for (int64_t p = block; p < block + block / 2; ++p)
            multiply_pair<real, Correlate, Add>(out, z, k, p, 3 * block - 1 - p, scale);
}

/* The channels that one complex signal holds: `place` of them from `channel` on, or what is left. */
template <typename real>
struct Channels {
    int64_t channel, count;

    Channels(int64_t group, int64_t channels)
        : channel(group * place<real>), count(std::min(place<real>, channels - group * place<real>)) {}

    Complex<real> load(const real *from, int64_t stride = 1) const {
        constexpr int64_t lanes = lanes_of<real>;
        from += channel * stride;
        if (count == place<real> && stride == 1) return Complex<real>::load(from);
        Complex<real> value = {};
        /* One after the other: compilers differ on a number of one vector or another. */
        for (int64_t c = 0; c < std::min(count, lanes); ++c) value.re[c] = from[c * stride];
        for (int64_t c = lanes; c < count; ++c) value.im[c - lanes] = from[c * stride];
        return value;
    }
    void store(real *to, Complex<real> value, int64_t stride = 1) const {
        constexpr int64_t lanes = lanes_of<real>;
        to += channel * stride;
        if (count == place<real> && stride == 1) return value.store(to);
        for (int64_t c = 0; c < std::min(count, lanes); ++c) to[c * stride] = value.re[c];
        for (int64_t c = lanes; c < count; ++c) to[c * stride] = value.im[c - lanes];
    }
};

template <typename real>
inline int64_t groups_of(int64_t channels) {
    return (channels + place<real> - 1) / place<real>;
}

inline bool is_power_of_two(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

/* Sets points first … last of z to 0. */
template <typename real>
inline void clear_places(real *z, int64_t first, int64_t last) {
    if (first < last) std::fill(z + first * place<real>, z + last * place<real>, real(0));
}

}  // namespace threefold
