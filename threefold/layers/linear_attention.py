"""Linear attention:  S = S₋ + φ(k)⊗v,  z = z₋ + φ(k),  o = Sᵀφ(q) / (z·φ(q)).

Attention whose weights are products of features, so that the past is a matrix that never decays.
Katharopoulos et al. 2020, "Transformers are RNNs".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from threefold.errors import ThreefoldError, nearest
from threefold.layers.heads import choose_heads, split_heads
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.norms import RMSNorm
from threefold.layers.precision import upcast
from threefold.memory.linear.recurrence import recur
from threefold.memory.state import State


class LinearAttention(Mixer):
    """The layer as published (elu + 1, normalised); also other features, and no normaliser.

    The denominator is max(|z·φ(q)|, floor).  elu, relu: 1e-6 (the authors add it), so that the
    output is 0 where all features are 0.  polynomial: 1/2, the smallest possible weight, so that
    it only guards against rounding.  identity: 1, as in mLSTM; its weights can be negative, so the
    quotient is not an average, and loses precision where they cancel.  Without `normalise` the
    output would grow with the length, so each head goes through an RMS norm (Qin et al. 2022).
    """

    remembers: ClassVar[str] = "adds up all elements, and none of them fades"
    gate_parameters: ClassVar[tuple[str, ...]] = ("query", "key")

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        key_size: int | None = None,
        feature_map: str = "elu",
        normalise: bool = True,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(width)
        if feature_map not in FEATURES:
            raise ThreefoldError(
                f"{self.name}: unknown feature_map {feature_map!r}; "
                f"{nearest(feature_map, FEATURES)}"
            )
        self.heads = choose_heads(width, heads, 64)
        value_size = width // self.heads
        if key_size is None:
            # The polynomial's features grow with the square; 16 as in Based (Arora et al. 2024).
            key_size = 16 if feature_map == "polynomial" else value_size
        self.feature_map = feature_map
        self.query = Linear(width, self.heads * key_size)
        self.key = Linear(width, self.heads * key_size)
        self.value = Linear(width, width)
        self.norm = None if normalise else RMSNorm(value_size, eps)
        self.out = Linear(width, width)
        features = FEATURES[feature_map](torch.zeros(key_size)).shape[-1]
        self.carries(memory=(self.heads, features, value_size + normalise))

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        query, key, value = (
            upcast(split_heads(f(x), self.heads)) for f in (self.query, self.key, self.value)
        )
        features = FEATURES[self.feature_map]
        if self.norm is None:
            # z is one more column of the memory, written with ones.
            value = F.pad(value, (0, 1), value=1.0)
        out, memory = recur(
            features(query), features(key), value, state=state["memory"], form=form, lengths=lengths
        )
        if self.norm is None:
            total = out[..., -1:].abs().clamp(min=FLOORS[self.feature_map])
            out = (out[..., :-1] / total).to(x.dtype)
        else:
            out = self.norm(out.to(x.dtype))
        return self.out(out.flatten(-2)), {"memory": memory}


def identity(x: Tensor) -> Tensor:
    """φ(x)·φ(y) = x·y/√size: x itself, with attention's scale."""
    return x / math.sqrt(math.sqrt(x.shape[-1]))


def elu(x: Tensor) -> Tensor:
    """elu(x) + 1, as a sum without cancellation: x + 1 above 0, eˣ below."""
    return x.relu() + x.clamp(max=0).exp()


def polynomial(x: Tensor) -> Tensor:
    """φ(x)·φ(y) = 1 + s + s²/2, s = x·y/√size: exact, in 1 + size + size (size + 1)/2 features."""
    x = identity(x)
    row, column = torch.triu_indices(x.shape[-1], x.shape[-1], device=x.device)
    pairs = x[..., row] * x[..., column]
    pairs = torch.where(row == column, pairs * math.sqrt(0.5), pairs)
    return torch.cat([torch.ones_like(x[..., :1]), x, pairs], -1)


FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": identity,
    "elu": elu,
    "relu": F.relu,
    "polynomial": polynomial,
}
FLOORS = {"identity": 1.0, "elu": 1e-6, "relu": 1e-6, "polynomial": 0.5}
