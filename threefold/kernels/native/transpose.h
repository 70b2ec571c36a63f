/* out[i][j] = in[j][i],   sums[i] = Σ_j in[i][j]        for as many vectors as a vector has lanes
 *
 * Square blocks transposed in registers: neighbouring groups of lanes are swapped, groups of half the
 * lanes first, single lanes last.
 */
#pragma once

#include <utility>

#include "simd.h"

namespace threefold {

/* Lanes chosen by constants: an index below the number of lanes is one of a, above it one of b. */
template <typename real, int... index>
inline Vector<real> pick(Vector<real> a, Vector<real> b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, index...);
#else
    return __builtin_shuffle(a, b, Bits<real>{index...});
#endif
}

/* Of each pair of groups of lanes: the first ones of a and b side by side, and the second ones. */
template <typename real, int Group, int... lane>
inline void exchange(Vector<real> &a, Vector<real> &b, std::integer_sequence<int, lane...>) {
    constexpr int n = lanes_of<real>;
    const Vector<real> first = pick<real, (lane & Group ? n + lane - Group : lane)...>(a, b);
    b = pick<real, (lane & Group ? n + lane : lane + Group)...>(a, b);
    a = first;
}

template <typename real, int Group>
inline void exchange(Vector<real> &a, Vector<real> &b) {
    exchange<real, Group>(a, b, std::make_integer_sequence<int, lanes_of<real>>{});
}

template <typename real, int Group = lanes_of<real> / 2>
inline void transpose(Vector<real> *square) {
    for (int i = 0; i < lanes_of<real>; ++i)
        if (!(i & Group)) exchange<real, Group>(square[i], square[i + Group]);
    if constexpr (Group > 1) transpose<real, Group / 2>(square);
}

/* The sums of the lanes of each vector, as one vector; the square is overwritten. */
template <typename real, int Group = lanes_of<real> / 2>
inline Vector<real> sums_of_lanes(Vector<real> *square) {
    for (int i = 0; i < Group; ++i) {
        exchange<real, Group>(square[i], square[i + Group]);
        square[i] += square[i + Group];
    }
    if constexpr (Group > 1)
        return sums_of_lanes<real, Group / 2>(square);
    else
        return square[0];
}

}  // namespace threefold
