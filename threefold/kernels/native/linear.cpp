/* y_ro = bias_o + scale_o · Σ_i x_ri · weight_oi
 *
 * A product of a few rows with a large matrix, limited by reading the matrix: threads divide its
 * rows, each of which is read from memory once and used for all rows of x. Every sum consists
 * of the same `chains` partial sums in the same order, however many rows or threads there are. For many
 * rows, a vector holds one number of each row instead, and the same partial sums are added in the same
 * order without a sum across lanes.
 */
#include <type_traits>

#include "common.h"
#include "transpose.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace threefold {
namespace {

/* Partial sums of one output for one row. */
constexpr int chains = 2;
/* Outputs computed together for `rows` rows of x, as many as keep their sums in registers. This many
 * rows of the matrix are read at once, and this many sums hide the latency of a multiplication; codes
 * are widened meanwhile, and are read faster from fewer places. */
constexpr int outputs_together(int rows, int64_t bytes) { return rows == 1 && bytes > 1 ? 4 : 2; }
/* Bytes between what is read of a matrix and what is asked of memory for later. A processor's own
 * guesses keep up with numbers of four bytes, but not with more rows of a matrix a second. */
constexpr int64_t ahead = 8192, line = 64;
/* A matrix of fewer bytes is probably in a cache already. */
constexpr int64_t worth_asking = 1 << 18;
/* Rows of x that share a load of the weight. */
constexpr int most_together = 3;
/* With more rows than this, they are the lanes of vectors; as MAX_ROWS in kernels/linear.py. */
constexpr int64_t few_rows = 8;

typedef uint16_t bfloat16;

/* Vectors that hold one word of two bfloat16 for each lane, and the same bits as floats. */
template <typename real>
struct Words;
template <>
struct Words<float> {
    typedef uint32_t Integers __attribute__((vector_size(THREEFOLD_VECTOR_BYTES)));
    typedef float Floats __attribute__((vector_size(THREEFOLD_VECTOR_BYTES)));
};
template <>
struct Words<double> {
    typedef uint32_t Integers __attribute__((vector_size(THREEFOLD_VECTOR_BYTES / 2)));
    typedef float Floats __attribute__((vector_size(THREEFOLD_VECTOR_BYTES / 2)));
};

template <typename real>
struct Pair {
    Vector<real> first, second;
};

/* Numbers stored as `real`. */
template <typename real>
struct Wide {
    using Stored = real;
    using Bias = Wide;
    static constexpr int64_t group = 2 * lanes_of<real>;

    static Pair<real> load(const real *from) {
        return {Whole<real>{}.load(from), Whole<real>{}.load(from + lanes_of<real>)};
    }
    /* Where number i of a group is found in its pair. */
    static int64_t place(int64_t i) { return i; }
    static real get(const real *from) { return *from; }
    static void put(real *to, real value) { *to = value; }
};

/* bfloat16 is the upper half of a float. Two of them are split from a word by a shift and a mask,
 * which takes fewer instructions than widening neighbours: even indices come first, then odd. */
template <typename real>
struct Narrow {
    using Stored = bfloat16;
    using Bias = Narrow;
    static constexpr int64_t group = 2 * lanes_of<real>;

    static Pair<real> load(const bfloat16 *from) {
        using Integers = typename Words<real>::Integers;
        using Floats = typename Words<real>::Floats;
        Integers words;
        __builtin_memcpy(&words, from, sizeof words);
        return {__builtin_convertvector((Floats)(words << 16), Vector<real>),
                __builtin_convertvector((Floats)(words & 0xffff0000u), Vector<real>)};
    }
    static int64_t place(int64_t i) {
        const int64_t within = i % group;
        return i - within + within % 2 * lanes_of<real> + within / 2;
    }
    static real get(const bfloat16 *from) {
        const uint32_t word = uint32_t(*from) << 16;
        float value;
        __builtin_memcpy(&value, &word, sizeof value);
        return value;
    }
    /* To the nearest, ties to even; NaN keeps a bit that says so. */
    static void put(bfloat16 *to, real wide) {
        const float value = float(wide);
        uint32_t word;
        __builtin_memcpy(&word, &value, sizeof word);
        const uint32_t rounded = word + 0x7fff + ((word >> 16) & 1);
        *to = value == value ? bfloat16(rounded >> 16) : bfloat16(0x7fc0);
    }
};

/* Codes from −127 to 127, which a scale for each output turns into weights. */
template <typename real>
struct Codes {
    using Stored = int8_t;
    using Bias = Wide<real>;
    static constexpr int64_t group = 2 * lanes_of<real>;

    static Vector<real> widen(const int8_t *from) {
        constexpr int lanes = lanes_of<real>;
        typedef int8_t Bytes __attribute__((vector_size(lanes)));
        Bytes bytes;
        __builtin_memcpy(&bytes, from, sizeof bytes);
        /* By way of integers: one instruction for each conversion, where the direct one has many. */
#if defined(__AVX512F__)
        if constexpr (lanes == 16) return (Vector<real>)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)bytes));
#elif defined(__AVX2__)
        if constexpr (lanes == 8) {
            __m128i low = _mm_loadl_epi64((const __m128i *)from);
            return (Vector<real>)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low));
        }
#endif
        return __builtin_convertvector(bytes, Vector<real>);
    }
    static Pair<real> load(const int8_t *from) {
        return {widen(from), widen(from + lanes_of<real>)};
    }
    static int64_t place(int64_t i) { return i; }
};

/* The narrowest vectors, whose lanes are cheap to extract. */
template <typename real>
struct Short;
template <>
struct Short<float> {
    typedef float Vector __attribute__((vector_size(16)));
};
template <>
struct Short<double> {
    typedef double Vector __attribute__((vector_size(16)));
};

/* Adds the upper half to the lower half until one number is left. */
template <typename real>
real total(const Vector<real> (&sum)[chains]) {
    const Vector<real> vector = sum[0] + sum[1];
    typename Short<real>::Vector part[sizeof vector / 16];
    __builtin_memcpy(part, &vector, sizeof vector);
    for (int half = sizeof vector / 32; half; half /= 2)
        for (int k = 0; k < half; ++k) part[k] += part[k + half];
    if constexpr (sizeof(real) == 8) return part[0][0] + part[0][1];
    else return (part[0][0] + part[0][2]) + (part[0][1] + part[0][3]);
}

/* Weights: how the matrix and the bias are stored; Values: how x and y are. */
template <typename real, typename Weights, typename Values>
struct Product {
    using Weight = typename Weights::Stored;
    using Value = typename Values::Stored;
    using Bias = typename Weights::Bias;

    Value *y;
    real *workspace;
    const Value *x;
    const Weight *weight;
    const typename Bias::Stored *bias;
    int64_t rows, inputs, outputs;
    const real *scale = nullptr;

    static constexpr int64_t group = Weights::group;
    int64_t padded() const { return (inputs + group - 1) / group * group; }

    /* x as `real` in the order of the weights' pairs, with zeros up to a full group. */
    const real *prepare() const {
        if constexpr (!std::is_same_v<Weights, Narrow<real>> && std::is_same_v<Values, Wide<real>>)
            if (inputs == padded()) return x;
        for (int64_t row = 0; row < rows; ++row) {
            real *to = workspace + row * padded();
            for (int64_t i = 0; i < padded(); ++i)
                to[Weights::place(i)] = i < inputs ? Values::get(x + row * inputs + i) : real(0);
        }
        return workspace;
    }

    /* The last pair of a row of the matrix, with nothing read beyond its end. */
    static Pair<real> load_part(const Weight *from, int64_t count) {
        Weight buffer[group] = {};
        for (int64_t i = 0; i < count; ++i) buffer[i] = from[i];
        return Weights::load(buffer);
    }

    /* Ask memory for the lines that lie `ahead` of a group. Beyond the matrix that does nothing. */
    static void ask(const Weight *from, int64_t at) {
        constexpr int64_t bytes = group * int64_t(sizeof(Weight));
        const char *place = reinterpret_cast<const char *>(from + at) + ahead;
        if (bytes >= line || at * int64_t(sizeof(Weight)) % line == 0)
            for (int64_t next = 0; next < bytes; next += line) __builtin_prefetch(place + next);
    }

    /* A few outputs of a few rows. */
    template <int Rows, int Outputs, bool Far>
    void few(const real *ready, int64_t row, int64_t output) const {
        const Weight *w = weight + output * inputs;
        const int64_t stride = padded();
        const real *from = ready + row * stride;
        Vector<real> sum[Outputs][Rows][chains] = {};
        const auto add = [&](int64_t at, const auto &load) {
            for (int o = 0; o < Outputs; ++o) {
                if (Far) ask(w + o * inputs, at);
                const Pair<real> pair = load(w + o * inputs + at);
                for (int r = 0; r < Rows; ++r) {
                    const real *x = from + r * stride + at;
                    sum[o][r][0] += pair.first * Whole<real>{}.load(x);
                    sum[o][r][1] += pair.second * Whole<real>{}.load(x + group / 2);
                }
            }
        };
        int64_t at = 0;
        for (; at + group <= inputs; at += group) add(at, Weights::load);
        if (at < inputs)
            add(at, [&](const Weight *part) { return load_part(part, inputs - at); });
        for (int o = 0; o < Outputs; ++o) {
            const real start = bias ? Bias::get(bias + output + o) : real(0);
            const real times = scale ? scale[output + o] : real(1);
            for (int r = 0; r < Rows; ++r)
                Values::put(y + (row + r) * outputs + output + o,
                            times * total<real>(sum[o][r]) + start);
        }
    }

    template <int Rows, bool Far>
    void some(const real *ready, int64_t row, int64_t first, int64_t last) const {
        constexpr int together = outputs_together(Rows, sizeof(Weight));
        int64_t output = first;
        for (; output + together <= last; output += together)
            few<Rows, together, Far>(ready, row, output);
        for (; output < last; ++output) few<Rows, 1, Far>(ready, row, output);
    }

    template <bool Far>
    void part(const real *ready, int64_t row, int64_t count, int64_t first, int64_t last) const {
        static_assert(most_together == 3, "one case for each number of rows");
        if (count == 3) some<3, Far>(ready, row, first, last);
        if (count == 2) some<2, Far>(ready, row, first, last);
        if (count == 1) some<1, Far>(ready, row, first, last);
    }

    /* All rows for outputs that stay in the nearest cache while row after row passes. */
    void all(const real *ready, int64_t first, int64_t last, bool far) const {
        for (int64_t row = 0; row < rows; row += most_together, far = false) {
            const int64_t count = std::min<int64_t>(rows - row, most_together);
            if (far) part<true>(ready, row, count, first, last);
            else part<false>(ready, row, count, first, last);
        }
    }

    /* x by columns: for every `lanes` rows, [inputs, lanes]. */
    void turn() const {
        constexpr int64_t lanes = lanes_of<real>;
        for (int64_t row = 0; row < rows; row += lanes) {
            real *to = workspace + row * inputs;
            int64_t i = 0;
            for (; row + lanes <= rows && i + lanes <= inputs; i += lanes) {
                Vector<real> square[lanes];
                for (int64_t lane = 0; lane < lanes; ++lane)
                    square[lane] = Whole<real>{}.load(x + (row + lane) * inputs + i);
                transpose<real>(square);
                for (int64_t k = 0; k < lanes; ++k) Whole<real>{}.store(to + (i + k) * lanes, square[k]);
            }
            for (; i < inputs; ++i)
                for (int64_t lane = 0; lane < lanes; ++lane)
                    to[i * lanes + lane] = row + lane < rows ? x[(row + lane) * inputs + i] : real(0);
        }
    }

    /* Sums of a few outputs, of `lanes` rows from `row` on. `total` adds the lanes k · width + j of one j
     * first, and of those k and k + parts / 2, so their partial sums are computed together. */
    template <int Outputs>
    void columns(Vector<real> *totals, int64_t row, int64_t output) const {
        constexpr int lanes = lanes_of<real>, width = 16 / sizeof(real), parts = lanes / width;
        constexpr int together = parts > 1 ? 2 : 1, apart = parts / together;
        const Weight *w = weight + output * inputs;
        const real *from = workspace + row * inputs;
        Vector<real> found[Outputs][width];
        for (int j = 0; j < width; ++j) {
            Vector<real> part[Outputs][apart];
            for (int k = 0; k < apart; ++k) {
                Vector<real> sum[Outputs][chains][together] = {};
                const auto add = [&](int64_t i, int chain, int p) {
                    const Vector<real> value = Whole<real>{}.load(from + i * lanes);
                    for (int o = 0; o < Outputs; ++o) sum[o][chain][p] += w[o * inputs + i] * value;
                };
                int64_t at = k * width + j;
                for (; at + chains * lanes - k * width - j <= inputs; at += group)
                    for (int chain = 0; chain < chains; ++chain)
                        for (int p = 0; p < together; ++p) add(at + chain * lanes + p * apart * width, chain, p);
                for (int chain = 0; chain < chains; ++chain)
                    for (int p = 0; p < together; ++p)
                        if (at + chain * lanes + p * apart * width < inputs)
                            add(at + chain * lanes + p * apart * width, chain, p);
                for (int o = 0; o < Outputs; ++o) {
                    part[o][k] = sum[o][0][0] + sum[o][1][0];
                    if constexpr (together == 2) part[o][k] += sum[o][0][1] + sum[o][1][1];
                }
            }
            for (int o = 0; o < Outputs; ++o) {
                for (int half = apart / 2; half; half /= 2)
                    for (int k = 0; k < half; ++k) part[o][k] += part[o][k + half];
                found[o][j] = part[o][0];
            }
        }
        for (int o = 0; o < Outputs; ++o) {
            totals[o] = found[o][0] + found[o][width - 1];
            if constexpr (width == 4)
                totals[o] = (found[o][0] + found[o][2]) + (found[o][1] + found[o][3]);
            if (bias) totals[o] += splat<real>(Bias::get(bias + output + o));
        }
    }

    /* `count` outputs of `lanes` rows, at most as many as a vector has lanes. */
    void square(int64_t row, int64_t output, int64_t count) const {
        constexpr int64_t lanes = lanes_of<real>, few = 4;
        Vector<real> totals[lanes] = {};
        int64_t o = 0;
        for (; o + few <= count; o += few) columns<few>(totals + o, row, output + o);
        for (; o < count; ++o) columns<1>(totals + o, row, output + o);
        transpose<real>(totals);
        for (int64_t lane = 0; lane < std::min(lanes, rows - row); ++lane) {
            real *to = y + (row + lane) * outputs + output;
            if (count == lanes) Whole<real>{}.store(to, totals[lane]);
            else Part<real>{int(count)}.store(to, totals[lane]);
        }
    }

    int run_many(int64_t threads) const {
        constexpr int64_t lanes = lanes_of<real>;
        turn();
        split(outputs, useful_threads(threads, inputs * outputs), [&](int64_t first, int64_t last) {
            for (int64_t row = 0; row < rows; row += lanes)
                for (int64_t output = first; output < last; output += lanes)
                    square(row, output, std::min(lanes, last - output));
        });
        return THREEFOLD_OK;
    }

    int run(int64_t threads) const {
        if (rows < 0 || inputs < 0 || outputs < 0) return THREEFOLD_BAD_SIZE;
        if constexpr (std::is_same_v<Weights, Wide<real>> && std::is_same_v<Values, Wide<real>>)
            if (rows > few_rows && workspace) return run_many(threads);
        const real *ready = prepare();
        const bool far = inputs * outputs * int64_t(sizeof(Weight)) >= worth_asking;
        split(outputs, useful_threads(threads, inputs * outputs), [&](int64_t first, int64_t last) {
            constexpr int64_t most = 4;
            for (int64_t output = first; output < last; output += most)
                all(ready, output, std::min(last, output + most), far);
        });
        return THREEFOLD_OK;
    }
};

template <typename real, typename Values>
int narrow_product(void *y, real *workspace, const void *x, const bfloat16 *weight,
                   const bfloat16 *bias, int64_t rows, int64_t inputs, int64_t outputs,
                   int64_t threads) {
    using Value = typename Values::Stored;
    return Product<real, Narrow<real>, Values>{static_cast<Value *>(y), workspace,
                                               static_cast<const Value *>(x), weight, bias, rows,
                                               inputs, outputs}
        .run(threads);
}

}  // namespace
}  // namespace threefold

#define DEFINE(real, suffix)                                                                     \
    int threefold_linear_##suffix(real *y, real *workspace, const real *x, const real *weight,   \
                                  const real *bias, int64_t rows, int64_t inputs,                \
                                  int64_t outputs, int64_t threads) {                            \
        using Wide = threefold::Wide<real>;                                                      \
        return threefold::Product<real, Wide, Wide>{y,    workspace, x,      weight,             \
                                                    bias, rows,      inputs, outputs}            \
            .run(threads);                                                                       \
    }                                                                                            \
    int threefold_linear_codes_##suffix(real *y, real *workspace, const real *x,                 \
                                        const int8_t *codes, const real *scale,                  \
                                        const real *bias, int64_t rows, int64_t inputs,          \
                                        int64_t outputs, int64_t threads) {                      \
        using Wide = threefold::Wide<real>;                                                      \
        return threefold::Product<real, threefold::Codes<real>, Wide>{                           \
            y, workspace, x, codes, bias, rows, inputs, outputs, scale}                          \
            .run(threads);                                                                       \
    }                                                                                            \
    int threefold_linear_narrow_##suffix(void *y, real *workspace, const void *x,                \
                                         const uint16_t *weight, const uint16_t *bias,           \
                                         int64_t rows, int64_t inputs, int64_t outputs,          \
                                         int64_t narrow, int64_t threads) {                      \
        const auto run = narrow ? threefold::narrow_product<real, threefold::Narrow<real>>       \
                                : threefold::narrow_product<real, threefold::Wide<real>>;        \
        return run(y, workspace, x, weight, bias, rows, inputs, outputs, threads);               \
    }
THREEFOLD_FOR_BOTH(DEFINE)
