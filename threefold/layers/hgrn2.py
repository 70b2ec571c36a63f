"""HGRN-2:  S = Diag(α) S₋ + (1−α)⊗v,  o = Sᵀq,  α = γ + (1−γ) σ(W x),  γ rising with depth.

A gated linear network whose state is expanded by an outer product, with the key 1−α.
Qin et al. 2024, "HGRN2: Gated Linear RNNs with State Expansion".
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.heads import choose_heads, split_heads
from threefold.layers.initialisation import initialise_linears
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.norms import RMSNorm
from threefold.layers.precision import upcast
from threefold.memory.linear.recurrence import recur
from threefold.memory.state import State


class HGRN2(Mixer):
    """The HGRN-2 layer of flash-linear-attention: SiLU on the output gate q, one RMS norm.

    Heads have `expand` channels, or the nearest number that divides the width.
    In the paper the lower bounds γ of all layers are one cumulative softmax that the model learns.
    Here each layer learns its own, γ = σ(bound) for every channel, from the same initial value,
    layer/depth; the first layer has γ = 0, as in the paper.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("bound",)
    gate_parameters: ClassVar[tuple[str, ...]] = ("forget",)

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        expand: int = 128,
        eps: float = 1e-5,
        layer: int = 0,
        depth: int = 1,
    ) -> None:
        super().__init__(width)
        if not 0 <= layer < depth:
            raise ThreefoldError(
                f"{self.name}: layer={layer} of depth={depth}, expected 0 ≤ layer < depth"
            )
        self.heads = choose_heads(width, heads, expand)
        size = width // self.heads
        self.query = Linear(width, width, bias=False)
        self.forget = Linear(width, width, bias=False)
        self.value = Linear(width, width, bias=False)
        self.norm = RMSNorm(width, eps)
        self.out = Linear(width, width, bias=False)
        odds = layer / (depth - layer)
        self.bound = nn.Parameter(torch.full((width,), math.log(odds))) if layer else None
        self.carries(memory=(self.heads, size, size))
        initialise_linears(self)

    def keep(self, forget: Tensor) -> tuple[Tensor, Tensor]:
        """log α and 1 − α = (1−γ)(1−σ(forget)), both without cancellation."""
        log_decay, key = F.logsigmoid(forget), forget.neg().sigmoid()
        if self.bound is None:
            return log_decay, key
        bound = upcast(self.bound)
        log_decay = torch.logaddexp(F.logsigmoid(bound), F.logsigmoid(-bound) + log_decay)
        return log_decay.clamp(max=0), key * bound.neg().sigmoid()

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        log_decay, key = self.keep(upcast(self.forget(x)))
        query, key, value, log_decay = (
            split_heads(field, self.heads)
            for field in (F.silu(self.query(x)), key, self.value(x), log_decay)
        )
        out, memory = recur(
            query * query.shape[-1] ** -0.5,
            key,
            value,
            log_decay=log_decay,
            state=state["memory"],
            form=form,
            lengths=lengths,
        )
        return self.out(self.norm(out.flatten(-2))), {"memory": memory}
