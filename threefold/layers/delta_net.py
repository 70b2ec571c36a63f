"""DeltaNet:  S = (I − β k kᵀ) S₋ + β k⊗v,  o = Sᵀq,  with keys of unit length and β = σ(W x).

The value stored under a key is replaced by the new value, by a fraction β, instead of added to.
Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length".
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from threefold.layers.convolution import ConvolvedHeads
from threefold.layers.heads import choose_heads, expand_width
from threefold.layers.initialisation import initialise_linears
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.norms import RMSNorm, l2_normalize
from threefold.layers.precision import upcast
from threefold.memory.linear.recurrence import recur
from threefold.memory.state import State


class DeltaNet(Mixer):
    """The DeltaNet layer: short convolutions with SiLU, unit queries and keys, RMS norm per head.

    `negative_eigenvalues` doubles β, so that an association can be flipped, not only erased.
    With `taps` = 0 there is no convolution; SiLU stays, as in the authors' code.
    """

    remembers: ClassVar[str] = "replaces what it stored under a key, but nothing fades"
    gate_parameters: ClassVar[tuple[str, ...]] = ("strength",)

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        expand_key: float = 1.0,
        expand_value: float = 1.0,
        taps: int = 4,
        negative_eigenvalues: bool = False,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(width)
        keys, values = expand_width(width, expand_key), expand_width(width, expand_value)
        self.heads = choose_heads(keys, heads, 128)
        key_size, value_size = keys // self.heads, values // choose_heads(values, self.heads, 128)
        self.strongest = 2.0 if negative_eigenvalues else 1.0
        self.convolved = ConvolvedHeads(width, (self.heads,) * 3, (keys, keys, values), taps=taps)
        self.strength = Linear(width, self.heads, bias=False)
        self.norm = RMSNorm(value_size, eps)
        self.out = Linear(values, width, bias=False)
        self.carries(memory=(self.heads, key_size, value_size), conv=self.convolved.state_shape)
        initialise_linears(self)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        query, key, value, conv = self.convolved(x, state["conv"], lengths)
        out, memory = recur(
            l2_normalize(query) * query.shape[-1] ** -0.5,
            l2_normalize(key),
            value,
            strength=self.strongest * torch.sigmoid(upcast(self.strength(x))),
            state=state["memory"],
            form=form,
            lengths=lengths,
        )
        return self.out(self.norm(out).flatten(-2)), {"memory": memory, "conv": conv}
