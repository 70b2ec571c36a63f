/* S = Diag(α) S₋ Diag(α') + k⊗v,   o = Sᵀ q        (o = (S₋ + (bonus⊙k)⊗v)ᵀ q with a bonus)
 *
 * One element, by definition: a single pass over the memory, a few columns at a time.
 */
#pragma once

#include <atomic>

#include "decay_inputs.h"
#include "denormals.h"

namespace threefold {
namespace decay {

template <typename real>
struct Step {
    const Inputs<real> &in;
    real *out, *new_state;
    std::atomic<bool> &growth;

    /* Vectors first … last of the columns of memory `index`, four at once while there are four. */
    void run(int64_t index, int64_t first, int64_t last) const {
        const FlushDenormals flush;
        const int64_t row = index / in.heads, head = index % in.heads;
        const int64_t whole = std::min(last, in.values / lanes_of<real>);
        const bool exists = in.length_of(row) > 0;
        for (; exists && first + 4 <= whole; first += 4)
            any<4>(row, head, first * lanes_of<real>, Whole<real>{});
        for_each_vector<real>(first, last, in.values, [&](int64_t column, auto lanes) {
            exists ? any<1>(row, head, column, lanes) : nothing(row, head, column, lanes);
        });
    }

private:
    template <int Count, typename Lanes>
    void any(int64_t row, int64_t head, int64_t column, Lanes lanes) const {
        in.bonus ? element<true, Count>(row, head, column, lanes)
                 : element<false, Count>(row, head, column, lanes);
    }

    template <typename Lanes>
    Vector<real> before(int64_t at, Lanes lanes) const {
        return in.state ? lanes.load(in.state + at) : Vector<real>{};
    }

    template <typename Lanes>
    void nothing(int64_t row, int64_t head, int64_t column, Lanes lanes) const {
        const int64_t memory = in.state_of(row, head) + column;
        for (int64_t k = 0; k < in.keys; ++k)
            lanes.store(new_state + memory + k * in.values, before(memory + k * in.values, lanes));
        lanes.store(out + (row * in.heads + head) * in.values + column, Vector<real>{});
    }

    Vector<real> decay(Vector<real> logarithm) const {
        bool positive = false;
        for (int lane = 0; lane < lanes_of<real>; ++lane) positive |= logarithm[lane] > 0;
        if (positive) growth.store(true, std::memory_order_relaxed);
        return exponential_normal<real>(logarithm);
    }

    /* `Count` vectors of columns from `column` on. */
    template <bool Bonus, int Count, typename Lanes>
    void element(int64_t row, int64_t head, int64_t column, Lanes lanes) const {
        const int64_t group = head / in.heads_of_group(), memory = in.state_of(row, head) + column;
        const real *query = in.query.at(row, 0, group), *key = in.key.at(row, 0, group);
        const real *logarithm = in.decays ? in.log_decay.at(row, 0, head) : nullptr;
        Vector<real> value[Count], by_column[Count], sum[Count] = {};
        for (int i = 0; i < Count; ++i) {
            const int64_t at = column + i * lanes_of<real>;
            value[i] = lanes.load(in.value.at(row, 0, head) + at);
            by_column[i] = in.log_decay_value.data
                               ? decay(lanes.load(in.log_decay_value.at(row, 0, head) + at))
                               : splat<real>(1);
        }
        const Vector<real> shared = in.decays == 1 ? decay(splat<real>(*logarithm)) : splat<real>(1);
        for_each_vector<real>(0, vectors_of<real>(in.keys), in.keys, [&](int64_t k0, auto some) {
            real decays[lanes_of<real>];
            store(decays, in.decays > 1 ? decay(some.load(logarithm + k0)) : shared);
            for (int64_t k = k0; k < std::min<int64_t>(in.keys, k0 + lanes_of<real>); ++k)
                for (int i = 0; i < Count; ++i) {
                    const int64_t at = memory + k * in.values + i * lanes_of<real>;
                    const Vector<real> old = before(at, lanes);
                    const Vector<real> written = rounded<real>(key[k] * value[i]);
                    const Vector<real> now = old * (decays[k - k0] * by_column[i]) + written;
                    lanes.store(new_state + at, now);
                    sum[i] += query[k] * (Bonus ? old + in.bonus[head * in.keys + k] * written : now);
                }
        });
        for (int i = 0; i < Count; ++i)
            lanes.store(out + (row * in.heads + head) * in.values + column + i * lanes_of<real>,
                        sum[i]);
    }
};

template <typename real>
inline void run_step(const Step<real> &step) {
    const Inputs<real> &in = step.in;
    const int64_t memories = in.batch * in.heads;
    const int64_t threads = useful_threads(in.threads, memories * in.keys * in.values);
    split_rows(memories, vectors_of<real>(in.values), threads,
               [&](int64_t index, int64_t first, int64_t last) { step.run(index, first, last); });
}

}  // namespace decay
}  // namespace threefold
