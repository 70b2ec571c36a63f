/* ∂part_{t−1}, ∂x_t, ∂(U h_{t−1}) = cell'(∂part_t, what the forward pass saved),  ∂h_{t−1} += Uᵀ ∂(U h_{t−1})
 *
 * The gradients of some rows of a batch, last element to first; the caller computes those of U.
 */
#pragma once

#include "cell_pass.h"
#include "denormals.h"

namespace threefold {
namespace cell {

template <typename real, typename Cell>
struct Backward : Pass<real, Cell> {
    using Base = Pass<real, Cell>;
    using V = Vector<real>;
    using Base::in;
    static constexpr int gates = Cell::gates, parts = Cell::parts, kept_count = Cell::kept;
    real *grad_inputs, *grad_state;
    const real *grad_out, *grad_new_state, *out, *kept;

    real *part(int64_t row, int p) const { return grad_state + (row * parts + p) * in.hidden; }
    /* Gradients of the products, a block's gates together. */
    real *product(int64_t row, int64_t block, int gate) const {
        return this->read(row).data + (block * gates + gate) * in.size();
    }
    const real *before(int64_t row, int64_t t, int p) const {
        if (t == 0) return in.state + (row * parts + p) * in.hidden;
        const int64_t e = this->element(row, t - 1);
        return p == 0 ? out + e * in.hidden : kept + (e * kept_count + Cell::slot[p]) * in.hidden;
    }
    template <typename Lanes>
    V returned(int64_t row, int64_t block, int64_t place, int64_t unit, Lanes lanes) const {
        const V back = lanes.load(this->result(row, 0, block) + place);
        return this->masked(back, row, unit, lanes);
    }

    void start(int64_t row) const {
        const int64_t count = parts * in.hidden;
        if (grad_new_state) std::copy_n(grad_new_state + row * count, count, part(row, 0));
        else clear(part(row, 0), count);
        clear(this->buffers().at(row), this->plan().row());
        const int64_t width = gates * in.hidden, length = in.length_of(row);
        clear(grad_inputs + this->element(row, length) * width, (in.length - length) * width);
    }
    void update(int64_t row, int64_t t) const {
        const int64_t e = this->element(row, t), hidden = in.hidden;
        for_each_unit<real>(in, [&](int64_t block, int64_t place, int64_t unit, auto lanes) {
            V keep[kept_count + 1], past[parts] = {}, p[parts], extra[Cell::extras + 1];
            V grad[gates] = {}, of_product[gates] = {};
            for (int k = 0; k < kept_count; ++k)
                keep[k] = lanes.load(kept + (e * kept_count + k) * hidden + unit);
            for (int k = 0; k < parts; ++k) {
                p[k] = lanes.load(part(row, k) + unit);
                if (k == 0 || Cell::slot[k] >= 0) past[k] = lanes.load(before(row, t, k) + unit);
            }
            this->load_extra(extra, unit, lanes);
            p[0] += returned(row, block, place, unit, lanes);
            if (grad_out) p[0] += lanes.load(grad_out + e * hidden + unit);
            const V h = lanes.load(out + e * hidden + unit);
            Cell::backward(keep, past, h, extra, p, grad, of_product);
            for (int k = 0; k < parts; ++k) lanes.store(part(row, k) + unit, p[k]);
            for (int g = 0; g < gates; ++g) {
                lanes.store(grad_inputs + (e * gates + g) * hidden + unit, grad[g]);
                lanes.store(product(row, block, g) + place, of_product[g]);
            }
        });
    }
    /* The gradient of r ⊙ seen, back to r and to h. */
    void reset(int64_t row, int64_t t) const {
        const int64_t e = this->element(row, t), hidden = in.hidden;
        for_each_unit<real>(in, [&](int64_t block, int64_t place, int64_t unit, auto lanes) {
            const V moved = lanes.load(this->result(row, 1, block) + place);
            const V r = lanes.load(kept + e * kept_count * hidden + unit);
            const V seen = this->masked(lanes.load(before(row, t, 0) + unit), row, unit, lanes);
            V grad, grad_seen;
            Cell::reset_backward(r, seen, moved, grad, grad_seen);
            lanes.store(grad_inputs + e * gates * hidden + unit, grad);
            lanes.store(product(row, block, 0) + place, grad);
            const V direct = lanes.load(part(row, 0) + unit);
            lanes.store(part(row, 0) + unit,
                        direct + this->masked(grad_seen, row, unit, lanes));
        });
    }
    void finish(int64_t row) const {
        for_each_unit<real>(in, [&](int64_t block, int64_t place, int64_t unit, auto lanes) {
            const V direct = lanes.load(part(row, 0) + unit);
            lanes.store(part(row, 0) + unit, direct + returned(row, block, place, unit, lanes));
        });
    }
    void rows(int64_t begin, int64_t end) const {
        const FlushDenormals flush;
        for (int64_t row = begin; row < end; ++row) start(row);
        const int64_t width = gates * in.size(), stride = this->plan().row();
        for (int64_t t = in.longest(begin, end) - 1; t >= 0; --t) {
            for (int64_t row = begin; row < end; ++row)
                if (t < in.length_of(row)) update(row, t);
            if constexpr (Cell::two_phases) {
                this->multiply(1, begin, end, {product(begin, 0, gates - 1), stride}, width);
                for (int64_t row = begin; row < end; ++row)
                    if (t < in.length_of(row)) reset(row, t);
            }
            this->multiply(0, begin, end, {product(begin, 0, 0), stride}, width);
        }
        for (int64_t row = begin; row < end; ++row) finish(row);
    }
    int run() const {
        this->pack();
        split(in.batch, this->plan().useful_threads(),
              [&](int64_t begin, int64_t end) { rows(begin, end); });
        return THREEFOLD_OK;
    }
};

}  // namespace cell
}  // namespace threefold
