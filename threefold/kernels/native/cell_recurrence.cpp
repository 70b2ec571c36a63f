/* part_t = cell(x_t, U h_{t−1}, part_{t−1})
 *
 * A nonlinear recurrence, and its gradients, over a whole sequence in one call. Threads share the
 * rows of the batch and never wait for each other: each goes through all elements of its rows, for
 * each element a product of these rows with the packed matrices, then the cell, unit by unit.
 */
#include "cell_kinds.h"
#include "cell_product.h"
#include "denormals.h"

namespace threefold {
namespace cell {
namespace {

template <typename real>
struct Inputs {
    const real *recurrent, *state, *extra, *mask;
    const int64_t *lengths;
    int64_t batch, length, hidden, blocks, threads;

    int64_t size() const { return hidden / blocks; }
    int64_t length_of(int64_t row) const { return lengths ? lengths[row] : length; }
    int64_t longest(int64_t begin, int64_t end) const {
        int64_t most = 0;
        for (int64_t row = begin; row < end; ++row) most = std::max(most, length_of(row));
        return most;
    }
    int status() const {
        if (batch < 0 || length < 0 || hidden < 1 || blocks < 1 || hidden % blocks)
            return THREEFOLD_BAD_SIZE;
        for (int64_t row = 0; row < batch; ++row)
            if (length_of(row) < 0 || length_of(row) > length) return THREEFOLD_BAD_LENGTH;
        return THREEFOLD_OK;
    }
};

/* body(block, place in the block, place in the row, lanes) for all units. */
template <typename real, typename Body>
inline void for_each_unit(const Inputs<real> &in, const Body &body) {
    const int64_t size = in.size();
    for (int64_t block = 0; block < in.blocks; ++block)
        for_each_vector<real>(0, vectors_of<real>(size), size, [&](int64_t place, auto lanes) {
            body(block, place, block * size + place, lanes);
        });
}

template <typename real>
inline void clear(real *numbers, int64_t count) {
    std::fill(numbers, numbers + count, real(0));
}

/* The matrices of gates first … last − 1: h to gates forward, gates' gradients to h's backward. */
template <typename real>
struct Phase {
    int64_t first, last, size, gates;
    bool backward;

    int64_t span() const { return (last - first) * size; }
    Packed<real> shape() const {
        return backward ? Packed<real>{nullptr, span(), size} : Packed<real>{nullptr, size, span()};
    }
    /* Numbers that one block's results take in a row. */
    int64_t results() const { return padded<real>(shape().outer); }

    void pack(real *to, const real *recurrent, int64_t blocks, int64_t threads) const {
        split(blocks * results() / tile_width<real>, threads, [&](int64_t begin, int64_t end) {
            for (int64_t tile = begin; tile < end; ++tile) {
                const int64_t block = tile * tile_width<real> / results();
                const int64_t column = tile * tile_width<real> % results();
                const real *from = recurrent + (block * gates + first) * size * size;
                fill(to + tile * tile_width<real> * shape().inner, from, column);
            }
        });
    }
    void fill(real *to, const real *from, int64_t column) const {
        const auto [data, inner, outer] = shape();
        for (int64_t i = 0; i < inner; ++i)
            for (int64_t o = column; o < column + tile_width<real>; ++o)
                *to++ = o < outer ? (backward ? from[i * size + o] : from[o * size + i]) : real(0);
    }
    /* For each block, y [rows, results] = x [rows, …] times its matrix. */
    void multiply(const real *packed, int64_t blocks, int64_t rows, Rows<const real> x,
                  int64_t distance, Rows<real> y) const {
        Packed<real> matrix = shape();
        for (int64_t block = 0; block < blocks; ++block) {
            matrix.data = packed + block * matrix.size();
            matrix.multiply(rows, x.from(0, block * distance), y.from(0, block * results()));
        }
    }
};

/* Where things lie in the workspace: packed matrices, then buffers of each row. */
template <typename real, typename Cell>
struct Plan {
    const Inputs<real> &in;
    bool backward;

    static constexpr int first_gates = Cell::two_phases ? Cell::gates - 1 : Cell::gates;

    Phase<real> first() const { return {0, first_gates, in.size(), Cell::gates, backward}; }
    Phase<real> second() const {
        return {first_gates, Cell::gates, in.size(), Cell::gates, backward};
    }
    int64_t packed_first() const { return in.blocks * first().shape().size(); }
    int64_t packed_second() const { return in.blocks * second().shape().size(); }
    int64_t results() const { return in.blocks * (first().results() + second().results()); }
    /* Behind the results: what the products read. */
    int64_t row() const { return results() + (backward ? Cell::gates : 2) * in.hidden; }
    int64_t size() const { return packed_first() + packed_second() + in.batch * row(); }
    int64_t useful_threads() const {
        const int64_t work = in.batch * in.length * Cell::gates * in.hidden;
        return threefold::useful_threads(in.threads, work);
    }
};

template <typename real, typename Cell>
struct Pass {
    using V = Vector<real>;
    Inputs<real> in;
    real *workspace;
    bool is_backward;

    Plan<real, Cell> plan() const { return {in, is_backward}; }
    const real *matrix(int phase) const { return workspace + phase * plan().packed_first(); }
    Rows<real> buffers(int64_t row = 0) const {
        const int64_t packed = plan().packed_first() + plan().packed_second();
        return Rows<real>{workspace + packed, plan().row()}.from(row, 0);
    }
    /* Results of a phase for one block of a row. */
    real *result(int64_t row, int phase, int64_t block) const {
        const auto p = plan();
        const int64_t before = phase ? in.blocks * p.first().results() : 0;
        const int64_t each = phase ? p.second().results() : p.first().results();
        return buffers().at(row) + before + block * each;
    }
    Rows<real> read(int64_t row, int64_t part = 0) const {
        return buffers(row).from(0, plan().results() + part * in.hidden);
    }
    void pack() const {
        const auto p = plan();
        const int64_t threads = p.useful_threads();
        p.first().pack(workspace, in.recurrent, in.blocks, threads);
        if (Cell::two_phases)
            p.second().pack(workspace + p.packed_first(), in.recurrent, in.blocks, threads);
    }
    void multiply(int phase, int64_t begin, int64_t end, Rows<const real> x,
                  int64_t distance) const {
        const auto p = phase ? plan().second() : plan().first();
        p.multiply(matrix(phase), in.blocks, end - begin, x, distance,
                   {result(begin, phase, 0), plan().row()});
    }
    int64_t element(int64_t row, int64_t t) const { return row * in.length + t; }
    template <typename Lanes>
    void load_extra(V *extra, int64_t unit, Lanes lanes) const {
        for (int e = 0; e < Cell::extras; ++e)
            extra[e] = lanes.load(in.extra + e * in.hidden + unit);
    }
    template <typename Lanes>
    V masked(V x, int64_t row, int64_t unit, Lanes lanes) const {
        return in.mask ? x * lanes.load(in.mask + row * in.hidden + unit) : x;
    }
};

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
    /* The reset gate takes the place of its product, and r ⊙ seen is what the second phase reads. */
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
        /* The second phase multiplies what padded rows left there. */
        if (Cell::two_phases)
            for (int64_t row = 0; row < in.batch; ++row) clear(this->read(row, 1).data, in.hidden);
        split(in.batch, this->plan().useful_threads(),
              [&](int64_t begin, int64_t end) { rows(begin, end); });
        return THREEFOLD_OK;
    }
};

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

/* body(Cell) for the cell of that number. */
template <typename real, typename Body>
int with_kind(int64_t kind, const Body &body) {
    switch (kind) {
        case 0: return body(Rnn<real, tanh_>{});
        case 1: return body(Rnn<real, relu_>{});
        case 2: return body(Rnn<real, sigmoid_>{});
        case 3: return body(Rnn<real, identity_>{});
        case 4: return body(Lstm<real, false>{});
        case 5: return body(Lstm<real, true>{});
        case 6: return body(CoupledLstm<real>{});
        case 7: return body(Gru<real, false>{});
        case 8: return body(Gru<real, true>{});
        case 9: return body(GruAfter<real, false>{});
        case 10: return body(GruAfter<real, true>{});
        case 11: return body(Slstm<real>{});
        case 12: return body(RnnMemory<real>{});
        case 13: return body(GatedMemory<real>{});
        default: return THREEFOLD_BAD_SIZE;
    }
}

template <typename real>
int forward(const Inputs<real> &in, int64_t kind, real *workspace, real *out, real *new_state,
            real *kept, const real *inputs) {
    if (const int status = in.status()) return status;
    return with_kind<real>(kind, [&](auto cell) {
        using Cell = decltype(cell);
        return Forward<real, Cell>{{in, workspace, false}, out, new_state, kept, inputs}.run();
    });
}

template <typename real>
int backward(const Inputs<real> &in, int64_t kind, real *workspace, real *grad_inputs,
             real *grad_state, const real *grad_out, const real *grad_new_state, const real *out,
             const real *kept) {
    if (const int status = in.status()) return status;
    return with_kind<real>(kind, [&](auto cell) {
        using Cell = decltype(cell);
        return Backward<real, Cell>{{in, workspace, true}, grad_inputs,    grad_state,
                                    grad_out,              grad_new_state, out,
                                    kept}
            .run();
    });
}

template <typename real>
int workspace(int64_t *numbers, const Inputs<real> &in, int64_t kind, bool backward) {
    if (const int status = in.status()) return status;
    return with_kind<real>(kind, [&](auto cell) {
        *numbers = Plan<real, decltype(cell)>{in, backward}.size();
        return THREEFOLD_OK;
    });
}

}  // namespace
}  // namespace cell
}  // namespace threefold

#define DEFINE(real, suffix)                                                                       \
    int threefold_cell_recurrence_forward_##suffix(                                                \
        real *out, real *new_state, real *kept, real *workspace, const real *inputs,               \
        const real *recurrent, const real *state, const real *extra, const real *mask,             \
        const int64_t *lengths, int64_t batch, int64_t length, int64_t hidden, int64_t blocks,     \
        int64_t kind, int64_t threads) {                                                           \
        return threefold::cell::forward<real>({recurrent, state, extra, mask, lengths, batch,      \
                                               length, hidden, blocks, threads},                   \
                                              kind, workspace, out, new_state, kept, inputs);      \
    }                                                                                              \
    int threefold_cell_recurrence_backward_##suffix(                                               \
        real *grad_inputs, real *grad_state, real *workspace, const real *grad_out,                \
        const real *grad_new_state, const real *out, const real *kept, const real *recurrent,      \
        const real *state, const real *extra, const real *mask, const int64_t *lengths,            \
        int64_t batch, int64_t length, int64_t hidden, int64_t blocks, int64_t kind,               \
        int64_t threads) {                                                                         \
        return threefold::cell::backward<real>({recurrent, state, extra, mask, lengths, batch,     \
                                                length, hidden, blocks, threads},                  \
                                               kind, workspace, grad_inputs, grad_state, grad_out, \
                                               grad_new_state, out, kept);                         \
    }                                                                                              \
    int threefold_cell_recurrence_workspace_##suffix(                                              \
        int64_t *numbers, int64_t batch, int64_t length, int64_t hidden, int64_t blocks,           \
        int64_t kind, int64_t backward, int64_t threads) {                                         \
        return threefold::cell::workspace<real>(numbers, {nullptr, nullptr, nullptr, nullptr, nullptr,      \
                                                 batch, length, hidden, blocks, threads},          \
                                                kind, backward);                                   \
    }
THREEFOLD_FOR_BOTH(DEFINE)
