/* S = e^{ΔA} ⊙ S₋ + w B x,   y = (C·S + D x) · silu(gate)
 *
 * The selective scan. Tiles of channels are independent, so threads divide the channels even of a
 * single sequence. For training the state before each block is stored.
 */
#include "selective_scan.h"

namespace threefold {
namespace selective {
namespace {

/* Updates the state of one tile over one block, and adds what is read from it to the outputs. */
template <typename real>
struct Advance {
    const Inputs<real> &in;
    const Place place;
    Elements<real> &elements;
    const real *rates, *before;
    real *after;

    template <bool Hold, bool Clamp, int Count>
    THREEFOLD_APART void rows(int64_t n) const {
        const Whole<real> whole;
        Transition<real, Hold, Clamp> transition[Count][tile_vectors];
        Vector<real> state[Count][tile_vectors];
        for (int r = 0; r < Count; ++r)
            for (int v = 0; v < tile_vectors; ++v) {
                transition[r][v].load(rates + turned<real>(n + r, v));
                state[r][v] = whole.load(before + turned<real>(n + r, v));
            }
        for (int64_t t = 0; t < place.count; ++t) {
            const real *B = in.B.at(place.first + t) + n, *C = in.C.at(place.first + t) + n;
            for (int v = 0; v < tile_vectors; ++v) {
                const Vector<real> delta = elements.at[t].delta[v], write = elements.at[t].write[v];
                Vector<real> output = elements.at[t].output[v];
                for (int r = 0; r < Count; ++r) {
                    Vector<real> growth;
                    const Vector<real> decay = transition[r][v].decay(delta, growth);
                    state[r][v] = transition[r][v].advance(state[r][v], write, B[r], decay, growth);
                    output += state[r][v] * C[r];
                }
                elements.at[t].output[v] = output;
            }
        }
        for (int r = 0; r < Count; ++r)
            for (int v = 0; v < tile_vectors; ++v)
                whole.store(after + turned<real>(n + r, v), state[r][v]);
    }
};

template <typename real>
struct Forward {
    const Inputs<real> &in;
    real *y, *new_state, *states;
    const bool keep;

    /* The state of a tile before a block: one for each block if stored, else one for all. */
    real *slot(int64_t row, int64_t number, int64_t channel) const {
        const int64_t slots = keep ? blocks_of(in.length) + 1 : 1;
        return states + (row * slots + (keep ? number : 0)) * in.turned_size() + channel * in.size;
    }

    template <typename Lanes>
    void begin(int64_t row, int64_t channel, Lanes lanes) const {
        real *first = slot(row, 0, channel);
        if (in.state)
            turn(first, in.state + (row * in.channels + channel) * in.size, in.size, in.size, lanes);
        else
            std::fill_n(first, in.size * tile_width<real>, real(0));
    }

    template <typename Lanes>
    void run(int64_t row, int64_t number, int64_t channel, Lanes lanes) const {
        const Place place = in.place(row, number, channel);
        const real *rates = in.rates + channel * in.size;
        Elements<real> elements;
        elements.load(in, place, lanes);
        const bool clamp = elements.overflows(rates, in.size);
        for_each_row(in.size, in.hold, clamp,
                     Advance<real>{in, place, elements, rates, slot(row, number, channel),
                                   slot(row, number + 1, channel)});
        store(place, elements, lanes);
    }

    template <typename Lanes>
    void store(Place place, const Elements<real> &elements, Lanes lanes) const {
        for (int64_t t = 0; t < place.count; ++t)
            for (int v = 0; v < tile_vectors; ++v) {
                const int64_t element = place.first + t;
                const int64_t channel = place.channel + v * lanes_of<real>;
                Vector<real> output = elements.at[t].output[v];
                if (in.gate.data)
                    output *= silu<real>(lanes[v].load(in.gate.at(element) + channel));
                lanes[v].store(y + element * in.channels + channel, output);
            }
    }

    /* The state after the row's last element, and zeros at padding. */
    template <typename Lanes>
    void end(int64_t row, int64_t channel, Lanes lanes) const {
        const int64_t length = in.length_of(row);
        turn_back(new_state + (row * in.channels + channel) * in.size,
                  slot(row, blocks_of(length), channel), in.size, in.size, lanes);
        for (int64_t t = length; t < in.length; ++t)
            for (int v = 0; v < tile_vectors; ++v)
                lanes[v].store(y + (row * in.length + t) * in.channels + channel +
                                   v * lanes_of<real>, Vector<real>{});
    }

    /* One element: a few numbers at a time are transposed, updated and transposed back. */
    template <bool Hold, typename Lanes>
    void step(int64_t row, int64_t channel, Lanes lanes) const {
        constexpr int64_t most = lanes_of<real>;
        const Place place = in.place(row, 0, channel);
        const int64_t corner = (row * in.channels + channel) * in.size;
        Elements<real> elements;
        elements.load(in, place, lanes);
        alignas(Vector<real>) real rates[most * tile_width<real>], states[most * tile_width<real>];
        for (int64_t n = 0; n < in.size; n += most) {
            const int64_t count = std::min(most, in.size - n);
            turn(rates, in.A + channel * in.size + n, in.size, count, lanes, real(log2_e));
            if (in.state)
                turn(states, in.state + corner + n, in.size, count, lanes);
            else
                std::fill_n(states, count * tile_width<real>, real(0));
            step_rows<Hold>(elements.at[0], states, rates, in.B.at(row) + n, in.C.at(row) + n, count);
            turn_back(new_state + corner + n, states, in.size, count, lanes);
        }
        store(place, elements, lanes);
    }

    template <bool Hold>
    void step_rows(Element<real> &element, real *states, const real *rates, const real *B,
                   const real *C, int64_t count) const {
        for (int64_t n = 0; n < count; ++n)
            for (int v = 0; v < tile_vectors; ++v) {
                Transition<real, Hold, true> transition;
                transition.load(rates + turned<real>(n, v));
                Vector<real> growth, state = Whole<real>{}.load(states + turned<real>(n, v));
                const Vector<real> decay = transition.decay(element.delta[v], growth);
                state = transition.advance(state, element.write[v], B[n], decay, growth);
                element.output[v] += state * C[n];
                Whole<real>{}.store(states + turned<real>(n, v), state);
            }
    }

    void run_step() const {
        split_rows(in.batch, in.tiles(), in.useful_threads(),
                   [&](int64_t row, int64_t first, int64_t last) {
            const FlushDenormals flush;
            for_each_tile<real>(first, last, in.channels, [&](int64_t channel, auto lanes) {
                in.hold ? step<true>(row, channel, lanes) : step<false>(row, channel, lanes);
            });
        });
    }

    void run() const {
        if (in.length == 1 && !in.lengths && !keep) return run_step();
        const int64_t threads = in.useful_threads();
        turn_rates(in, threads);
        split_rows(in.batch, in.tiles(), threads, [&](int64_t row, int64_t first, int64_t last) {
            const FlushDenormals flush;
            const auto for_each = [&](const auto &body) {
                for_each_tile<real>(first, last, in.channels, body);
            };
            for_each([&](int64_t channel, auto lanes) { begin(row, channel, lanes); });
            for (int64_t number = 0; number < blocks_of(in.length_of(row)); ++number)
                for_each([&](int64_t channel, auto lanes) { run(row, number, channel, lanes); });
            for_each([&](int64_t channel, auto lanes) { end(row, channel, lanes); });
        });
    }
};

template <typename real>
int forward(const Inputs<real> &in, real *y, real *new_state, real *states, bool keep) {
    if (const int status = in.status()) return status;
    /* The workspace: rates, and behind them the states that are not kept. */
    if (!keep && in.rates) states = in.rates + in.turned_size();
    Forward<real>{in, y, new_state, states, keep}.run();
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace selective
}  // namespace threefold

#define DEFINE(real, suffix)                                                                       \
    int threefold_selective_scan_forward_##suffix(                                                 \
        real *y, real *new_state, real *states, real *workspace, const real *x, const real *delta, \
        const real *A, const real *B, const real *C, const real *D, const real *gate,              \
        const real *delta_bias, const real *state, const int64_t *lengths, int64_t batch,          \
        int64_t length, int64_t channels, int64_t size, int64_t x_stride, int64_t delta_stride,    \
        int64_t B_stride, int64_t C_stride, int64_t gate_stride, int64_t softplus, int64_t hold,   \
        int64_t keep, int64_t threads) {                                                           \
        return threefold::selective::forward<real>(                                                \
            {{x, x_stride}, {delta, delta_stride}, {B, B_stride}, {C, C_stride},                   \
             {gate, gate_stride}, A, D, delta_bias, state, lengths, batch, length, channels, size, \
             softplus != 0, hold != 0, threads, workspace},                                        \
            y, new_state, states, keep != 0);                                                      \
    }
THREEFOLD_FOR_BOTH(DEFINE)
