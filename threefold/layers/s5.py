"""S5:  s = e^{Δa}⊙s₋ + B̄ x,  y = 2 Re(C s) + D⊙x,  out = g⊙σ(W g),  g = gelu(y).

One filter with many inputs and outputs instead of one per channel, run as a scan.
Smith, Warrington & Linderman 2023, "Simplified State Space Layers for Sequence Modeling".
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.checks import check_dropout
from threefold.layers.linear import Linear
from threefold.layers.precision import upcast
from threefold.layers.state_space_mixer import (
    Discretised,
    check_delta_range,
    check_poles,
    count_pairs,
)
from threefold.memory.discretisation import (
    check_delta,
    check_method,
    check_rate,
    discretise_diagonal,
)
from threefold.memory.hippo import normal_plus_low_rank
from threefold.memory.linear.diagonal import diagonal_recurrence, multiply_complex
from threefold.memory.state import State


class S5(Discretised[tuple[Tensor, Tensor]]):
    """The simplified state space; `state_size` counts both numbers of each conjugate pair.

    a starts as the normal part of HiPPO-LegS in `blocks` copies, with one Δ per entry of the state.
    B and C start as random maps, not multiplied by the eigenvectors of LegS: these are unitary, so
    the distribution is the same.
    """

    slow: ClassVar[tuple[str, ...]] = ("delta_log", "decay_log", "frequency")
    gate_parameters: ClassVar[tuple[str, ...]] = ("delta_log", "decay_log", "frequency")

    def __init__(
        self,
        width: int,
        *,
        state_size: int = 64,
        blocks: int = 1,
        method: str = "zero_order_hold",
        delta_range: tuple[float, float] = (0.001, 0.1),
        rate: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width)
        if blocks < 1 or state_size % blocks:
            raise ThreefoldError(
                f"S5: state_size={state_size} and blocks={blocks}, expected blocks to divide it"
            )
        count_pairs(self.name, state_size // blocks)
        check_method(method, self.name)
        check_dropout(self.name, dropout=dropout)
        check_delta_range(self.name, delta_range)
        self.method, self.dropout = method, dropout
        self.rate = check_rate(rate, self.name)
        poles = normal_plus_low_rank(state_size // blocks)[0].repeat(blocks)
        pairs = state_size // 2
        low, high = (math.log(limit) for limit in delta_range)
        self.delta_log = nn.Parameter(torch.empty(pairs).uniform_(low, high))
        self.decay_log = nn.Parameter(torch.log(-poles.real).float())
        self.frequency = nn.Parameter(poles.imag.float())
        self.input = Linear(width, 2 * pairs, bias=False)
        self.read = Linear(2 * pairs, width, bias=False)
        self.skip = nn.Parameter(torch.randn(width))
        self.gate = Linear(width, width)
        nn.init.normal_(self.input.weight, std=(2 * width) ** -0.5)
        nn.init.normal_(self.read.weight, std=pairs**-0.5)
        self.carries(memory=(pairs, 2))

    def discretise(self) -> tuple[Tensor, Tensor]:
        """e^{Δa} and B̄/B, as planes [2, N]."""
        poles = torch.complex(-torch.exp(self.decay_log.double()), self.frequency.double())
        delta = torch.exp(self.delta_log.double()) / self.rate
        both = discretise_diagonal(poles.unsqueeze(-1), delta, self.method)
        dtype = upcast(self.delta_log).dtype
        factor, gain = (torch.stack([z.real, z.imag]).squeeze(-1).to(dtype) for z in both)
        return factor, gain

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        decay, gain = self.derive()
        write = multiply_complex(gain, torch.unflatten(upcast(self.input(x)), -1, (2, -1)))
        memories, memory = diagonal_recurrence(
            decay, write, state["memory"].mT, form=form, lengths=lengths
        )
        # Re(C s) = Re C Re s − Im C Im s: the sign is the weight's.
        y = 2 * self.read(memories.flatten(-2).to(x.dtype)) + self.skip * x
        y = F.dropout(F.gelu(y), self.dropout, self.training)
        return y * torch.sigmoid(self.gate(y)), {"memory": memory.mT.contiguous()}

    def check_loaded(self) -> None:
        """Raise an error if parameters loaded from a file make no stable filter."""
        check_delta(torch.exp(self.delta_log.detach().double()) / self.rate, self.name)
        check_poles(self.name, self.decay_log, self.frequency)
