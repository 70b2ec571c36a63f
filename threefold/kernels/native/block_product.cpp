/* y_{rnj} = Σ_i x_{rni} · weight_{nij}
 *
 * A product with a block-diagonal matrix of small square blocks, in one pass over memory. A vector
 * holds the outputs of several blocks: number i of each block is spread over the lanes of its block and
 * multiplied by the weights of all outputs for it. Every number is one sum in a fixed order, whatever
 * the number of threads.
 */
#include "common.h"
#include "transpose.h"

namespace threefold {
namespace {

/* Rows of x whose share in the gradient of the weight is summed by itself: fewer digits are lost. */
constexpr int64_t rows_together = 64;

/* Lane l of the result is lane l / Block · Block + i of x: number i of every block. */
template <typename real, int Block, int i, int... lane>
inline Vector<real> spread(Vector<real> x, std::integer_sequence<int, lane...>) {
    return pick<real, (lane / Block * Block + i)...>(x, x);
}

/* body(i, the vector with number i of every block), for each i. */
template <typename real, int Block, typename Body, int... i>
inline void each_number(Vector<real> x, const Body &body, std::integer_sequence<int, i...>) {
    using Lanes = std::make_integer_sequence<int, lanes_of<real>>;
    (body(i, spread<real, Block, i>(x, Lanes{})), ...);
}

struct Sizes {
    int64_t rows, width, block, x_stride, y_stride, threads;

    bool bad() const { return rows < 0 || width < 0 || block < 1 || width % block; }
    int64_t useful() const { return useful_threads(threads, rows * width); }
};

/* Blocks of which a vector holds a whole number. */
template <typename real, int Block>
struct Vectors {
    static constexpr int lanes = lanes_of<real>;
    using Numbers = std::make_integer_sequence<int, Block>;

    /* Place of the weight of number i in a lane's output; `turned`: of the transposed blocks. */
    static int64_t place(int64_t channel, int64_t i, bool turned) {
        const int64_t block = channel / Block, j = channel % Block;
        return (block * Block + (turned ? j : i)) * Block + (turned ? i : j);
    }

    static void product(real *y, real *packed, const real *x, const real *weight, const Sizes &s,
                        bool turned) {
        const int64_t vectors = vectors_of<real>(s.width);
        for (int64_t at = 0; at < vectors * Block * lanes; ++at) {
            const int64_t channel = at / (Block * lanes) * lanes + at % lanes;
            const int64_t i = at / lanes % Block;
            packed[at] = channel < s.width ? weight[place(channel, i, turned)] : real(0);
        }
        split(s.rows, s.useful(), [&](int64_t first, int64_t last) {
            for (int64_t row = first; row < last; ++row)
                for_each_vector<real>(0, vectors, s.width, [&](int64_t at, auto part) {
                    const real *of = packed + at * Block;
                    Vector<real> sum = {};
                    each_number<real, Block>(
                        part.load(x + row * s.x_stride + at),
                        [&](int i, Vector<real> number) {
                            sum += number * Whole<real>{}.load(of + i * lanes);
                        },
                        Numbers{});
                    part.store(y + row * s.y_stride + at, sum);
                });
        });
    }

    static void weights(real *grad, real *packed, const real *y, const real *x, const Sizes &s) {
        split(vectors_of<real>(s.width), s.useful(), [&](int64_t begin, int64_t end) {
            fill_zeros(packed + begin * Block * lanes, (end - begin) * Block * lanes);
            for (int64_t first = 0; first < s.rows; first += rows_together)
                for_each_vector<real>(begin, end, s.width, [&](int64_t at, auto part) {
                    add(packed + at * Block, y + at, x + at, s, first, part);
                });
            for (int64_t at = begin * lanes; at < std::min(end * lanes, s.width); ++at)
                for (int64_t i = 0; i < Block; ++i)
                    grad[place(at, i, false)] = packed[(at / lanes * Block + i) * lanes + at % lanes];
        });
    }

private:
    static void fill_zeros(real *to, int64_t count) {
        for (int64_t i = 0; i < count; ++i) to[i] = 0;
    }

    template <typename Part>
    static void add(real *totals, const real *y, const real *x, const Sizes &s, int64_t first,
                    Part part) {
        Vector<real> sum[Block] = {};
        for (int64_t row = first; row < std::min(first + rows_together, s.rows); ++row) {
            const Vector<real> grad = part.load(y + row * s.y_stride);
            each_number<real, Block>(
                part.load(x + row * s.x_stride),
                [&](int i, Vector<real> number) { sum[i] += number * grad; }, Numbers{});
        }
        for (int i = 0; i < Block; ++i)
            Whole<real>{}.store(totals + i * lanes, Whole<real>{}.load(totals + i * lanes) + sum[i]);
    }
};

/* Blocks of any size. */
template <typename real>
struct Any {
    static void product(real *y, const real *x, const real *weight, const Sizes &s, bool turned) {
        const int64_t n = s.block, down = turned ? 1 : n, right = turned ? n : 1;
        split(s.rows, s.useful(), [&](int64_t first, int64_t last) {
            for (int64_t row = first; row < last; ++row)
                for (int64_t at = 0; at < s.width; ++at) {
                    const int64_t block = at / n, j = at % n;
                    real sum = 0;
                    for (int64_t i = 0; i < n; ++i)
                        sum += x[row * s.x_stride + block * n + i] *
                               weight[block * n * n + i * down + j * right];
                    y[row * s.y_stride + at] = sum;
                }
        });
    }

    static void weights(real *grad, const real *y, const real *x, const Sizes &s) {
        const int64_t n = s.block;
        split(s.width * n, s.useful(), [&](int64_t first, int64_t last) {
            for (int64_t at = first; at < last; ++at) {
                const int64_t from = at / (n * n) * n + at / n % n, to = at / (n * n) * n + at % n;
                real sum = 0;
                for (int64_t row = 0; row < s.rows; ++row)
                    sum += x[row * s.x_stride + from] * y[row * s.y_stride + to];
                grad[at] = sum;
            }
        });
    }
};

/* vectors(Vectors<real, Block>) where a vector holds whole blocks of this size, else any(). */
template <typename real, typename Whole, typename Other>
void by_size(int64_t block, const Whole &vectors, const Other &any) {
    const auto fits = [&](auto chosen) {
        if constexpr (lanes_of<real> % decltype(chosen)::value == 0)
            vectors(Vectors<real, decltype(chosen)::value>{});
        else any();
    };
    if (block == 2) return fits(std::integral_constant<int, 2>{});
    if (block == 4) return fits(std::integral_constant<int, 4>{});
    if (block == 8) return fits(std::integral_constant<int, 8>{});
    any();
}

template <typename real>
int product(real *y, real *packed, const real *x, const real *weight, const Sizes &s, bool turned) {
    if (s.bad()) return THREEFOLD_BAD_SIZE;
    by_size<real>(
        s.block, [&](auto vectors) { vectors.product(y, packed, x, weight, s, turned); },
        [&] { Any<real>::product(y, x, weight, s, turned); });
    return THREEFOLD_OK;
}

template <typename real>
int weights(real *grad, real *packed, const real *y, const real *x, const Sizes &s) {
    if (s.bad()) return THREEFOLD_BAD_SIZE;
    by_size<real>(
        s.block, [&](auto vectors) { vectors.weights(grad, packed, y, x, s); },
        [&] { Any<real>::weights(grad, y, x, s); });
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace threefold

#define DEFINE(real, suffix)                                                                      \
    int threefold_block_product_##suffix(real *y, real *workspace, const real *x,                 \
                                         const real *weight, int64_t rows, int64_t width,         \
                                         int64_t block, int64_t x_stride, int64_t y_stride,       \
                                         int64_t turned, int64_t threads) {                       \
        return threefold::product<real>(y, workspace, x, weight,                                  \
                                        {rows, width, block, x_stride, y_stride, threads},        \
                                        turned != 0);                                             \
    }                                                                                             \
    int threefold_block_product_weight_##suffix(                                                  \
        real *grad_weight, real *workspace, const real *grad_y, const real *x, int64_t rows,      \
        int64_t width, int64_t block, int64_t x_stride, int64_t y_stride, int64_t threads) {      \
        return threefold::weights<real>(grad_weight, workspace, grad_y, x,                        \
                                        {rows, width, block, x_stride, y_stride, threads});       \
    }
THREEFOLD_FOR_BOTH(DEFINE)
