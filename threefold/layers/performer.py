"""Performer:  o_i = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j),
φ(x) = e^{Wx − |x|²/2}/√M,  W random with orthogonal rows:  E φ(q)·φ(k) = e^{q·k},  x ← x/K^¼.

Softmax attention in expectation, by positive random features, so that the past is a matrix.
Choromanski et al. 2021, "Rethinking Attention with Performers" (FAVOR+).
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.layers.attention_parts.heads import Heads
from threefold.layers.initialisation import orthogonal_gaussians
from threefold.layers.mixer import Mixer
from threefold.layers.positions import advance_position, make_positions
from threefold.layers.precision import upcast
from threefold.memory.linear.recurrence import recur
from threefold.memory.linear.stabiliser import stabilise
from threefold.memory.padding import readable_elements
from threefold.memory.state import State


class Performer(Mixer):
    """FAVOR+ attention; `features` M per head (None: K ln K), drawn by constructor and `redraw`.

    Features are e^{Wx − |x|²/2 − m} + `eps`, so that a sum of them is never 0.  For a query m is
    its own largest entry of Wx.  For keys the authors take the largest of the whole sequence, which
    looks ahead; causal, it is the largest so far, carried in the state, and the memory is scaled
    down whenever it rises.
    Positions (rotary by default) act before the features; the paper adds them to its
    inputs.  Causal: step, chunk and parallel, a state of M (K + 1) per head.  Not causal: parallel,
    no state.
    """

    remembers: ClassVar[str] = "adds up all elements, and none of them fades"
    gate_parameters: ClassVar[tuple[str, ...]] = ("heads.query", "heads.key")

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        features: int | None = None,
        causal: bool = True,
        positions: str = "rotary",
        bias: bool = False,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(width)
        self.heads = Heads(width, heads=heads, bias=bias)
        self.positions = make_positions(positions, width, self.heads.heads)
        if self.positions.bias is not None:
            raise ThreefoldError(
                f"{self.name}: positions {positions!r} act on scores, which are never formed; "
                "choose rotary, sinusoidal, binary or none"
            )
        self.eps = eps
        size = self.heads.size
        if features is None:
            features = max(1, int(size * math.log(size)))
        self.random: Tensor
        self.register_buffer("random", torch.empty(self.heads.heads, features, size))
        self.redraw()
        self.carries(
            memory=(self.heads.heads, features, size + 1), maximum=(self.heads.heads,), position=()
        )
        if not causal:
            self.causal, self.forms = False, ("parallel",)

    def redraw(self) -> None:
        """Draw new random features; states written with the old ones become invalid."""
        self.random.copy_(orthogonal_gaussians(self.random))

    def exponents(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """W x − |x|²/2 [B, L, H, M] of x [B, L, H, K], and the largest entry of W x [B, L, H]."""
        x = upcast(x) * x.shape[-1] ** -0.25
        product = torch.einsum("blhk,hmk->blhm", x, upcast(self.random))
        largest = product.detach().amax(-1)
        return product.sub_(x.square().sum(-1, True) / 2), largest

    def features(self, exponents: Tensor, maximum: Tensor) -> Tensor:
        """e^{u − m} + ε; in place where possible: these are the largest tensors."""
        return (exponents - maximum.unsqueeze(-1)).exp_() + self.eps

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        start = (
            state["position"] if self.causal else torch.zeros_like(x[:, 0, 0], dtype=torch.int64)
        )
        query, key, value = self.heads(self.positions(x, start, lengths))
        query, key = self.positions.rotate(query, key, start)
        query = self.features(*self.exponents(query))
        # The normaliser is one more column of the memory, written with ones.
        value = F.pad(upcast(value), (0, 1), value=1.0)
        if self.causal:
            out, after = self.recur(query, key, value, state, form, lengths)
        else:
            out, after = self.attend_to_all(query, key, value, lengths), {}
        total = out[..., -1:]
        out = out[..., :-1] / (total + (total == 0))  # 0 only where a row has no element
        return self.heads.join(out.to(x.dtype)), after

    def recur(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: State,
        form: str,
        lengths: Tensor | None,
    ) -> tuple[Tensor, State]:
        """The causal sums, relative to the largest exponent so far."""
        exponents, largest = self.exponents(key)
        empty = _empty(state["memory"])
        gates = stabilise(
            torch.zeros_like(largest), largest, state["maximum"], lengths, empty=empty
        )
        out, memory = recur(
            query,
            self.features(exponents, gates.maxima),
            value,
            log_decay=gates.log_decay,
            state=state["memory"],
            form=form,
            lengths=lengths,
        )
        return out, {
            "memory": memory,
            "maximum": gates.maximum.masked_fill(_empty(memory), 0),
            "position": advance_position(state["position"], value.shape[1], lengths),
        }

    def attend_to_all(
        self, query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None
    ) -> Tensor:
        """The sums over all real elements, relative to the largest exponent of a row's head."""
        exponents, largest = self.exponents(key)
        if lengths is not None:
            real = readable_elements(lengths, key.shape[1]).unsqueeze(-1)
            largest = largest.masked_fill(~real, -torch.inf)
            value = value * real.unsqueeze(-1)
        written = self.features(exponents, largest.amax(1, keepdim=True))
        memory = torch.einsum("blhm,blhv->bhmv", written, value)
        return torch.einsum("blhm,bhmv->blhv", query, memory)


def _empty(memory: Tensor) -> Tensor:
    return memory[..., -1].sum(-1) == 0
