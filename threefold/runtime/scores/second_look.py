"""What a forecast would have been, had the surprising elements before it not come.

    recorded   4 5 4 5 9 9 4 5      the past as it was
    cleaned    4 5 4 5 4 5 4 5      surprising elements replaced by their own forecast

Forecasts that read an anomaly are wrong for as long as it is in their window, so the element after
it would often have the highest score.  An element therefore counts as surprising only as far as
neither the recorded past nor the cleaned one foretold it: after an anomaly the cleaned past does,
after a lasting change the recorded one.  Both look back only.
Martin & Thomson 1982, "Robust-Resistant Spectrum Estimation" (filter cleaners).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from threefold.models.forecaster import Forecaster
from threefold.runtime.decoding import eval_mode

SURPRISING = 6.0  # deviations

Score = Callable[[Tensor, Tensor], Tensor]  # values and forecasts to scores [L, channels]


class SecondLook:
    """The cleaned past of one series: the last `context` inputs, some of them replaced."""

    def __init__(self, model: Forecaster, context: int, score: Score) -> None:
        self.model, self.context, self.score = model, context, score
        self.window = torch.zeros(0, model.input_size)
        self.left = 0  # elements until the newest replaced one leaves the window

    def better(self, values: Tensor, forecasts: Tensor, inputs: Tensor) -> Tensor:
        """Forecasts [L, channels, outputs]: of both pasts, the one that is nearer to each value.

        values [L, channels]; forecasts were made from the recorded past; inputs are the model's.
        """
        past = torch.cat([self.window.to(inputs), inputs])
        chosen, first = forecasts.clone(), len(past) - len(inputs)
        surprising = (self.score(values, forecasts) > SURPRISING).any(-1)
        place = 0
        while place < len(values):
            if not self.left:
                later = surprising[place:].nonzero()
                if not len(later):
                    break
                place += int(later[0])
                cleaned = forecasts[place]
            else:
                window = past[max(0, first + place - self.context) : first + place]
                cleaned = self._from_cleaned(window).to(forecasts)
                chosen[place] = self._nearer(values[place], forecasts[place], cleaned)
            self._clean(past[first + place], values[place], chosen[place], cleaned)
            place += 1
        self.window = past[max(0, len(past) - self.context) :].clone()
        return chosen

    def _from_cleaned(self, window: Tensor) -> Tensor:
        """The forecast that the cleaned past leads to, [channels, outputs]."""
        with torch.no_grad(), eval_mode(self.model):
            forecast: Tensor = self.model.respond(window.unsqueeze(0), last=True)[0][0, 0]
        return forecast

    def _nearer(self, value: Tensor, recorded: Tensor, cleaned: Tensor) -> Tensor:
        """The forecast of each channel that explains the value better."""
        pair = torch.stack([recorded, cleaned])
        scores = self.score(value.expand(2, -1), pair)
        take = (scores[1] < scores[0]) | recorded.isnan().any(-1)
        return torch.where(take.unsqueeze(-1), cleaned, recorded)

    def _clean(self, row: Tensor, value: Tensor, chosen: Tensor, cleaned: Tensor) -> None:
        """Replace what is surprising in one row of the past, and count how long it stays there.

        What takes its place is what the cleaned past foretold: the nearer forecast may have read
        the anomaly itself.
        """
        odd = self.score(value.unsqueeze(0), chosen.unsqueeze(0))[0] > SURPRISING
        self.left = max(0, self.left - 1)
        if bool(odd.any()):
            point = self.model.point_forecast(cleaned).to(row)
            channels = row[: len(odd)]
            channels.copy_(torch.where(odd, point, channels))
            self.left = self.context

    def state(self) -> list[float]:
        """All numbers as JSON can hold them."""
        return [self.left, *self.window.double().flatten().tolist()]

    def restore(self, state: list[float]) -> None:
        """Continue with the numbers that `state` returned."""
        if state:
            self.left = int(state[0])
            numbers = torch.tensor(state[1:], dtype=torch.float64)
            self.window = numbers.reshape(-1, self.model.input_size)
