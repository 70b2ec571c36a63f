/* ∂r_t = Σ_{s≤t} w_s·(decays of s+1 … t)·pair_st,    ∂w_s = Σ_{t≥s} r_t·(decays of s+1 … t)·pair_st
 * ∂log decay_t = Σ_{s<t≤u} w_s·(decays of s+1 … u)·r_u·pair_su
 *
 * The gradients of one side for the elements of a chunk. pair_st is the score of the other side.
 * The memory before the chunk is one more writer (of weight 1), the gradient of the memory after it
 * one more reader. Sums run backwards by Horner's rule and nothing is subtracted: the shorter
 * r·∂r − w·∂w, summed from the end, is only rounding error where decays are strong.
 */
#pragma once

#include "decay_side.h"

namespace threefold {
namespace decay {

/* The products of a side's readers and writers with the other side. */
template <typename real>
struct Other {
    /* [block, width]: what the other side's reader t reads from the memory before the chunk; what
     * its writer s meets in the gradient of the memory after it. */
    Rows<real> read, met;
    /* [chunks, width]: the memory before the chunk times the gradient of that after it. */
    Rows<real> both;

    Other(Workspace<real> &workspace, int64_t size) {
        const int64_t width = padded<real>(size);
        read = {workspace.take(block_length * width), width};
        met = {workspace.take(block_length * width), width};
        both = {workspace.take(block_chunks * width), width};
    }

    void clear(int64_t count) const {
        const int64_t rows = whole_chunks(count);
        fill<real>(read.data, 0, rows * read.stride, 0);
        fill<real>(met.data, 0, rows * met.stride, 0);
        fill<real>(both.data, 0, rows / chunk * both.stride, 0);
    }
};

/* Gradients of a chunk for one vector of a side's numbers; Each: with decays of each number. */
template <typename real, bool Each, bool Bonus, bool Readers>
struct ChunkGradient {
    const Side<real> &side;
    const Other<real> &other;
    const real *pairs;
    const int64_t first, at;
    Vector<real> reader[chunk] = {}, writer[chunk] = {}, log_decay[chunk] = {}, bonus = {};

    THREEFOLD_WITHIN ChunkGradient(const Side<real> &side, const Other<real> &other,
                                   const real *pairs, int64_t first, int64_t at)
        : side(side), other(other), pairs(pairs), first(first), at(at) {
        if (Each || Readers)
            source<0>(splat<real>(1), load(other.both[first / chunk] + at),
                      [&](int t) { return row(other.read, t); });
        elements(std::make_integer_sequence<int, chunk>{});
    }

private:
    THREEFOLD_WITHIN Vector<real> row(Rows<real> rows, int t) const {
        return load(rows[first + t] + at);
    }

    /* What elements Begin … T read of one writer, and its gradient by them; `later` is what those
     * behind the chunk give. With a bonus an element reads before it decays. */
    template <int Begin, typename Pair>
    THREEFOLD_WITHIN Vector<real> source(Vector<real> weight, Vector<real> later, const Pair &pair) {
        Vector<real> after[chunk];
#pragma GCC unroll 8
        for (int t = chunk - 1; t >= Begin; --t) {
            if (!Bonus) later += row(side.reader, t) * pair(t);
            after[t] = later;
            if (Each) later *= row(side.decay, t);
            if (Bonus) later += row(side.reader, t) * pair(t);
        }
#pragma GCC unroll 8
        for (int t = Begin; t < chunk; ++t) {
            if (Each && !Bonus) weight *= row(side.decay, t);
            if (Readers) reader[t] += weight * pair(t);
            if (Each && Bonus) weight *= row(side.decay, t);
            if (Each) log_decay[t] += weight * after[t];
        }
        return later;
    }

    template <int... s>
    THREEFOLD_WITHIN void elements(std::integer_sequence<int, s...>) {
        (element<s>(), ...);
    }

    template <int s>
    THREEFOLD_WITHIN void element() {
        const Vector<real> w = row(side.writer, s), r = row(side.reader, s);
        writer[s] = source<s + 1>(w, row(other.met, s),
                                  [&](int t) { return splat<real>(pairs[s * chunk + t]); });
        Vector<real> own = splat<real>(pairs[s * chunk + s]);
        if (Bonus) {
            bonus += own * r * w;
            own *= load(side.bonus + at);
        }
        writer[s] += own * r;
        if (Readers) reader[s] += own * w;
    }
};

/* Pointers to the gradients of a block's elements; null if not wanted. */
template <typename real>
struct SideGradients {
    Rows<real> reader, writer, log_decay;
    /* Added to. */
    real *bonus;
};

template <typename real, typename Lanes>
inline void put(Rows<real> to, int64_t count, int64_t at, Lanes lanes, const Vector<real> *rows) {
    if (!to.data) return;
    for (int64_t t = 0; t < std::min<int64_t>(chunk, count); ++t) lanes.store(to[t] + at, rows[t]);
}

/* The chunk at `first`, of `count` elements. */
template <typename real, bool Each, bool Bonus, bool Readers>
inline void differentiate(const Side<real> &side, const Other<real> &other, const real *pairs,
                          int64_t first, int64_t count, const SideGradients<real> &to) {
    for_each_vector<real>(0, vectors_of<real>(side.size), side.size, [&](int64_t at, auto lanes) {
        const ChunkGradient<real, Each, Bonus, Readers> gradient(side, other, pairs, first, at);
        if (Readers) put(to.reader.at(first, 0), count, at, lanes, gradient.reader);
        put(to.writer.at(first, 0), count, at, lanes, gradient.writer);
        if (Each) put(to.log_decay.at(first, 0), count, at, lanes, gradient.log_decay);
        if (Bonus) lanes.store(to.bonus + at, lanes.load(to.bonus + at) + gradient.bonus);
    });
}

/* sums_t = Σ_i a_ti·b_ti */
template <typename real>
inline void dot_rows(real *sums, Rows<const real> a, Rows<const real> b, int64_t width) {
    Vector<real> sum[chunk] = {};
    for (int64_t i = 0; i < width; i += lanes_of<real>)
        for (int t = 0; t < chunk; ++t) sum[t] += load(a[t] + i) * load(b[t] + i);
    add_lanes<real>(sum, sums);
}

/* The gradients of a chunk's shared log-decays. They need no vectors: all that decays by t are
 * numbers, for the pairs s, u the scores of both sides, and the like for what is around the chunk. */
template <typename real>
inline void differentiate_shared(const Side<real> &side, const Other<real> &other,
                                 const real *pairs, int64_t first, real *grad) {
    const real *scores = side.scores_of(first);
    const int own = side.bonus ? 0 : 1;
    real read[chunk], met[chunk], around = 0;
    dot_rows<real>(read, side.reader.at(first, 0), other.read.at(first, 0), side.width);
    dot_rows<real>(met, side.writer.at(first, 0), other.met.at(first, 0), side.width);
    for (int64_t i = 0; i < side.size; ++i)
        around += side.whole[first / chunk][0] * other.both[first / chunk][i];
    for (int t = 0; t < chunk; ++t) {
        grad[t] = around;
        for (int s = 0; s < t; ++s) grad[t] += met[s];
    }
    /* With a bonus u reads before its own decay. */
    real later = 0;
    for (int t = chunk - 1; t >= 0; --t) {
        grad[t] += own ? later + read[t] : later;
        later += read[t];
    }
    for (int s = 0; s < chunk; ++s) {
        later = 0;
        for (int t = chunk - 1; t > s; --t) {
            const real here = scores[s * chunk + t] * pairs[s * chunk + t];
            grad[t] += own ? later + here : later;
            later += here;
        }
    }
}

/* A chunk with shared decays is one without, whose readers and pairs are decayed before. */
template <typename real>
inline void differentiate_with_shared(const Side<real> &side, const Other<real> &other,
                                      const real *pairs, int64_t first, int64_t count,
                                      const SideGradients<real> &to) {
    const SharedProducts<real> products(side.decay[first], side.bonus);
    const Rows<real> read = other.read.at(first, 0), met = other.met.at(first, 0);
    scale<real>(read, read, products.until, side.width);
    scale<real>(met, met, products.after, side.width);
    if (to.log_decay.data) {
        real grad[chunk];
        differentiate_shared(side, other, pairs, first, grad);
        for (int64_t t = 0; t < std::min<int64_t>(chunk, count); ++t)
            to.log_decay[first + t][0] = grad[t];
    }
    real decayed[chunk * chunk];
    for (int s = 0; s < chunk; ++s)
        for (int t = s; t < chunk; ++t)
            decayed[s * chunk + t] = pairs[s * chunk + t] * side.between_of(first)[s * chunk + t];
    side.bonus ? differentiate<real, false, true, true>(side, other, decayed, first, count, to)
               : differentiate<real, false, false, true>(side, other, decayed, first, count, to);
}

/* A block of the keys' side: queries and keys, decays, and the bonus. */
template <typename real>
inline void differentiate_keys(const Side<real> &side, const Other<real> &other,
                               const real *pairs, int64_t count, const SideGradients<real> &to) {
    for (int64_t t = 0; t < count; t += chunk, pairs += chunk * chunk)
        if (side.decaying == Decaying::shared)
            differentiate_with_shared(side, other, pairs, t, count - t, to);
        else if (side.decaying == Decaying::each)
            side.bonus ? differentiate<real, true, true, true>(side, other, pairs, t, count - t, to)
                       : differentiate<real, true, false, true>(side, other, pairs, t, count - t, to);
        else
            side.bonus ? differentiate<real, false, true, true>(side, other, pairs, t, count - t, to)
                       : differentiate<real, false, false, true>(side, other, pairs, t, count - t, to);
}

/* A block of the values' side: its readers are gradients already. */
template <typename real>
inline void differentiate_values(const Side<real> &side, const Other<real> &other,
                                 const real *pairs, int64_t count,
                                 const SideGradients<real> &to) {
    for (int64_t t = 0; t < count; t += chunk, pairs += chunk * chunk)
        side.decaying == Decaying::each
            ? differentiate<real, true, false, false>(side, other, pairs, t, count - t, to)
            : differentiate<real, false, false, false>(side, other, pairs, t, count - t, to);
}

}  // namespace decay
}  // namespace threefold
