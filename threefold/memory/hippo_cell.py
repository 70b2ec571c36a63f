"""c_t = Ā c_{t−1} + B̄ u_t,  h_t = φ(x_t, h_{t−1}, c):  a nonlinear cell beside a HiPPO projection.

What the cell says at each element is projected, and the cell reads the coefficients of its own past.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from threefold.kernels import ops
from threefold.memory.cell import POSITION, Cell, Parts, Weights


@dataclass(frozen=True)
class LMUCell(Cell):
    """u = e_x x + e_h h₋ + e_m m₋,  m = Ā m₋ + B̄ u,  h = tanh(x + U h₋ + V m).

    Inputs are those of the units and, last, e_x x.
    """

    gates = 1
    leaves = ("hidden", "projection")
    kind = ""
    transition: Tensor  # [N, N]
    write: Tensor  # [N]
    read: Tensor  # V [H, N]
    from_hidden: Tensor  # e_h [1, H]
    from_projection: Tensor  # e_m [1, N]

    def step(self, inputs: Tensor, parts: Parts, weights: Weights) -> Parts:
        hidden, projection = parts
        (given,) = inputs.unbind(1)
        said = given[:, -1:] + ops.linear(hidden, self.from_hidden)
        said = said + ops.linear(projection, self.from_projection)
        projection = ops.linear(projection, self.transition) + said * self.write
        (product,) = weights.product(hidden).unbind(1)
        hidden = torch.tanh(given[:, :-1] + product + ops.linear(projection, self.read))
        return hidden, projection


@dataclass(frozen=True)
class HippoCell(Cell):
    """h = (1−g)⊙h₋ + g⊙tanh(x + U h₋ + V c₋),  g = σ(…),  f = w·h,  c = Ā c₋ + B̄ f."""

    gates = 2
    kind = ""
    transition: Tensor  # Ā [N, N]; A itself where the cell counts
    write: Tensor  # B̄ [N]; B itself where the cell counts
    read: Tensor  # V [2·H, N]
    say: Tensor  # w [1, H]
    counts: bool = False  # LegS: c' = (A c + B f)/t depends on the number of elements so far

    @property
    def leaves(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("hidden", "projection", *([POSITION] if self.counts else []))

    def step(self, inputs: Tensor, parts: Parts, weights: Weights) -> Parts:
        hidden, projection, *position = parts
        seen = torch.unflatten(ops.linear(projection, self.read), -1, (2, -1))
        candidate, gate = (inputs + weights.product(hidden) + seen).unbind(1)
        hidden = hidden + torch.sigmoid(gate) * (torch.tanh(candidate) - hidden)
        said = ops.linear(hidden, self.say)
        if not self.counts:
            return hidden, ops.linear(projection, self.transition) + said * self.write
        count = position[0] + 1
        return hidden, self._varying(projection, said, count), count

    def _varying(self, projection: Tensor, said: Tensor, count: Tensor) -> Tensor:
        """LegS, bilinear at each row's own time."""
        share = (1 / count.double()).to(projection.dtype).unsqueeze(-1)
        push = projection + share * (
            ops.linear(projection, self.transition) / 2 + said * self.write
        )
        identity = torch.eye(len(self.write), dtype=push.dtype, device=push.device)
        matrix = identity - share.unsqueeze(-1) / 2 * self.transition
        solved = torch.linalg.solve_triangular(matrix, push.unsqueeze(-1), upper=False)
        return solved.squeeze(-1)
