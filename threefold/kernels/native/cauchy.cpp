/* F_jk = Σ_n (i σ_k p_jn − c_k q_jn) / D_nk,   D_nk = c_k² m_n − σ_k² − 2 i σ_k c_k r_n
 *
 * S4's Cauchy products at points of the unit circle, one term for each conjugate pair of poles, in float64:
 * near a pole D is a difference that cancels in float32. A vector holds neighbouring points; the
 * quotients 1/D are recomputed where they are needed, forward and backward, and never stored.
 *   E_nk = −Σ_j conj(∂F_jk) (i σ p_jn − c q_jn) / D²:  ∂m = Σ_k c² Re E,  ∂r = Σ_k 2 σ c Im E
 */
#include "common.h"

namespace threefold {
namespace {

using V = Vector<double>;
constexpr int64_t lanes = lanes_of<double>;
/* Products that share their poles: C·B, C·P, P·B, P·P. */
constexpr int products = 4;

inline V load(const double *from) { return Whole<double>{}.load(from); }

inline double sum_of(V vector) {
    double sum = 0;
    for (int lane = 0; lane < lanes; ++lane) sum += vector[lane];
    return sum;
}

/* 1/D at a vector of points. */
struct Quotient {
    V re, im;
    Quotient(V sine, V cosine, double square, double real_part) {
        const V a = cosine * cosine * square - sine * sine, b = sine * cosine * (2 * real_part);
        const V scale = 1.0 / (a * a + b * b);
        re = a * scale;
        im = b * scale;
    }
};

struct Cauchy {
    const double *p, *q, *square, *real_part, *sine, *cosine;
    int64_t channels, size, points;

    int status() const {
        const bool right = channels >= 0 && size >= 1 && points >= 0 && points % 8 == 0;
        return right ? THREEFOLD_OK : THREEFOLD_BAD_SIZE;
    }
    /* The n-th number of product j of a channel in an array [channels, 4, size]. */
    int64_t at(int64_t channel, int64_t j, int64_t n) const { return (channel * products + j) * size + n; }

    void forward(double *sums, int64_t channel, int64_t k) const {
        const V s = load(sine + k), c = load(cosine + k);
        V re[products] = {}, im[products] = {};
        for (int64_t n = 0; n < size; ++n) {
            const Quotient over(s, c, square[channel * size + n], real_part[channel * size + n]);
            const V by_p_re = s * over.re, by_p_im = s * over.im;
            const V by_q_re = c * over.re, by_q_im = c * over.im;
            for (int j = 0; j < products; ++j) {
                const double pn = p[at(channel, j, n)], qn = q[at(channel, j, n)];
                re[j] -= by_p_im * pn;
                re[j] -= by_q_re * qn;
                im[j] += by_p_re * pn;
                im[j] -= by_q_im * qn;
            }
        }
        for (int j = 0; j < products; ++j) {
            double *to = sums + (channel * products + j) * 2 * points + k;
            Whole<double>{}.store(to, re[j]);
            Whole<double>{}.store(to + points, im[j]);
        }
    }

    void backward(double *grad_p, double *grad_q, double *grad_square, double *grad_real,
                  const double *grad, int64_t channel, int64_t n) const {
        const double m = square[channel * size + n], r = real_part[channel * size + n];
        V of_p[products] = {}, of_q[products] = {}, of_square = {}, of_real = {};
        for (int64_t k = 0; k < points; k += lanes) {
            const V s = load(sine + k), c = load(cosine + k);
            const Quotient over(s, c, m, r);
            V re = {}, im = {};
            for (int j = 0; j < products; ++j) {
                const double *from = grad + (channel * products + j) * 2 * points + k;
                const V g = load(from), h = load(from + points);
                of_p[j] -= s * (g * over.im - h * over.re);
                of_q[j] -= c * (g * over.re + h * over.im);
                const V a = c * -q[at(channel, j, n)], b = s * p[at(channel, j, n)];
                re += g * a + h * b;
                im += g * b - h * a;
            }
            const V square_re = over.re * over.re - over.im * over.im, square_im = 2 * over.re * over.im;
            of_square -= c * c * (re * square_re - im * square_im);
            of_real -= 2 * s * c * (re * square_im + im * square_re);
        }
        for (int j = 0; j < products; ++j) {
            grad_p[at(channel, j, n)] = sum_of(of_p[j]);
            grad_q[at(channel, j, n)] = sum_of(of_q[j]);
        }
        grad_square[channel * size + n] = sum_of(of_square);
        grad_real[channel * size + n] = sum_of(of_real);
    }
};

int forward(double *sums, const Cauchy &cauchy, int64_t threads) {
    if (const int status = cauchy.status()) return status;
    const int64_t vectors = cauchy.points / lanes;
    split_rows(cauchy.channels, vectors,
               useful_threads(threads, cauchy.channels * cauchy.points * cauchy.size),
               [&](int64_t channel, int64_t first, int64_t last) {
                   for (int64_t k = first; k < last; ++k) cauchy.forward(sums, channel, k * lanes);
               });
    return THREEFOLD_OK;
}

int backward(double *grad_p, double *grad_q, double *grad_square, double *grad_real,
             const double *grad, const Cauchy &cauchy, int64_t threads) {
    if (const int status = cauchy.status()) return status;
    split_rows(cauchy.channels, cauchy.size,
               useful_threads(threads, cauchy.channels * cauchy.points * cauchy.size),
               [&](int64_t channel, int64_t first, int64_t last) {
                   for (int64_t n = first; n < last; ++n)
                       cauchy.backward(grad_p, grad_q, grad_square, grad_real, grad, channel, n);
               });
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace threefold

/* Both variants are float64: poles and products are always float64. */
#define DEFINE(real, suffix)                                                                         \
    int threefold_cauchy_forward_##suffix(                                                           \
        double *sums, const double *p, const double *q, const double *square,                        \
        const double *real_part, const double *points, int64_t channels, int64_t size,               \
        int64_t count, int64_t threads) {                                                            \
        return threefold::forward(                                                                   \
            sums, {p, q, square, real_part, points, points + count, channels, size, count}, threads);\
    }                                                                                                \
    int threefold_cauchy_backward_##suffix(                                                          \
        double *grad_p, double *grad_q, double *grad_square, double *grad_real, const double *grad,  \
        const double *p, const double *q, const double *square, const double *real_part,             \
        const double *points, int64_t channels, int64_t size, int64_t count, int64_t threads) {      \
        return threefold::backward(                                                                  \
            grad_p, grad_q, grad_square, grad_real, grad,                                            \
            {p, q, square, real_part, points, points + count, channels, size, count}, threads);      \
    }

THREEFOLD_FOR_BOTH(DEFINE)
