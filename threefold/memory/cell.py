"""h_t = cell(x_t + U h_{t−1}): a nonlinear cell and its loop.

A nonlinearity stands between each element and the next, so a whole sequence is a loop too: one
native call where there is a kernel, plain torch elsewhere.  A cell defines only its step; the empty
state is zeros.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from threefold.kernels import ops
from threefold.kernels.autocast import full_precision
from threefold.memory.state import State, memory_dtype

CellParts = tuple[Tensor, ...]  # what a cell carries, each [B, H]; the first is its output

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid, "identity": None}
MAXIMUM = "maximum"


class CellWeights(NamedTuple):
    """What a cell's step reads besides its input and its state."""

    recurrent: Tensor  # [N, G·S, S]: N diagonal blocks, each with its G gates
    # GRU's inner bias, Euler's step or modReLU's bias [1, H], or peepholes [3, H] or [3, H, H].
    extra: Tensor | None = None
    mask: Tensor | None = None  # [B, H], locked dropout of h in the products

    def seen(self, hidden: Tensor) -> Tensor:
        return hidden if self.mask is None else hidden * self.mask

    def product(self, hidden: Tensor, first: int = 0, last: int | None = None) -> Tensor:
        """U h of the gates first … last − 1, [B, gates, H]."""
        blocks, _, size = self.recurrent.shape
        matrix = self.recurrent[:, first * size : None if last is None else last * size]
        if blocks == 1:
            return torch.unflatten(ops.linear(hidden, matrix[0]), -1, (-1, size))
        parts = torch.unflatten(hidden, -1, (blocks, size))
        gates = torch.unflatten(torch.einsum("bns,nos->bno", parts, matrix), -1, (-1, size))
        return gates.transpose(1, 2).flatten(2)


class Cell(ABC):
    """The update of the state's parts by one element, whose inputs are [B, `gates`, H]."""

    gates: ClassVar[int]
    leaves: ClassVar[tuple[str, ...]] = ("hidden",)

    @property
    @abstractmethod
    def kind(self) -> str:
        """The native kernel's name for this cell; empty if there is no kernel."""

    @abstractmethod
    def step(self, inputs: Tensor, parts: CellParts, weights: CellWeights) -> CellParts:
        """The parts after one element."""

    def begin(self, parts: CellParts) -> CellParts:
        """Convert the parts of a state to those of the loop."""
        return parts

    def end(self, parts: CellParts) -> CellParts:
        """Convert the parts of the loop to those of a state."""
        return parts


@dataclass(frozen=True)
class RNNCell(Cell):
    """h = φ(x + U h₋)."""

    gates = 1
    activation: str = "tanh"

    @property
    def kind(self) -> str:
        return f"rnn_{self.activation}"

    def step(self, inputs: Tensor, parts: CellParts, weights: CellWeights) -> CellParts:
        (hidden,) = parts
        (after,) = (inputs + weights.product(weights.seen(hidden))).unbind(1)
        activation = ACTIVATIONS[self.activation]
        return (after if activation is None else activation(after),)


class LSTMCell(Cell):
    """c = f⊙c₋ + i⊙g,  h = o⊙tanh(c)."""

    gates = 4
    leaves = ("hidden", "cell")
    kind = "lstm"

    def step(self, inputs: Tensor, parts: CellParts, weights: CellWeights) -> CellParts:
        hidden, cell = parts
        i, f, g, o = (inputs + weights.product(weights.seen(hidden))).unbind(1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell


@dataclass(frozen=True)
class PeepholeLSTMCell(Cell):
    """The LSTM whose i and f also read c₋, and o the new c, each through a peephole."""

    gates = 4
    leaves = ("hidden", "cell")
    full: bool = False

    @property
    def kind(self) -> str:
        return "" if self.full else "peephole_lstm"

    def step(self, inputs: Tensor, parts: CellParts, weights: CellWeights) -> CellParts:
        hidden, cell = parts
        assert weights.extra is not None
        to_input, to_forget, to_output = weights.extra.unbind(0)
        i, f, g, o = (inputs + weights.product(weights.seen(hidden))).unbind(1)
        i, f = i + _peep(cell, to_input), f + _peep(cell, to_forget)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o + _peep(cell, to_output)) * torch.tanh(cell), cell


def _peep(cell: Tensor, weight: Tensor) -> Tensor:
    return cell * weight if weight.dim() == 1 else ops.linear(cell, weight)


class CoupledLSTMCell(Cell):
    """The LSTM with i = 1 − f: what is forgotten is replaced."""

    gates = 3
    leaves = ("hidden", "cell")
    kind = "coupled_lstm"

    def step(self, inputs: Tensor, parts: CellParts, weights: CellWeights) -> CellParts:
        hidden, cell = parts
        f, g, o = (inputs + weights.product(weights.seen(hidden))).unbind(1)
        # 1 − σ(f) as σ(−f): the difference would cancel where σ(f) is near 1.
        cell = torch.sigmoid(f) * cell + torch.sigmoid(-f) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell


@dataclass(frozen=True)
class GRUCell(Cell):
    """h = z⊙h₋ + (1−z)⊙h̃,  h̃ = tanh(x + U(r⊙h₋)), or tanh(x + r⊙(U h₋ + b)) with `after`.

    With `writes` z is the share of the candidate instead.
    """

    gates = 3
    after: bool = False
    writes: bool = False

    @property
    def kind(self) -> str:
        return "gru" + "_after" * self.after + "_writes" * self.writes

    def step(self, inputs: Tensor, parts: CellParts, weights: CellWeights) -> CellParts:
        (hidden,) = parts
        seen = weights.seen(hidden)
        reset, update = (inputs[:, :2] + weights.product(seen, 0, 2)).unbind(1)
        reset, keep = torch.sigmoid(reset), torch.sigmoid(-update if self.writes else update)
        if self.after:
            assert weights.extra is not None
            read = reset * (weights.product(seen, 2)[:, 0] + weights.extra[0])
        else:
            read = weights.product(reset * seen, 2)[:, 0]
        candidate = torch.tanh(inputs[:, 2] + read)
        return (candidate + keep * (hidden - candidate),)


def refine(forget: Tensor, refinement: Tensor) -> tuple[Tensor, Tensor]:
    """The share of the past g = f² + 2 r f (1−f) of a refined gate, and 1 − g.

    r moves g from f² to 1 − (1−f)²; pre-activations of f and r in, 1 − g without cancellation out.
    """
    f, rest = torch.sigmoid(forget), torch.sigmoid(-forget)
    past = f * (f + 2 * torch.sigmoid(refinement) * rest)
    return past, rest * (rest + 2 * torch.sigmoid(-refinement) * f)


class URLSTMCell(Cell):
    """c = g⊙c₋ + (1−g)⊙n,  h = o⊙tanh(c),  with the refined gate g of f and r."""

    gates = 4
    leaves = ("hidden", "cell")
    kind = "ur_lstm"

    def step(self, inputs: Tensor, parts: CellParts, weights: CellWeights) -> CellParts:
        hidden, cell = parts
        f, r, n, o = (inputs + weights.product(weights.seen(hidden))).unbind(1)
        past, present = refine(f, r)
        cell = past * cell + present * torch.tanh(n)
        return torch.sigmoid(o) * torch.tanh(cell), cell


class URGRUCell(Cell):
    """h = g⊙h₋ + (1−g)⊙n,  n = tanh(x + U(reset⊙h₋)),  with the refined gate g of f and r."""

    gates = 4
    kind = "ur_gru"

    def step(self, inputs: Tensor, parts: CellParts, weights: CellWeights) -> CellParts:
        (hidden,) = parts
        seen = weights.seen(hidden)
        reset, f, r = (inputs[:, :3] + weights.product(seen, 0, 3)).unbind(1)
        read = weights.product(torch.sigmoid(reset) * seen, 3)[:, 0]
        past, present = refine(f, r)
        return (past * hidden + present * torch.tanh(inputs[:, 3] + read),)


class EulerCell(Cell):
    """h = x₀ + U₀ h₋ + ε tanh(x₁ + U₁ h₋): a step of h' = A h + tanh(W h + x), U₀ = I + ε A."""

    gates = 2
    kind = "euler"

    def step(self, inputs: Tensor, parts: CellParts, weights: CellWeights) -> CellParts:
        (hidden,) = parts
        assert weights.extra is not None
        moved, slope = (inputs + weights.product(weights.seen(hidden))).unbind(1)
        return (moved + weights.extra[0] * torch.tanh(slope),)


class ModReLUCell(Cell):
    """h = sign(a)⊙max(|a| + b, 0),  a = x + U h₋."""

    gates = 1
    kind = "rnn_modrelu"

    def step(self, inputs: Tensor, parts: CellParts, weights: CellWeights) -> CellParts:
        (hidden,) = parts
        assert weights.extra is not None
        (a,) = (inputs + weights.product(weights.seen(hidden))).unbind(1)
        size = torch.relu(a.abs() + weights.extra[0])
        return (torch.where(a == 0, 0.0, torch.where(a < 0, -size, size)),)


class SLSTMCell(Cell):
    """c = f c₋ + i z,  n = f n₋ + i,  h = o c/n,  with i = exp(·); it carries c/n and ν = log n.

    c/n = c₋/n₋ + b (z − c₋/n₋) with b = i/n = σ(log i − log f − ν₋): nothing overflows, and no
    gradient is a difference of large numbers, as those of c and n are.  A state stores ν as a
    rounded `maximum` m and a normaliser e^{ν−m} near 1, 0 if empty.  The loop stores ν in two parts
    too, because float32 has only three decimals at 10⁴.
    """

    gates = 4
    leaves = ("hidden", "cell", "normaliser", MAXIMUM)
    kind = "slstm"

    def step(self, inputs: Tensor, parts: CellParts, weights: CellWeights) -> CellParts:
        hidden, cell, high, low = parts
        product = weights.product(weights.seen(hidden))
        z, _, _, o = (inputs + product).unbind(1)
        log_input, forget = (inputs[:, 1:3].double() + product[:, 1:3].double()).unbind(1)
        log_decay = F.logsigmoid(forget) + (high.double() + low.double())
        share = torch.sigmoid(log_input - log_decay).to(cell.dtype)
        cell = cell + share * (torch.tanh(z) - cell)
        return torch.sigmoid(o) * cell, cell, *_in_two(torch.logaddexp(log_decay, log_input), cell)

    def begin(self, parts: CellParts) -> CellParts:
        hidden, cell, normaliser, maximum = parts
        empty = normaliser == 0
        logarithm = normaliser.masked_fill(empty, 1.0).double().log() + maximum.detach().double()
        return hidden, cell, *_in_two(logarithm.masked_fill(empty, -torch.inf), cell)

    def end(self, parts: CellParts) -> CellParts:
        hidden, cell, high, low = parts
        logarithm = high.double() + low.double()
        maximum = high.detach().masked_fill(high == -torch.inf, 0.0)
        return hidden, cell, torch.exp(logarithm - maximum.double()).to(cell.dtype), maximum


def _in_two(x: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """A float64 number rounded to the dtype of `like`, and the remainder, without gradient."""
    high = x.to(like.dtype)
    low = (x - high.double()).detach().masked_fill(high == -torch.inf, 0.0)
    return high, low.to(like.dtype)


@full_precision
def run(
    cell: Cell,
    inputs: Tensor,
    state: State,
    weights: CellWeights,
    form: str,
    lengths: Tensor | None = None,
) -> tuple[Tensor, State]:
    """Inputs [B, L, G·H] after `state`: the hidden states [B, L, H] and the state after them.

    Computed in the memory's dtype.  A state is {"memory": {leaf: [B, H]}}, plus a maximum if any.
    """
    dtype = memory_dtype(inputs.dtype)
    inputs = torch.unflatten(inputs.to(dtype), -1, (cell.gates, -1))
    weights = CellWeights(*(None if w is None else w.to(dtype) for w in weights))  # type: ignore[arg-type]
    given = tuple((state if leaf == MAXIMUM else state["memory"])[leaf] for leaf in cell.leaves)
    parts = cell.begin(given)
    by_kernel = ops.cell_recurrence(
        cell.kind, inputs, *weights, parts=parts, lengths=lengths, form=form
    )
    out, parts = by_kernel or loop(cell, inputs, parts, weights, lengths)
    parts = cell.end(parts)
    if lengths is not None:
        some = (lengths > 0).unsqueeze(-1)
        parts = tuple(torch.where(some, a, b) for a, b in zip(parts, given, strict=True))
    after: State = dict(zip(cell.leaves, parts, strict=True))
    maximum = {MAXIMUM: after.pop(MAXIMUM)} if MAXIMUM in after else {}
    return out, {"memory": after, **maximum}


def loop(
    cell: Cell, inputs: Tensor, parts: CellParts, weights: CellWeights, lengths: Tensor | None
) -> tuple[Tensor, CellParts]:
    """The step for each element of inputs [B, L, G, H]; the state stops changing at a row's end."""
    outputs = []
    for t, element in enumerate(inputs.unbind(1)):
        after = cell.step(element, parts, weights)
        out = after[0]
        if lengths is not None:
            real = (lengths > t).unsqueeze(-1)
            after = tuple(torch.where(real, a, b) for a, b in zip(after, parts, strict=True))
            out = torch.where(real, out, torch.zeros_like(out))
        parts = after
        outputs.append(out)
    return torch.stack(outputs, 1), parts
