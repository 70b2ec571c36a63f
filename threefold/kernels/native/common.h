/* [0, n) = [0, n/p) ∪ [n/p, 2n/p) ∪ … : the same p pieces in any thread
 *
 * How kernels divide work among threads: a fixed split without atomics, so that the same number of
 * threads gives the same bits. Without OpenMP the pieces run one after another.
 */
#pragma once

#include <algorithm>
#include <cstdint>

#include "simd.h"
#include "threefold.h"

/* Not inlined: next to other code it would not get the registers it needs. */
#define THREEFOLD_APART __attribute__((noinline))

namespace threefold {

/* Threads worth waking for this many elements: waking one costs some microseconds. */
inline int64_t useful_threads(int64_t threads, int64_t elements) {
    constexpr int64_t elements_per_thread = 16384;
    return std::max<int64_t>(1, std::min(threads, elements / elements_per_thread));
}

/* body(first, last) on nearly equal pieces of [0, count), one for each thread. */
template <typename Body>
inline void split(int64_t count, int64_t threads, const Body &body) {
    const int64_t pieces = std::max<int64_t>(1, std::min(threads, count));
    /* OpenMP takes longer to begin a region of one thread than a small kernel to finish. */
    if (pieces == 1) return body(int64_t(0), count);
    /* A loop over pieces, not one piece per thread: OpenMP may grant fewer threads than asked. */
#pragma omp parallel for schedule(static, 1) num_threads(int(pieces))
    for (int64_t piece = 0; piece < pieces; ++piece)
        body(count * piece / pieces, count * (piece + 1) / pieces);
}

/* body(row, first, last): the same for batch × count, split at the borders of rows. */
template <typename Body>
inline void split_rows(int64_t batch, int64_t count, int64_t threads, const Body &body) {
    split(batch * count, threads, [&](int64_t first, int64_t last) {
        while (first < last) {
            const int64_t row = first / count;
            const int64_t end = std::min(last, (row + 1) * count);
            body(row, first - row * count, end - row * count);
            first = end;
        }
    });
}

/* Number of vectors that hold `channels` numbers. */
template <typename real>
inline int64_t vectors_of(int64_t channels) {
    return (channels + lanes_of<real> - 1) / lanes_of<real>;
}

/* body(channel, lanes) for vectors first … last of a row; only the row's last may be a Part. */
template <typename real, typename Body>
inline void for_each_vector(int64_t first, int64_t last, int64_t channels, const Body &body) {
    constexpr int64_t lanes = lanes_of<real>;
    const int64_t whole = std::min(last, channels / lanes);
    for (int64_t vector = first; vector < whole; ++vector) body(vector * lanes, Whole<real>{});
    if (whole < last) body(whole * lanes, Part<real>{int(channels - whole * lanes)});
}

}  // namespace threefold
