"""h = λ⊙h₋ + W x,  y = V h: an exponential mean of the past, with one rate for each channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import threefold
from threefold.layers.mixer import Mixer
from threefold.layers.precision import upcast
from threefold.memory.state import State


class LeakyMean(Mixer):
    """An exponential mean of the past."""

    forms = ("step", "chunk")

    def __init__(self, width: int, *, slowest: float = 3.0) -> None:
        super().__init__(width)
        self.rate = nn.Parameter(torch.linspace(-1.0, slowest, width))
        self.read = nn.Linear(width, width)
        self.write = nn.Linear(width, width)
        self.carries(memory=(width,))

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        inputs, keep = upcast(self.read(x)), torch.sigmoid(upcast(self.rate))
        memory, outputs = state["memory"], []
        for time in range(x.shape[1]):
            after = keep * memory + (1 - keep) * inputs[:, time]
            real = None if lengths is None else (time < lengths).unsqueeze(1)
            memory = after if real is None else torch.where(real, after, memory)
            outputs.append(memory)
        return self.write(torch.stack(outputs, 1).to(x.dtype)), {"memory": memory}


threefold.register_mixer(
    "leaky_mean", LeakyMean, title="Leaky mean", equation="h = λ⊙h₋ + (1−λ)⊙W x,  y = V h"
)
