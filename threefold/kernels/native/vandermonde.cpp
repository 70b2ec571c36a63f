/* y_l = Re Σ_n c_n w_n^l,   m_n = Σ_l x_l w_n^l,   m′_n = Σ_l l x_l w_n^{l−1}
 *
 * Products with the Vandermonde matrix of each channel, and with its transpose; the matrix is never
 * stored. With l = 64 q + j the powers w^j, j < 64, are a table in the cache, and w^{64 q} is updated
 * from block to block in float64 whatever the dtype of the sequence: the error of w^l is l·2⁻⁵³, as
 * much as the rounding of w itself causes. A vector holds neighbouring channels, so sequences are
 * read and written in memory order; `backwards` counts l back from a row's last element.
 */
#include "common.h"
#include "denormals.h"

namespace threefold {
namespace {

constexpr int64_t block = 64;

/* As many float64 numbers as a vector of `real` has lanes. */
template <typename real>
struct Double {
    typedef double Lanes __attribute__((vector_size(sizeof(double) * lanes_of<real>)));
    Lanes re, im;

    static Double load(const double *from) {
        Double value;
        __builtin_memcpy(&value, from, sizeof value);
        return value;
    }
    void store(double *to) const { __builtin_memcpy(to, this, sizeof *this); }
    Double times(const Double &other) const {
        return {re * other.re - im * other.im, re * other.im + im * other.re};
    }
    void add(const Double &other) {
        re += other.re;
        im += other.im;
    }
    Vector<real> real_part() const { return __builtin_convertvector(re, Vector<real>); }
    Vector<real> imaginary_part() const { return __builtin_convertvector(im, Vector<real>); }
    static Double of(const Vector<real> &re, const Vector<real> &im) {
        return {__builtin_convertvector(re, Lanes), __builtin_convertvector(im, Lanes)};
    }
};

/* Numbers of a pair of vectors. */
template <typename real>
constexpr int64_t pair = 2 * lanes_of<real>;

template <typename real>
struct Sizes {
    const double *factor;
    const int64_t *lengths;
    int64_t rows, length, channels, size;
    bool backwards;

    int64_t length_of(int64_t row) const { return lengths ? lengths[row] : length; }
    int status() const {
        if (rows < 0 || length < 0 || channels < 1 || size < 1) return THREEFOLD_BAD_SIZE;
        for (int64_t row = 0; row < rows; ++row)
            if (length_of(row) < 0 || length_of(row) > length) return THREEFOLD_BAD_LENGTH;
        return THREEFOLD_OK;
    }
    /* Where the element with power l of a row is, from the row's beginning. */
    int64_t place(int64_t row, int64_t l) const {
        return (backwards ? length_of(row) - 1 - l : l) * channels;
    }
    /* body(piece, row, channel, fresh): every row of every vector of channels, a piece for each thread. */
    template <typename Body>
    void share(int64_t threads, const Body &body) const {
        const int64_t items = rows * vectors_of<real>(channels);
        const int64_t work = items * lanes_of<real> * length * size / 8;
        const int64_t pieces = std::max<int64_t>(1, std::min(useful_threads(threads, work), items));
        split(pieces, pieces, [&](int64_t first, int64_t last) {
            const FlushDenormals flush;
            for (int64_t piece = first; piece < last; ++piece) {
                int64_t known = -1;
                for (int64_t item = items * piece / pieces; item < items * (piece + 1) / pieces; ++item) {
                    const int64_t group = item / rows;
                    body(piece, item % rows, group * lanes_of<real>, group != known);
                    known = group;
                }
            }
        });
    }
    Part<real> lanes(int64_t channel) const {
        return {int(std::min<int64_t>(lanes_of<real>, channels - channel))};
    }
};

/* Numbers [channels, N, 2] from memory, a vector of channels at a time; missing channels are 0. */
template <typename real>
Double<real> gather(const double *from, int64_t n, int64_t size, Part<real> lanes) {
    Double<real> value = {};
    for (int lane = 0; lane < lanes.count; ++lane) {
        value.re[lane] = from[(lane * size + n) * 2];
        value.im[lane] = from[(lane * size + n) * 2 + 1];
    }
    return value;
}

/* w^j [64/4, N, 4] as pairs of vectors, and w^64 [N]. */
template <typename real>
struct Powers {
    real *table;
    double *leap;
    int64_t size;

    real *at(int64_t j, int64_t n) const {
        return table + ((j / 4 * size + n) * 4 + j % 4) * pair<real>;
    }
    void fill(const double *factor, Part<real> lanes) const {
        for (int64_t n = 0; n < size; ++n) {
            const Double<real> w = gather<real>(factor, n, size, lanes);
            Double<real> power = {};
            power.re += 1.0;
            for (int64_t j = 0; j < block; ++j) {
                real *to = at(j, n);
                Whole<real>{}.store(to, power.real_part());
                Whole<real>{}.store(to + lanes_of<real>, power.imaginary_part());
                power = power.times(w);
            }
            power.store(leap + n * pair<real>);
        }
    }
};

template <typename real>
void store_lanes(real *to, const Vector<real> &value, Part<real> lanes) {
    if (lanes.count == lanes_of<real>) return Whole<real>{}.store(to, value);
    lanes.store(to, value);
}

template <typename real>
Vector<real> load_lanes(const real *from, Part<real> lanes) {
    return lanes.count == lanes_of<real> ? Whole<real>{}.load(from) : lanes.load(from);
}

/* y of three blocks from q on: three columns of c w^{64 q}, [N, 3] pairs (imaginary parts negated). */
template <typename real>
struct Products {
    static constexpr int columns = 3;
    const Sizes<real> &sizes;
    const Powers<real> &powers;
    real *coefficients;
    double *going;

    /* Whether the coefficients of a row are not all 0. */
    bool begin(const double *from, Part<real> lanes) {
        bool any = false;
        for (int64_t n = 0; n < sizes.size; ++n) {
            const Double<real> c = gather<real>(from, n, sizes.size, lanes);
            for (int lane = 0; lane < lanes.count; ++lane) any |= !(c.re[lane] == 0 && c.im[lane] == 0);
            c.store(going + n * pair<real>);
        }
        return any;
    }
    void advance() {
        for (int64_t n = 0; n < sizes.size; ++n) {
            Double<real> c = Double<real>::load(going + n * pair<real>);
            const Double<real> leap = Double<real>::load(powers.leap + n * pair<real>);
            real *to = coefficients + n * columns * pair<real>;
            for (int k = 0; k < columns; ++k, to += pair<real>) {
                Whole<real>{}.store(to, c.real_part());
                Whole<real>{}.store(to + lanes_of<real>, -c.imaginary_part());
                c = c.times(leap);
            }
            c.store(going + n * pair<real>);
        }
    }
    void write(real *y, int64_t row, int64_t begin, Part<real> lanes) const {
        const int64_t length = sizes.length_of(row);
        for (int64_t j = 0; j < std::min(block, length - begin); j += 4) {
            Vector<real> sum[columns][4] = {};
            const real *table = powers.at(j, 0), *c = coefficients;
            for (int64_t n = 0; n < sizes.size; ++n, table += 4 * pair<real>)
                for (int k = 0; k < columns; ++k, c += pair<real>) {
                    const Vector<real> re = Whole<real>{}.load(c);
                    const Vector<real> im = Whole<real>{}.load(c + lanes_of<real>);
                    for (int i = 0; i < 4; ++i) {
                        const real *w = table + i * pair<real>;
                        sum[k][i] += re * Whole<real>{}.load(w);
                        sum[k][i] += im * Whole<real>{}.load(w + lanes_of<real>);
                    }
                }
            for (int k = 0; k < columns; ++k)
                for (int i = 0; i < 4; ++i) {
                    const int64_t l = begin + k * block + j + i;
                    if (l < length) store_lanes(y + sizes.place(row, l), sum[k][i], lanes);
                }
        }
    }
};

template <typename real>
int product(const Sizes<real> &sizes, real *y, real *workspace, double *numbers,
            const double *coefficient, int64_t threads) {
    const int64_t size = sizes.size, columns = Products<real>::columns;
    const int64_t table = block * size * pair<real>, each = table + columns * size * pair<real>;
    sizes.share(threads, [&](int64_t piece, int64_t row, int64_t channel, bool fresh) {
        real *room = workspace + piece * each;
        double *wide = numbers + piece * 2 * size * pair<real>;
        Powers<real> powers{room, wide, size};
        Products<real> products{sizes, powers, room + table, wide + size * pair<real>};
        const Part<real> lanes = sizes.lanes(channel);
        if (fresh) powers.fill(sizes.factor + channel * size * 2, lanes);
        real *out = y + row * sizes.length * sizes.channels + channel;
        int64_t done = 0;
        if (products.begin(coefficient + (row * sizes.channels + channel) * size * 2, lanes))
            for (done = 0; done < sizes.length_of(row); done += columns * block) {
                products.advance();
                products.write(out, row, done, lanes);
            }
        for (int64_t t = std::min(done, sizes.length_of(row)); t < sizes.length; ++t)
            store_lanes(out + t * sizes.channels, Vector<real>{}, lanes);
    });
    return THREEFOLD_OK;
}

/* Sums of four columns of 64 numbers, one after another or, with slopes, of x and of its slope. */
template <typename real>
struct Sums {
    static constexpr int columns = 4;
    const Sizes<real> &sizes;
    const Powers<real> &powers;
    real *inputs;
    double *going, *found;
    bool slopes;

    int64_t stride() const { return slopes ? 2 : 1; }
    void begin() {
        for (int64_t n = 0; n < sizes.size; ++n) {
            Double<real> one = {};
            for (int64_t which = 0; which < stride(); ++which)
                one.store(found + (which * sizes.size + n) * pair<real>);
            one.re += 1.0;
            one.store(going + n * pair<real>);
        }
    }
    Vector<real> input(const real *x, int64_t row, int64_t l, Part<real> lanes) const {
        return l < sizes.length_of(row) ? load_lanes(x + sizes.place(row, l), lanes) : Vector<real>{};
    }
    void read(const real *x, int64_t row, int64_t begin, Part<real> lanes) {
        for (int64_t k = 0; k < columns; k += stride())
            for (int64_t j = 0; j < block; ++j) {
                const int64_t l = begin + k / stride() * block + j;
                real *to = inputs + (j * columns + k) * lanes_of<real>;
                Whole<real>{}.store(to, input(x, row, l, lanes));
                if (slopes)
                    Whole<real>{}.store(to + lanes_of<real>, input(x, row, l + 1, lanes) * real(l + 1));
            }
    }
    void add() {
        for (int64_t n = 0; n < sizes.size; ++n) {
            Vector<real> re[columns] = {}, im[columns] = {};
            const real *x = inputs;
            for (int64_t j = 0; j < block; j += 4)
                for (int i = 0; i < 4; ++i) {
                    const real *w = powers.at(j, n) + i * pair<real>;
                    const Vector<real> a = Whole<real>{}.load(w);
                    const Vector<real> b = Whole<real>{}.load(w + lanes_of<real>);
                    for (int k = 0; k < columns; ++k, x += lanes_of<real>) {
                        re[k] += a * Whole<real>{}.load(x);
                        im[k] += b * Whole<real>{}.load(x);
                    }
                }
            collect(n, re, im);
        }
    }
    void collect(int64_t n, const Vector<real> *re, const Vector<real> *im) {
        Double<real> power = Double<real>::load(going + n * pair<real>);
        const Double<real> leap = Double<real>::load(powers.leap + n * pair<real>);
        for (int64_t k = 0; k < columns; k += stride()) {
            for (int64_t which = 0; which < stride(); ++which) {
                double *at = found + (which * sizes.size + n) * pair<real>;
                Double<real> sum = Double<real>::load(at);
                sum.add(power.times(Double<real>::of(re[k + which], im[k + which])));
                sum.store(at);
            }
            power = power.times(leap);
        }
        power.store(going + n * pair<real>);
    }
    void finish(double *to, int64_t which, Part<real> lanes) const {
        for (int64_t n = 0; n < sizes.size; ++n) {
            const Double<real> sum = Double<real>::load(found + (which * sizes.size + n) * pair<real>);
            for (int lane = 0; lane < lanes.count; ++lane) {
                to[(lane * sizes.size + n) * 2] = sum.re[lane];
                to[(lane * sizes.size + n) * 2 + 1] = sum.im[lane];
            }
        }
    }
};

template <typename real>
int moments(const Sizes<real> &sizes, double *sums, double *slopes, real *workspace, double *numbers,
            const real *x, int64_t threads) {
    const int64_t size = sizes.size, columns = Sums<real>::columns;
    const int64_t table = block * size * pair<real>, each = table + columns * block * lanes_of<real>;
    sizes.share(threads, [&](int64_t piece, int64_t row, int64_t channel, bool fresh) {
        real *room = workspace + piece * each;
        double *wide = numbers + piece * 4 * size * pair<real>;
        Powers<real> powers{room, wide, size};
        Sums<real> work{sizes,
                        powers,
                        room + table,
                        wide + size * pair<real>,
                        wide + 2 * size * pair<real>,
                        slopes != nullptr};
        const Part<real> lanes = sizes.lanes(channel);
        if (fresh) powers.fill(sizes.factor + channel * size * 2, lanes);
        work.begin();
        const real *source = x + row * sizes.length * sizes.channels + channel;
        for (int64_t l = 0; l < sizes.length_of(row); l += columns / work.stride() * block) {
            work.read(source, row, l, lanes);
            work.add();
        }
        const int64_t at = (row * sizes.channels + channel) * size * 2;
        work.finish(sums + at, 0, lanes);
        if (slopes) work.finish(slopes + at, 1, lanes);
    });
    return THREEFOLD_OK;
}

/* For any number of threads, so for more pieces than there may be. */
template <typename real>
int workspace(int64_t *found, int64_t size, bool moments, int64_t threads) {
    if (size < 1) return THREEFOLD_BAD_SIZE;
    const int64_t table = block * size * pair<real>;
    const int64_t behind = moments ? Sums<real>::columns * block * lanes_of<real>
                                   : Products<real>::columns * size * pair<real>;
    found[0] = std::max<int64_t>(1, threads) * (table + behind);
    found[1] = std::max<int64_t>(1, threads) * (moments ? 4 : 2) * size * pair<real>;
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace threefold

#define DEFINE(real, suffix)                                                                         \
    int threefold_vandermonde_product_##suffix(                                                      \
        real *y, real *workspace, double *numbers, const double *factor, const double *coefficient,  \
        const int64_t *lengths, int64_t rows, int64_t length, int64_t channels, int64_t size,        \
        int64_t backwards, int64_t threads) {                                                         \
        const threefold::Sizes<real> sizes{factor,   lengths, rows,         length,                  \
                                           channels, size,    backwards != 0};                        \
        if (const int status = sizes.status()) return status;                                        \
        return threefold::product<real>(sizes, y, workspace, numbers, coefficient, threads);         \
    }                                                                                                \
    int threefold_vandermonde_moments_##suffix(                                                      \
        double *moments, double *slopes, real *workspace, double *numbers, const real *x,            \
        const double *factor, const int64_t *lengths, int64_t rows, int64_t length,                  \
        int64_t channels, int64_t size, int64_t backwards, int64_t threads) {                         \
        const threefold::Sizes<real> sizes{factor,   lengths, rows,         length,                  \
                                           channels, size,    backwards != 0};                        \
        if (const int status = sizes.status()) return status;                                        \
        return threefold::moments<real>(sizes, moments, slopes, workspace, numbers, x, threads);     \
    }                                                                                                \
    int threefold_vandermonde_workspace_##suffix(int64_t *found, int64_t size, int64_t moments,      \
                                                 int64_t threads) {                                  \
        return threefold::workspace<real>(found, size, moments != 0, threads);                       \
    }

THREEFOLD_FOR_BOTH(DEFINE)
