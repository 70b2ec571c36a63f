"""minLSTM:  h = f′⊙h₋ + i′⊙h̃,  f′ = f/(f+i),  i′ = i/(f+i),  f, i = σ(W x + b),  h̃ = g(W x + b).

An LSTM without recurrent matrices, its two gates made to add up to one; linear in h.
Feng et al. 2024, "Were RNNs All We Needed?".
"""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from threefold.layers.linear import Linear
from threefold.layers.min_gru import positive
from threefold.layers.mixer import Mixer
from threefold.layers.precision import upcast
from threefold.memory.linear.diagonal import blend
from threefold.memory.state import State


class MinLSTM(Mixer):
    """The minimal LSTM in its positive (log-space) version; `positive=False` takes h̃ = W x + b.

    i′ = σ(log i − log f), so that neither gate is divided by a sum that may be 0.
    """

    gate_parameters: ClassVar[tuple[str, ...]] = ("forget", "write")

    def __init__(
        self, width: int, *, expand: int = 1, positive: bool = True, forget_bias: float = 1.0
    ) -> None:
        super().__init__(width)
        channels = expand * width
        self.positive = positive
        self.forget = Linear(width, channels)
        self.write = Linear(width, channels)
        self.candidate = Linear(width, channels)
        self.out = Linear(channels, width, bias=False)
        self.carries(memory=(channels,))
        nn.init.constant_(self.forget.bias, forget_bias)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        candidate = upcast(self.candidate(x))
        if self.positive:
            candidate = positive(candidate)
        logit = F.softplus(-upcast(self.forget(x))) - F.softplus(-upcast(self.write(x)))
        y, memory = blend(candidate, logit, state["memory"], form=form, lengths=lengths)
        return self.out(y.to(x.dtype)), {"memory": memory}
