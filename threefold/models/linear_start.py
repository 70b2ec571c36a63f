"""Where a forecaster starts: a linear filter of the last P elements, with a state of its own.

    ŷ_{t+h} = y_t + Σ_k T_{h,k} [y_{t−k} − y_t; u_{t−k}] + L_h y_t + c_h

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
    series: Tensor  # [B, L, channels]: the input of the network, without the level if that drifts
    state: State


class LinearStart(nn.Module):
    """The filter, the deviation of its errors, and how the network's inputs are scaled."""

    taps: Tensor  # [P, inputs, horizon · channels], the newest lag first
    level: Tensor  # [channels, horizon · channels]
    offset: Tensor  # [horizon · channels]
    deviation: Tensor  # [horizon, channels]: of the errors
    drifts: Tensor  # 1 if the level is left to the filter, 0 if the network reads it
    spread: Tensor  # [channels]: by which the network's inputs are divided

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
        shown = past[:, -self.lags :] if last and lengths is None else past
        newest = shown[:, self.lags - 1 :, : self.channels].unsqueeze(2)
        change = self._change(shown)
        forecast = newest + change.reshape(*change.shape[:2], self.horizon, self.channels)
        series = inputs[..., : self.channels] - self.drifts * self._mean(past)
        after = {
            "window": self._last(past, lengths).to(state["window"].dtype),
            POSITION: position + (inputs.shape[1] if lengths is None else lengths),
        }
        return StartOutput(forecast, series / self.spread, after)

    def _change(self, past: Tensor) -> Tensor:
        """The change that is forecast after each element from the P-th on, [B, L, outputs].

        All is relative to one value of the row: a level far from 0 costs no precision.
        """
        count = self.channels
        reference = past[:, :1, :count]
        rows = torch.cat([past[..., :count] - reference, past[..., count:]], -1)
        newest = rows[:, self.lags - 1 :, :count]
        # Σ T [y_{t−k} − y_t] = Σ T y_{t−k} − (Σ T) y_t
        own = self.level - self.taps[:, :count].sum(0)
        kernel = self.taps.permute(2, 1, 0).flip(2)
        change = F.conv1d(rows.mT, kernel.to(rows.dtype)).mT
        return change + newest @ own.to(rows.dtype) + self.offset + reference @ self.level

    def _mean(self, past: Tensor) -> Tensor:
        """The mean of the last P elements of the series, for each element."""
        reference = past[:, :1, : self.channels]
        offset = past[..., : self.channels] - reference
        return F.avg_pool1d(offset.mT, self.lags, 1).mT + reference

    def _last(self, past: Tensor, lengths: Tensor | None) -> Tensor:
        """The last P − 1 elements of each row."""
        if lengths is None:
            return past[:, past.shape[1] - self.lags + 1 :].clone()
        places = lengths.view(-1, 1) + torch.arange(self.lags - 1, device=past.device)
        return past[torch.arange(len(past), device=past.device)[:, None], places]
