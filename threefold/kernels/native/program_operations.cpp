/* y = f(a, b, c),   y = Σ_k a_k or max_k a_k,   y_ij = Σ_k a_ik b_kj,   on views with any strides
 *
 * The operations between the larger kernels of a step, on small arrays that may be views of others.
 * Programs (program.cpp) call them in place of the torch operations of a layer.
 */
#include <cmath>
#include <cstring>
#include <limits>

#include "common.h"
#include "program_operations.h"
#include "special_functions.h"

namespace threefold {
namespace {

constexpr int axes = 4;

template <typename real>
struct Array {
    real *data;
    const int64_t *strides;

    real *row(const int64_t index[axes]) const {
        real *at = data;
        if (at)
            for (int axis = 0; axis < axes - 1; ++axis) at += index[axis] * strides[axis];
        return at;
    }
    int64_t stride() const { return strides[axes - 1]; }
};

template <typename real, typename Lanes>
inline Vector<real> read(Lanes lanes, const real *row, int64_t at, int64_t stride) {
    if (!row) return Vector<real>{};
    if (stride == 1) return lanes.load(row + at);
    return stride ? lanes.load_strided(row + at * stride, stride) : splat<real>(*row);
}

inline bool fits(const int64_t *sizes) {
    for (int axis = 0; axis < axes; ++axis)
        if (sizes[axis] < 0) return false;
    return true;
}

/* body(index, first, last): rows of the last axis, or pieces of one row where there is only one. */
template <typename Body>
void for_each_row(const int64_t *sizes, int64_t pieces, int64_t threads, const Body &body) {
    const int64_t rows = sizes[0] * sizes[1] * sizes[2];
    if (rows == 1) {
        const int64_t index[axes] = {};
        split(pieces, useful_threads(threads, sizes[3]),
              [&](int64_t first, int64_t last) { body(index, first, last); });
        return;
    }
    split(rows, useful_threads(threads, rows * sizes[3]), [&](int64_t first, int64_t last) {
        int64_t index[axes] = {};
        if (first)
            for (int64_t axis = 2, rest = first; axis >= 0; rest /= sizes[axis--])
                index[axis] = rest % sizes[axis];
        for (int64_t row = first; row < last; ++row) {
            body(index, 0, pieces);
            if (++index[2] == sizes[2]) {
                index[2] = 0;
                if (++index[1] == sizes[1]) index[1] = 0, ++index[0];
            }
        }
    });
}

template <typename real, typename Function>
void map(Array<real> y, Array<const real> a, Array<const real> b, Array<const real> c,
         const int64_t *sizes, int64_t threads, const Function &f) {
    const int64_t size = sizes[axes - 1];
    for_each_row(sizes, vectors_of<real>(size), threads,
                 [&](const int64_t *index, int64_t first, int64_t last) {
        real *to = y.row(index);
        const real *one = a.row(index), *two = b.row(index), *three = c.row(index);
        for_each_vector<real>(first, last, size, [&](int64_t at, auto lanes) {
            const Vector<real> made = f(read<real>(lanes, one, at, a.stride()),
                                        read<real>(lanes, two, at, b.stride()),
                                        read<real>(lanes, three, at, c.stride()));
            if (y.stride() == 1) lanes.store(to + at, made);
            else lanes.store_strided(to + at * y.stride(), y.stride(), made);
        });
    });
}

template <typename real, typename Function>
inline Vector<real> each(Vector<real> x, const Function &f) {
    for (int lane = 0; lane < lanes_of<real>; ++lane) x[lane] = f(x[lane]);
    return x;
}

/* NaN if either is NaN, as in torch. */
template <typename real>
inline Vector<real> larger(Vector<real> a, Vector<real> b) {
    const Vector<real> found = a > b ? a : b;
    return a != a ? a : found;
}

template <typename real>
int pointwise(real *out, const real *a, const real *b, const real *c, const int64_t *layout,
              int64_t function, int64_t threads, double scale_, double offset_) {
    using V = Vector<real>;
    const int64_t *sizes = layout;
    if (!fits(sizes)) return THREEFOLD_BAD_SIZE;
    const Array<real> y{out, layout + 4};
    const Array<const real> x{a, layout + 8}, z{b, layout + 12}, w{c, layout + 16};
    const real scale = real(scale_), offset = real(offset_);
    const V zero = {}, one = splat<real>(1);
    const auto run = [&](const auto &f) {
        map<real>(y, x, z, w, sizes, threads, f);
        return int(THREEFOLD_OK);
    };
    /* In the order of FUNCTIONS in kernels/replay/lowering.py. */
    switch (function) {
        case 0: return run([](V p, V, V) { return p; });
        case 1: return run([=](V p, V, V) { return p * scale + offset; });
        case 2: return run([=](V p, V q, V) { return p + q * scale; });
        case 3: return run([](V p, V q, V) { return p * q; });
        case 4: return run([](V p, V q, V) { return p / q; });
        case 5: return run([](V p, V q, V) { return larger<real>(p, q); });
        case 6: return run([](V p, V q, V) { return -larger<real>(-p, -q); });
        case 7: return run([=](V p, V, V) { return clamp<real>(p, scale, offset); });
        case 8: return run([](V p, V, V) { return exponential<real>(p); });
        case 9: return run([](V p, V, V) { return each<real>(p, [](real v) { return std::expm1(v); }); });
        case 10: return run([](V p, V, V) { return each<real>(p, [](real v) { return std::log(v); }); });
        case 11: return run([](V p, V, V) { return sine<real>(p); });
        case 12: return run([](V p, V, V) { return cosine<real>(p); });
        case 13: return run([](V p, V, V) { return sigmoid<real>(p); });
        case 14: return run([](V p, V, V) { return -softplus<real>(-p); });
        case 15: return run([](V p, V, V) { return softplus<real>(p); });
        case 16: return run([](V p, V, V) { return silu<real>(p); });
        case 17: return run([](V p, V, V) { return hyperbolic_tangent<real>(p); });
        case 18: return run([](V p, V, V) {
            const V error = error_function<real>(p * real(0.70710678118654752440));
            return p * real(0.5) * (real(1) + error);
        });
        case 19: return run([](V p, V, V) {
            const V inside = (p + p * p * p * real(0.044715)) * real(0.79788456080286535588);
            return p * real(0.5) * (real(1) + hyperbolic_tangent<real>(inside));
        });
        case 20: return run([](V p, V, V) { return each<real>(p, [](real v) { return std::sqrt(v); }); });
        case 21: return run([](V p, V, V) { return each<real>(p, [](real v) { return 1 / std::sqrt(v); }); });
        case 22: return run([](V p, V, V) { return real(1) / p; });
        case 23: return run([](V p, V, V) { return p < real(0) ? -p : p; });
        case 24: return run([=](V p, V, V) { return p == scale ? one : zero; });
        case 25: return run([=](V p, V, V) { return p >= scale ? one : zero; });
        case 26: return run([=](V p, V, V) { return p <= scale ? one : zero; });
        case 27: return run([=](V p, V, V) { return p > scale ? one : zero; });
        case 28: return run([=](V p, V, V) { return p < scale ? one : zero; });
        case 29: return run([](V p, V q, V r) { return p != real(0) ? q : r; });
        case 30: return run([=](V, V, V) { return splat<real>(scale); });
        case 31: return run([](V p, V q, V) {
            const V most = larger<real>(p, q), apart = p > q ? p - q : q - p;
            /* inf − inf would be NaN. */
            return most + (p == q ? splat<real>(real(0.69314718055994530942))
                                  : log_one_plus<real>(exponential_normal<real>(-apart)));
        });
        default: return THREEFOLD_BAD_SIZE;
    }
}

template <typename real>
int reduce(real *out, const real *a, const int64_t *layout, int64_t largest, int64_t threads,
           double scale) {
    const int64_t *sizes = layout;
    if (!fits(sizes) || sizes[3] < 1) return THREEFOLD_BAD_SIZE;
    const Array<real> y{out, layout + 4};
    const Array<const real> x{a, layout + 8};
    const int64_t size = sizes[3];
    const int64_t rows[axes] = {sizes[0], sizes[1], 1, sizes[2]};
    for_each_row(rows, sizes[2], threads, [&](const int64_t *row, int64_t first, int64_t last) {
        for (int64_t at = first; at < last; ++at) {
            const int64_t index[axes] = {row[0], row[1], at, 0};
            const real *from = x.row(index);
            const int64_t step = x.stride();
            Vector<real> whole = splat<real>(largest ? -std::numeric_limits<real>::infinity() : 0);
            const int64_t vectors = size / lanes_of<real>;
            for_each_vector<real>(0, vectors, size, [&](int64_t i, auto lanes) {
                const Vector<real> v = read<real>(lanes, from, i, step);
                whole = largest ? larger<real>(v, whole) : whole + v;
            });
            real found = whole[0];
            const auto take = [&](real v) {
                found = largest ? (v > found || v != v ? v : found) : found + v;
            };
            for (int lane = 1; lane < lanes_of<real>; ++lane) take(whole[lane]);
            for (int64_t i = vectors * lanes_of<real>; i < size; ++i) take(from[i * step]);
            *y.row(index) = largest ? found : found * real(scale);
        }
    });
    return THREEFOLD_OK;
}

/* One row of the product: the sum over k of a_k times row k of b. */
template <typename real>
void add_rows(real *y, int64_t y_stride, const real *a, int64_t a_stride, const real *b,
              int64_t b_row, int64_t b_stride, int64_t first, int64_t last, int64_t columns,
              int64_t inner) {
    for_each_vector<real>(first, last, columns, [&](int64_t at, auto lanes) {
        Vector<real> sum = {};
        for (int64_t k = 0; k < inner; ++k)
            sum += a[k * a_stride] * read<real>(lanes, b + k * b_row, at, b_stride);
        lanes.store_strided(y + at * y_stride, y_stride, sum);
    });
}

template <typename real>
int product(real *y, const real *a, const real *b, const int64_t *layout, int64_t threads) {
    if (!fits(layout)) return THREEFOLD_BAD_SIZE;
    const int64_t batch = layout[0], rows = layout[1], columns = layout[2], inner = layout[3];
    const int64_t *ys = layout + 4, *as = layout + 7, *bs = layout + 10;
    const int64_t vectors = vectors_of<real>(columns);
    const int64_t useful = useful_threads(threads, batch * rows * columns * inner / 8);
    split_rows(batch * rows, vectors, useful, [&](int64_t at, int64_t first, int64_t last) {
        const int64_t n = at / rows, row = at % rows;
        add_rows<real>(y + n * ys[0] + row * ys[1], ys[2], a + n * as[0] + row * as[1], as[2],
                       b + n * bs[0], bs[1], bs[2], first, last, columns, inner);
    });
    return THREEFOLD_OK;
}

template <typename real, typename other>
int convert(real *out, const other *a, const int64_t *layout, int64_t threads) {
    const int64_t *sizes = layout;
    if (!fits(sizes)) return THREEFOLD_BAD_SIZE;
    const Array<real> y{out, layout + 4};
    const Array<const other> x{a, layout + 8};
    for_each_row(sizes, sizes[3], threads, [&](const int64_t *index, int64_t first, int64_t last) {
        real *to = y.row(index);
        const other *from = x.row(index);
        for (int64_t at = first; at < last; ++at)
            to[at * y.stride()] = real(from[at * x.stride()]);
    });
    return THREEFOLD_OK;
}

template <typename real>
int gather(real *y, const real *table, const double *index, int64_t rows, int64_t width,
           int64_t entries) {
    if (rows < 0 || width < 0) return THREEFOLD_BAD_SIZE;
    for (int64_t row = 0; row < rows; ++row)
        if (!(index[row] >= 0 && index[row] < double(entries))) return THREEFOLD_BAD_INDEX;
    for (int64_t row = 0; row < rows; ++row)
        std::memcpy(y + row * width, table + int64_t(index[row]) * width, width * sizeof(real));
    return THREEFOLD_OK;
}

/* Rows of a table of bfloat16, the upper halves of floats, or (scale) of 8-bit codes. */
template <typename real>
int gather_narrow(real *y, const void *table, const real *scale, const double *index, int64_t rows,
                  int64_t width, int64_t entries) {
    if (rows < 0 || width < 0) return THREEFOLD_BAD_SIZE;
    for (int64_t row = 0; row < rows; ++row)
        if (!(index[row] >= 0 && index[row] < double(entries))) return THREEFOLD_BAD_INDEX;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t entry = int64_t(index[row]);
        for (int64_t i = 0; i < width; ++i) {
            if (scale) {
                y[row * width + i] =
                    real(static_cast<const int8_t *>(table)[entry * width + i]) * scale[entry];
                continue;
            }
            const uint32_t bits = uint32_t(static_cast<const uint16_t *>(table)[entry * width + i])
                                  << 16;
            float value;
            std::memcpy(&value, &bits, sizeof value);
            y[row * width + i] = real(value);
        }
    }
    return THREEFOLD_OK;
}

template <typename To, typename From>
int convert_all(To *y, const From *a, int64_t count) {
    if (count < 0) return THREEFOLD_BAD_SIZE;
    for (int64_t i = 0; i < count; ++i) y[i] = To(a[i]);
    return THREEFOLD_OK;
}

template <typename real>
struct Other {
    using type = double;
};
template <>
struct Other<double> {
    using type = float;
};

}  // namespace
}  // namespace threefold

#define DEFINE(real, suffix)                                                                       \
    int threefold_gather_##suffix(real *y, const real *table, const double *index, int64_t rows,   \
                                  int64_t width, int64_t entries, int64_t) {                       \
        return threefold::gather<real>(y, table, index, rows, width, entries);                     \
    }                                                                                              \
    int threefold_gather_narrow_##suffix(real *y, const void *table, const real *scale,            \
                                         const double *index, int64_t rows, int64_t width,         \
                                         int64_t entries, int64_t) {                               \
        return threefold::gather_narrow<real>(y, table, scale, index, rows, width, entries);       \
    }                                                                                              \
    int threefold_from_integers_##suffix(real *y, const int64_t *a, int64_t count, int64_t) {      \
        return threefold::convert_all(y, a, count);                                                \
    }                                                                                              \
    int threefold_to_integers_##suffix(int64_t *y, const real *a, int64_t count, int64_t) {        \
        return threefold::convert_all(y, a, count);                                                \
    }                                                                                              \
    int threefold_pointwise_##suffix(real *y, const real *a, const real *b, const real *c,         \
                                     const int64_t *layout, int64_t function, int64_t threads,     \
                                     double scale, double offset) {                                \
        return threefold::pointwise<real>(y, a, b, c, layout, function, threads, scale, offset);   \
    }                                                                                              \
    int threefold_reduce_##suffix(real *y, const real *a, const int64_t *layout, int64_t largest,  \
                                  int64_t threads, double scale) {                                 \
        return threefold::reduce<real>(y, a, layout, largest, threads, scale);                     \
    }                                                                                              \
    int threefold_product_##suffix(real *y, const real *a, const real *b, const int64_t *layout,   \
                                   int64_t threads) {                                              \
        return threefold::product<real>(y, a, b, layout, threads);                                 \
    }                                                                                              \
    int threefold_convert_##suffix(real *y, const void *a, const int64_t *layout,                  \
                                   int64_t threads) {                                              \
        using other = threefold::Other<real>::type;                                                \
        return threefold::convert<real>(y, static_cast<const other *>(a), layout, threads);        \
    }
THREEFOLD_FOR_BOTH(DEFINE)
