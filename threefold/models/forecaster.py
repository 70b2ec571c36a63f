"""p(x_{t+1} … x_{t+h} | x_1 … x_t): forecasts several steps ahead, from every element.

    quantile   ŷ_q for each q      pinball loss  max(q e, (q − 1) e),  e = x − ŷ_q
    gaussian   ŷ = (μ, σ)          −log N(x; μ, σ²)

With `lags`, a linear filter forecasts (`linear_start.py`) and the network learns what it leaves
over: its head begins with zeros, so that training starts exactly at the filter.
Quantiles are sorted, which never raises their loss (Chernozhukov et al. 2010).
Wen et al. 2017, "A Multi-Horizon Quantile Recurrent Forecaster"; Salinas et al. 2020, "DeepAR".
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from threefold.errors import ThreefoldError, nearest
from threefold.layers.linear import Linear
from threefold.layers.padding import PaddedRows
from threefold.memory.state import Shapes, State
from threefold.models.backbone import Backbone
from threefold.models.input_checks import check_vectors
from threefold.models.linear_start import LinearStart
from threefold.models.scaling import Scaling
from threefold.models.spec import Spec

HEADS = ("quantile", "gaussian")
Array: TypeAlias = NDArray[np.float64]
GAUSSIAN_LEVELS = (0.1, 0.5, 0.9)  # shown for models that forecast mean and deviation
MIN_DEVIATION = 1e-4  # smallest σ, in units of the scale of the series


class Forecaster(Backbone):
    """Forecast series [B, L, channels], optionally with exogenous inputs, from every element.

    exogenous: number of inputs per element that are known and not forecast (the hour, say, or that
    of the next element).  scaling: none, mean or standard, from the elements so far.  lags: those
    that a linear filter reads, which the network corrects; 0: there is none.
    """

    kind = "forecaster"
    streams = True

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._refuse_if_not_causal()
        self.scaling = Scaling("none" if self.lags else spec.option("scaling"), self.channels)
        self.head = Linear(spec.width, self.horizon * self.channels * self.outputs)
        self.start: LinearStart | None = None
        if self.lags:
            self.start = LinearStart(self.lags, self.input_size, self.channels, self.horizon)

    @property
    def lags(self) -> int:
        """Number of elements that the linear filter reads; 0: there is no filter."""
        count: int = self.spec.option("lags")
        return count

    @property
    def channels(self) -> int:
        """Number of series that are forecast."""
        count: int = self.spec.option("channels")
        return count

    @property
    def exogenous(self) -> int:
        """Number of inputs per element that are not forecast."""
        count: int = self.spec.option("exogenous")
        return count

    @property
    def input_size(self) -> int:
        """Inputs per element: channels and exogenous."""
        return self.channels + self.exogenous

    @property
    def horizon(self) -> int:
        """Number of steps ahead."""
        steps: int = self.spec.option("horizon")
        return steps

    @property
    def quantiles(self) -> tuple[float, ...] | None:
        """The quantile levels on the last axis of a forecast; None: mean and standard deviation."""
        if self.spec.option("head") != "quantile":
            return None
        return tuple(map(float, self.spec.option("quantiles")))

    @property
    def outputs(self) -> int:
        """Size of the last axis of a forecast: the number of quantiles, or 2."""
        return 2 if self.quantiles is None else len(self.quantiles)

    @property
    def levels(self) -> tuple[float, ...]:
        """The quantile levels of `quantile_forecast`."""
        return self.quantiles or GAUSSIAN_LEVELS

    def own_state_shapes(self) -> Shapes:
        """Shapes of the state leaves outside the stack, with those of filter and scaling."""
        start = {} if self.start is None else self.start.shapes
        return {**start, **self.scaling.shapes, **super().own_state_shapes()}

    def forward(
        self,
        series: Tensor,
        state: State | None = None,
        *,
        exogenous: Tensor | None = None,
        form: str = "auto",
        mask: Tensor | None = None,
        last: bool = False,
    ) -> tuple[Tensor, State]:
        """Forecasts [B, L, horizon, channels, outputs] from each element, and the state.

        outputs: the quantiles, or mean and standard deviation.  Forecasts at padding are 0.  last:
        only the forecast from the last element, [B, 1, …]; not with a mask.
        """
        self._check_inputs(series, exogenous)
        if last and mask is not None:
            raise ThreefoldError(f"{self.name}: last=True is not for rows with a mask")
        _, before = self._split_state(state, len(series))
        rows = None if mask is None else PaddedRows(mask, series.shape[:2], self.name)
        series = series if rows is None else rows.restore(rows.align(series))
        if self.start is not None:
            return self._from_start(series, exogenous, state, before, (form, rows, last))
        location, scale, scaled = self.scaling(series, before, mask)
        inputs = _joined((series - location) / scale, exogenous)
        raw, after = self._run(inputs, state, (form, rows, last))
        location, scale = (part[:, -raw.shape[1] :, None, :] for part in (location, scale))
        return self._shown(raw, location, scale, rows), {**scaled, **after}

    def _from_start(
        self,
        series: Tensor,
        exogenous: Tensor | None,
        state: State | None,
        before: State,
        how: How,
    ) -> tuple[Tensor, State]:
        """Forecasts of the filter, corrected by the network."""
        assert self.start is not None
        rows, inputs = how[1], _joined(series, exogenous)
        aligned = inputs if rows is None else rows.align(inputs)
        start = self.start(aligned, before, None if rows is None else rows.lengths, how[2])
        forecast, network = start.forecast, start.series.to(series.dtype)
        if rows is not None:
            forecast, network = rows.restore(forecast), rows.restore(network)
        raw, after = self._run(_joined(network, exogenous), state, how)
        deviation = self.start.deviation.expand_as(forecast)
        return self._shown(raw, forecast, deviation, rows), {**start.state, **after}

    def _run(self, inputs: Tensor, state: State | None, how: How) -> tuple[Tensor, State]:
        """What the head says [B, L, horizon, channels, outputs], and the state of the stack."""
        form, rows, last = how
        output = self.run_backbone(inputs, state, form, None if rows is None else rows.mask)
        raw = self.head(self.norm(output.outputs[:, -1:] if last else output.outputs))
        raw = raw if output.rows is None else output.rows.restore(raw)
        return raw.unflatten(-1, (self.horizon, self.channels, self.outputs)), output.after

    def _shown(
        self, raw: Tensor, location: Tensor, scale: Tensor, rows: PaddedRows | None
    ) -> Tensor:
        """Forecasts around a location, 0 at padding."""
        forecast = self._unscale(raw, location.unsqueeze(-1), scale.unsqueeze(-1)).to(raw.dtype)
        if rows is None:
            return forecast
        real = rows.mask.view(*rows.mask.shape, 1, 1, 1)
        return torch.where(real, forecast, torch.zeros_like(raw))

    def step(
        self, element: Tensor, state: State | None = None, *, exogenous: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Run one element [B, channels]: forecast [B, horizon, channels, outputs] and state."""
        more = None if exogenous is None else exogenous.unsqueeze(1)
        forecast, state = self(element.unsqueeze(1), state, exogenous=more, form="step")
        return forecast.squeeze(1), state

    def respond(
        self, inputs: Tensor, state: State | None = None, *, last: bool = False
    ) -> tuple[Tensor, State]:
        """Forecasts from each element, or from the last; exogenous inputs follow the series."""
        series, exogenous = self.split_inputs(inputs)
        forecast, after = self(series, state, exogenous=exogenous, last=last)
        return forecast[:, -1] if last else forecast, after

    def training_outputs(self, inputs: Tensor) -> Tensor:
        """Forecasts from each element; exogenous inputs follow the series."""
        return self.respond(inputs)[0]

    def interpret(self, output: Tensor) -> Tensor:
        """A forecast is what it predicts."""
        return output

    def split_inputs(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Series […, channels] and exogenous inputs of […, input_size]."""
        exogenous = inputs[..., self.channels :] if self.exogenous else None
        return inputs[..., : self.channels], exogenous

    def losses(self, forecast: Tensor, target: Tensor) -> Tensor:
        """The pinball loss, or −log N, of each value of the target."""
        if self.quantiles is None:
            return gaussian_loss(forecast[..., 0], forecast[..., 1], target)
        return pinball_loss(forecast, target, self.quantiles)

    def loss(self, forecast: Tensor, series: Tensor, mask: Tensor | None = None) -> Tensor:
        """The mean pinball loss, or the mean −log N, over all forecast values that are known."""
        target, counts = future_values(series, self.horizon, mask)
        losses = self.losses(forecast, target)
        if not bool(counts.any()):
            raise ThreefoldError(
                f"{self.name}: no element of the series {tuple(series.shape)} is followed by "
                "another, so there is nothing to compare"
            )
        return losses[counts].mean()

    def point_forecast(self, forecast: Tensor) -> Tensor:
        """The mean, or the median, of a forecast […, outputs]."""
        if self.quantiles is None:
            return forecast[..., 0]
        levels = self.quantiles
        above = next((i for i, q in enumerate(levels) if q >= 0.5), len(levels) - 1)
        below = above if levels[above] <= 0.5 else max(above - 1, 0)
        if above == below:
            return forecast[..., above]
        share = (0.5 - levels[below]) / (levels[above] - levels[below])
        return forecast[..., below].lerp(forecast[..., above], share)

    def quantile_forecast(self, forecast: Tensor) -> Tensor:
        """Quantiles […, levels] of a forecast […, outputs]."""
        if self.quantiles is not None:
            return forecast
        steps = [NormalDist().inv_cdf(level) for level in GAUSSIAN_LEVELS]
        return forecast[..., :1] + forecast[..., 1:] * forecast.new_tensor(steps)

    def bands(self, forecast: Tensor) -> tuple[Array, Array]:
        """Point forecasts […, steps, channels] and quantiles […, levels], calibrated if there is a
        calibration: as numpy arrays of float64."""
        wide = forecast.detach().double().cpu()
        point, quantiles = self.point_forecast(wide).numpy(), self.quantile_forecast(wide).numpy()
        if self.calibration is None:
            return point, quantiles
        return point, self.calibration.apply(quantiles, point)

    def start_from(self, residuals: Tensor) -> None:
        """Let the network begin with 0, and with the quantiles of the filter's errors [N, H, C].

        The errors are in deviations; NaN is missing.  The median begins with 0.
        """
        levels = torch.tensor(self.quantiles or (), dtype=torch.float64)
        with torch.no_grad():
            self.head.weight.zero_()
            bias = torch.zeros(self.horizon, self.channels, self.outputs, dtype=torch.float64)
            if self.quantiles is None:
                bias[..., 1] = math.log(math.expm1(1.0))
            else:
                spread = residuals.double().nanquantile(levels, 0).movedim(0, -1)
                bias += torch.where(levels < 0.5, spread.clamp(max=0), spread.clamp(min=0))
                bias[..., levels == 0.5] = 0.0
            assert self.head.bias is not None
            self.head.bias.copy_(bias.nan_to_num().flatten())

    def check_options(self) -> None:
        """Raise an error if the options make no forecaster."""
        spec = self.spec
        channels, exogenous, horizon = map(spec.option, ("channels", "exogenous", "horizon"))
        if channels < 1 or exogenous < 0 or horizon < 1:
            raise ThreefoldError(
                f"{self.name}: channels {channels}, exogenous {exogenous}, horizon {horizon}; "
                "expected at least 1 channel, horizon 1 or more, exogenous 0 or more"
            )
        if not isinstance(self.lags, int) or self.lags < 0:
            raise ThreefoldError(
                f"{self.name}: lags is {self.lags!r}, expected a number of elements; 0 for none"
            )
        head, levels = spec.option("head"), spec.option("quantiles")
        if head not in HEADS:
            raise ThreefoldError(f"{self.name}: unknown head {head!r}; {nearest(head, HEADS)}")
        numbers = all(isinstance(q, float) and 0 < q < 1 for q in levels)
        if not levels or not numbers or list(levels) != sorted(set(levels)):
            raise ThreefoldError(
                f"{self.name}: quantiles are {levels}, expected increasing numbers between 0 and 1"
            )

    def _unscale(self, raw: Tensor, location: Tensor, scale: Tensor) -> Tensor:
        if self.quantiles is not None:
            return location + scale * raw.sort(-1).values
        mean = raw[..., :1]
        deviation = MIN_DEVIATION + F.softplus(raw[..., 1:])
        return torch.cat([location + scale * mean, scale * deviation], -1)

    def _check_inputs(self, series: Tensor, exogenous: Tensor | None) -> None:
        dtype = self.dtype
        check_vectors(series, self.channels, dtype, f"{self.name}, series")
        if (exogenous is None) != (self.exogenous == 0):
            received = "none" if exogenous is None else tuple(exogenous.shape)
            raise ThreefoldError(
                f"{self.name}: exogenous inputs are {received}, expected {self.exogenous} per "
                "element"
            )
        if exogenous is not None:
            check_vectors(exogenous, self.exogenous, dtype, f"{self.name}, exogenous")
            if exogenous.shape[:2] != series.shape[:2]:
                raise ThreefoldError(
                    f"{self.name}: exogenous is {tuple(exogenous.shape)}, expected "
                    f"{(*series.shape[:2], self.exogenous)}, the same length as the series"
                )

    def _refuse_if_not_causal(self) -> None:
        if not self.causal:
            names = [name for name, _ in self.spec.entries]
            raise ThreefoldError(
                f"{self.name}: mixers {names} see later elements, so they cannot forecast them; "
                "choose causal mixers"
            )


How: TypeAlias = tuple[str, "PaddedRows | None", bool]  # form, padding, last element only


def _joined(series: Tensor, exogenous: Tensor | None) -> Tensor:
    return series if exogenous is None else torch.cat([series, exogenous], -1)


def pinball_loss(forecast: Tensor, target: Tensor, quantiles: tuple[float, ...]) -> Tensor:
    """max(q e, (q − 1) e) per value, e = target − forecast […, q], averaged over quantiles."""
    levels = torch.tensor(quantiles, dtype=forecast.dtype, device=forecast.device)
    error = target.unsqueeze(-1) - forecast
    return torch.maximum(levels * error, (levels - 1) * error).mean(-1)


def gaussian_loss(mean: Tensor, deviation: Tensor, target: Tensor) -> Tensor:
    """−log N(target; mean, deviation²) per value."""
    return (
        0.5 * math.log(2 * math.pi) + deviation.log() + ((target - mean) / deviation).square() / 2
    )


def future_values(
    series: Tensor, horizon: int, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The values [B, L, horizon, channels] that follow each element, and which of them exist.

    series     a b c d        horizon 2
    future     bc cd d· ··    · does not exist, and is 0
    """
    length = series.shape[1]
    real = torch.ones_like(series[..., 0], dtype=torch.bool) if mask is None else mask
    positions = torch.arange(length, device=series.device)
    later = positions.unsqueeze(1) + 1 + torch.arange(horizon, device=series.device)
    inside = later < length
    later = later.clamp(max=length - 1)
    counts = real.unsqueeze(-1) & real[:, later] & inside
    counts = counts.unsqueeze(-1).expand(*counts.shape, series.shape[-1])
    return torch.where(counts, series[:, later], torch.zeros_like(series[:, :1, None])), counts
