"""v_t = a v_{t−1} + b (currents_t + I_b),  a spike and v_t = reset where v_t ≥ threshold

Leaky integrate-and-fire neurons with delayed synapses, whose efficacy may follow the spikes
(Markram, Wang & Tsodyks 1998).  The plain version is the definition; the native one rounds in the
same order, so that both give the same spikes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.checks import expected_shapes
from threefold.kernels.dispatch import register_kernel

SpikingState = dict[str, Tensor]
DYNAMICS = ("utilisation", "recovery", "facilitation")


class SpikingWiring(NamedTuple):
    """Neurons and synapses, stored by the neuron that sends; real numbers of one dtype."""

    weights: Tensor  # [E]: current that a spike adds, before u and R
    targets: Tensor  # [E] int32
    delays: Tensor  # [E] int32: 1 … slots steps
    starts: Tensor  # [N+1] int64: the synapses of neuron n are starts[n] … starts[n+1] − 1
    utilisation: Tensor  # [E]: U
    recovery: Tensor  # [E]: e^(−Δ/D) of one step
    facilitation: Tensor  # [E]: e^(−Δ/F) of one step
    inhibitory: Tensor  # [N]: 1 for inhibitory neurons, else 0
    periods: Tensor  # [N]: refractory steps


class SpikingConstants(NamedTuple):
    """Numbers that all neurons share; the reset is below the threshold."""

    leak: float  # a
    gain: float  # b
    background: float
    threshold: float
    reset: float
    excitatory_decay: float
    inhibitory_decay: float
    trace_decay: float


def state_shapes(units: int, slots: int, dynamic_synapses: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a row's state; without dynamics there are 0 dynamic synapses."""
    neurons, synapses = (units,), (dynamic_synapses,)
    return {
        "potential": neurons,
        "refractory": neurons,  # steps left
        "current": (2, units),  # excitatory and inhibitory
        "pending": (slots, 2, units),  # what arrives in the next step, in the one after it …
        "trace": neurons,  # exponentially filtered spikes
        "since": neurons,  # steps since the last spike; 0: no spike yet
        "use": synapses,  # u and R of each synapse at its last spike
        "resource": synapses,
    }


def expected(
    drive: Tensor, wiring: SpikingWiring, state: SpikingState, dynamic: bool
) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    if drive.ndim != 3 or drive.shape[2] < 1:
        return "drive [B, L, N], N at least 1"
    batch, _, units = drive.shape
    synapses, slots = wiring.weights.shape, state["pending"].shape[1]
    if not (
        wiring.starts.shape == (units + 1,)
        and wiring.targets.shape == wiring.delays.shape == synapses
        and wiring.targets.dtype == wiring.delays.dtype == torch.int32
    ):
        return f"starts [{units + 1}], and int32 targets and delays {list(synapses)}"
    if (
        len(wiring.delays)
        and not 1 <= int(wiring.delays.min()) <= int(wiring.delays.max()) <= slots
    ):
        return f"delays of 1 … {slots} steps, the slots of the state"
    shapes = state_shapes(units, slots, len(wiring.weights) if dynamic else 0)
    fields = [(name, state[name], (batch, *shape)) for name, shape in shapes.items()]
    fields += [(name, getattr(wiring, name), synapses) for name in ("weights", *DYNAMICS)]
    fields += [(name, getattr(wiring, name), (units,)) for name in ("inhibitory", "periods")]
    return expected_shapes(drive, None, *fields)


def native_spiking_reservoir(
    drive: Tensor,
    wiring: SpikingWiring,
    state: SpikingState,
    constants: SpikingConstants,
    synaptic: bool,
    dynamic: bool,
) -> tuple[Tensor, Tensor, SpikingState]:
    """Traces and spikes [B, L, N] by the native kernel, and the state after them."""
    after = {
        name: state[name].clone(memory_format=torch.contiguous_format)
        for name in state_shapes(0, 0, 0)  # in the kernel's order
    }
    traces, spikes = drive.new_empty(drive.shape), drive.new_empty(drive.shape)
    slots = state["pending"].shape[1]
    library.call(
        "spiking_reservoir",
        [traces, spikes, *after.values()],
        [drive, *wiring],
        [*drive.shape, len(wiring.weights), slots, int(synaptic), int(dynamic)],
        constants,
    )
    return traces, spikes, after


def plain_spiking_reservoir(
    drive: Tensor,
    wiring: SpikingWiring,
    state: SpikingState,
    constants: SpikingConstants,
    synaptic: bool,
    dynamic: bool,
) -> tuple[Tensor, Tensor, SpikingState]:
    """Traces and spikes [B, L, N], one row and step after another, and the state after them."""
    after = {name: leaf.clone() for name, leaf in state.items()}
    traces, spikes = drive.new_empty(drive.shape), drive.new_empty(drive.shape)
    for row in range(len(drive)):
        here = {name: leaf[row] for name, leaf in after.items()}  # views, updated in place
        for t, element in enumerate(drive[row]):
            spikes[row, t] = _neurons(element, wiring, here, constants, synaptic)
            for unit in spikes[row, t].nonzero()[:, 0].tolist():
                _send(unit, wiring, here, dynamic)
            traces[row, t] = here["trace"]
    return traces, spikes, after


def _neurons(
    drive: Tensor,
    wiring: SpikingWiring,
    here: SpikingState,
    constants: SpikingConstants,
    synaptic: bool,
) -> Tensor:
    """One step of all neurons: which of them spike."""
    arriving = here["pending"][0].clone()
    here["pending"].copy_(torch.cat([here["pending"][1:], torch.zeros_like(arriving)[None]]))
    excitatory = constants.excitatory_decay * here["current"][0] + arriving[0]
    inhibitory = constants.inhibitory_decay * here["current"][1] + arriving[1]
    excitatory = excitatory + drive if synaptic else excitatory
    here["current"].copy_(torch.stack([excitatory, inhibitory]))
    total = excitatory + inhibitory + constants.background
    total = total if synaptic else total + drive
    potential = constants.leak * here["potential"] + constants.gain * total
    waiting = here["refractory"] > 0
    potential = potential.masked_fill(waiting, constants.reset)
    fired = potential >= constants.threshold
    here["potential"].copy_(potential.masked_fill(fired, constants.reset))
    left = (here["refractory"] - 1).clamp(min=0)
    here["refractory"].copy_(torch.where(fired, wiring.periods, left))
    here["since"].add_((~fired & (here["since"] > 0)).to(drive.dtype))
    spikes = fired.to(drive.dtype)
    here["trace"].copy_(constants.trace_decay * here["trace"] + spikes)
    return spikes


def _send(unit: int, wiring: SpikingWiring, here: SpikingState, dynamic: bool) -> None:
    """A spike of a neuron, on its way to all neurons that it reaches."""
    own = slice(int(wiring.starts[unit]), int(wiring.starts[unit + 1]))
    arriving = wiring.weights[own]
    if dynamic:
        base, since = wiring.utilisation[own], int(here["since"][unit])
        use, resource = base, torch.ones_like(base)
        if since > 0:
            u, r = here["use"][own], here["resource"][own]
            use = base + u * (1 - base) * _power(wiring.facilitation[own], since)
            resource = 1 + (r - u * r - 1) * _power(wiring.recovery[own], since)
        here["use"][own], here["resource"][own] = use, resource
        arriving = arriving * use * resource
    kind = torch.full_like(wiring.targets[own], int(wiring.inhibitory[unit] > 0))
    place = wiring.delays[own] - 1, kind, wiring.targets[own]
    here["pending"].index_put_(tuple(i.long() for i in place), arriving, accumulate=True)
    here["since"][unit] = 1


def _power(x: Tensor, n: int) -> Tensor:
    """x^n by squaring: the same products in any implementation, so the same bits."""
    result = torch.ones_like(x)
    while n > 0:
        result = result * x if n & 1 else result
        x, n = x * x, n >> 1
    return result


register_kernel("spiking_reservoir", "cpu", native_spiking_reservoir)
