"""Performer:  o_i = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j),
φ(x) = e^{Wx − |x|²/2}/√M,  W random with orthogonal rows:  E φ(q)·φ(k) = e^{q·k},  x ← x/K^¼.

Softmax attention in expectation, by positive random features, so that the past is a matrix.
Choromanski et al. 2021, "Rethinking Attention with Performers" (FAVOR+).
"""

from __future__ import annotations

import math

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

# The authors add this to every feature, so that a sum of them is never 0.
EPSILON = 1e-6


class Performer(Mixer):
    """FAVOR+ attention; `features` M per head (None: K ln K), drawn by constructor and `redraw`.

    Features are e^{…−m}.  For a query m is its own largest exponent, which cancels.  For keys the
    authors take the largest of the whole sequence, which looks ahead; causal, it is the largest so
    far, carried in the state, and the memory is scaled down whenever it rises.
    Positions (rotary by default) act before the features; the paper adds them to its
    inputs.  Causal: step, chunk and parallel, a state of M (K + 1) per head.  Not causal: parallel,
    no state.
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int | None = None,
        features: int | None = None,
        causal: bool = True,
        positions: str = "rotary",
        bias: bool = False,
    ) -> None:
        super().__init__(width)
        self.heads = Heads(width, heads=heads, bias=bias)
        self.positions = make_positions(positions, width, self.heads.heads)
        if self.positions.bias is not None:
            raise ThreefoldError(
                f"{self.name}: positions {positions!r} act on scores, which are never formed; "
                "choose rotary, sinusoidal, binary or none"
            )
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

    def exponents(self, x: Tensor) -> Tensor:
        """W x − |x|²/2 [B, L, H, M] of x [B, L, H, K]."""
        x = upcast(x) * x.shape[-1] ** -0.25
        product = torch.einsum("blhk,hmk->blhm", x, upcast(self.random))
        return product.sub_(x.square().sum(-1, True) / 2)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        start = (
            state["position"] if self.causal else torch.zeros_like(x[:, 0, 0], dtype=torch.int64)
        )
        query, key, value = self.heads(self.positions(x, start, lengths))
        query, key = map(self.exponents, self.positions.rotate(query, key, start))
        query = features(query, query.detach().amax(-1, keepdim=True))
        # The normaliser is one more column of the memory, written with ones.
        value = F.pad(upcast(value), (0, 1), value=1.0)
        if self.causal:
            out, after = self.recur(query, key, value, state, form, lengths)
        else:
            out, after = self.whole(query, key, value, lengths), {}
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
        # On an empty memory any scale is right: there the maximum is below every exponent.
        lowest = torch.finfo(key.dtype).min / 2
        maximum = state["maximum"].masked_fill(_empty(state["memory"]), lowest)
        largest = key.detach().amax(-1)
        gates = stabilise(torch.zeros_like(largest), largest, maximum, lengths)
        out, memory = recur(
            query,
            features(key, gates.maxima.unsqueeze(-1)),
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

    def whole(self, query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None) -> Tensor:
        """The sums over all real elements, relative to the largest exponent of a row's head."""
        if lengths is not None:
            real = readable_elements(lengths, key.shape[1])
            key = key.masked_fill(~real[:, :, None, None], -torch.inf)
            value = value * real[:, :, None, None]
        written = features(key, key.detach().amax((1, 3), keepdim=True))
        memory = torch.einsum("blhm,blhv->bhmv", written, value)
        return torch.einsum("blhm,bhmv->blhv", query, memory)


def features(exponents: Tensor, maximum: Tensor) -> Tensor:
    """e^{u − m} + ε; in place where possible: these are the largest tensors."""
    return (exponents - maximum).exp_() + EPSILON


def _empty(memory: Tensor) -> Tensor:
    return memory[..., -1].sum(-1) == 0
