"""p(x_{t+1} … x_{t+h} | x_1 … x_t): a series continued several steps ahead, from every element.

    quantile   ŷ_q for each q      pinball loss  max(q e, (q − 1) e),  e = x − ŷ_q
    gaussian   ŷ = (μ, σ)          −log N(x; μ, σ²)

Quantiles are put in order, which never raises their loss (Chernozhukov et al. 2010).
Wen et al. 2017, "A Multi-Horizon Quantile Recurrent Forecaster"; Salinas et al. 2020, "DeepAR".
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from threefold.errors import ThreefoldError, nearest
from threefold.layers.linear import Linear
from threefold.layers.padding import PaddedRows
from threefold.memory.state import Shapes, State
from threefold.models.backbone import Body
from threefold.models.input_checks import check_vectors
from threefold.models.scaling import Scaling
from threefold.models.spec import Spec

HEADS = ("quantile", "gaussian")
NARROWEST = 1e-4  # σ in units of the series' scale


class Forecaster(Body):
    """Series [B, L, channels], perhaps with exogenous inputs, to forecasts from every element.

    exogenous: numbers that are known with each element (of the hour, say, or of the next one) and
    are not forecast.  scaling: none, mean or standard, by what was seen so far.
    """

    kind = "forecaster"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._refuse_if_not_causal()
        self.scaling = Scaling(spec.option("scaling"), self.channels)
        self.head = Linear(spec.width, self.horizon * self.channels * self.outputs)

    @property
    def channels(self) -> int:
        """Series that are forecast."""
        count: int = self.spec.option("channels")
        return count

    @property
    def exogenous(self) -> int:
        """Numbers that are only given."""
        count: int = self.spec.option("exogenous")
        return count

    @property
    def input_size(self) -> int:
        """Numbers of one element."""
        return self.channels + self.exogenous

    @property
    def horizon(self) -> int:
        """Steps ahead."""
        steps: int = self.spec.option("horizon")
        return steps

    @property
    def quantiles(self) -> tuple[float, ...] | None:
        """What the last axis of a forecast stands for; None: mean and standard deviation."""
        asked = self.spec.option("head") == "quantile"
        return tuple(map(float, self.spec.option("quantiles"))) if asked else None

    @property
    def outputs(self) -> int:
        """Numbers that say one value."""
        return 2 if self.quantiles is None else len(self.quantiles)

    def beside(self) -> Shapes:
        """Leaves of the state beside the stack's: those of the scaling, too."""
        return {**self.scaling.shapes, **super().beside()}

    def forward(
        self,
        series: Tensor,
        state: State | None = None,
        *,
        exogenous: Tensor | None = None,
        form: str = "auto",
        mask: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Forecasts [B, L, horizon, channels, outputs] from each element on, and the state.

        outputs: the quantiles, or mean and standard deviation.  Forecasts at padding are 0.
        """
        self._check_inputs(series, exogenous)
        _, before = self._divide(state, len(series))
        if mask is not None:
            rows = PaddedRows(mask, series.shape[:2], self.name)
            series = rows.restore(rows.align(series))
        location, scale, scaled = self.scaling(series, before, mask)
        inputs = (series - location) / scale
        if exogenous is not None:
            inputs = torch.cat([inputs, exogenous], -1)
        reading = self.read(inputs, state, form, mask)
        raw = self.head(self.norm(reading.outputs))
        raw = raw if reading.rows is None else reading.rows.restore(raw)
        raw = raw.unflatten(-1, (self.horizon, self.channels, self.outputs))
        forecast = self._unscale(raw, location[:, :, None, :, None], scale[:, :, None, :, None])
        if mask is not None:
            forecast = torch.where(mask.view(*mask.shape, 1, 1, 1), forecast, torch.zeros_like(raw))
        return forecast, {**scaled, **reading.after}

    def step(
        self, element: Tensor, state: State | None = None, *, exogenous: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """One element [B, channels]; returns (forecast [B, horizon, channels, outputs], state)."""
        more = None if exogenous is None else exogenous.unsqueeze(1)
        forecast, state = self.forward(element.unsqueeze(1), state, exogenous=more, form="step")
        return forecast.squeeze(1), state

    def loss(self, forecast: Tensor, series: Tensor, mask: Tensor | None = None) -> Tensor:
        """The mean pinball loss, or the mean −log N, over all values that came to pass."""
        target, counts = ahead(series, self.horizon, mask)
        if self.quantiles is None:
            losses = gaussian_loss(forecast[..., 0], forecast[..., 1], target)
        else:
            losses = pinball_loss(forecast, target, self.quantiles)
        if not bool(counts.any()):
            raise ThreefoldError(
                f"{self.name}: nothing to compare: no element of {tuple(series.shape)} is followed "
                "by another"
            )
        return losses[counts].mean()

    def middle(self, forecast: Tensor) -> Tensor:
        """The mean, or the median, of a forecast […, outputs]: the point to go on from."""
        if self.quantiles is None:
            return forecast[..., 0]
        levels = self.quantiles
        above = next((i for i, q in enumerate(levels) if q >= 0.5), len(levels) - 1)
        below = above if levels[above] <= 0.5 else max(above - 1, 0)
        if above == below:
            return forecast[..., above]
        share = (0.5 - levels[below]) / (levels[above] - levels[below])
        return forecast[..., below].lerp(forecast[..., above], share)

    def check_options(self) -> None:
        """Refuse numbers and names that make no forecaster."""
        spec = self.spec
        channels, exogenous, horizon = map(spec.option, ("channels", "exogenous", "horizon"))
        if channels < 1 or exogenous < 0 or horizon < 1:
            raise ThreefoldError(
                f"{self.name}: channels {channels}, exogenous {exogenous}, horizon {horizon}; "
                "expected at least 1 channel, 1 step, and 0 or more exogenous inputs"
            )
        head, levels = spec.option("head"), spec.option("quantiles")
        if head not in HEADS:
            raise ThreefoldError(f"{self.name}: unknown head {head!r}; {nearest(head, HEADS)}")
        numbers = all(isinstance(q, float) and 0 < q < 1 for q in levels)
        if not levels or not numbers or list(levels) != sorted(set(levels)):
            raise ThreefoldError(
                f"{self.name}: quantiles are {levels}, expected numbers between 0 and 1, rising"
            )

    def _unscale(self, raw: Tensor, location: Tensor, scale: Tensor) -> Tensor:
        if self.quantiles is not None:
            return location + scale * raw.sort(-1).values
        mean = raw[..., :1]
        deviation = NARROWEST + F.softplus(raw[..., 1:])
        return torch.cat([location + scale * mean, scale * deviation], -1)

    def _check_inputs(self, series: Tensor, exogenous: Tensor | None) -> None:
        dtype = self.embedding.weight.dtype
        check_vectors(series, self.channels, dtype, f"{self.name}, series")
        if (exogenous is None) != (self.exogenous == 0):
            given = "none" if exogenous is None else tuple(exogenous.shape)
            raise ThreefoldError(
                f"{self.name}: exogenous inputs are {given}, expected {self.exogenous} numbers "
                "with each element"
            )
        if exogenous is not None:
            check_vectors(exogenous, self.exogenous, dtype, f"{self.name}, exogenous")
            if exogenous.shape[:2] != series.shape[:2]:
                raise ThreefoldError(
                    f"{self.name}: exogenous is {tuple(exogenous.shape)}, expected "
                    f"{(*series.shape[:2], self.exogenous)}, as many elements as the series"
                )

    def _refuse_if_not_causal(self) -> None:
        if not self.causal:
            names = [name for name, _ in self.spec.entries]
            raise ThreefoldError(
                f"{self.name}: mixers {names} see later elements, so they cannot forecast them; "
                "choose causal ones"
            )


def pinball_loss(forecast: Tensor, target: Tensor, quantiles: tuple[float, ...]) -> Tensor:
    """max(q e, (q − 1) e) of each value, e = target − forecast […, q], mean over quantiles."""
    levels = torch.tensor(quantiles, dtype=forecast.dtype, device=forecast.device)
    error = target.unsqueeze(-1) - forecast
    return torch.maximum(levels * error, (levels - 1) * error).mean(-1)


def gaussian_loss(mean: Tensor, deviation: Tensor, target: Tensor) -> Tensor:
    """−log N(target; mean, deviation²) of each value."""
    return (
        0.5 * math.log(2 * math.pi) + deviation.log() + ((target - mean) / deviation).square() / 2
    )


def ahead(series: Tensor, horizon: int, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The values [B, L, horizon, channels] that follow each element, and which of them exist.

    series     a b c d        horizon 2
    ahead      bc cd d· ··    · does not exist, and is 0
    """
    length = series.shape[1]
    real = torch.ones_like(series[..., 0], dtype=torch.bool) if mask is None else mask
    places = torch.arange(length, device=series.device)
    later = places.unsqueeze(1) + 1 + torch.arange(horizon, device=series.device)
    inside = later < length
    later = later.clamp(max=length - 1)
    counts = real.unsqueeze(-1) & real[:, later] & inside
    counts = counts.unsqueeze(-1).expand(*counts.shape, series.shape[-1])
    return torch.where(counts, series[:, later], torch.zeros_like(series[:, :1, None])), counts
