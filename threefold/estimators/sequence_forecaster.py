"""A forecaster of series: a neural sequence model with quantiles, under scikit-learn's protocol."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import r2_score

from threefold.data.preprocessing import Roles
from threefold.data.preprocessing.numbers import POLICIES
from threefold.errors import ThreefoldError, nearest
from threefold.estimators.forecast_fitting import (
    ForecastData,
    fit_simple,
    race_forecasters,
    roll_out,
    simple_forecast,
    train_forecaster,
)
from threefold.estimators.neural import NeuralEstimator
from threefold.estimators.racing import race_names, unit_of, verdict
from threefold.estimators.time_index import (
    check_one_series,
    check_order,
    continue_index,
    describe_index,
)
from threefold.models.model import Model
from threefold.runtime.table_forecasts import forecast_series
from threefold.tasks.user_data.series_windows import TimeSeries

Array = NDArray[Any]
LONGEST_CONTEXT = 128
HELD_OUT = 0.2  # share of the series, its end, that decides a race


class SequenceForecaster(NeuralEstimator):
    """A neural sequence model that forecasts a series, with quantiles.

    y: [time], or [time, channels], as an array, list, or Series or DataFrame of pandas (whose index
    goes on in the forecasts) or polars.  X: other inputs [time, features], known as far as y.
    horizon: steps to forecast.  context: rows that a forecast reads; by default 32 or three
    horizons, at most 128.  quantiles: those that `predict_quantiles` can return; `predict` returns
    the median.  mixers="auto" also compares last value, seasonal naive, ridge autoregression and
    Holt–Winters.  The other parameters and fitted attributes are those of `SequenceClassifier`.

    >>> import numpy as np
    >>> wave = np.sin(0.3 * np.arange(300))
    >>> model = SequenceForecaster(horizon=5, width=16, layers=1, steps=100).fit(wave)
    >>> bool(np.abs(model.predict() - np.sin(0.3 * np.arange(300, 305))).max() < 0.3)
    True
    """

    kind = "forecaster"
    form = "table"
    _form: dict[str, Any]  # of y: the library, names and index

    def __init__(
        self,
        mixers: Any = "gru",
        *,
        horizon: int = 1,
        context: int | None = None,
        quantiles: Sequence[float] = (0.1, 0.5, 0.9),
        width: int = 64,
        layers: int = 1,
        steps: int | None = None,
        time: str | float | None = None,
        learning_rate: float = 3e-3,
        batch_size: int = 32,
        dropout: float = 0.0,
        validation_fraction: float | None = None,
        missing: str = "refuse",
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            mixers,
            width=width,
            layers=layers,
            steps=steps,
            time=time,
            learning_rate=learning_rate,
            batch_size=batch_size,
            dropout=dropout,
            validation_fraction=validation_fraction,
            random_state=random_state,
            verbose=verbose,
        )
        self.horizon = horizon
        self.context = context
        self.quantiles = quantiles
        self.missing = missing

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, False
        return tags

    def fit(self, y: Any, X: Any = None) -> Self:
        """Train on all windows of the series."""
        values, self._targets, self._features = self._read(y, X)
        self._note_form(y)
        self.n_features_in_ = len(self._targets)
        settings, levels = self._settings(), self._levels()
        self._forget()
        roles = Roles(targets=self._targets, features=self._features)
        data = ForecastData.make(
            values, roles, self._context(len(values)), self._checked_horizon(), self.missing
        )
        self.preprocessing_ = data.preprocessing
        self.history_values_ = values[-2 * data.windows.context :].copy()
        self.spread_ = np.zeros((0, 0, 0))
        mixers = race_names(self.mixers)
        if mixers:
            settings = self._race_series(data, mixers)
        if not mixers or self.race_[0]["kind"] != "baseline":
            self._train(data, replace(settings, verbose=self.verbose), levels)
        return self

    def _train(self, data: ForecastData, settings: Any, levels: Sequence[float]) -> None:
        train, valid = data.begins, None
        if self.validation_fraction and not hasattr(self, "race_"):
            train, valid = data.hold_out(self.validation_fraction)
        trained = train_forecaster(data, settings, levels, train, valid)
        self.model_, self.history_ = trained.model, trained.history
        if not hasattr(self, "race_"):
            self.best_ = "+".join(name for name, _ in trained.model.spec.entries)

    def _race_series(self, data: ForecastData, mixers: Sequence[str]) -> Any:
        """Choose the winner; a simple one is fitted, for another one the settings are returned."""
        settings, levels = self._settings(), self._levels()
        share = self.validation_fraction or HELD_OUT
        entries, errors, remarks = race_forecasters(data, settings, mixers, levels, share)
        self.best_, self.race_ = entries[0].name, [asdict(entry) for entry in entries]
        count = len(errors[self.best_])
        self.verdict_ = verdict(entries, count, "forecaster", unit_of(data.preprocessing))
        for line in (*remarks, self.verdict_):
            self._say(line)
        if entries[0].kind != "baseline":
            limits = settings.limits()
            left = {"time": 0.4 * limits["time"]} if limits.get("time") else {}
            return replace(settings, mixers=self.best_, **left)
        self.model_ = fit_simple(self.best_, data, data.begins, settings.seed)
        rest = [np.nanquantile(errors[self.best_], level, axis=0) for level in levels]
        middle = np.nanmedian(errors[self.best_], axis=0)
        self.spread_ = np.stack(rest) - middle  # [levels, horizon, targets], around the forecast
        return settings

    def update(self, y: Any, X: Any = None) -> Self:
        """Go on from later values, without training."""
        self._check_fitted()
        values, targets, features = self._read(y, X)
        if (len(targets), len(features)) != (len(self._targets), len(self._features)):
            raise ThreefoldError(
                f"update: y has {len(targets)} and X {len(features)} columns; expected "
                f"{len(self._targets)} and {len(self._features)} as in fit"
            )
        rows = len(self.history_values_)
        self.history_values_ = np.concatenate([self.history_values_, values])[-rows:]
        self._note_form(y, later=len(values))
        return self

    def predict(self, horizon: int | None = None, *, fh: Any = None) -> Any:
        """The next steps, [steps] or [steps, channels], with the index of y continued.

        horizon: how many, by default those that were trained.  fh: which, e.g. [1, 2, 12].
        """
        steps, values = self._forecast(horizon, fh)
        return self._shaped(values[:, :, 0], steps)

    def predict_quantiles(
        self, horizon: int | None = None, *, fh: Any = None, quantiles: Any = None
    ) -> Any:
        """Quantiles [steps, levels], or [steps, channels, levels]."""
        steps, values = self._forecast(horizon, fh)
        known = self._levels()
        levels = known if quantiles is None else tuple(np.atleast_1d(quantiles).tolist())
        for level in levels:
            if level not in known:
                raise ThreefoldError(
                    f"the quantile {level} was not trained; the forecaster has "
                    f"{', '.join(map(str, known))} (quantiles=…)"
                )
        chosen = values[:, :, [1 + known.index(level) for level in levels]]
        return self._shaped(chosen, steps, levels)

    def predict_interval(
        self, horizon: int | None = None, *, fh: Any = None, coverage: float = 0.8
    ) -> Any:
        """The lower and upper end [steps, 2] of the interval that covers this share."""
        low = round((1 - coverage) / 2, 10)
        high, known = round(1 - low, 10), self._levels()
        if not {low, high} <= set(known):
            raise ThreefoldError(
                f"coverage={coverage:g} needs the quantiles {low:g} and {high:g}, but the "
                f"forecaster has {', '.join(map(str, known))}; fit with "
                f"quantiles=({low:g}, 0.5, {high:g})"
            )
        return self.predict_quantiles(horizon, fh=fh, quantiles=(low, high))

    def score(self, y: Any, X: Any = None) -> float:
        """R² of the forecasts for the values that follow the series of fit."""
        self._check_fitted()
        values, targets, _ = self._read(y, None)
        if len(targets) != len(self._targets):
            raise ThreefoldError(f"y has {len(targets)} columns, expected {len(self._targets)}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is beyond the trained horizon
            forecast = self._forecast(len(values), None)[1][:, :, 0]
        return float(r2_score(values, forecast))

    def _forecast(self, horizon: int | None, fh: Any) -> tuple[Array, Array]:
        """The steps asked for, and [steps, targets, 1 + levels]: the point forecast first."""
        self._check_fitted()
        steps = _steps(self.preprocessing_.horizon or 1, horizon, fh)
        last, trained = int(steps.max()), self.preprocessing_.horizon or 1
        if last > trained:
            warnings.warn(
                f"forecasting {last} steps with a model of {trained}: later steps are forecast "
                "from its own forecasts, and their quantiles are too narrow; fit with "
                f"horizon={last}",
                stacklevel=3,
            )
        if isinstance(self.model_, Model):
            values = self._model_values(last)
        else:
            values = self._simple_values(last)
        return steps, values[steps - 1]

    def _model_values(self, last: int) -> Array:
        model: Any = self.model_
        levels, values = forecast_series(
            model, self.preprocessing_, TimeSeries("", self.history_values_), last
        )
        places = {level: number for number, level in enumerate(levels)}
        order = [0, *(places.get(level, 0) for level in self._levels())]
        return values[:, :, order]

    def _simple_values(self, last: int) -> Array:
        model: Any = self.model_
        scaled = self.preprocessing_.inputs.apply(self.history_values_)
        context, targets = self.preprocessing_.context or 1, len(self._targets)
        forecast = simple_forecast(model, targets)
        point = roll_out(forecast, scaled[-context:], last, targets)
        rows = np.minimum(np.arange(last), self.spread_.shape[1] - 1)
        parts = [point, *(point + spread[rows] for spread in self.spread_)]
        return np.stack([self.preprocessing_.outputs.invert(part) for part in parts], -1)

    def _shaped(self, values: Array, steps: Array, levels: Sequence[float] | None = None) -> Any:
        """Forecasts in the form of y: an array, or a Series or DataFrame with its index."""
        single = self._form["single"]
        array = values[:, 0] if single else values
        if self._form["library"] != "pandas":
            return array
        import pandas

        index = continue_index(self._form["index"], int(steps.max()))[steps - 1]
        if levels is None and single:
            return pandas.Series(array, index=index, name=self._form["names"][0])
        if levels is None:
            return pandas.DataFrame(array, index=index, columns=self._form["names"])
        if single:
            return pandas.DataFrame(array, index=index, columns=list(levels))
        columns = pandas.MultiIndex.from_product([self._form["names"], levels])
        return pandas.DataFrame(array.reshape(len(array), -1), index=index, columns=columns)

    def _note_form(self, y: Any, later: int = 0) -> None:
        """Note what y is and where its index ends; `later` values came without an index."""
        if not hasattr(y, "index") or not hasattr(y, "iloc"):
            if later and self._form["library"] == "pandas":
                raise ThreefoldError("update: y has no index, but that of fit had one")
            names = list(self._targets)
            self._form = {"library": "numpy", "names": names, "single": np.ndim(y) == 1}
            return
        check_order(y.index)
        single = not hasattr(y, "columns")
        names = [y.name] if single else list(y.columns)
        index = describe_index(y.index)
        if later:
            index = {**self._form["index"], "last": index["last"]}
        self._form = {"library": "pandas", "names": names, "single": single, "index": index}

    def _read(self, y: Any, X: Any) -> tuple[Array, tuple[str, ...], tuple[str, ...]]:
        """The values [time, targets and features], and the names of both."""
        if self.missing not in POLICIES:
            raise ThreefoldError(
                f"missing is {self.missing!r}; {nearest(str(self.missing), POLICIES)}"
            )
        targets, target_names = _matrix(y, "y", self.missing)
        if X is None:
            return targets, target_names, ()
        features, names = _matrix(X, "X", self.missing)
        if len(features) != len(targets):
            raise ThreefoldError(f"y has {len(targets)} rows and X {len(features)}")
        clash = set(names) & set(target_names)
        names = tuple(f"X.{name}" if name in clash else name for name in names)
        return np.hstack([targets, features]), target_names, names

    def _levels(self) -> tuple[float, ...]:
        return tuple(map(float, self.quantiles))

    def _checked_horizon(self) -> int:
        if not isinstance(self.horizon, (int, np.integer)) or self.horizon < 1:
            raise ThreefoldError(f"horizon is {self.horizon!r}, expected a whole number from 1 on")
        return int(self.horizon)

    def _context(self, rows: int) -> int:
        """The rows that a forecast reads."""
        horizon = self._checked_horizon()
        if self.context is not None:
            return int(self.context)
        longest = min(LONGEST_CONTEXT, max(32, 3 * horizon))
        return max(1, min(longest, (rows - horizon) // 2))


def _matrix(data: Any, name: str, missing: str) -> tuple[Array, tuple[str, ...]]:
    """Numbers [time, columns] and the names of the columns."""
    names = [str(column) for column in data.columns] if hasattr(data, "columns") else []
    check_one_series(data, name)
    try:
        values: Array = np.asarray(data, np.float64)
    except (TypeError, ValueError) as error:
        raise ThreefoldError(f"{name} cannot be read as numbers ({error})") from error
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or 0 in values.shape:
        raise ThreefoldError(
            f"{name} is {np.shape(data)}; expected a series [time] or [time, columns]"
        )
    unknown = ~np.isfinite(values) if missing == "refuse" else np.isinf(values)
    if unknown.any():
        row, column = np.argwhere(unknown)[0].tolist()
        raise ThreefoldError(
            f"{name} is {values[row, column]} in row {row}, column {column}; expected finite "
            'numbers: fill the gap, or say missing="carry" (repeat the last value) or "mask"'
        )
    numbered = (f"{name}{number}" for number in range(1, values.shape[1] + 1))
    if not names or len(set(names)) < len(names):
        names = [name] if values.shape[1] == 1 else list(numbered)
    return values, tuple(names)


def _steps(trained: int, horizon: Any, fh: Any) -> Array:
    """The steps ahead that are asked for."""
    if horizon is not None and fh is not None:
        raise ThreefoldError("give horizon or fh, not both")
    asked = np.arange(1, trained + 1)
    if fh is not None:
        asked = np.atleast_1d(np.asarray(fh))
    elif horizon is not None:
        if np.ndim(horizon) or int(horizon) != horizon:
            raise ThreefoldError(f"horizon is {horizon!r}, expected a number of steps")
        asked = np.arange(1, int(horizon) + 1)
    if asked.dtype.kind not in "iu" or not len(asked) or asked.min() < 1:
        raise ThreefoldError(f"steps ahead are {asked.tolist()}, expected whole numbers from 1 on")
    return asked
