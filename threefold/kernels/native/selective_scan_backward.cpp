/* G = C ∂ỹ + H₊,  H = e^{ΔA} ⊙ G,  ∂C = Σ_d S ∂ỹ,  ∂B = Σ_d w x G,  ∂x = w B·G + D ∂ỹ,
 * ∂A = Σ_t Δ H ⊙ S₋,  ∂Δ = A·(H ⊙ S₋) + x B·G        (w = Δ; ỹ is y before the gate)
 *
 * The gradients of the selective scan. Blocks are taken from the last to the first, each from its
 * checkpoint: its states are recomputed forwards into the cache, then used backwards.
 * Sums over channels are computed in slabs, whose number depends on the sizes alone, then over slabs
 * in order, and sums over rows in the order of the rows, so no bit depends on the threads.
 */
#include "selective_scan.h"

namespace threefold {
namespace selective {
namespace {

/* Tiles of channels that are added up together. Their sums take no more room than x. */
template <typename real>
inline int64_t slab_tiles(int64_t channels, int64_t size) {
    return padded(std::max<int64_t>(2 * size, (channels + 15) / 16)) / tile_width<real>;
}

/* L′: sums over channels lie with time innermost, filled up to whole vectors. */
inline int64_t padded_time(int64_t length) { return (length + 15) / 16 * 16; }

/* Pointers to the gradients, and to what they are computed from besides the inputs. */
template <typename real>
struct Outputs {
    real *x, *delta, *A, *B, *C, *D, *gate, *bias, *state;
    /* H between blocks; sums over time for A, D and bias; sums over slabs for B and C. */
    real *carried, *sums, *partial;
    Strided<real> grad_y;
    const real *grad_new_state, *states;
};

/* One tile's gradients in a block, of the fields of Element, and of the gate without the factor ỹ. */
template <typename real>
struct Gradients {
    Element<real> at[block];
    Tile<real> gate[block];

    template <typename Lanes>
    void load(const Inputs<real> &in, Strided<real> grad_y, Place place, Lanes lanes) {
        for (int64_t t = 0; t < place.count; ++t) {
            const int64_t element = place.first + t;
            grad_y.fetch_next(element, place.channel);
            for (int v = 0; v < tile_vectors; ++v) {
                const int64_t channel = place.channel + v * lanes_of<real>;
                Vector<real> grad = {};
                if (grad_y.data) grad = lanes[v].load(grad_y.at(element) + channel);
                if (in.gate.data) {
                    const Vector<real> x = lanes[v].load(in.gate.at(element) + channel);
                    const Vector<real> open = sigmoid<real>(x);
                    gate[t][v] = grad * (open * (real(1) + x * (real(1) - open)));
                    grad *= x * open;
                }
                at[t].output[v] = grad;
                at[t].write[v] = at[t].delta[v] = Vector<real>{};
            }
        }
    }
};

/* ∂w/∂A = (Δ e^z − w)/A, z = ΔA, given as `difference`; near 0, where that cancels, its series
 * Δ² Σ_k z^k / (k! (k+2)). */
template <typename real>
inline Vector<real> slope_by_rate(Vector<real> delta, Vector<real> z, Vector<real> difference) {
    constexpr int terms = sizeof(real) == 4 ? 6 : 12;
    constexpr real near = 0.25;
    /* term = z^k / k!, from k = 0. */
    Vector<real> term = splat<real>(1), series = splat<real>(0.5);
    for (int k = 1; k < terms; ++k) {
        term *= z * (real(1) / k);
        series += term * (real(1) / (k + 2));
    }
    const auto cancels = (Bits<real>)(z > -near) & (Bits<real>)(z < near);
    return cancels ? delta * delta * series : difference;
}

/* softplus′ of the number whose softplus is Δ: 1 − e^−Δ. */
template <typename real>
inline Vector<real> softplus_slope(Vector<real> delta) {
    constexpr real bias = Simd<real>::bias;
    return -power<real>(clamp<real>(delta * real(-log2_e), -bias, bias)).minus_one();
}

/* Processes one tile in one block: forwards to recompute its states, then backwards. */
template <typename real>
struct Retrace {
    const Inputs<real> &in;
    const Place place;
    Elements<real> &elements;
    Gradients<real> &grads;
    const real *rates, *before;
    real *carried, *sums;
    /* [2, N, L′] of the slab, and whether it holds the sums of earlier tiles. */
    real *partial;
    const bool add;

    /* What the forward sweep stores for the backward sweep, for `Count` of the N numbers. */
    template <bool Hold, int Count>
    struct Trace {
        struct {
            Tile<real> decay, before;
        } at[block][Count];
        Tile<real> growth[Hold ? block : 1][Count];
        /* Products whose lanes will be summed, for B and for C. */
        Vector<real> B[Count][block], C[Count][block];
    };

    template <bool Hold, bool Clamp, int Count>
    void rows(int64_t n) const {
        Trace<Hold, Count> trace;
        forth<Hold, Clamp>(n, trace);
        back(n, trace);
        for (int r = 0; r < Count; ++r) {
            add_channels(trace.B[r], n + r);
            add_channels(trace.C[r], in.size + n + r);
        }
    }

    template <bool Hold, bool Clamp, int Count>
    THREEFOLD_APART void forth(int64_t n, Trace<Hold, Count> &trace) const {
        Transition<real, Hold, Clamp> transition[Count][tile_vectors];
        Vector<real> state[Count][tile_vectors];
        for (int r = 0; r < Count; ++r)
            for (int v = 0; v < tile_vectors; ++v) {
                transition[r][v].load(rates + turned<real>(n + r, v));
                state[r][v] = Whole<real>{}.load(before + turned<real>(n + r, v));
            }
        for (int64_t t = 0; t < place.count; ++t) {
            const real *B = in.B.at(place.first + t) + n, *C = in.C.at(place.first + t) + n;
            Vector<real> product[Count] = {};
            for (int v = 0; v < tile_vectors; ++v) {
                const Vector<real> delta = elements.at[t].delta[v], write = elements.at[t].write[v];
                Vector<real> output = elements.at[t].output[v];
                for (int r = 0; r < Count; ++r) {
                    Vector<real> growth;
                    const Vector<real> decay = transition[r][v].decay(delta, growth);
                    trace.at[t][r].before[v] = state[r][v];
                    trace.at[t][r].decay[v] = decay;
                    if (Hold) trace.growth[t][r][v] = growth;
                    state[r][v] = transition[r][v].advance(state[r][v], write, B[r], decay, growth);
                    output += state[r][v] * C[r];
                    product[r] += grads.at[t].output[v] * state[r][v];
                }
                elements.at[t].output[v] = output;
            }
            for (int r = 0; r < Count; ++r) trace.C[r][t] = product[r];
        }
    }

    template <bool Hold, int Count>
    THREEFOLD_APART void back(int64_t n, Trace<Hold, Count> &trace) const {
        const Whole<real> whole;
        Transition<real, Hold, false> transition[Count][tile_vectors];
        Vector<real> A[Count][tile_vectors], later[Count][tile_vectors], sum[Count][tile_vectors];
        for (int r = 0; r < Count; ++r)
            for (int v = 0; v < tile_vectors; ++v) {
                const int64_t at = turned<real>(n + r, v);
                transition[r][v].load(rates + at);
                A[r][v] = transition[r][v].rate * real(ln_2);
                later[r][v] = whole.load(carried + at);
                sum[r][v] = whole.load(sums + at);
            }
        for (int64_t t = place.count - 1; t >= 0; --t) {
            const real *B = in.B.at(place.first + t) + n, *C = in.C.at(place.first + t) + n;
            Vector<real> product[Count] = {};
            for (int v = 0; v < tile_vectors; ++v) {
                const Vector<real> delta = elements.at[t].delta[v], write = elements.at[t].write[v];
                Vector<real> grad_write = grads.at[t].write[v], grad_delta = grads.at[t].delta[v];
                for (int r = 0; r < Count; ++r) {
                    const Vector<real> decay = trace.at[t][r].decay[v];
                    const Vector<real> growth = trace.growth[Hold ? t : 0][r][v];
                    const Vector<real> grad = grads.at[t].output[v] * C[r] + later[r][v];
                    const Vector<real> grown = Hold ? grad * growth : grad;
                    product[r] += write * grown;
                    grad_write += grown * B[r];
                    later[r][v] = decay * grad;
                    const Vector<real> grad_exponent = later[r][v] * trace.at[t][r].before[v];
                    grad_delta += grad_exponent * A[r][v];
                    sum[r][v] += grad_exponent * delta;
                    if (Hold) {
                        /* ∂w/∂Δ = e^{ΔA} */
                        const Vector<real> into = write * B[r];
                        grad_delta += later[r][v] * into;
                        sum[r][v] += grad * into * slope_by_rate<real>(
                            delta, delta * A[r][v],
                            (delta * decay - growth) * transition[r][v].inverse);
                    }
                }
                grads.at[t].write[v] = grad_write;
                grads.at[t].delta[v] = grad_delta;
            }
            for (int r = 0; r < Count; ++r) trace.B[r][t] = product[r];
        }
        for (int r = 0; r < Count; ++r)
            for (int v = 0; v < tile_vectors; ++v) {
                whole.store(carried + turned<real>(n + r, v), later[r][v]);
                whole.store(sums + turned<real>(n + r, v), sum[r][v]);
            }
    }

    /* Adds the lanes of the products at each time to line `line` of the slab's sums. */
    void add_channels(Vector<real> *products, int64_t line) const {
        constexpr int64_t lanes = lanes_of<real>;
        const Whole<real> whole;
        real *to = partial + line * padded_time(in.length) + place.start;
        for (int64_t t = place.count; t % lanes; ++t) products[t] = Vector<real>{};
        for (int64_t t = 0; t < place.count; t += lanes) {
            Vector<real> sum = sums_of_lanes<real>(products + t);
            if (add) sum += whole.load(to + t);
            whole.store(to + t, sum);
        }
    }
};

template <typename real>
struct Backward {
    const Inputs<real> &in;
    const Outputs<real> &out;
    const int64_t tiles_of_slab = slab_tiles<real>(in.channels, in.size);
    const int64_t slabs = (in.tiles() + tiles_of_slab - 1) / tiles_of_slab;

    real *carried(int64_t row, int64_t channel) const {
        return out.carried + row * in.turned_size() + channel * in.size;
    }
    /* Sums over time of one row: turned for A, then D, then the bias. */
    real *sums(int64_t row) const { return out.sums + row * (in.size + 2) * padded(in.channels); }
    real *sums_of_D(int64_t row) const { return sums(row) + in.turned_size(); }
    real *sums_of_bias(int64_t row) const { return sums_of_D(row) + padded(in.channels); }
    /* Sums over the channels of one slab: [2, N, L′]. */
    real *partial(int64_t row, int64_t slab) const {
        return out.partial + (row * slabs + slab) * 2 * in.size * padded_time(in.length);
    }

    template <typename Lanes>
    void begin(int64_t row, int64_t channel, Lanes lanes) const {
        const int64_t numbers = in.size * tile_width<real>;
        real *to = carried(row, channel);
        if (out.grad_new_state)
            turn(to, out.grad_new_state + (row * in.channels + channel) * in.size, in.size, in.size, lanes);
        else
            std::fill_n(to, numbers, real(0));
        std::fill_n(sums(row) + channel * in.size, numbers, real(0));
        std::fill_n(sums_of_D(row) + channel, tile_width<real>, real(0));
        std::fill_n(sums_of_bias(row) + channel, tile_width<real>, real(0));
    }

    template <typename Lanes>
    void run(int64_t row, int64_t slab, int64_t number, int64_t channel, Lanes lanes) const {
        const Place place = in.place(row, number, channel);
        const real *rates = in.rates + channel * in.size;
        const int64_t slots = blocks_of(in.length) + 1;
        Elements<real> elements;
        Gradients<real> grads;
        elements.load(in, place, lanes);
        grads.load(in, out.grad_y, place, lanes);
        const bool first = channel == slab * tiles_of_slab * tile_width<real>;
        for_each_row(in.size, in.hold, elements.overflows(rates, in.size),
                     Retrace<real>{in, place, elements, grads, rates,
                                   out.states + (row * slots + number) * in.turned_size() +
                                       channel * in.size,
                                   carried(row, channel), sums(row) + channel * in.size,
                                   partial(row, slab), !first});
        store(row, place, elements, grads, lanes);
    }

    template <typename Lanes>
    void store(int64_t row, Place place, const Elements<real> &elements,
               const Gradients<real> &grads, Lanes lanes) const {
        const Whole<real> whole;
        Tile<real> skip, sum_D, sum_bias;
        load_tile(skip, in.D, place.channel, lanes);
        load_tile(sum_D, sums_of_D(row), place.channel, WholeTile<real>{});
        load_tile(sum_bias, sums_of_bias(row), place.channel, WholeTile<real>{});
        for (int64_t t = 0; t < place.count; ++t)
            for (int v = 0; v < tile_vectors; ++v) {
                const int64_t channel = place.channel + v * lanes_of<real>;
                const int64_t element = place.first + t, at = element * in.channels + channel;
                const Vector<real> delta = elements.at[t].delta[v], grad = grads.at[t].output[v];
                const Vector<real> x = lanes[v].load(in.x.at(element) + channel);
                Vector<real> grad_x = grads.at[t].write[v], grad_delta = grads.at[t].delta[v];
                if (!in.hold) {
                    grad_delta += grad_x * x;
                    grad_x *= delta;
                }
                if (in.softplus) grad_delta *= softplus_slope<real>(delta);
                if (in.D) grad_x += skip[v] * grad;
                lanes[v].store(out.x + at, grad_x);
                lanes[v].store(out.delta + at, grad_delta);
                if (in.gate.data)
                    lanes[v].store(out.gate + at, grads.gate[t][v] * elements.at[t].output[v]);
                sum_D[v] += grad * x;
                sum_bias[v] += grad_delta;
            }
        for (int v = 0; v < tile_vectors; ++v) {
            whole.store(sums_of_D(row) + place.channel + v * lanes_of<real>, sum_D[v]);
            whole.store(sums_of_bias(row) + place.channel + v * lanes_of<real>, sum_bias[v]);
        }
    }

    template <typename Lanes>
    void end(int64_t row, int64_t channel, Lanes lanes) const {
        turn_back(out.state + (row * in.channels + channel) * in.size, carried(row, channel),
                  in.size, in.size, lanes);
        for (int64_t t = in.length_of(row); t < in.length; ++t)
            for (int v = 0; v < tile_vectors; ++v) {
                const int64_t at = (row * in.length + t) * in.channels + channel + v * lanes_of<real>;
                lanes[v].store(out.x + at, Vector<real>{});
                lanes[v].store(out.delta + at, Vector<real>{});
                if (in.gate.data) lanes[v].store(out.gate + at, Vector<real>{});
            }
    }

    void run_slab(int64_t row, int64_t slab) const {
        const auto for_each = [&](const auto &body) {
            const int64_t first = slab * tiles_of_slab;
            for_each_tile<real>(first, std::min(first + tiles_of_slab, in.tiles()), in.channels, body);
        };
        for_each([&](int64_t channel, auto lanes) { begin(row, channel, lanes); });
        for (int64_t number = blocks_of(in.length_of(row)) - 1; number >= 0; --number)
            for_each([&](int64_t channel, auto lanes) { run(row, slab, number, channel, lanes); });
        for_each([&](int64_t channel, auto lanes) { end(row, channel, lanes); });
    }

    /* grad[t][n] = the sum over slabs of their lines n, zeros at padding. */
    void add_slabs(int64_t row, int64_t start, real *grad, int64_t line) const {
        constexpr int64_t lanes = lanes_of<real>;
        const int64_t end = in.length_of(row), here = std::min(lanes, in.length - start);
        Vector<real> sum = {};
        if (start < end)
            for (int64_t slab = 0; slab < slabs; ++slab)
                sum += Whole<real>{}.load(partial(row, slab) + line * padded_time(in.length) + start);
        Part<real>{int(here)}.store_strided(
            grad + (row * in.length + start) * in.size + line % in.size, in.size, sum);
    }

    void add_slabs(int64_t threads) const {
        split_rows(in.batch, vectors_of<real>(in.length), threads,
                   [&](int64_t row, int64_t first, int64_t last) {
            for (int64_t vector = first; vector < last; ++vector)
                for (int64_t n = 0; n < in.size; ++n) {
                    add_slabs(row, vector * lanes_of<real>, out.B, n);
                    add_slabs(row, vector * lanes_of<real>, out.C, in.size + n);
                }
        });
    }

    /* Adds `count` sums from `offset` on of the other rows to those of the first. */
    void add_rows(int64_t offset, int64_t count) const {
        const Whole<real> whole;
        for (int64_t row = 1; row < in.batch; ++row)
            for (int64_t i = offset; i < offset + count; i += lanes_of<real>)
                whole.store(sums(0) + i, whole.load(sums(0) + i) + whole.load(sums(row) + i));
    }

    /* A, D and the bias of one tile from the sums of all rows. */
    template <typename Lanes>
    void finish(int64_t channel, Lanes lanes) const {
        add_rows(channel * in.size, in.size * tile_width<real>);
        add_rows(in.turned_size() + channel, tile_width<real>);
        add_rows(in.turned_size() + padded(in.channels) + channel, tile_width<real>);
        turn_back(out.A + channel * in.size, sums(0) + channel * in.size, in.size, in.size, lanes);
        for (int v = 0; v < tile_vectors; ++v) {
            const int64_t at = channel + v * lanes_of<real>;
            lanes[v].store(out.D + at, Whole<real>{}.load(sums_of_D(0) + at));
            lanes[v].store(out.bias + at, Whole<real>{}.load(sums_of_bias(0) + at));
        }
    }

    /* No rows, no sums. */
    void finish_empty() const {
        std::fill_n(out.A, in.channels * in.size, real(0));
        std::fill_n(out.D, in.channels, real(0));
        std::fill_n(out.bias, in.channels, real(0));
    }

    void run() const {
        const int64_t threads = in.useful_threads();
        turn_rates(in, threads);
        split_rows(in.batch, slabs, threads, [&](int64_t row, int64_t first, int64_t last) {
            const FlushDenormals flush;
            for (int64_t slab = first; slab < last; ++slab) run_slab(row, slab);
        });
        add_slabs(threads);
        if (in.batch == 0) return finish_empty();
        split(in.tiles(), threads, [&](int64_t first, int64_t last) {
            for_each_tile<real>(first, last, in.channels,
                                [&](int64_t channel, auto lanes) { finish(channel, lanes); });
        });
    }
};

/* The parts of the workspace: rates [N, D′], carried [B, N, D′], sums [B, N+2, D′] and the sums over
 * slabs [B, M, 2, N, L′]. All are multiples of a vector. */
template <typename real>
struct Scratch {
    int64_t carried, sums, partial, end; /* where each begins, behind the rates */

    Scratch(int64_t batch, int64_t length, int64_t channels, int64_t size) {
        const int64_t wide = padded(channels), tiles = slab_tiles<real>(channels, size);
        const int64_t slab = tiles * tile_width<real>, slabs = (channels + slab - 1) / slab;
        carried = size * wide;
        sums = carried + batch * size * wide;
        partial = sums + batch * (size + 2) * wide;
        end = partial + batch * slabs * 2 * size * padded_time(length);
    }
};

template <typename real>
int backward(Inputs<real> in, Outputs<real> out, real *workspace) {
    if (const int status = in.status()) return status;
    const Scratch<real> own(in.batch, in.length, in.channels, in.size);
    in.rates = workspace;
    out.carried = workspace + own.carried;
    out.sums = workspace + own.sums;
    out.partial = workspace + own.partial;
    Backward<real>{in, out}.run();
    return THREEFOLD_OK;
}

template <typename real>
int workspace(int64_t *numbers, int64_t batch, int64_t length, int64_t channels, int64_t size,
              bool backward) {
    if (batch < 0 || length < 0 || channels < 0 || size < 1) return THREEFOLD_BAD_SIZE;
    /* A forward pass needs rates and one state for each row. */
    *numbers = backward ? Scratch<real>(batch, length, channels, size).end
                        : (1 + batch) * size * padded(channels);
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace selective
}  // namespace threefold

#define DEFINE(real, suffix)                                                                       \
    int threefold_selective_scan_backward_##suffix(                                                \
        real *grad_x, real *grad_delta, real *grad_A, real *grad_B, real *grad_C, real *grad_D,    \
        real *grad_gate, real *grad_bias, real *grad_state, real *workspace, const real *grad_y,   \
        const real *grad_new_state, const real *states, const real *x, const real *delta,          \
        const real *A, const real *B, const real *C, const real *D, const real *gate,              \
        const real *delta_bias, const int64_t *lengths, int64_t batch, int64_t length,             \
        int64_t channels, int64_t size, int64_t x_stride, int64_t delta_stride, int64_t B_stride,  \
        int64_t C_stride, int64_t gate_stride, int64_t softplus, int64_t hold, int64_t threads) {  \
        return threefold::selective::backward<real>(                                               \
            {{x, x_stride}, {delta, delta_stride}, {B, B_stride}, {C, C_stride},                   \
             {gate, gate_stride}, A, D, delta_bias, nullptr, lengths, batch, length, channels,     \
             size, softplus != 0, hold != 0, threads, nullptr},                                    \
            {grad_x, grad_delta, grad_A, grad_B, grad_C, grad_D, grad_gate, grad_bias, grad_state, \
             nullptr, nullptr, nullptr, {grad_y, channels}, grad_new_state, states}, workspace);   \
    }                                                                                              \
    int threefold_selective_scan_workspace_##suffix(int64_t *numbers, int64_t batch,               \
                                                    int64_t length, int64_t channels,              \
                                                    int64_t size, int64_t backward, int64_t) {     \
        return threefold::selective::workspace<real>(numbers, batch, length, channels, size,       \
                                                     backward != 0);                               \
    }
THREEFOLD_FOR_BOTH(DEFINE)
