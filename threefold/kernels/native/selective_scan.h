/* S = e^{ΔA} ⊙ S₋ + w B x,   y = (C·S + D x) · silu(gate),   Δ = softplus(delta + bias)
 * w = Δ, or with zero-order hold (e^{ΔA} − 1)/A
 *
 * What the forward and the backward pass of the selective scan share. Vectors run over channels,
 * two to a tile. Time is divided into blocks, and all tiles of a block are done before the next
 * block, so inputs are read in memory order. Inside a block, a tile's Δ, x and y stay in the cache
 * while one or two of a channel's N state numbers run through the block in registers. Between blocks
 * the state is stored transposed: [tile][N][channels of the tile].
 */
#pragma once

#include "common.h"
#include "denormals.h"
#include "transpose.h"

/* For the innermost loops: inlined into each other they run out of registers. */

namespace threefold {
namespace selective {

/* Elements between two checkpoints of the state. */
constexpr int64_t block = 64;
constexpr int tile_vectors = 2;
template <typename real>
constexpr int64_t tile_width = tile_vectors * lanes_of<real>;
template <typename real>
using Tile = Vector<real>[tile_vectors];

/* D′: channels rounded up to full tiles of any variant. */
inline int64_t padded(int64_t channels) { return (channels + 31) / 32 * 32; }
inline int64_t blocks_of(int64_t length) { return (length + block - 1) / block; }

constexpr double log2_e = 1.44269504088896340736, ln_2 = 0.69314718055994530942;

/* How many channels of a tile are real: all of them. */
template <typename real>
struct WholeTile {
    Whole<real> operator[](int) const { return {}; }
};

/* How many channels of a tile are real: the first `count`. */
template <typename real>
struct PartTile {
    int64_t count;
    Part<real> operator[](int vector) const {
        constexpr int64_t lanes = lanes_of<real>;
        return {int(std::max<int64_t>(0, std::min(lanes, count - vector * lanes)))};
    }
};

/* body(channel, lanes) for tiles first … last of a row. */
template <typename real, typename Body>
inline void for_each_tile(int64_t first, int64_t last, int64_t channels, const Body &body) {
    constexpr int64_t width = tile_width<real>;
    const int64_t whole = std::min(last, channels / width);
    for (int64_t tile = first; tile < whole; ++tile) body(tile * width, WholeTile<real>{});
    if (whole < last) body(whole * width, PartTile<real>{channels - whole * width});
}

/* An input [B·L, …] whose rows are `stride` apart: it may be a slice of a wider array. */
template <typename real>
struct Strided {
    const real *data;
    int64_t stride;

    const real *at(int64_t element) const { return data + element * stride; }
    /* Prefetches the next tile of channels: rows are too far apart for the hardware prefetcher. */
    void fetch_next(int64_t element, int64_t channel) const {
        if (data) __builtin_prefetch(at(element) + channel + 2 * tile_width<real>);
    }
};

/* `count` elements of a row from `start` on (from `first` counted over all rows), in one tile. */
struct Place {
    int64_t start, first, count, channel;
};

template <typename real>
struct Inputs {
    Strided<real> x, delta, B, C, gate;
    const real *A, *D, *delta_bias, *state;
    const int64_t *lengths;
    int64_t batch, length, channels, size;
    bool softplus, hold;
    int64_t threads;
    /* A / ln 2, transposed. */
    real *rates;

    int64_t tiles() const { return (channels + tile_width<real> - 1) / tile_width<real>; }
    int64_t length_of(int64_t row) const { return lengths ? lengths[row] : length; }
    /* Numbers in one transposed state of all channels. */
    int64_t turned_size() const { return size * padded(channels); }

    Place place(int64_t row, int64_t number, int64_t channel) const {
        const int64_t start = number * block;
        return {start, row * length + start, std::min(block, length_of(row) - start), channel};
    }

    int64_t useful_threads() const {
        return threefold::useful_threads(threads, batch * length * channels * size / 2);
    }

    int status() const {
        if (batch < 0 || length < 0 || channels < 0 || size < 1) return THREEFOLD_BAD_SIZE;
        for (int64_t row = 0; row < batch; ++row)
            if (length_of(row) < 0 || length_of(row) > length) return THREEFOLD_BAD_LENGTH;
        return THREEFOLD_OK;
    }
};

/* Offset of vector v of number n in a transposed state. */
template <typename real>
inline int64_t turned(int64_t n, int v) {
    return n * tile_width<real> + v * lanes_of<real>;
}

/* to[n][channel] = scale · from[channel][n] for `count` numbers n and the channels of one tile,
 * which lie `stride` apart in `from`. */
template <typename real, typename Lanes>
inline void turn(real *to, const real *from, int64_t stride, int64_t count, Lanes lanes,
                 real scale = 1) {
    constexpr int64_t width = lanes_of<real>;
    for (int v = 0; v < tile_vectors; ++v, to += width, from += width * stride) {
        int64_t n = 0;
        if constexpr (std::is_same_v<Lanes, WholeTile<real>>)
            for (; n + width <= count; n += width) {
                Vector<real> square[width];
                for (int i = 0; i < width; ++i) square[i] = lanes[v].load(from + i * stride + n);
                transpose<real>(square);
                for (int i = 0; i < width; ++i)
                    lanes[v].store(to + turned<real>(n + i, 0), square[i] * scale);
            }
        for (; n < count; ++n)
            Whole<real>{}.store(to + turned<real>(n, 0),
                                lanes[v].load_strided(from + n, stride) * scale);
    }
}

/* to[channel][n] = from[n][channel]. */
template <typename real, typename Lanes>
inline void turn_back(real *to, const real *from, int64_t stride, int64_t count, Lanes lanes) {
    constexpr int64_t width = lanes_of<real>;
    for (int v = 0; v < tile_vectors; ++v, from += width, to += width * stride) {
        int64_t n = 0;
        if constexpr (std::is_same_v<Lanes, WholeTile<real>>)
            for (; n + width <= count; n += width) {
                Vector<real> square[width];
                for (int i = 0; i < width; ++i)
                    square[i] = lanes[v].load(from + turned<real>(n + i, 0));
                transpose<real>(square);
                for (int i = 0; i < width; ++i) lanes[v].store(to + i * stride + n, square[i]);
            }
        for (; n < count; ++n)
            lanes[v].store_strided(to + n, stride, Whole<real>{}.load(from + turned<real>(n, 0)));
    }
}

template <typename real>
inline void turn_rates(const Inputs<real> &in, int64_t threads) {
    split(in.tiles(), threads, [&](int64_t first, int64_t last) {
        for_each_tile<real>(first, last, in.channels, [&](int64_t channel, auto lanes) {
            turn(in.rates + channel * in.size, in.A + channel * in.size, in.size, in.size, lanes,
                 real(log2_e));
        });
    });
}

/* A number for each channel of a tile, or a constant where there is no such input. */
template <typename real, typename Lanes>
inline void load_tile(Tile<real> &to, const real *from, int64_t channel, Lanes lanes) {
    for (int v = 0; v < tile_vectors; ++v)
        to[v] = from ? lanes[v].load(from + channel + v * lanes_of<real>) : Vector<real>{};
}

/* One element of a tile: Δ, what is written (Δx, or x with zero-order hold), and ỹ, at first D x. */
template <typename real>
struct Element {
    Tile<real> delta, write, output;
};

/* One tile's elements of a block, before the N numbers of the state are used. What belongs to
 * one element is stored together: arrays a power of two apart would evict each other from the cache. */
template <typename real>
struct Elements {
    Element<real> at[block];
    /* The largest |Δ|. */
    Tile<real> reach;

    template <typename Lanes>
    void load(const Inputs<real> &in, Place place, Lanes lanes) {
        Tile<real> bias, skip;
        load_tile(bias, in.delta_bias, place.channel, lanes);
        load_tile(skip, in.D, place.channel, lanes);
        for (int v = 0; v < tile_vectors; ++v) reach[v] = Vector<real>{};
        for (int64_t t = 0; t < place.count; ++t) {
            const int64_t element = place.first + t;
            in.x.fetch_next(element, place.channel);
            in.delta.fetch_next(element, place.channel);
            in.gate.fetch_next(element, place.channel);
            for (int v = 0; v < tile_vectors; ++v) {
                const int64_t channel = place.channel + v * lanes_of<real>;
                const Vector<real> x = lanes[v].load(in.x.at(element) + channel);
                Vector<real> step = lanes[v].load(in.delta.at(element) + channel) + bias[v];
                if (in.softplus) step = threefold::softplus<real>(step);
                at[t].delta[v] = step;
                at[t].write[v] = in.hold ? x : step * x;
                at[t].output[v] = in.D ? skip[v] * x : Vector<real>{};
                const Vector<real> magnitude = step > real(0) ? step : -step;
                reach[v] = magnitude > reach[v] ? magnitude : reach[v];
            }
        }
    }

    /* Whether 2^(Δ·rate) may leave the range of `power`; NaN is harmless there. */
    bool overflows(const real *rates, int64_t size) const {
        Bits<real> beyond = {};
        for (int64_t n = 0; n < size; ++n)
            for (int v = 0; v < tile_vectors; ++v) {
                const Vector<real> exponent =
                    reach[v] * Whole<real>{}.load(rates + turned<real>(n, v));
                beyond |= (Bits<real>)(exponent < -real(Simd<real>::bias - 1)) |
                          (Bits<real>)(exponent > real(Simd<real>::bias - 1));
            }
        for (int lane = 0; lane < lanes_of<real>; ++lane)
            if (beyond[lane]) return true;
        return false;
    }
};

/* One of the N numbers of a vector of channels: how an element changes it. Clamp says that
 * 2^(Δ·rate) may leave the range; where it does not, the bits are the same with and without. */
template <typename real, bool Hold, bool Clamp>
struct Transition {
    Vector<real> rate, inverse, still;

    void load(const real *from) {
        rate = Whole<real>{}.load(from);
        if (!Hold) return;
        /* (2^(Δ·rate) − 1)/A is Δ where A = 0. */
        const auto fixed = rate == Vector<real>{};
        inverse = fixed ? Vector<real>{} : real(log2_e) / rate;
        still = fixed ? splat<real>(1) : Vector<real>{};
    }

    /* e^{ΔA}; with hold also w, what multiplies B x. */
    Vector<real> decay(Vector<real> delta, Vector<real> &growth) const {
        constexpr real bias = Simd<real>::bias;
        Vector<real> exponent = rounded<real>(delta * rate);
        if (Clamp) exponent = clamp<real>(exponent, -bias, bias + 1);
        const Power<real> two = power<real>(exponent);
        if (Hold) growth = two.minus_one() * inverse + delta * still;
        return two.value();
    }

    /* The state after an element; the backward pass reuses decay and growth. */
    Vector<real> advance(Vector<real> state, Vector<real> write, real B, Vector<real> decay,
                         Vector<real> growth) const {
        const Vector<real> written = Hold ? growth * write : write;
        return decay * state + rounded<real>(written * B);
    }
};

/* pass.rows<Hold, Clamp, Count>(n) for all n of N, two at a time. */
template <bool Hold, bool Clamp, typename Pass>
inline void for_each_row(int64_t size, const Pass &pass) {
    int64_t n = 0;
    for (; n + 2 <= size; n += 2) pass.template rows<Hold, Clamp, 2>(n);
    if (n < size) pass.template rows<Hold, Clamp, 1>(n);
}

template <typename Pass>
inline void for_each_row(int64_t size, bool hold, bool clamp, const Pass &pass) {
    if (hold)
        clamp ? for_each_row<true, true>(size, pass) : for_each_row<true, false>(size, pass);
    else
        clamp ? for_each_row<false, true>(size, pass) : for_each_row<false, false>(size, pass);
}

}  // namespace selective
}  // namespace threefold
