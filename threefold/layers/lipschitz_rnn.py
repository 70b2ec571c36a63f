"""Lipschitz RNN:  h = h₋ + ε A h₋ + ε tanh(W h₋ + U x + b),  y = W_o h,  A, W = S(M) − γ I.

S(M) = (1−β)(M + Mᵀ) + β(M − Mᵀ): between symmetric and skew-symmetric, so that h' = A h + tanh(·)
neither explodes nor forgets soon.
Erichson et al. 2021, "Lipschitz Recurrent Neural Networks".
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.cell_mixer import StructuredCellMixer
from threefold.layers.linear import Linear
from threefold.layers.precision import upcast
from threefold.memory.cell import EulerCell


class LipschitzRNN(StructuredCellMixer):
    """The recurrent network of the differential equation, one Euler step of size `step` = ε each.

    `beta` is 0.5 ≤ β ≤ 1, `gamma` is γ ≥ 0, both those of A and of W, as in the published code; the
    entries of each M start with a deviation of `scale` / H.  The paper also integrates by the
    midpoint rule, which this layer does not.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("recurrent",)

    def __init__(
        self,
        width: int,
        *,
        hidden: int | None = None,
        step: float = 0.03,
        beta: float = 0.75,
        gamma: float = 0.001,
        scale: float = 0.1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width, EulerCell(), hidden=hidden, dropout=dropout, recurrent_dropout=0.0)
        if not (step > 0 and 0.5 <= beta <= 1 and gamma >= 0 and scale > 0):
            raise ThreefoldError(
                f"{self.name}: step={step}, beta={beta}, gamma={gamma}, scale={scale}; expected "
                "step and scale above 0, 0.5 ≤ beta ≤ 1 and gamma ≥ 0"
            )
        self.step_size, self.beta, self.gamma = step, beta, gamma
        self.input = Linear(width, self.hidden)
        nn.init.normal_(self.recurrent, std=scale / self.hidden)

    @property
    def extra(self) -> Tensor:
        like = upcast(self.recurrent)
        return torch.full((1, self.hidden), self.step_size, dtype=like.dtype, device=like.device)

    def project(self, x: Tensor) -> Tensor:
        """Zeros, since A h₋ has no input, then U x + b."""
        return F.pad(self.input(x), (self.hidden, 0))

    def matrices(self) -> Tensor:
        """I + ε A, then W."""
        free = torch.unflatten(upcast(self.recurrent[0]), 0, (2, self.hidden))
        turned = (1 - self.beta) * (free + free.mT) + self.beta * (free - free.mT)
        identity = torch.eye(self.hidden, dtype=free.dtype, device=free.device)
        A, W = turned - self.gamma * identity
        return torch.cat([identity + self.step_size * A, W]).unsqueeze(0)
