"""What a race leaves behind: `best/`, the winner as a model folder, and the command that uses it.

The model is that of the leader's run with the lowest validation loss; the test split has no say in
it.  With `--then-train 10m` a new run of the leader's configuration is trained on all data, the
validation and the test split included, and replaces it.  A baseline that is better is beside it
(`best_baseline.py`).
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from threefold.data.atomic_files import write_json
from threefold.errors import option_name
from threefold.lab.race.folder import REFIT, REFITTED, RaceFolder, Say
from threefold.lab.race.planning import RacePlan
from threefold.lab.race.result import Finished
from threefold.lab.race.runs import CurveRecorder, StoppedError
from threefold.lab.report.report import BestModel, Report
from threefold.models.saving import load
from threefold.training import experiment, preparation
from threefold.training.config import RunConfig
from threefold.training.durations import parse_duration
from threefold.training.experiment import MODEL
from threefold.training.training_data import TrainingData, open_data

PROMPT_TOKENS = 24  # of the training text, of which the prompt is the first word
REFIT_EXAMPLES = 256  # on which the refitted model is evaluated while it trains


def keep_best(
    plan: RacePlan, report: Report, finished: Finished, folder: RaceFolder, data: TrainingData
) -> BestModel:
    """Copy the model of the leader's best run to best/, unless a refitted one is there."""
    name = report.ranked[0].name
    seed = best_seed(finished, name)
    refitted = refitted_for(folder)
    if not refitted:
        load(folder.run(name, seed) / MODEL).save(folder.best)
    return BestModel(name, seed, str(folder.best), use_command(folder.best, data), refitted)


def refitted_for(folder: RaceFolder) -> str:
    """How long the model in best/ was trained on all data; empty if it is that of the race."""
    path = folder.path / REFITTED
    if not path.is_file() or not folder.best.is_dir():
        return ""
    return str(json.loads(path.read_text(encoding="utf-8"))["time"])


def best_seed(finished: Finished, name: str) -> int:
    """The seed of a model's run with the lowest validation loss."""
    return min((result.loss, seed) for (other, seed), result in finished.items() if other == name)[
        1
    ]


def refit(
    plan: RacePlan, best: BestModel, folder: RaceFolder, time: str, say: Say, source: Any = None
) -> None:
    """Train the best model again on all data, and put it into best/."""
    config = refit_config(plan, best, time)
    data = all_data(config, source)
    prepared = preparation.prepare(config, data)
    limited = min(REFIT_EXAMPLES, data.task.size("valid"))
    prepared = replace(prepared, valid_examples=limited)

    def progress(done: float, loss: float) -> None:
        say(f"training {best.name} on all data: {done:.0%}, loss {loss:.3f}")

    run_folder = folder.path / f"{REFIT}-{time}"
    trained = experiment.run(
        config,
        run_folder,
        prepared=prepared,
        reporters=[CurveRecorder(run_folder, progress)],
        test=False,
        samples=False,
    )
    if not trained.finished:
        raise StoppedError("interrupted; run the same command again to continue")
    trained.model.save(folder.best)
    write_json(folder.path / REFITTED, {"time": time})


def refit_config(plan: RacePlan, best: BestModel, time: str) -> RunConfig:
    """The configuration of the leader, with another end."""
    config = plan.config(best.name, best.seed)
    duration = parse_duration(time, option_name("then_train"))
    training = config.training.model_copy(
        update={"steps": duration.steps, "time": duration.seconds, "eval_every": None}
    )
    return config.model_copy(update={"training": training})


def all_data(config: RunConfig, source: Any) -> TrainingData:
    """A user's data with all examples in the training split; a task has its own split."""
    return open_data(config.data, source=source, split=False)


def use_command(folder: Path, data: TrainingData) -> str:
    """The command that uses a model on the data of the race, or on new ones like them."""
    path = data.data.name if data.from_user and Path(data.data.name).exists() else ""
    place = str(folder)
    if data.task.kind == "language" and data.tokenizer is not None:
        return shlex.join(["threefold", "generate", place, prompt(data), "--max-tokens", "100"])
    if data.preprocessing is None or not path:
        return f'threefold.load("{place}") in Python'
    verb = "forecast" if data.task.kind == "forecaster" else "predict"
    return shlex.join(["threefold", verb, place, path])


def prompt(data: TrainingData) -> str:
    """The first word of the training text."""
    assert data.task.corpus is not None
    corpus = data.task.corpus()
    words = corpus.tokenizer.decode(corpus.tokens["train"][:PROMPT_TOKENS]).split()
    return words[0] if words else "The"
