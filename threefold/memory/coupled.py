"""m = Ā m₋ + B̄ u:  nonlinear units h that read a linear memory m and write its input u.

Both together are one recurrence with one matrix, a = x + R [h; m]₋, h = φ(a), m = a, which the
fused loop of a cell runs; the step is each cell's own equation.  M memories of N numbers are
[B, M, N] and share Ā [N, N] and B̄ [N].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from threefold.kernels import ops
from threefold.kernels.autocast import full_precision
from threefold.memory.cell import Cell, CellParts, CellWeights, loop
from threefold.memory.forms import plan_chunk
from threefold.memory.hippo import LegS

CoupledResult = tuple[Tensor, Tensor, Tensor]  # all h [B, L, H], the last h, the last memory


class CoupledTanh(NamedTuple):
    """u = u_x + e_h h₋ + e_m m₋,  m = Ā m₋ + B̄ u,  h = tanh(x + U h₋ + V m)."""

    recurrent: Tensor  # U [H, H]
    from_hidden: Tensor  # e_h [M, H]
    from_memory: Tensor  # e_m [M, M·N]
    read: Tensor  # V [H, M·N]
    transition: Tensor
    write: Tensor

    @full_precision
    def step_loop(
        self, x: Tensor, said: Tensor, hidden: Tensor, memory: Tensor, lengths: Tensor | None
    ) -> CoupledResult:
        """The step for each element of x [B, L, H], with `said` [B, L, M] as u_x."""
        outputs = []
        for t, (element, u) in enumerate(zip(x.unbind(1), said.unbind(1), strict=True)):
            u = u + hidden @ self.from_hidden.mT + memory.flatten(1) @ self.from_memory.mT
            moved = memory @ self.transition.mT + u.unsqueeze(-1) * self.write
            seen = hidden @ self.recurrent.mT + moved.flatten(1) @ self.read.mT
            hidden, memory = _where(
                lengths, t, (torch.tanh(element + seen), moved), (hidden, memory)
            )
            outputs.append(hidden)
        return torch.stack(outputs, 1), hidden, memory

    @full_precision
    def run(
        self,
        x: Tensor,
        said: Tensor,
        hidden: Tensor,
        memory: Tensor,
        form: str,
        lengths: Tensor | None,
    ) -> CoupledResult:
        """The same as one loop with one matrix: m's equation is substituted into h's."""
        if form == "step":
            return self.step_loop(x, said, hidden, memory, lengths)
        push, turn = (
            _block_diagonal(self.write.unsqueeze(-1), memory),
            _block_diagonal(self.transition, memory),
        )
        turn = turn + push @ self.from_memory
        of_memory = torch.cat([push @ self.from_hidden, turn], 1)
        of_hidden = F.pad(self.recurrent, (0, len(turn))) + self.read @ of_memory
        written = said @ push.mT
        inputs = torch.cat([x + written @ self.read.mT, written], -1).unsqueeze(2)
        matrix = torch.cat([of_hidden, of_memory])
        y, hidden, last = _fused(inputs, matrix, hidden, memory.flatten(1), lengths)
        return y, hidden, last.view_as(memory)


class CoupledGated(NamedTuple):
    """h = h₋ + σ(g)⊙(tanh(a) − h₋),  (a, g) = x + U h₋ + V m₋,  m = Ā m₋ + B̄ (w h)."""

    recurrent: Tensor  # U [2·H, H]
    read: Tensor  # V [2·H, M·N]
    say: Tensor  # w [M, H]

    @full_precision
    def step_loop(
        self,
        x: Tensor,
        hidden: Tensor,
        memory: Tensor,
        transition: Callable[[int], tuple[Tensor, Tensor]],
        lengths: Tensor | None,
    ) -> CoupledResult:
        """The step for each element t of x [B, L, 2, H], with Ā, B̄ = `transition(t)`."""
        outputs, both = [], torch.cat([self.recurrent, self.read], 1)
        for t, element in enumerate(x.unbind(1)):
            product = ops.linear(torch.cat([hidden, memory.flatten(1)], -1), both)
            candidate, gate = (element + torch.unflatten(product, -1, (2, -1))).unbind(1)
            after = hidden + torch.sigmoid(gate) * (torch.tanh(candidate) - hidden)
            turn, write = transition(t)
            said = ops.linear(after, self.say).unsqueeze(-1)
            moved = memory @ turn.mT + said * write.unsqueeze(-2)
            hidden, memory = _where(lengths, t, (after, moved), (hidden, memory))
            outputs.append(hidden)
        return torch.stack(outputs, 1), hidden, memory

    @full_precision
    def run(
        self,
        x: Tensor,
        hidden: Tensor,
        memory: Tensor,
        system: tuple[Tensor, Tensor],
        form: str,
        lengths: Tensor | None,
    ) -> CoupledResult:
        """The same for fixed Ā and B̄, the `system`, in a fused loop unless the form is the step.

        It carries p = m − B̄ (w h), which does not depend on the new h.
        """
        if form == "step":
            return self.step_loop(x, hidden, memory, lambda _: system, lengths)
        transition, write = system
        turn = _block_diagonal(transition, memory)
        push = _block_diagonal(write.unsqueeze(-1), memory) @ self.say
        of_memory = torch.cat([turn @ push, turn], 1)
        candidate, gate = torch.cat([self.recurrent + self.read @ push, self.read], 1).chunk(2)
        # A memory has no gate.
        matrix = torch.cat([candidate, of_memory, gate, torch.zeros_like(of_memory)])
        start = memory.flatten(1) - hidden @ push.mT
        y, after, last = _fused(F.pad(x, (0, len(turn))), matrix, hidden, start, lengths)
        last = (last + after @ push.mT).view_as(memory)
        # A row that is all padding keeps its state bit for bit.
        return y, *_where(lengths, 0, (after, last), (hidden, memory))

    @full_precision
    def run_legs(
        self,
        x: Tensor,
        hidden: Tensor,
        memory: Tensor,
        position: Tensor,
        form: str,
        lengths: Tensor | None,
    ) -> CoupledResult:
        """The same with LegS's Ā_t and B̄_t, at each row's own time after `position` [B]."""
        both = torch.cat([hidden, memory.flatten(1)], -1)
        matrix = torch.cat([self.recurrent, self.read], 1)
        by_kernel = ops.legs_recurrence(x, matrix, self.say, both, position, lengths, form=form)
        if by_kernel is not None:
            y, after, last = by_kernel
            return y, after, last.view_as(memory)
        block = plan_chunk(None, x.shape[1], form)
        transitions = LegSTransitions(memory.shape[2], position, block, x.dtype)
        return self.step_loop(x, hidden, memory, transitions, lengths)


class LegSTransitions:
    """LegS's Ā_t and B̄_t for the elements after `position` [B], computed `block` at a time."""

    def __init__(self, size: int, position: Tensor, block: int, dtype: torch.dtype) -> None:
        self.legs, self.position, self.block, self.dtype = LegS(size), position, block, dtype
        self.current: tuple[int, Tensor, Tensor, Tensor] | None = None

    def __call__(self, element: int) -> tuple[Tensor, Tensor]:
        """Ā [B, N, N] and B̄ [B, N] of element number `element` after the position."""
        block, offset = divmod(element, self.block)
        if self.current is None or self.current[0] != block:
            first = block * self.block + 1
            ahead = torch.arange(first, first + self.block, device=self.position.device)
            counts, rows = _shared(self.position.unsqueeze(1) + ahead)
            A, B = (part.to(self.dtype) for part in self.legs.transition(counts))
            self.current = block, rows, A, B
        _, rows, A, B = self.current
        return A[rows[:, offset]], B[rows[:, offset]]


def _shared(positions: Tensor) -> tuple[Tensor, Tensor]:
    """The different positions, whose transitions rows share, and the index of each among them."""
    if positions.is_meta:  # without values, all may differ
        index = torch.arange(positions.numel(), device=positions.device)
        return positions.flatten(), index.view(positions.shape)
    return torch.unique(positions, return_inverse=True)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class CoupledCell(Cell):
    """One vector of both: m = a where `extra` > 0, elsewhere h = tanh(a), or gated as above."""

    gated: bool

    @property
    def gates(self) -> int:  # type: ignore[override]
        return 2 if self.gated else 1

    @property
    def kind(self) -> str:
        return "gated_memory" if self.gated else "rnn_memory"

    def step(self, inputs: Tensor, parts: CellParts, weights: CellWeights) -> CellParts:
        (before,) = parts
        assert weights.extra is not None
        a, *gate = (inputs + weights.product(weights.seen(before))).unbind(1)
        after = torch.tanh(a)
        if self.gated:
            after = before + torch.sigmoid(gate[0]) * (after - before)
        return (torch.where(weights.extra > 0, a, after),)


def _fused(
    inputs: Tensor, matrix: Tensor, hidden: Tensor, memory: Tensor, lengths: Tensor | None
) -> CoupledResult:
    """The cell's loop: inputs [B, L, G, H+K], matrix [G·(H+K), H+K], memory [B, K]; G is 1 or 2."""
    count = hidden.shape[1]
    both = torch.cat([hidden, memory], -1)
    linear = torch.zeros(1, both.shape[1], dtype=both.dtype, device=both.device)
    linear[:, count:] = 1
    cell, weights = CoupledCell(inputs.shape[2] == 2), CellWeights(matrix.unsqueeze(0), linear)
    by_kernel = ops.cell_recurrence(cell.kind, inputs, *weights, parts=(both,), lengths=lengths)
    out, (last,) = by_kernel or loop(cell, inputs, (both,), weights, lengths)
    return out[..., :count], last[:, :count], last[:, count:]


def _where(
    lengths: Tensor | None, t: int, after: tuple[Tensor, Tensor], before: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """h and m after element t; unchanged in rows that end before it."""
    if lengths is None:
        return after
    real = (lengths > t).unsqueeze(-1)
    return (
        torch.where(real, after[0], before[0]),
        torch.where(real.unsqueeze(-1), after[1], before[1]),
    )


def _block_diagonal(matrix: Tensor, memory: Tensor) -> Tensor:
    """The block-diagonal matrix that applies `matrix` to each of the M memories [B, M, N]."""
    one = torch.eye(memory.shape[1], dtype=matrix.dtype, device=matrix.device)
    return torch.kron(one, matrix)
