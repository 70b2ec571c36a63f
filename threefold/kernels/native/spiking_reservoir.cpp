/* v_t = a v_{t−1} + b (I_t + E_t + J_t + I_b),   a spike and v_t = reset where v_t ≥ threshold
 *
 * Leaky integrate-and-fire neurons with excitatory currents E, inhibitory currents J and delayed
 * synapses, whose efficacy may depend on the spikes before. Synapses are stored by the neuron that
 * sends, so that a step costs its neurons and the synapses of those that spike. Threads divide the
 * rows of the batch. CMake compiles this file without fused multiply-add: rounding as in the plain
 * version gives the same spikes, where one that differs would change all that follow.
 */
#include "common.h"
#include "denormals.h"

namespace threefold {
namespace spiking_reservoir {
namespace {

template <typename real>
struct Synapses {
    const real *weights;
    const int32_t *targets, *delays;
    const int64_t *starts;
    const real *utilisation, *recovery, *facilitation;
};

template <typename real>
struct Constants {
    real leak, gain, background, threshold, reset, excitatory, inhibitory, trace;
};

template <typename real>
struct Inputs {
    const real *drive;
    Synapses<real> synapses;
    const real *inhibitory, *periods;
    int64_t batch, length, units, count, slots, synaptic, dynamic, threads;
    Constants<real> constants;

    int status() const {
        if (batch < 0 || length < 0 || units < 1 || count < 0 || slots < 1) return THREEFOLD_BAD_SIZE;
        if (synapses.starts[0] != 0 || synapses.starts[units] != count) return THREEFOLD_BAD_SIZE;
        for (int64_t unit = 0; unit < units; ++unit)
            if (synapses.starts[unit] > synapses.starts[unit + 1]) return THREEFOLD_BAD_SIZE;
        for (int64_t i = 0; i < count; ++i)
            if (synapses.targets[i] < 0 || synapses.targets[i] >= units || synapses.delays[i] < 1 ||
                synapses.delays[i] > slots)
                return THREEFOLD_BAD_SIZE;
        return THREEFOLD_OK;
    }
};

/* What a row carries from step to step. */
template <typename real>
struct State {
    real *potential, *refractory, *current, *pending, *trace, *since, *use, *resource;

    State row(int64_t number, int64_t units, int64_t slots, int64_t synapses) const {
        const int64_t n = number * units, s = number * synapses;
        return {potential + n,  refractory + n, current + 2 * n, pending + 2 * slots * n,
                trace + n,      since + n,      use + s,         resource + s};
    }
};

/* x^n by squaring, in the order of the plain version. */
template <typename real>
inline Vector<real> power(Vector<real> x, int64_t n) {
    Vector<real> result = splat<real>(1);
    for (; n > 0; n >>= 1) {
        if (n & 1) result *= x;
        x *= x;
    }
    return result;
}

template <typename real>
struct Row {
    using V = Vector<real>;
    const Inputs<real> &in;
    const State<real> state;

    /* One step of all neurons; `slot` has what arrives now. */
    void neurons(const real *drive, real *slot, real *traces, real *spikes) const {
        const Constants<real> &c = in.constants;
        const V zero = {}, one = splat<real>(1), reset = splat<real>(c.reset);
        for_each_vector<real>(0, vectors_of<real>(in.units), in.units, [&](int64_t n, auto lanes) {
            real *excitatory = state.current + n, *inhibitory = excitatory + in.units;
            V e = c.excitatory * lanes.load(excitatory) + lanes.load(slot + n);
            const V j = c.inhibitory * lanes.load(inhibitory) + lanes.load(slot + in.units + n);
            if (in.synaptic) e += lanes.load(drive + n);
            V total = e + j + c.background;
            if (!in.synaptic) total += lanes.load(drive + n);
            const V waiting = lanes.load(state.refractory + n);
            V v = c.leak * lanes.load(state.potential + n) + c.gain * total;
            v = waiting > zero ? reset : v;
            const V spike = v >= c.threshold ? one : zero;
            const V left = waiting > zero ? waiting - one : zero;
            const V since = lanes.load(state.since + n);
            const V trace = c.trace * lanes.load(state.trace + n) + spike;
            lanes.store(state.potential + n, spike > zero ? reset : v);
            lanes.store(state.refractory + n, spike > zero ? lanes.load(in.periods + n) : left);
            /* Where there is a spike, `send` needs the steps since the last one, and sets it. */
            lanes.store(state.since + n, (spike <= zero) & (since > zero) ? since + one : since);
            lanes.store(state.trace + n, trace);
            lanes.store(traces + n, trace);
            lanes.store(spikes + n, spike);
            lanes.store(excitatory, e);
            lanes.store(inhibitory, j);
            lanes.store(slot + n, zero);
            lanes.store(slot + in.units + n, zero);
        });
    }

    /* The efficacies of synapses i, i + 1 … at a spike. */
    template <typename Lanes>
    V efficacy(int64_t i, int64_t since, Lanes lanes) const {
        const Synapses<real> &s = in.synapses;
        const V weight = lanes.load(s.weights + i);
        if (!in.dynamic) return weight;
        const V one = splat<real>(1), base = lanes.load(s.utilisation + i);
        V use = base, resource = one;
        if (since > 0) {
            const V u = lanes.load(state.use + i), r = lanes.load(state.resource + i);
            use = base + u * (one - base) * power<real>(lanes.load(s.facilitation + i), since);
            resource = one + (r - u * r - one) * power<real>(lanes.load(s.recovery + i), since);
        }
        lanes.store(state.use + i, use);
        lanes.store(state.resource + i, resource);
        return weight * use * resource;
    }

    /* A spike of a neuron, on its way to all neurons that it reaches. */
    void send(int64_t unit, int64_t now) const {
        const int64_t first = in.synapses.starts[unit];
        const int64_t count = in.synapses.starts[unit + 1] - first;
        const int64_t since = int64_t(state.since[unit]);
        real *line = state.pending + (in.inhibitory[unit] > 0 ? in.units : 0);
        for_each_vector<real>(0, vectors_of<real>(count), count, [&](int64_t offset, auto lanes) {
            const V arriving = efficacy(first + offset, since, lanes);
            const int64_t here = std::min<int64_t>(lanes_of<real>, count - offset);
            for (int64_t lane = 0; lane < here; ++lane) {
                const int64_t i = first + offset + lane;
                int64_t slot = now + in.synapses.delays[i];
                slot = slot < in.slots ? slot : slot - in.slots;
                line[slot * 2 * in.units + in.synapses.targets[i]] += arriving[lane];
            }
        });
        state.since[unit] = 1;
    }

    void run(const real *drive, real *traces, real *spikes) const {
        const int64_t size = 2 * in.units;
        int64_t now = 0;
        for (int64_t t = 0; t < in.length; ++t) {
            const int64_t e = t * in.units;
            neurons(drive + e, state.pending + now * size, traces + e, spikes + e);
            for (int64_t unit = 0; unit < in.units; ++unit)
                if (spikes[e + unit] > 0) send(unit, now);
            now = now + 1 == in.slots ? 0 : now + 1;
        }
        /* The first slot of a carried state is what arrives next. */
        std::rotate(state.pending, state.pending + now * size, state.pending + in.slots * size);
    }
};

template <typename real>
int run(const Inputs<real> &in, const State<real> &state, real *traces, real *spikes) {
    if (const int status = in.status()) return status;
    const int64_t work = in.batch * in.length * in.units;
    split(in.batch, useful_threads(in.threads, work), [&](int64_t begin, int64_t end) {
        const FlushDenormals flush;
        for (int64_t row = begin; row < end; ++row) {
            const int64_t e = row * in.length * in.units;
            const Row<real> one{in, state.row(row, in.units, in.slots, in.dynamic ? in.count : 0)};
            one.run(in.drive + e, traces + e, spikes + e);
        }
    });
    return THREEFOLD_OK;
}

}  // namespace
}  // namespace spiking_reservoir
}  // namespace threefold

#define DEFINE(real, suffix)                                                                       \
    int threefold_spiking_reservoir_##suffix(                                                      \
        real *traces, real *spikes, real *potential, real *refractory, real *current,              \
        real *pending, real *trace, real *since, real *use, real *resource, const real *drive,     \
        const real *weights, const int32_t *targets, const int32_t *delays, const int64_t *starts, \
        const real *utilisation, const real *recovery, const real *facilitation,                   \
        const real *inhibitory, const real *periods, int64_t batch, int64_t length, int64_t units, \
        int64_t count, int64_t slots, int64_t synaptic, int64_t dynamic, int64_t threads,          \
        double leak, double gain, double background, double threshold, double reset,               \
        double excitatory_decay, double inhibitory_decay, double trace_decay) {                    \
        return threefold::spiking_reservoir::run<real>(                                            \
            {drive,                                                                                \
             {weights, targets, delays, starts, utilisation, recovery, facilitation},              \
             inhibitory, periods, batch, length, units, count, slots, synaptic, dynamic, threads,  \
             {real(leak), real(gain), real(background), real(threshold), real(reset),              \
              real(excitatory_decay), real(inhibitory_decay), real(trace_decay)}},                 \
            {potential, refractory, current, pending, trace, since, use, resource}, traces,        \
            spikes);                                                                               \
    }
THREEFOLD_FOR_BOTH(DEFINE)
