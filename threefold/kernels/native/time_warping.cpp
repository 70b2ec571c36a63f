/* d(r, c) = |x_r − y_c|² + min(d(r−1, c−1), d(r−1, c), d(r, c−1)),  |c − centre(r)| ≤ band
 *
 * Distances by dynamic time warping between every query and every reference. The longer series of a
 * pair gives the rows; centre(r) = ⌊(r+1)·short / (long+1)⌋ is the diagonal. A vector holds as many
 * references as it has lanes, so there is no dependency between its numbers; references of different
 * lengths are never in one vector.
 */
#include <limits>

#include "common.h"

namespace threefold {
namespace time_warping {
namespace {

template <typename real>
struct Inputs {
    const real *x, *y;
    const int64_t *x_lengths, *y_lengths;
    int64_t queries, references, x_length, y_length, channels, threads;
    double window;

    int64_t length_of_x(int64_t row) const { return x_lengths ? x_lengths[row] : x_length; }
    int64_t length_of_y(int64_t row) const { return y_lengths ? y_lengths[row] : y_length; }
    int64_t columns() const { return std::min(x_length, y_length); }
    int64_t rows() const { return std::max(x_length, y_length); }

    int status() const {
        if (queries < 0 || references < 0 || x_length < 1 || y_length < 1 || channels < 1 ||
            !(window >= 0 && window <= 1))
            return THREEFOLD_BAD_SIZE;
        for (int64_t row = 0; row < queries; ++row)
            if (length_of_x(row) < 1 || length_of_x(row) > x_length) return THREEFOLD_BAD_LENGTH;
        for (int64_t row = 0; row < references; ++row)
            if (length_of_y(row) < 1 || length_of_y(row) > y_length) return THREEFOLD_BAD_LENGTH;
        return THREEFOLD_OK;
    }
};

/* Up to a vector of references of one length, their numbers side by side: values [L, D, lanes]. */
template <typename real>
struct Group {
    Vector<real> *values;
    int64_t first, count, length;
};

template <typename real>
Group<real> gather(const Inputs<real> &in, int64_t first, Vector<real> *values) {
    Group<real> group{values, first, 1, in.length_of_y(first)};
    while (group.count < lanes_of<real> && first + group.count < in.references &&
           in.length_of_y(first + group.count) == group.length)
        ++group.count;
    for (int64_t place = 0; place < group.length * in.channels; ++place) {
        Vector<real> numbers = {};
        for (int64_t lane = 0; lane < group.count; ++lane)
            numbers[lane] = in.y[(first + lane) * in.y_length * in.channels + place];
        values[place] = numbers;
    }
    return group;
}

template <typename real>
Vector<real> smaller(Vector<real> a, Vector<real> b) {
    return a < b ? a : b;
}

/* One query against a group; `before` and `here` are rows of costs, one place longer than the columns. */
template <typename real, bool query_is_long>
Vector<real> distance(const Inputs<real> &in, const real *query, int64_t query_length,
                      const Group<real> &group, Vector<real> *before, Vector<real> *here) {
    const int64_t rows = query_is_long ? query_length : group.length;
    const int64_t columns = query_is_long ? group.length : query_length;
    const int64_t band = int64_t(in.window * double(columns)), channels = in.channels;
    const Vector<real> infinite = splat<real>(std::numeric_limits<real>::infinity());
    std::fill(before, before + columns + 1, infinite);
    std::fill(here, here + columns + 1, infinite);
    before[0] = Vector<real>{};
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t centre = (row + 1) * columns / (rows + 1);
        const int64_t first = std::max<int64_t>(0, centre - band);
        const int64_t last = std::min(columns, centre + band + 1);
        here[first] = infinite;
        Vector<real> left = infinite;
        for (int64_t column = first; column < last; ++column) {
            const real *x = query + (query_is_long ? row : column) * channels;
            const Vector<real> *y = group.values + (query_is_long ? column : row) * channels;
            Vector<real> cost = {};
            for (int64_t channel = 0; channel < channels; ++channel) {
                const Vector<real> difference = x[channel] - y[channel];
                cost += difference * difference;
            }
            left = cost + smaller<real>(smaller<real>(before[column], before[column + 1]), left);
            here[column + 1] = left;
        }
        std::swap(before, here);
    }
    return before[columns];
}

template <typename real>
void for_group(const Inputs<real> &in, const Group<real> &group, Vector<real> *rows, real *distances) {
    for (int64_t number = 0; number < in.queries; ++number) {
        const real *query = in.x + number * in.x_length * in.channels;
        const int64_t length = in.length_of_x(number);
        Vector<real> *before = rows, *here = rows + in.columns() + 1;
        const Vector<real> found =
            length >= group.length
                ? distance<real, true>(in, query, length, group, before, here)
                : distance<real, false>(in, query, length, group, before, here);
        for (int64_t lane = 0; lane < group.count; ++lane)
            distances[number * in.references + group.first + lane] = found[lane];
    }
}

/* Numbers of a thread: the values of a group, and two rows of costs. */
template <typename real>
int64_t numbers_of_thread(int64_t y_length, int64_t columns, int64_t channels) {
    return (y_length * channels + 2 * (columns + 1)) * lanes_of<real>;
}

template <typename real>
int run(const Inputs<real> &in, real *distances, real *workspace) {
    if (const int status = in.status()) return status;
    const int64_t cells = in.queries * in.references * in.rows();
    const int64_t threads = std::min(useful_threads(in.threads, cells), std::max<int64_t>(1, in.references));
    const int64_t size = numbers_of_thread<real>(in.y_length, in.columns(), in.channels);
    split(threads, threads, [&](int64_t begin, int64_t end) {
        for (int64_t piece = begin; piece < end; ++piece) {
            auto *values = reinterpret_cast<Vector<real> *>(workspace + piece * size);
            const int64_t last = in.references * (piece + 1) / threads;
            for (int64_t first = in.references * piece / threads; first < last;) {
                Group<real> group = gather(in, first, values);
                group.count = std::min(group.count, last - first);
                for_group(in, group, values + in.y_length * in.channels, distances);
                first += group.count;
            }
        }
    });
    return THREEFOLD_OK;
}

template <typename real>
int workspace_size(int64_t *numbers, int64_t y_length, int64_t columns, int64_t channels,
                   int64_t threads) {
    if (y_length < 1 || columns < 1 || channels < 1 || threads < 1) return THREEFOLD_BAD_SIZE;
    *numbers = threads * numbers_of_thread<real>(y_length, columns, channels);
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace time_warping
}  // namespace threefold

#define DEFINE(real, suffix)                                                                       \
    int threefold_time_warping_##suffix(                                                           \
        real *distances, real *workspace, const real *x, const real *y, const int64_t *x_lengths,  \
        const int64_t *y_lengths, int64_t queries, int64_t references, int64_t x_length,           \
        int64_t y_length, int64_t channels, int64_t threads, double window) {                      \
        return threefold::time_warping::run<real>({x, y, x_lengths, y_lengths, queries, references, \
                                                   x_length, y_length, channels, threads, window}, \
                                                  distances, workspace);                           \
    }                                                                                              \
    int threefold_time_warping_workspace_##suffix(int64_t *numbers, int64_t y_length,              \
                                                  int64_t columns, int64_t channels,               \
                                                  int64_t threads) {                               \
        return threefold::time_warping::workspace_size<real>(numbers, y_length, columns, channels, \
                                                             threads);                             \
    }
THREEFOLD_FOR_BOTH(DEFINE)
