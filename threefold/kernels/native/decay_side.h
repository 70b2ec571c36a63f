/* scores_st = Σ_i w_s · (decay_{s+1} ⋯ decay_t) · r_t,   s ≤ t
 *
 * The keys' side or the values' side of an outer-product memory, for one block of elements. On each
 * side an element has a reader r (query; gradient of the output), a writer w (key; value) and
 * perhaps decays. Within a chunk of T elements decays enter as products of numbers in [0, 1], never
 * as quotients or differences of sums, so any decay is exact, even a decay of 0.
 */
#pragma once

#include "decay_inputs.h"

namespace threefold {
namespace decay {

/* No decay; one decay for all numbers of an element; one for each number. */
enum class Decaying { none, shared, each };

template <typename real>
struct Side {
    int64_t size, width;
    Decaying decaying;
    /* [block, width]: r and w; r decayed since the start of its chunk, w decayed until the end of
     * its chunk (r and w themselves where nothing decays). */
    Rows<real> reader, writer, reader_before, writer_after;
    /* The decays, [block, width] or [block, 1]. */
    Rows<real> decay{};
    /* [chunks, width]: all decays of a chunk, multiplied. */
    Rows<real> whole{};
    /* [chunks, T, T], s before t: the scores, and the shared decays between s and t. What is
     * above the diagonal is not read. */
    real *scores, *between = nullptr;
    /* Or null. With it t reads before its own decay, and its own write times this. */
    real *bonus = nullptr;

    Side(Workspace<real> &workspace, int64_t size, Decaying decaying, bool with_bonus = false)
        : size(size), width(padded<real>(size)), decaying(decaying) {
        const auto rows = [&](int64_t count, int64_t width) {
            return Rows<real>{workspace.take(count * width), width};
        };
        reader = reader_before = rows(block_length, width);
        writer = writer_after = rows(block_length, width);
        scores = workspace.take(block_length * chunk);
        if (with_bonus) bonus = workspace.take(width);
        if (decaying == Decaying::none) return;
        decay = rows(block_length, decaying == Decaying::shared ? 1 : width);
        reader_before = rows(block_length, width);
        writer_after = rows(block_length, width);
        whole = rows(block_chunks, width);
        if (decaying == Decaying::shared) between = workspace.take(block_length * chunk);
    }

    /* The same for fewer numbers than there is room for. */
    Side narrowed(int64_t numbers) const {
        Side side = *this;
        side.size = numbers;
        side.width = padded<real>(numbers);
        return side;
    }

    const real *whole_of(int64_t number, int64_t column = 0) const {
        return decaying == Decaying::none ? nullptr : whole[number] + column;
    }
    real *scores_of(int64_t first) const { return scores + first * chunk; }
    real *between_of(int64_t first) const { return between + first * chunk; }
};

/* row[from … to) = value. */
template <typename real>
inline void fill(real *row, int64_t from, int64_t to, real value) {
    for (int64_t i = from; i < to; ++i) row[i] = value;
}

/* Rows first … last of to[·, width] = the elements' numbers, and zeros around them. */
template <typename real>
inline void pack(Rows<real> to, int64_t first, int64_t last, int64_t width, Elements<real> from) {
    for (int64_t t = first; t < last; ++t) {
        const int64_t size = t < from.count ? from.size : 0;
        const real *row = from.data + t * from.stride;
        fill<real>(to[t], size, width, 0);
        for_each_vector<real>(0, vectors_of<real>(size), size, [&](int64_t i, auto lanes) {
            lanes.store(to[t] + i, lanes.load(row + i));
        });
    }
}

/* e^x, and notes whether any x > 0; NaN does not count. */
template <typename real>
struct DecayOf {
    Vector<real> greatest = {};

    Vector<real> operator()(Vector<real> x) {
        greatest = x > greatest ? x : greatest;
        return exponential_normal<real>(x);
    }
    bool grows() const {
        bool found = false;
        for (int lane = 0; lane < lanes_of<real>; ++lane) found |= greatest[lane] > 0;
        return found;
    }
};

/* The decays of a chunk, 1 where there is no element. Returns whether a logarithm is positive. */
template <typename real>
inline bool pack_decay(Rows<real> to, int64_t first, int64_t width, Elements<real> from) {
    DecayOf<real> decay_of;
    for (int64_t t = first; t < first + chunk; ++t) {
        const int64_t size = t < from.count ? from.size : 0;
        const real *row = from.data + t * from.stride;
        fill<real>(to[t], size, width, 1);
        for_each_vector<real>(0, vectors_of<real>(size), size, [&](int64_t i, auto lanes) {
            lanes.store(to[t] + i, decay_of(lanes.load(row + i)));
        });
    }
    return decay_of.grows();
}

/* The same for shared decays: to[t] for the T elements. */
template <typename real>
inline bool pack_shared_decay(real *to, int64_t first, Elements<real> from) {
    DecayOf<real> decay_of;
    const int64_t count = std::max<int64_t>(0, std::min<int64_t>(chunk, from.count - first));
    const real *start = from.data + first * from.stride;
    fill<real>(to, count, chunk, 1);
    for_each_vector<real>(0, vectors_of<real>(count), count, [&](int64_t t, auto lanes) {
        lanes.store(to + t, decay_of(lanes.load_strided(start + t * from.stride, from.stride)));
    });
    return decay_of.grows();
}

/* A chunk of a side as it is given. Returns whether the logarithm of a decay is positive. */
template <typename real>
inline bool pack(const Side<real> &side, const SideElements<real> &from, int64_t first) {
    const int64_t last = first + chunk;
    if (from.reader.data) pack(side.reader, first, last, side.width, from.reader);
    pack(side.writer, first, last, side.width, from.writer);
    switch (side.decaying) {
        case Decaying::none: return false;
        case Decaying::shared: return pack_shared_decay(side.decay[first], first, from.log_decay);
        default: return pack_decay(side.decay, first, side.width, from.log_decay);
    }
}

/* Row s of a chunk's scores; Each: with decays of each number. */
template <typename real, bool Each, bool Bonus, int s>
inline void score(const Side<real> &side, int64_t first, real *scores) {
    Vector<real> sum[chunk] = {};
    for (int64_t i = 0; i < side.width; i += lanes_of<real>) {
        Vector<real> weight = load(side.writer[first + s] + i);
        const Vector<real> own = load(side.reader[first + s] + i) * weight;
        sum[s] += Bonus ? own * load(side.bonus + i) : own;
        for (int t = s + 1; t < chunk; ++t) {
            if (Each && (!Bonus || t > s + 1)) weight *= load(side.decay[first + t - Bonus] + i);
            sum[t] += load(side.reader[first + t] + i) * weight;
        }
    }
    add_lanes<real>(sum, scores + s * chunk);
}

template <typename real, bool Each, bool Bonus, int... s>
inline void score(const Side<real> &side, int64_t first, std::integer_sequence<int, s...>) {
    (score<real, Each, Bonus, s>(side, first, side.scores_of(first)), ...);
}

/* The scores of the chunk that starts at `first`. */
template <typename real>
inline void score(const Side<real> &side, int64_t first) {
    constexpr auto all = std::make_integer_sequence<int, chunk>{};
    if (side.decaying == Decaying::each)
        side.bonus ? score<real, true, true>(side, first, all)
                   : score<real, true, false>(side, first, all);
    else
        side.bonus ? score<real, false, true>(side, first, all)
                   : score<real, false, false>(side, first, all);
}

/* to_t = from_t · (decay_first ⋯ decay_t), or without decay_t where Exclusive. */
template <typename real, bool Exclusive>
inline void decay_readers(Rows<real> to, Rows<const real> from, Rows<const real> decay,
                          int64_t width) {
    for (int64_t i = 0; i < width; i += lanes_of<real>) {
        Vector<real> product = splat<real>(1);
        for (int t = 0; t < chunk; ++t) {
            if (!Exclusive) product *= load(decay[t] + i);
            store(to[t] + i, load(from[t] + i) * product);
            if (Exclusive) product *= load(decay[t] + i);
        }
    }
}

/* to_s = from_s · (decay_{s+1} ⋯ decay_last), and whole = all of them. */
template <typename real>
inline void decay_writers(Rows<real> to, real *whole, Rows<const real> from,
                          Rows<const real> decay, int64_t width) {
    for (int64_t i = 0; i < width; i += lanes_of<real>) {
        Vector<real> product = splat<real>(1);
        for (int s = chunk - 1; s >= 0; --s) {
            store(to[s] + i, load(from[s] + i) * product);
            product *= load(decay[s] + i);
        }
        store(whole + i, product);
    }
}

/* The products of a chunk's shared decays: up to each t, and from behind each s. */
template <typename real>
struct SharedProducts {
    real until[chunk], after[chunk], whole;

    SharedProducts(const real *decay, bool exclusive) {
        real product = 1;
        for (int t = 0; t < chunk; ++t) {
            until[t] = exclusive ? product : product * decay[t];
            product *= decay[t];
        }
        whole = product;
        product = 1;
        for (int s = chunk - 1; s >= 0; --s) {
            after[s] = product;
            product *= decay[s];
        }
    }
};

/* between_st, and the scores times it. */
template <typename real>
inline void decay_scores(real *between, real *scores, const real *decay, bool exclusive) {
    for (int s = 0; s < chunk; ++s) {
        real product = 1;
        for (int t = s; t < chunk; ++t) {
            if (t > s && !exclusive) product *= decay[t];
            if (t > s + 1 && exclusive) product *= decay[t - 1];
            between[s * chunk + t] = product;
            scores[s * chunk + t] *= product;
        }
    }
}

/* to_t = from_t · factor_t */
template <typename real>
inline void scale(Rows<real> to, Rows<const real> from, const real *factor, int64_t width) {
    for (int t = 0; t < chunk; ++t)
        for (int64_t i = 0; i < width; i += lanes_of<real>)
            store(to[t] + i, load(from[t] + i) * factor[t]);
}

/* What a chunk's writers need. */
template <typename real>
inline void prepare_writers(const Side<real> &side, int64_t first) {
    const Rows<real> to = side.writer_after.at(first, 0), from = side.writer.at(first, 0);
    real *whole = side.decaying == Decaying::none ? nullptr : side.whole[first / chunk];
    if (side.decaying == Decaying::each)
        decay_writers<real>(to, whole, from, side.decay.at(first, 0), side.width);
    if (side.decaying != Decaying::shared) return;
    const SharedProducts<real> products(side.decay[first], side.bonus);
    scale<real>(to, from, products.after, side.width);
    fill<real>(whole, 0, side.width, products.whole);
}

/* What a chunk's readers need. */
template <typename real>
inline void prepare_readers(const Side<real> &side, int64_t first) {
    const Rows<real> to = side.reader_before.at(first, 0), from = side.reader.at(first, 0);
    const Rows<real> decay = side.decay.at(first, 0);
    score(side, first);
    if (side.decaying == Decaying::each)
        side.bonus ? decay_readers<real, true>(to, from, decay, side.width)
                   : decay_readers<real, false>(to, from, decay, side.width);
    if (side.decaying != Decaying::shared) return;
    decay_scores(side.between_of(first), side.scores_of(first), side.decay[first], side.bonus);
    scale<real>(to, from, SharedProducts<real>(side.decay[first], side.bonus).until, side.width);
}

}  // namespace decay
}  // namespace threefold
