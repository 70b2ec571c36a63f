/* h_t = (1−α) h_{t−1} + α φ(x_t + W h_{t−1}),   G_t = ∂h_t + (1−α) G_{t+1} + Wᵀ d_{t+1},   d_t = α φ'_t G_t
 *
 * W is sparse, stored by rows; so is Wᵀ for the backward pass. Threads divide the rows of the batch;
 * if there are too few rows they divide the units of a row and synchronise after each element. A
 * unit's sum has the same order in every thread, so the number of threads changes no bit. If other
 * programs use the processors, so that a thread waits longer than it works, the first thread
 * continues alone.
 */
#include <atomic>
#include <chrono>

#include "cell_kinds.h"
#include "denormals.h"
#ifdef _OPENMP
#include <omp.h>
#endif

namespace threefold {
namespace reservoir {
namespace {

template <typename real>
struct Sparse {
    const real *values;
    const int32_t *columns;
    const int64_t *starts;

    /* The product of one row with h, in two vectors of sums. */
    real times(const real *h, int64_t row) const {
        constexpr int64_t lanes = lanes_of<real>;
        Vector<real> sums[2] = {};
        int64_t i = starts[row];
        const int64_t end = starts[row + 1];
        for (; i + 2 * lanes <= end; i += 2 * lanes) {
            sums[0] += product(h, i);
            sums[1] += product(h, i + lanes);
        }
        if (i + lanes <= end) sums[0] += product(h, i), i += lanes;
        const Vector<real> both = sums[0] + sums[1];
        real rest = 0, sum = 0;
        for (; i < end; ++i) rest += values[i] * h[columns[i]];
        for (int64_t lane = 0; lane < lanes; ++lane) sum += both[lane];
        return sum + rest;
    }

    /* Numbers i, i + 1 … of the matrix, each times what it meets. Single loads: a gather is slower
     * on most processors, and compilers take it when they vectorise this themselves. */
    Vector<real> product(const real *h, int64_t i) const {
        Vector<real> met;
        for (int64_t lane = 0; lane < lanes_of<real>; ++lane) met[lane] = h[columns[i + lane]];
        return Whole<real>{}.load(values + i) * met;
    }
};

template <typename real>
struct Inputs {
    Sparse<real> weight;
    const int64_t *lengths;
    int64_t batch, length, units, threads;
    real leak;

    int64_t length_of(int64_t row) const { return lengths ? lengths[row] : length; }
    int status() const {
        if (batch < 0 || length < 0 || units < 1) return THREEFOLD_BAD_SIZE;
        for (int64_t row = 0; row < batch; ++row)
            if (length_of(row) < 0 || length_of(row) > length) return THREEFOLD_BAD_LENGTH;
        return THREEFOLD_OK;
    }
};

/* Units first … last − 1 of a row, for one thread of several. */
struct Share {
    int64_t first, last, units, piece = 0, pieces = 1;
    /* One for all threads: the meeting after which the first goes on alone. A number, and no flag: who
     * comes late from one meeting may already see what is decided before the next. */
    std::atomic<int64_t> *alone = nullptr;
    double worked = 0, waited = 0;
    int64_t met = 0;
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();

    /* Waits for the other threads; false if the first thread continues without this one. */
    bool meet() {
        if (pieces == 1) return true;
        ++met;
        if (piece == 0) {
            worked += lap();
            if (met % 64 == 0 && waited > double(pieces - 1) * worked) *alone = met;
        }
#pragma omp barrier
        if (met == *alone) {
            if (piece) return false;
            first = 0, last = units, pieces = 1;
        }
        if (piece == 0) waited += lap();
        return true;
    }

private:
    double lap() {
        const auto before = since;
        since = std::chrono::steady_clock::now();
        return std::chrono::duration<double>(since - before).count();
    }
};

/* body(row, share) for all rows; it returns false if other threads do the rest. */
template <typename real, typename Body>
void for_each_row(const Inputs<real> &in, const Body &body) {
    const int64_t work = in.batch * in.length * in.weight.starts[in.units];
    const int64_t threads = useful_threads(in.threads, work);
    if (in.batch >= threads || in.length < 8 || in.units < 64) {
        split(in.batch, threads, [&](int64_t begin, int64_t end) {
            const FlushDenormals flush;
            Share share{0, in.units, in.units};
            for (int64_t row = begin; row < end; ++row) body(row, share);
        });
        return;
    }
    std::atomic<int64_t> alone{-1};
#pragma omp parallel num_threads(int(threads))
    {
        const FlushDenormals flush;
        int64_t piece = 0, pieces = 1;
#ifdef _OPENMP
        piece = omp_get_thread_num(), pieces = omp_get_num_threads();
#endif
        /* Full vectors, so that a unit is computed together with the same units as without threads. */
        const int64_t count = vectors_of<real>(in.units), lanes = lanes_of<real>;
        const int64_t first = count * piece / pieces * lanes;
        const int64_t last = std::min(in.units, count * (piece + 1) / pieces * lanes);
        Share share{first, last, in.units, piece, pieces, &alone};
        for (int64_t row = 0; row < in.batch; ++row)
            if (!body(row, share)) break;
    }
}

/* body(unit, lanes) for the vectors of units first … last − 1. */
template <typename real, typename Body>
inline void for_each_unit(int64_t first, int64_t last, int64_t units, const Body &body) {
    for_each_vector<real>(first / lanes_of<real>, vectors_of<real>(last), units, body);
}

template <typename real, typename Cell>
int forward(const Inputs<real> &in, real *out, real *new_state, real *kept, const real *drive,
            const real *state) {
    using V = Vector<real>;
    for_each_row(in, [&](int64_t row, Share &share) {
        const real *before = state + row * in.units;
        const int64_t end = in.length_of(row);
        for (int64_t t = 0; t < end; ++t) {
            const int64_t e = (row * in.length + t) * in.units;
            for (int64_t unit = share.first; unit < share.last; ++unit)
                out[e + unit] = in.weight.times(before, unit);
            for_each_unit<real>(share.first, share.last, in.units, [&](int64_t unit, auto lanes) {
                const V x = lanes.load(drive + e + unit), u = lanes.load(out + e + unit);
                V h;
                Cell::forward(&x, &u, &h, nullptr, nullptr);
                if (kept) lanes.store(kept + e + unit, h);
                const V old = lanes.load(before + unit);
                lanes.store(out + e + unit, (real(1) - in.leak) * old + in.leak * h);
            });
            before = out + e;
            if (!share.meet()) return false;
        }
        const int64_t first = share.first, last = share.last;
        std::copy(before + first, before + last, new_state + row * in.units + first);
        for (int64_t t = end; t < in.length; ++t) {
            const int64_t e = (row * in.length + t) * in.units;
            std::fill(out + e + first, out + e + last, real(0));
            if (kept) std::fill(kept + e + first, kept + e + last, real(0));
        }
        return true;
    });
    return THREEFOLD_OK;
}

/* `in.weight` is Wᵀ; kept is φ(·) of each element. */
template <typename real, typename Cell>
int backward(const Inputs<real> &in, real *grad_drive, real *grad_state, const real *grad_out,
             const real *grad_new_state, const real *kept) {
    using V = Vector<real>;
    for_each_row(in, [&](int64_t row, Share &share) {
        real *grad = grad_state + row * in.units;
        const int64_t end = in.length_of(row), first = share.first, last = share.last;
        for (int64_t unit = first; unit < last; ++unit)
            grad[unit] = grad_new_state ? grad_new_state[row * in.units + unit] : real(0);
        for (int64_t t = in.length - 1; t >= end; --t) {
            real *to = grad_drive + (row * in.length + t) * in.units;
            std::fill(to + first, to + last, real(0));
        }
        for (int64_t t = end - 1; t >= 0; --t) {
            const int64_t e = (row * in.length + t) * in.units;
            for_each_unit<real>(share.first, share.last, in.units, [&](int64_t unit, auto lanes) {
                V whole = lanes.load(grad + unit);
                if (grad_out) whole += lanes.load(grad_out + e + unit);
                const V squashed = lanes.load(kept + e + unit);
                V part = in.leak * whole, of_input, of_product;
                Cell::backward(nullptr, nullptr, squashed, nullptr, &part, &of_input, &of_product);
                lanes.store(grad_drive + e + unit, of_input);
                lanes.store(grad + unit, (real(1) - in.leak) * whole);
            });
            if (!share.meet()) return false;
            for (int64_t unit = share.first; unit < share.last; ++unit)
                grad[unit] += in.weight.times(grad_drive + e, unit);
        }
        return true;
    });
    return THREEFOLD_OK;
}

/* call(cell) with the unit of this number, as in cell_kinds.h. */
template <typename real, typename Call>
int with_activation(int64_t activation, const Call &call) {
    using namespace cell;
    if (activation == tanh_) return call(Rnn<real, tanh_>{});
    if (activation == relu_) return call(Rnn<real, relu_>{});
    if (activation == sigmoid_) return call(Rnn<real, sigmoid_>{});
    if (activation == identity_) return call(Rnn<real, identity_>{});
    return THREEFOLD_BAD_SIZE;
}

}  // namespace
}  // namespace reservoir
}  // namespace threefold

#define DEFINE(real, suffix)                                                                       \
    int threefold_reservoir_forward_##suffix(                                                      \
        real *out, real *new_state, real *kept, const real *drive, const real *values,             \
        const int32_t *columns, const int64_t *starts, const real *state, const int64_t *lengths,  \
        int64_t batch, int64_t length, int64_t units, int64_t activation, int64_t threads,         \
        double leak) {                                                                             \
        const threefold::reservoir::Inputs<real> in{                                               \
            {values, columns, starts}, lengths, batch, length, units, threads, real(leak)};        \
        if (const int status = in.status()) return status;                                         \
        return threefold::reservoir::with_activation<real>(activation, [&](auto cell) {            \
            return threefold::reservoir::forward<real, decltype(cell)>(in, out, new_state, kept,   \
                                                                       drive, state);              \
        });                                                                                        \
    }                                                                                              \
    int threefold_reservoir_backward_##suffix(                                                     \
        real *grad_drive, real *grad_state, const real *grad_out, const real *grad_new_state,      \
        const real *kept, const real *values, const int32_t *columns, const int64_t *starts,       \
        const int64_t *lengths, int64_t batch, int64_t length, int64_t units, int64_t activation,  \
        int64_t threads, double leak) {                                                            \
        const threefold::reservoir::Inputs<real> in{                                               \
            {values, columns, starts}, lengths, batch, length, units, threads, real(leak)};        \
        if (const int status = in.status()) return status;                                         \
        return threefold::reservoir::with_activation<real>(activation, [&](auto cell) {            \
            return threefold::reservoir::backward<real, decltype(cell)>(                           \
                in, grad_drive, grad_state, grad_out, grad_new_state, kept);                       \
        });                                                                                        \
    }
THREEFOLD_FOR_BOTH(DEFINE)
