/* L = −log σ(h·o_t) − Σ_n log σ(−h·o_n),  h = i_c (skip-gram) or the mean of i_c (CBOW)
 *
 * Word vectors by negative sampling: a pass of stochastic gradient descent over sentences of numbered
 * words, t the word in the middle of a window, c those around it, n drawn from a table of aliases. All
 * products of a pair come before its updates. Every draw depends only on the place of its word, so one
 * thread gives the same vectors always; several threads write to the same rows without locks (Recht
 * et al. 2011, "Hogwild!"), and what they give differs from run to run in its last digits.
 */
#include "common.h"

namespace threefold {
namespace word_vectors {
namespace {

constexpr uint64_t golden_gamma = 0x9E3779B97F4A7C15ull;
constexpr int64_t most_negatives = 64, most_window = 256;

/* The draw of this number from the SplitMix64 sequence that starts at `key`. */
inline uint64_t draw(uint64_t key, uint64_t number) {
    uint64_t bits = key + (number + 1) * golden_gamma;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ull;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBull;
    return bits ^ (bits >> 31);
}

template <typename real>
struct Inputs {
    const int64_t *words, *sentences; /* sentences [S + 1]: where each begins, and the end */
    const int64_t *thresholds, *aliases;
    int64_t count, vocabulary, width, window, negatives, cbow, key, threads;
    double first_rate, last_rate;

    int64_t vectors() const { return width / lanes_of<real>; }
    int64_t draws_of_word() const { return 1 + 2 * window * negatives; }
    /* The pair's h, its gradient, and the products of its targets, padded to whole vectors. */
    static int64_t numbers_of_thread(int64_t width, int64_t negatives) {
        return 2 * width + vectors_of<real>(negatives + 1) * lanes_of<real>;
    }

    int status() const {
        if (count < 0 || vocabulary < 1 || width < 1 || width % lanes_of<real> || window < 1 ||
            window > most_window || negatives < 0 || negatives > most_negatives)
            return THREEFOLD_BAD_SIZE;
        for (int64_t sentence = 0; sentence < count; ++sentence)
            if (sentences[sentence + 1] < sentences[sentence]) return THREEFOLD_BAD_LENGTH;
        for (int64_t place = 0; place < sentences[count]; ++place)
            if (words[place] < 0 || words[place] >= vocabulary) return THREEFOLD_BAD_SIZE;
        for (int64_t word = 0; word < vocabulary; ++word)
            if (aliases[word] < 0 || aliases[word] >= vocabulary) return THREEFOLD_BAD_SIZE;
        return THREEFOLD_OK;
    }

    /* A word drawn in proportion to its share: the high bits choose a cell, the low ones its half. */
    int64_t noise(uint64_t number) const {
        const uint64_t bits = draw(uint64_t(key), number);
        const int64_t cell = int64_t((bits >> 32) * uint64_t(vocabulary) >> 32);
        return int64_t(bits & 0xFFFFFFFFull) < thresholds[cell] ? cell : aliases[cell];
    }
};

template <typename real>
struct Trainer {
    const Inputs<real> &in;
    real *inputs, *outputs;
    real *hidden, *gradient, *slopes;
    const Whole<real> lanes{};

    Trainer(const Inputs<real> &in, real *inputs, real *outputs, real *workspace)
        : in(in), inputs(inputs), outputs(outputs), hidden(workspace), gradient(hidden + in.width),
          slopes(gradient + in.width) {}

    /* One word against its targets, the true one first: h·o of all of them, then the updates. */
    void pair(const real *h, const int64_t *targets, int64_t count, real rate) {
        const int64_t step = lanes_of<real>;
        for (int64_t target = 0; target < count; ++target)
            slopes[target] = product(h, outputs + targets[target] * in.width);
        for (int64_t first = 0; first < count; first += step) {
            /* −rate · dL/d(h·o) = rate · (label − σ(h·o)); what lies beyond the targets is unused. */
            Vector<real> label = {};
            if (first == 0) label[0] = 1;
            lanes.store(slopes + first,
                        rate * (label - sigmoid<real>(lanes.load(slopes + first))));
        }
        std::fill(gradient, gradient + in.width, real(0));
        for (int64_t target = 0; target < count; ++target) {
            real *row = outputs + targets[target] * in.width;
            const Vector<real> slope = splat<real>(slopes[target]);
            for (int64_t place = 0; place < in.width; place += step) {
                const Vector<real> old = lanes.load(row + place);
                lanes.store(gradient + place, lanes.load(gradient + place) + slope * old);
                lanes.store(row + place, old + slope * lanes.load(h + place));
            }
        }
    }

    real product(const real *a, const real *b) const {
        Vector<real> even = {}, odd = {};
        int64_t place = 0;
        for (; place + 2 * lanes_of<real> <= in.width; place += 2 * lanes_of<real>) {
            even += lanes.load(a + place) * lanes.load(b + place);
            odd += lanes.load(a + place + lanes_of<real>) * lanes.load(b + place + lanes_of<real>);
        }
        if (place < in.width) even += lanes.load(a + place) * lanes.load(b + place);
        even += odd;
        real total = 0;
        for (int lane = 0; lane < lanes_of<real>; ++lane) total += even[lane];
        return total;
    }

    void add(real *to, const real *from, real factor) const {
        const Vector<real> times = splat<real>(factor);
        for (int64_t place = 0; place < in.width; place += lanes_of<real>)
            lanes.store(to + place, lanes.load(to + place) + times * lanes.load(from + place));
    }

    /* The true word and `negatives` draws from `first` on; a draw of the true word is left out. */
    int64_t choose(int64_t word, uint64_t first, int64_t *targets) const {
        int64_t count = 0;
        targets[count++] = word;
        for (int64_t negative = 0; negative < in.negatives; ++negative) {
            const int64_t noise = in.noise(first + uint64_t(negative));
            if (noise == word) continue;
            __builtin_prefetch(outputs + noise * in.width);
            targets[count++] = noise;
        }
        return count;
    }

    void skip_gram(int64_t place, int64_t from, int64_t to, uint64_t first, real rate) {
        int64_t targets[2][most_negatives + 1], counts[2];
        int64_t around = from == place ? from + 1 : from, pairs = 0;
        if (around >= to) return;
        const int64_t word = in.words[place];
        counts[0] = choose(word, first, targets[0]);
        while (around < to) {
            const int64_t next = around + 1 == place ? around + 2 : around + 1, now = pairs % 2;
            ++pairs;
            /* The next pair's words are drawn ahead, so that their rows are there when needed. */
            if (next < to)
                counts[pairs % 2] = choose(word, first + uint64_t(pairs * in.negatives),
                                           targets[pairs % 2]);
            real *h = inputs + in.words[around] * in.width;
            pair(h, targets[now], counts[now], rate);
            add(h, gradient, 1);
            around = next;
        }
    }

    void continuous_bag(int64_t place, int64_t from, int64_t to, uint64_t first, real rate) {
        const int64_t around = to - from - 1;
        if (around < 1) return;
        int64_t targets[most_negatives + 1];
        const int64_t count = choose(in.words[place], first, targets);
        std::fill(hidden, hidden + in.width, real(0));
        const real share = real(1) / real(around);
        for (int64_t other = from; other < to; ++other)
            if (other != place) add(hidden, inputs + in.words[other] * in.width, share);
        pair(hidden, targets, count, rate);
        for (int64_t other = from; other < to; ++other)
            if (other != place) add(inputs + in.words[other] * in.width, gradient, share);
    }

    void sentence(int64_t begin, int64_t end) {
        const double total = double(std::max<int64_t>(1, in.sentences[in.count]));
        for (int64_t place = begin; place < end; ++place) {
            const uint64_t first = uint64_t(place) * uint64_t(in.draws_of_word());
            const int64_t reach =
                1 + int64_t((draw(uint64_t(in.key), first) >> 32) * uint64_t(in.window) >> 32);
            const int64_t from = std::max(begin, place - reach);
            const int64_t to = std::min(end, place + reach + 1);
            const real rate =
                real(in.first_rate + (in.last_rate - in.first_rate) * double(place) / total);
            if (in.cbow)
                continuous_bag(place, from, to, first + 1, rate);
            else
                skip_gram(place, from, to, first + 1, rate);
        }
    }
};

template <typename real>
int run(const Inputs<real> &in, real *inputs, real *outputs, real *workspace) {
    if (const int status = in.status()) return status;
    const int64_t threads = std::max<int64_t>(1, std::min(in.threads, in.count));
    const int64_t size = Inputs<real>::numbers_of_thread(in.width, in.negatives);
    split(threads, threads, [&](int64_t begin, int64_t end) {
        for (int64_t piece = begin; piece < end; ++piece) {
            Trainer<real> trainer{in, inputs, outputs, workspace + piece * size};
            for (int64_t i = in.count * piece / threads; i < in.count * (piece + 1) / threads; ++i)
                trainer.sentence(in.sentences[i], in.sentences[i + 1]);
        }
    });
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace word_vectors
}  // namespace threefold

#define DEFINE(real, suffix)                                                                       \
    int threefold_word_vectors_##suffix(                                                           \
        real *inputs, real *outputs, real *workspace, const int64_t *words,                        \
        const int64_t *sentences, const int64_t *thresholds, const int64_t *aliases,               \
        int64_t count, int64_t vocabulary, int64_t width, int64_t window, int64_t negatives,       \
        int64_t cbow, int64_t key, int64_t threads, double first_rate, double last_rate) {         \
        return threefold::word_vectors::run<real>(                                                 \
            {words, sentences, thresholds, aliases, count, vocabulary, width, window, negatives,   \
             cbow, key, threads, first_rate, last_rate},                                           \
            inputs, outputs, workspace);                                                           \
    }                                                                                              \
    int threefold_word_vectors_workspace_##suffix(int64_t *numbers, int64_t width,                 \
                                                  int64_t negatives, int64_t threads) {            \
        using threefold::word_vectors::Inputs;                                                     \
        if (width < 1 || negatives < 0 || threads < 1) return THREEFOLD_BAD_SIZE;                  \
        *numbers = threads * Inputs<real>::numbers_of_thread(width, negatives);                    \
        return THREEFOLD_OK;                                                                       \
    }
THREEFOLD_FOR_BOTH(DEFINE)
