/* part_t = cell(x_t, U h_{t−1}, part_{t−1})
 *
 * The forward pass of some rows of a batch: for each element a product of these rows with the packed
 * matrices, then the cell, unit by unit.
 */
#pragma once

#include "cell_pass.h"
#include "denormals.h"

namespace threefold {
namespace cell {

template <typename real, typename Cell>
struct Forward : Pass<real, Cell> {
    using Base = Pass<real, Cell>;
    using V = Vector<real>;
    using Base::in;
    static constexpr int gates = Cell::gates, parts = Cell::parts, kept_count = Cell::kept;
    real *out, *new_state, *kept;
    const real *inputs;

    real *part(int64_t row, int p) const { return new_state + (row * parts + p) * in.hidden; }
    /* h as the products see it: the state itself where nothing is masked. */
    Rows<const real> seen(int64_t row) const {
        if (in.mask) return {this->read(row).data, this->plan().row()};
        return {part(row, 0), parts * in.hidden};
    }
    template <typename Lanes>
    void see(V h, int64_t row, int64_t unit, Lanes lanes) const {
        if (in.mask) lanes.store(this->read(row).data + unit, this->masked(h, row, unit, lanes));
    }

    void start(int64_t row) const {
        const int64_t count = parts * in.hidden;
        std::copy_n(in.state + row * count, count, part(row, 0));
        for_each_unit<real>(in, [&](int64_t, int64_t, int64_t unit, auto lanes) {
            see(lanes.load(part(row, 0) + unit), row, unit, lanes);
        });
    }
    /* The reset gate replaces its product, and the second phase reads r ⊙ seen. */
    void reset(int64_t row, int64_t t) const {
        const real *x = inputs + this->element(row, t) * gates * in.hidden;
        for_each_unit<real>(in, [&](int64_t block, int64_t place, int64_t unit, auto lanes) {
            real *product = this->result(row, 0, block) + place;
            const V xs[] = {lanes.load(x + unit)}, us[] = {lanes.load(product)};
            const V r = Cell::reset(xs, us);
            lanes.store(product, r);
            lanes.store(this->read(row, 1).data + unit, r * lanes.load(seen(row).data + unit));
        });
    }
    void update(int64_t row, int64_t t) const {
        const int64_t e = this->element(row, t), hidden = in.hidden, size = in.size();
        constexpr int first = Plan<real, Cell>::first_gates;
        for_each_unit<real>(in, [&](int64_t block, int64_t place, int64_t unit, auto lanes) {
            V x[gates], u[gates], p[parts], extra[Cell::extras + 1], keep[kept_count + 1];
            for (int g = 0; g < gates; ++g) {
                x[g] = lanes.load(inputs + (e * gates + g) * hidden + unit);
                const int64_t within = (g < first ? g : g - first) * size + place;
                u[g] = lanes.load(this->result(row, g >= first, block) + within);
            }
            for (int k = 0; k < parts; ++k) p[k] = lanes.load(part(row, k) + unit);
            this->load_extra(extra, unit, lanes);
            Cell::forward(x, u, p, extra, keep);
            for (int k = 0; k < parts; ++k) lanes.store(part(row, k) + unit, p[k]);
            lanes.store(out + e * hidden + unit, p[0]);
            if (kept)
                for (int k = 0; k < kept_count; ++k)
                    lanes.store(kept + (e * kept_count + k) * hidden + unit, keep[k]);
            see(p[0], row, unit, lanes);
        });
    }
    void rows(int64_t begin, int64_t end) const {
        const FlushDenormals flush;
        for (int64_t row = begin; row < end; ++row) start(row);
        for (int64_t t = 0, last = in.longest(begin, end); t < last; ++t) {
            this->multiply(0, begin, end, seen(begin), in.size());
            if constexpr (Cell::two_phases) {
                for (int64_t row = begin; row < end; ++row)
                    if (t < in.length_of(row)) reset(row, t);
                const Rows<real> read = this->read(begin, 1);
                this->multiply(1, begin, end, {read.data, read.stride}, in.size());
            }
            for (int64_t row = begin; row < end; ++row)
                if (t < in.length_of(row)) update(row, t);
        }
        for (int64_t row = begin; row < end; ++row) {
            const int64_t e = this->element(row, in.length_of(row));
            const int64_t missing = (in.length - in.length_of(row)) * in.hidden;
            clear(out + e * in.hidden, missing);
            if (kept) clear(kept + e * kept_count * in.hidden, kept_count * missing);
        }
    }
    int run() const {
        this->pack();
        /* The second phase also multiplies the rows that are padding. */
        if (Cell::two_phases)
            for (int64_t row = 0; row < in.batch; ++row) clear(this->read(row, 1).data, in.hidden);
        split(in.batch, this->plan().useful_threads(),
              [&](int64_t begin, int64_t end) { rows(begin, end); });
        return THREEFOLD_OK;
    }
};

}  // namespace cell
}  // namespace threefold
