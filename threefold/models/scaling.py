"""Scale series to a common range:  x_t → (x_t − m_t) / s_t,  from x_1 … x_t only.

    none       m = 0,                  s = 1
    mean       m = 0,                  s = mean |x|            (Salinas et al. 2020, made causal)
    standard   m = mean x,             s² = var x + (mean |x|)² / t

Each series of each row has its own m and s, and nothing later than t is used.  The last term stands
in for the variance while there are too few elements to measure it; a forecast for a·x is a times
that for x.
Salinas et al. 2020, "DeepAR: Probabilistic Forecasting with Autoregressive Recurrent Networks".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError, nearest
from threefold.memory.state import POSITION, Shapes, State

SCALINGS = ("none", "mean", "standard")


class Scaling(nn.Module):
    """Running location and scale of each channel; the state holds mean, variance and mean |x|.

    New elements are merged with the earlier ones as in Chan, Golub & LeVeque (1979), in float64: no
    sum of squares grows with the stream, and a mean far from 0 costs no precision.
    """

    def __init__(self, kind: str, channels: int) -> None:
        super().__init__()
        if kind not in SCALINGS:
            raise ThreefoldError(f"unknown scaling {kind!r}; {nearest(kind, SCALINGS)}")
        self.kind = kind
        none: Shapes = {}
        self.shapes = none if kind == "none" else {"memory": (3, channels), POSITION: ()}

    def forward(self, x: Tensor, state: State, mask: Tensor | None) -> tuple[Tensor, Tensor, State]:
        """Location and scale [B, L, channels] from the elements up to each one, and the state."""
        if self.kind == "none":
            return torch.zeros_like(x), torch.ones_like(x), {}
        if mask is None and x.shape[1] == 1:
            return self._step(x, state)
        real = torch.ones_like(x[..., 0], dtype=torch.bool) if mask is None else mask
        values = torch.where(real.unsqueeze(-1), x, torch.zeros((), dtype=x.dtype)).double()
        mean, variance, size = self._running(values, real, state)
        count = (state[POSITION].unsqueeze(1) + real.cumsum(1)).clamp(min=1).unsqueeze(-1)
        location, scale = self._location_and_scale(mean, variance, size, count)
        after = torch.stack([mean[:, -1], variance[:, -1], size[:, -1]], 1)
        nonempty = real.any(1)
        before: Tensor = state["memory"]
        after = torch.where(nonempty.view(-1, 1, 1), after.to(before.dtype), before)
        position = state[POSITION] + real.sum(1)
        return location.to(x.dtype), scale.to(x.dtype), {"memory": after, POSITION: position}

    def _location_and_scale(
        self, mean: Tensor, variance: Tensor, size: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor]:
        square = size**2 if self.kind == "mean" else variance + size**2 / count
        # A series of zeros has no scale; 1 is as good as any.
        scale = torch.where(square > 0, square, torch.ones_like(square)).sqrt()
        return torch.zeros_like(mean) if self.kind == "mean" else mean, scale

    def _step(self, x: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        """The same for one element x [B, 1, channels]."""
        mean, variance, size = state["memory"].double().unsqueeze(2).unbind(1)
        count = (state[POSITION].view(-1, 1, 1) + 1).double()
        share, values = 1 / count, x.double()
        apart = values - mean
        mean = mean + share * apart
        variance = (1 - share) * variance + share * (1 - share) * apart**2
        size = (1 - share) * size + share * values.abs()
        location, scale = self._location_and_scale(mean, variance, size, count)
        after = torch.stack([mean[:, -1], variance[:, -1], size[:, -1]], 1)
        memory = after.to(state["memory"].dtype)
        carried = {"memory": memory, POSITION: state[POSITION] + 1}
        return location.to(x.dtype), scale.to(x.dtype), carried

    def _running(self, x: Tensor, real: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance and mean |x| up to each element, earlier calls included."""
        mean, variance, size = state["memory"].double().unsqueeze(2).unbind(1)
        first = x.gather(1, real.int().argmax(1).view(-1, 1, 1).expand(-1, 1, x.shape[-1]))
        offset = torch.where(real.unsqueeze(-1), x - first, torch.zeros((), dtype=x.dtype))
        count = real.cumsum(1).unsqueeze(-1).double()
        shift, spread, sizes = (
            part.cumsum(1) / count.clamp(min=1) for part in (offset, offset**2, x.abs())
        )
        share = count / (state[POSITION].view(-1, 1, 1) + count).clamp(min=1)
        apart = first + shift - mean
        between = share * (1 - share) * apart**2
        within = (1 - share) * variance + share * (spread - shift**2).clamp(min=0)
        return mean + share * apart, within + between, (1 - share) * size + share * sizes
