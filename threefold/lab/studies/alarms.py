"""Do alarms come as often as asked for, and find what was planted?  `threefold lab alarms`.

text    lines of a log that was made up, read byte by byte; planted: damaged words
table   two columns with a season and lags; planted: jumps of single values, and stretches in which
        a column is noisier
sound   a hum of five overtones with noise, at 8,000 samples per second, as a column of samples;
        planted: clicks, and stretches of another tone
bleed   public: the series 135 of KDD-TSAD (UCR anomaly archive, InternalBleeding16), whose one
        anomaly is labelled; trained on its first 1,200 values

rates    share of 30,000 clean elements with an alarm, after a calibration on 30,000 others: of
         points, and of stretches (means over a window); stretches overlap, so that few of them are
         independent
found    planted anomalies with an alarm at a rate of 0.001, and alarms elsewhere
top      where the highest score and mean score lie; the archive allows 100 elements outside
area     under the ROC curve of its elements, by score and by mean score, beside the residuals of a
         ridge autoregression with as many lags and means of them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from threefold.classical.autoregression import RidgeAutoregression
from threefold.data.fetch import MissingError
from threefold.errors import ThreefoldError, nearest
from threefold.runtime.streaming import ScoreStream, stream
from threefold.tasks.stored import data_folder
from threefold.training.api import train

Array = NDArray[Any]
RATES = (0.01, 0.001)
FINDING = 0.001  # the rate at which planted anomalies are to be found
PLANTED, SPACE, STRETCH = 10, 1000, 60  # anomalies, elements between them and of a stretch
WINDOW = 30
BLEED = "KDD-TSAD_135/135_UCR_Anomaly_InternalBleeding16"
BLEED_LAGS, BLEED_WINDOW = 128, 10


@dataclass(frozen=True)
class AlarmStudy:
    """The models, their training, and the clean elements of each part."""

    steps: int = 300
    trained: int = 30_000
    clean: int = 30_000
    seed: int = 0


@dataclass(frozen=True)
class Recordings:
    """A kind of data: what to train on, two clean parts, and one with planted anomalies."""

    train: Any
    clean: tuple[Any, Any]
    planted: Any
    places: list[range]  # of the planted anomalies
    settings: dict[str, Any]


@dataclass(frozen=True)
class AlarmResult:
    """What was measured of one kind."""

    name: str
    rates: dict[float, dict[str, float]]  # by what was asked for: of points, of stretches
    found: int
    planted: int
    elsewhere: int


# -------------------------------------------------------------------------------------- recordings


def text(plan: AlarmStudy) -> Recordings:
    """Lines of a log."""
    random = np.random.default_rng((plan.seed, 1))
    size = max(plan.trained, plan.clean)
    parts = ["".join(_log_lines(random, size)) for _ in range(4)]
    planted, places = parts[3][: (PLANTED + 1) * SPACE], []
    for number in range(1, PLANTED + 1):
        begin = number * SPACE
        damage = "".join(random.choice(list("#~^|{}@Zx"), 8))
        planted = planted[:begin] + damage + planted[begin + len(damage) :]
        places.append(range(begin, begin + len(damage)))
    clean = (parts[1][: plan.clean].encode(), parts[2][: plan.clean].encode())
    settings = {"kind": "language", "settings": {"data.length": 64, "data.tokenizer": "byte"}}
    return Recordings(parts[0][: plan.trained], clean, planted.encode(), places, settings)


def _log_lines(random: np.random.Generator, size: int) -> Iterator[str]:
    users, pages = ("ada", "grace", "alan", "edsger"), ("index", "search", "cart", "help")
    length = 0
    while length < size:
        code = 200 if random.random() < 0.95 else 404
        line = f"user={random.choice(users)} GET /{random.choice(pages)}.html {code}\n"
        length += len(line)
        yield line


def table(plan: AlarmStudy) -> Recordings:
    """flow follows a season and its own past; level follows flow."""
    random = np.random.default_rng((plan.seed, 2))

    def rows(count: int) -> dict[str, Array]:
        time = np.arange(count)
        noise = random.standard_normal((2, count))
        flow = 50 + 5 * np.sin(2 * np.pi * time / 24) + noise[0]
        level = 10 + 0.3 * np.roll(flow, 3) + 0.5 * noise[1]
        return {"flow": flow, "level": level}

    planted, places = rows((PLANTED + 1) * SPACE), []
    for number in range(1, PLANTED + 1):
        begin, name = number * SPACE, ("flow", "level")[number % 2]
        places.append(range(begin, begin + (STRETCH if number > PLANTED // 2 else 1)))
        scale = 3.0 if len(places[-1]) > 1 else 0.0
        odd = scale * random.standard_normal(len(places[-1])) + (0.0 if scale else 10.0)
        planted[name][places[-1].start : places[-1].stop] += odd
    clean = (_as_rows(rows(plan.clean)), _as_rows(rows(plan.clean)))
    settings = {"target": "flow,level", "horizon": 1, "settings": {"data.length": 32}}
    return Recordings(rows(plan.trained), clean, _as_rows(planted), places, settings)


def sound(plan: AlarmStudy) -> Recordings:
    """A hum, as a column of samples."""
    random = np.random.default_rng((plan.seed, 3))

    def hum(count: int) -> Array:
        time = (np.arange(count) + random.integers(8000)) / 8000
        tones = sum(np.sin(2 * np.pi * 50 * (k + 1) * time) / (k + 1) for k in range(5))
        return np.asarray(0.2 * tones + 0.02 * random.standard_normal(count))

    planted, places = hum((PLANTED + 1) * SPACE), []
    for number in range(1, PLANTED + 1):
        begin, long = number * SPACE, number > PLANTED // 2
        places.append(range(begin, begin + (STRETCH if long else 2)))
        time = np.arange(len(places[-1]))
        tone = 0.05 * np.sin(2 * np.pi * 1700 * time / 8000) if long else np.array([0.2, -0.2])
        planted[places[-1].start : places[-1].stop] += tone
    settings = {"target": "sample", "horizon": 1, "settings": {"data.length": 32}}
    clean = (hum(plan.clean), hum(plan.clean))
    return Recordings({"sample": hum(plan.trained)}, clean, planted, places, settings)


def _as_rows(columns: dict[str, Array]) -> Array:
    return np.stack(list(columns.values()), 1)


KINDS: dict[str, Callable[[AlarmStudy], Recordings]] = {
    "text": text,
    "table": table,
    "sound": sound,
}


# --------------------------------------------------------------------------------------- measuring


def measure(name: str, plan: AlarmStudy) -> AlarmResult:
    """Train a model of a kind, calibrate alarms, and count them."""
    data = KINDS[name](plan)
    model = _trained(data.train, plan, data.settings)
    rates = {}
    for rate in RATES:
        calibrate = data.clean[0] if rate == RATES[0] else None
        reading = _read(model, data.clean[1], rate, calibrate)[1]
        rates[rate] = reading.alarms.summary()["alarm_rates"]["this_stream"]
    reading = _read(model, data.planted, FINDING)[1]
    spans = [
        range(a["position"], a["last_position"] + 1) for a in reading.alarms.summary()["alarms"]
    ]
    found = [any(_meet(place, span) for span in spans) for place in data.places]
    elsewhere = sum(not any(_meet(place, span) for place in data.places) for span in spans)
    return AlarmResult(name, rates, sum(found), len(found), elsewhere)


def _read(
    model: Any, source: Any, rate: float, calibrate: Any = None, window: int = WINDOW
) -> tuple[dict[str, Array], Any]:
    """The scores of a source by column, and the stream."""
    reading: ScoreStream = stream(model, source, alarm=rate, window=window, calibrate=calibrate)
    parts = [scores.columns for scores in reading]
    names = ("score", "window_score")
    return {n: np.concatenate([part[n] for part in parts]) for n in names}, reading


def _meet(place: range, span: range) -> bool:
    """Whether an alarm lies in a place, or within a window after it."""
    return span.start < place.stop + WINDOW and place.start < span.stop


def _trained(source: Any, plan: AlarmStudy, options: dict[str, Any]) -> Any:
    """A small model; a text is trained on as a file."""
    settings = {"model.width": 32, "model.depth": 1, "training.learning_rate": 3e-3}
    settings |= options.get("settings", {})
    named = {name: value for name, value in options.items() if name != "settings"}
    with TemporaryDirectory() as folder:
        if isinstance(source, str):
            path = Path(folder) / "train.txt"
            path.write_text(source)
            source = path
        return train(
            source, mixers="gru", steps=plan.steps, seed=plan.seed, settings=settings, **named
        ).model


@dataclass(frozen=True)
class BleedResult:
    """The labelled series: highest score and areas under the curve."""

    tops: dict[str, int]  # of the score, and of its mean over a window that ends there
    anomaly: range
    areas: dict[str, float]


def measure_bleed(plan: AlarmStudy) -> BleedResult:
    """Train on the first part of the labelled series, and score all of the rest."""
    folder = data_folder(None, "aeon", "aeon/datasets/data")
    parts = [
        np.loadtxt(folder / f"{BLEED}_{split}.csv", delimiter=",", skiprows=1)
        for split in ("TRAIN", "TEST")
    ]
    values, labels = parts[1][:, 1], parts[1][:, 2] > 0
    first = len(parts[0])
    options = {"target": "value", "horizon": 1, "settings": {"data.length": BLEED_LAGS}}
    model = _trained({"value": parts[0][:, 1]}, plan, options)
    begin = values[:first]
    scores = _read(model, values, 0.01, begin, BLEED_WINDOW)[0]
    residuals = _ridge_residuals(begin, values)
    ridge = {"ridge": residuals, "ridge, means": trailing_means(residuals, BLEED_WINDOW)}
    curves = {"score": scores["score"], "mean score": scores["window_score"], **ridge}
    areas = {n: area_under_curve(curve[first:], labels[first:]) for n, curve in curves.items()}
    inside = np.flatnonzero(labels)
    tops = {n: first + int(np.nanargmax(curves[n][first:])) for n in ("score", "mean score")}
    return BleedResult(tops, range(int(inside[0]), int(inside[-1]) + 1), areas)


def _ridge_residuals(begin: Array, values: Array) -> Array:
    """|y − ŷ| of a ridge autoregression that was fitted on the beginning."""

    def windows(series: Array) -> torch.Tensor:
        rows = sliding_window_view(series, BLEED_LAGS)[:-1]
        return torch.from_numpy(rows.copy()).unsqueeze(-1)

    targets = torch.from_numpy(begin[BLEED_LAGS:].copy()).view(-1, 1, 1)
    ridge = RidgeAutoregression.fit(windows(begin), targets)
    forecast = ridge.predict(windows(values)).flatten().numpy()
    return np.concatenate([np.zeros(BLEED_LAGS), np.abs(values[BLEED_LAGS:] - forecast)])


def trailing_means(values: Array, window: int) -> Array:
    """The mean of the last `window` values at each."""
    means = sliding_window_view(values, window).mean(-1)
    return np.concatenate([np.full(window - 1, means[0]), means])


def area_under_curve(scores: Array, labels: Array) -> float:
    """The share of pairs in which the element of the anomaly has the higher score."""
    odd, others = scores[labels], np.sort(scores[~labels])
    below = np.searchsorted(others, odd, "left") + np.searchsorted(others, odd, "right")
    return float(below.mean() / 2 / len(others))


# ------------------------------------------------------------------------------------------- table


def lines(names: Sequence[str], plan: AlarmStudy) -> Iterator[str]:
    """The lines of the table, each as soon as it is measured."""
    known = (*KINDS, "bleed")
    for name in names:
        if name not in known:
            raise ThreefoldError(f"unknown kind {name!r}; {nearest(name, known)}")
    chosen = names or known
    heads = [f"{what} at {rate:g}" for rate in RATES for what in ("points", "stretches")]
    yield f"| kind | {' | '.join(heads)} | planted found | alarms elsewhere |"
    yield "|---" * (len(heads) + 3) + "|"
    for name in chosen:
        if name in KINDS:
            yield _line(measure(name, plan))
    if "bleed" in chosen:
        yield from _bleed_lines(plan)


def _line(result: AlarmResult) -> str:
    cells = [f"{share:.4f}" for rates in result.rates.values() for share in rates.values()]
    cells += [f"{result.found} of {result.planted}", str(result.elsewhere)]
    return f"| {' | '.join([result.name, *cells])} |"


def _bleed_lines(plan: AlarmStudy) -> Iterator[str]:
    try:
        result = measure_bleed(plan)
    except MissingError:
        yield "bleed: not downloaded; run: threefold data fetch aeon"
        return
    first, last = result.anomaly.start, result.anomaly.stop - 1
    for name, top in result.tops.items():
        away = max(first - top, top - last, 0)
        place = f"{away} elements outside" if away else "inside"
        yield f"bleed: highest {name} at {top:,}, {place} the anomaly ({first:,} to {last:,})"
    areas = ", ".join(f"{name} {area:.4f}" for name, area in result.areas.items())
    yield f"bleed: area under the curve: {areas}"
