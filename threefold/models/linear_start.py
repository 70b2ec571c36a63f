"""Where a forecaster starts: a linear filter of the last P elements, with a state of its own.

    ŷ_{t+h} = y_t + Σ_k T_{h,k} [y_{t−k} − y_t; u_{t−k}] + L_h (y_t − m_t + believed(m_t)) + c_h
    believed(m) = m within reach of the middle, and the middle from twice the reach on

m_t is the mean of the last P elements; training saw it within reach of its middle.  A series whose
level leaves for where nothing was seen is forecast as one in the middle, moved to where it is.  The
network's inputs are y_t − m_t + believed(m_t), or y_t − m_t if the filter reads no level (L = 0).
The filter is fitted once, before training (`classical/linear_forecasts.py`), and its numbers are
saved with the weights.  Before the first element there is nothing: the first one is repeated.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.kernels.autocast import full_precision
from threefold.memory.state import POSITION, Shapes, State


class StartOutput(NamedTuple):
    """What the filter says about every element."""

    forecast: Tensor  # [B, L, horizon, channels]
    series: Tensor  # [B, L, channels]: the input of the network, without a level that drifts
    state: State


class LinearStart(nn.Module):
    """The filter, the deviation of its errors, and how the network's inputs are scaled."""

    taps: Tensor  # [P, inputs, horizon · channels], the newest lag first
    level: Tensor  # [channels, horizon · channels]
    offset: Tensor  # [horizon · channels]
    deviation: Tensor  # [horizon, channels]: of the errors
    drifts: Tensor  # 1 if the level is left to the filter, 0 if the network reads it
    spread: Tensor  # [channels]: by which the network's inputs are divided
    middle: Tensor  # [channels]: of the means of P elements in training
    reach: Tensor  # [channels]: the largest distance of such a mean from there

    def __init__(self, lags: int, inputs: int, channels: int, horizon: int) -> None:
        super().__init__()
        self.lags, self.channels, self.horizon = lags, channels, horizon
        outputs = horizon * channels
        self.register_buffer("taps", torch.zeros(lags, inputs, outputs))
        self.register_buffer("level", torch.zeros(channels, outputs))
        self.register_buffer("offset", torch.zeros(outputs))
        self.register_buffer("deviation", torch.ones(horizon, channels))
        self.register_buffer("drifts", torch.ones(()))
        self.register_buffer("spread", torch.ones(channels))
        self.register_buffer("middle", torch.zeros(channels))
        self.register_buffer("reach", torch.full((channels,), torch.inf))
        self.shapes: Shapes = {"window": (lags - 1, inputs), POSITION: ()}

    @full_precision
    def forward(
        self, inputs: Tensor, state: State, lengths: Tensor | None = None, last: bool = False
    ) -> StartOutput:
        """Forecasts after each of inputs [B, L, inputs], which start at 0, or after the last."""
        window, position = state["window"], state[POSITION]
        fresh = (position == 0).view(-1, 1, 1)
        window = torch.where(fresh, inputs[:, :1].expand_as(window), window)
        past = torch.cat([window.to(inputs.dtype), inputs], 1)
        centred, level = self._levels(past)
        at_level = centred + level
        shown = past
        if last and lengths is None:
            shown, at_level = past[:, -self.lags :], at_level[:, -1:]
        newest = shown[:, self.lags - 1 :, : self.channels].unsqueeze(2)
        change = self._change(shown, at_level)
        forecast = newest + change.reshape(*change.shape[:2], self.horizon, self.channels)
        after = {
            "window": self._last(past, lengths).to(state["window"].dtype),
            POSITION: position + (inputs.shape[1] if lengths is None else lengths),
        }
        series = centred + (1 - self.drifts) * level
        return StartOutput(forecast, series / self.spread, after)

    def _levels(self, past: Tensor) -> tuple[Tensor, Tensor]:
        """y_t − m_t and believed(m_t) for each element from the P-th on, [B, L, channels].

        Sums are relative to one value of the row: a level far from 0 costs no precision.
        """
        reference = past[:, :1, : self.channels]
        series = past[..., : self.channels] - reference
        mean = F.avg_pool1d(series.mT, self.lags, 1).mT
        level = believed_level(mean + reference, self.middle, self.reach)
        return series[:, self.lags - 1 :] - mean, level

    def _change(self, past: Tensor, at_level: Tensor) -> Tensor:
        """The change that is forecast after each element from the P-th on, [B, L, outputs]."""
        count = self.channels
        rows = torch.cat([past[..., :count] - past[:, :1, :count], past[..., count:]], -1)
        newest = rows[:, self.lags - 1 :, :count]
        # Σ T [y_{t−k} − y_t] = Σ T y_{t−k} − (Σ T) y_t
        kernel = self.taps.permute(2, 1, 0).flip(2)
        change = F.conv1d(rows.mT, kernel.to(rows.dtype)).mT
        change = change - newest @ self.taps[:, :count].sum(0).to(rows.dtype)
        return change + at_level.to(rows.dtype) @ self.level.to(rows.dtype) + self.offset

    def _last(self, past: Tensor, lengths: Tensor | None) -> Tensor:
        """The last P − 1 elements of each row."""
        if lengths is None:
            return past[:, past.shape[1] - self.lags + 1 :].clone()
        places = lengths.view(-1, 1) + torch.arange(self.lags - 1, device=past.device)
        return past[torch.arange(len(past), device=past.device)[:, None], places]


def believed_level(mean: Tensor, middle: Tensor, reach: Tensor) -> Tensor:
    """A mean within reach of the middle; beyond, it returns to the middle as fast as it left."""
    offset = mean - middle
    inside = torch.clamp(offset, -reach, reach)
    share = (1 - (offset - inside).abs() / reach).clamp(min=0)
    return middle + inside * share
