/* token = the first whose cumulative probability exceeds a random number, or the largest logit's
 *
 * What runtime/sampling.py defines: penalty, temperature, top-k, top-p, min-p, then one sample, in float64,
 * with a random number by (keys of the row, tokens drawn before). */
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "common.h"

namespace threefold {

/* How a row's tokens are chosen; 0 switches top_k, top_p and min_p off. */
struct Settings {
    double temperature, top_k, top_p, log_min_p, penalty;
};

/* The words of a request to choose tokens, in the order of CHOOSING in kernels/replay/program.py. */
struct Choosing {
    int64_t rows, vocabulary, count, wide; /* logits [rows, vocabulary], the first `count` may be chosen */
    const void *logits;
    int64_t *tokens; /* [rows], what the next step reads */
    int64_t *chosen; /* [steps, rows] */
    const Settings *settings;
    const uint64_t *keys;       /* [rows, 2] */
    int64_t *draws, *left;      /* [rows]: numbers drawn so far, tokens until the end (−1: no end) */
    uint8_t *const *seen;       /* [rows] of [vocabulary] */
    const uint8_t *const *ends; /* [rows] of [vocabulary], or null: tokens that may end a row */
    double *workspace;          /* [3, count] */
};

inline uint64_t splitmix64(uint64_t bits) {
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
    return bits ^ bits >> 31;
}

/* In [0, 1); data/random_by_address.py: hashed_by_keys. */
inline double random_number(const uint64_t *keys, int64_t position) {
    const uint64_t first = splitmix64(uint64_t(position) * 0x9E3779B97F4A7C15u + keys[0]);
    return double(splitmix64(first ^ keys[1]) >> 11) * 0x1p-53;
}

/* One row: logits are changed in place. */
class Chooser {
public:
    Chooser(double *workspace, int64_t count) : logits(workspace), order(workspace + count), count(count) {}

    template <typename real>
    void load(const real *from, const uint8_t *seen, double penalty) {
        for (int64_t i = 0; i < count; ++i) logits[i] = double(from[i]);
        if (penalty == 1) return;
        for (int64_t i = 0; i < count; ++i)
            if (seen[i]) logits[i] = logits[i] > 0 ? logits[i] / penalty : logits[i] * penalty;
    }

    /* The first of the largest; −1 if a logit is NaN. */
    int64_t largest() const {
        int64_t best = 0;
        bool numbers = true;
        for (int64_t i = 0; i < count; ++i) {
            numbers &= logits[i] == logits[i];
            if (logits[i] > logits[best]) best = i;
        }
        return numbers ? best : -1;
    }

    int64_t sample(const Settings &s, double highest, double number) {
        for (int64_t i = 0; i < count; ++i) logits[i] = (logits[i] - highest) / s.temperature;
        if (s.top_k > 0 && s.top_k < double(count)) keep_top_k(int64_t(s.top_k));
        if (s.top_p > 0) keep_top_p(s.top_p);
        if (s.log_min_p < 0)
            for (int64_t i = 0; i < count; ++i)
                if (logits[i] < s.log_min_p) logits[i] = nothing;
        /* The largest logit is 0: nothing overflows. */
        double total = 0;
        exponentials(logits, logits);
        for (int64_t i = 0; i < count; ++i) logits[i] = total += logits[i];
        const double level = number * total;
        int64_t token = 0;
        while (token < count - 1 && !(logits[token] > level)) ++token;
        /* The last token with a probability above 0. */
        while (token > 0 && logits[token] == logits[token - 1]) --token;
        return token;
    }

private:
    static constexpr double nothing = -std::numeric_limits<double>::infinity();
    double *logits, *order;
    int64_t count;

    void exponentials(double *to, const double *from) const {
        for_each_vector<double>(0, vectors_of<double>(count), count, [&](int64_t at, auto lanes) {
            lanes.store(to + at, exponential<double>(lanes.load(from + at)));
        });
    }

    /* The tokens by falling logits, the first of equal ones first; only the first `known` in order. */
    int64_t *sorted(int64_t known) {
        int64_t *tokens = reinterpret_cast<int64_t *>(order);
        for (int64_t i = 0; i < count; ++i) tokens[i] = i;
        const auto before = [this](int64_t a, int64_t b) {
            return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
        };
        if (known < count) std::partial_sort(tokens, tokens + known, tokens + count, before);
        else std::sort(tokens, tokens + count, before);
        return tokens;
    }

    void keep_top_k(int64_t k) {
        const int64_t *tokens = sorted(k);
        for (int64_t i = k; i < count; ++i) logits[tokens[i]] = nothing;
    }

    void keep_top_p(double p) {
        const int64_t *tokens = sorted(count);
        double *weights = order + count, total = 0, before = 0;
        exponentials(weights, logits);
        for (int64_t i = 0; i < count; ++i) total += weights[i];
        for (int64_t i = 0; i < count; ++i) {
            if (before >= p) logits[tokens[i]] = nothing;
            before += weights[tokens[i]] / total;
        }
    }
};

/* A token for each row after step number `step`; `ended` if some row may end here. */
inline int choose_tokens(const Choosing &c, int64_t step, bool *ended) {
    Chooser chooser(c.workspace, c.count);
    for (int64_t row = 0; row < c.rows; ++row) {
        const Settings &settings = c.settings[row];
        const int64_t at = row * c.vocabulary;
        if (c.wide) chooser.load(static_cast<const double *>(c.logits) + at, c.seen[row], settings.penalty);
        else chooser.load(static_cast<const float *>(c.logits) + at, c.seen[row], settings.penalty);
        int64_t token = chooser.largest();
        if (token < 0) return THREEFOLD_NOT_A_NUMBER;
        const double number = random_number(c.keys + 2 * row, c.draws[row]);
        if (settings.temperature > 0) {
            const double highest = c.workspace[token];
            token = chooser.sample(settings, highest, number);
        }
        ++c.draws[row];
        c.seen[row][token] = 1;
        c.tokens[row] = c.chosen[step * c.rows + row] = token;
        if (c.left[row] > 0 && --c.left[row] == 0) *ended = true;
        if (c.ends[row] && c.ends[row][token]) *ended = true;
    }
    return THREEFOLD_OK;
}

}  // namespace threefold
