/* D_{s→t} = Diag(α_{s+1} ⋯ α_t),   m_t = S_{t−1}ᵀ b_t,   W_t = Σ_w w_t⊗x_t
 *   S_t = D_{0→t} S_0 + Σ_{s≤t} D_{s→t} W_s
 *   m_t = S_0ᵀ (D_{0→t−1} b_t) + Σ_{s<t} (b_t·D_{s→t−1} w_s) x_s
 *   o_t = S_0ᵀ (D_{0→t} q_t)   + Σ_{s≤t} (q_t·D_{s→t} w_s) x_s
 *
 * A few elements as one affine map of the memory S_0 before them. The delta rule reads with b = α⊙k
 * and writes one outer product, k⊗x with x = β (v − m); rank one writes two, a⊗m and k⊗v. Decays
 * are only multiplied, never divided by, so any decay is as exact as in the step.
 */
#pragma once

#include "delta_inputs.h"

namespace threefold {
namespace delta {

/* C elements of one head that write W outer products each. Rows are padded, and elements past the
 * end of the row do nothing: α = 1, the rest 0. */
template <typename real, int C, int W>
struct Elements {
    int64_t keys;
    /* α, q, b: [C, K]; w: [W·C, K], the elements' first products before their second. */
    Rows<real> decay, query, read, write;
    /* D_{0→t−1} b_t, then D_{0→t} q_t: [2C, K]. D_{t→C} w_t: [W·C, K]. D_{0→C}: [K]. */
    Rows<real> readers, writers;
    real *whole;
    /* b_t·D_{s→t−1} w_s and q_t·D_{s→t} w_s: [W, C, C]. */
    real *read_write, *query_write;

    Elements(Workspace<real> &workspace, int64_t keys) : keys(keys) {
        decay = take_rows(workspace, C, keys);
        query = take_rows(workspace, C, keys);
        read = take_rows(workspace, C, keys);
        write = take_rows(workspace, W * C, keys);
        readers = take_rows(workspace, 2 * C, keys);
        writers = take_rows(workspace, W * C, keys);
        whole = take_rows(workspace, 1, keys).data;
        read_write = workspace.take(W * C * C);
        query_write = workspace.take(W * C * C);
    }

    real reading(int w, int t, int s) const { return read_write[(w * C + t) * C + s]; }
    real querying(int w, int t, int s) const { return query_write[(w * C + t) * C + s]; }

    /* Elements first … first + count of a head, count ≤ C. */
    void prepare(const Inputs<real> &in, int64_t row, int64_t head, int64_t first, int64_t count) {
        for (int t = 0; t < C; ++t)
            if (t < count)
                copy(in, row, head, first + t, t);
            else
                idle(t);
        map_memory();
        for (int w = 0; w < W; ++w) meet(w, std::make_integer_sequence<int, C>{});
    }

private:
    void copy(const Inputs<real> &in, int64_t row, int64_t head, int64_t at, int t) {
        const int64_t group = in.group_of(head);
        copy_row(query[t], in.query.at(row, at, group), keys);
        copy_row(write[(W - 1) * C + t], in.key.at(row, at, group), keys);
        take_decay(in, row, head, at, decay[t]);
        if constexpr (W == 2) {
            copy_row(write[t], in.write.at(row, at, head), keys);
            copy_row(read[t], in.read.at(row, at, head), keys);
        } else {
            for (int64_t i = 0; i < padded<real>(keys); i += lanes_of<real>)
                store(read[t] + i, load(decay[t] + i) * load(write[t] + i));
        }
    }

    void take_decay(const Inputs<real> &in, int64_t row, int64_t head, int64_t at, real *to) {
        if (in.decays == 0) return fill_row(to, real(1), keys);
        const real *log_decay = in.log_decay.at(row, at, head);
        if (in.decays == 1)
            return fill_row(to, exponential_normal<real>(splat<real>(log_decay[0]))[0], keys);
        copy_row(to, log_decay, keys);
        for (int64_t i = 0; i < padded<real>(keys); i += lanes_of<real>)
            store(to + i, exponential_normal<real>(load(to + i)));
    }

    void idle(int t) {
        fill_row(decay[t], real(1), keys);
        for (real *row : {query[t], read[t], write[t], write[(W - 1) * C + t]})
            fill_row(row, real(0), keys);
    }

    /* What the elements do to the memory before them: readers and whole. */
    void map_memory() {
        for (int64_t i = 0; i < padded<real>(keys); i += lanes_of<real>) {
            Vector<real> before = splat<real>(1);
            for (int t = 0; t < C; ++t) {
                store(readers[t] + i, before * load(read[t] + i));
                before *= load(decay[t] + i);
                store(readers[C + t] + i, before * load(query[t] + i));
            }
            store(whole + i, before);
        }
    }

    /* What the elements do to each other. */
    template <int... s>
    void meet(int w, std::integer_sequence<int, s...>) {
        (meet_later<s>(w), ...);
    }

    /* What element s wrote, as elements from s on read it, and as it is at the end. */
    template <int s>
    void meet_later(int w) {
        Vector<real> sums[2 * C] = {}, *reads = sums, *queries = sums + C;
        for (int64_t i = 0; i < padded<real>(keys); i += lanes_of<real>) {
            Vector<real> written = load(write[w * C + s] + i);
            queries[s] += written * load(query[s] + i);
            for (int t = s + 1; t < C; ++t) {
                reads[t] += written * load(read[t] + i);
                written *= load(decay[t] + i);
                queries[t] += written * load(query[t] + i);
            }
            store(writers[w * C + s] + i, written);
        }
        real found[2 * C];
        store_sums_of_lanes<2 * C>(found, sums);
        for (int t = s; t < C; ++t) {
            read_write[(w * C + t) * C + s] = found[t];
            query_write[(w * C + t) * C + s] = found[C + t];
        }
    }
};

}  // namespace delta
}  // namespace threefold
