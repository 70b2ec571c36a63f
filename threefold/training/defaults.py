"""Settings that suit the data and the budget, where the user gives none.

    data.batch_size          about 4,096 elements, four batches or more in an epoch
    model.size               no larger than the examples and the steps in the time allow
    training.steps           at most 200 passes over the examples, 40 over a text
    model.options.dropout    from ten passes on, where classes or tokens are predicted
    training.keep_best       from three passes on
    training.learning_rate   a range test of 40 steps, if the run is much longer
    training.augment         what wins on held-out examples, if there are few

A run of a number of steps gets the same settings every time.  With a time limit the speed of the
machine counts, too.  What was chosen is in config.toml with its reason, so a run resumes with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from threefold.drawing.text import format_duration
from threefold.models.table import KINDS, build
from threefold.training import few_examples
from threefold.training.config import RunConfig
from threefold.training.distributed import ProcessGroup
from threefold.training.ensembles import member_config
from threefold.training.estimate import estimate_step
from threefold.training.experiment import CONFIG, read_run_values
from threefold.training.fine_tuning import StartingModel
from threefold.training.preparation import build_model
from threefold.training.pretraining import SHARE as PRETRAINING
from threefold.training.range_test import STEPS as RANGE_STEPS
from threefold.training.range_test import range_test
from threefold.training.training_data import TrainingData

ELEMENTS = 4096  # of a batch
BATCHES = (4, 64)  # smallest and largest number of examples
FEWEST_BATCHES = 4  # of an epoch
SAMPLE = 32  # examples whose lengths are looked at
TEXTS = ("language", "masked", "xlnet", "tagger")  # kinds with an answer for every element
# The least of training examples, or of elements with an answer each, and of steps, by size.
LEAST_EXAMPLES = {"small": 2_000, "medium": 200_000}
LEAST_ELEMENTS = {"small": 200_000, "medium": 50_000_000}
LEAST_STEPS = {"small": 600, "medium": 5_000}
FEW_STEPS = 400  # fewer of them in the time: smaller batches
TRAINING_SHARE = 0.8  # of a time limit that is for steps
OPTIMIZER_SHARE = 1.15  # of a step, beside forward and backward pass
MOST_PASSES = {"text": 40, "examples": 200}
SHORTEST = 500  # steps of a run that ends after so many passes
DROPOUTS = ((40, 0.2), (10, 0.1))  # from so many passes on …
DROPPED_FROM = 200  # … and so many steps; fewer do not memorize
# Dropout changes the size of sums, which classes do not mind and predicted numbers do.
DROPPED = ("language", "masked", "classifier", "hierarchical", "tagger", "seq2seq")
KEEP_FROM = 3  # passes from which the weights of the lowest validation loss are kept
LEAST_VALID = 8  # examples of a validation that can tell them
RANGE_COST = 1.5  # of a step of a range test, in steps of the run
MOST_RANGE = 0.1  # of a run that a range test may take
COMPARED = 8  # a run is so many times as long as one that compares augmentations
COMPARING = 0.25  # of a time limit that the comparison of augmentations may take
TESTED = ("adam", "adamw", "muon")  # optimizers whose rates the range test covers
OnRun: TypeAlias = Callable[[int, int], None]


@dataclass
class Suiting:
    """Chooses one setting after another; `reasons` has those that were chosen."""

    config: RunConfig
    data: TrainingData
    start: StartingModel | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    on_run: OnRun = lambda done, runs: None
    dry: bool = False  # no comparisons, which take long

    def choose(self) -> None:
        """Choose whatever was not given."""
        kind = KINDS[self.data.task.kind]
        if not kind.has_mixers or kind.sizes:
            return
        self._choose_batch()
        self._choose_size()
        self._shrink_batch()
        self._limit_passes()
        self._regularise()
        self._choose_rate()
        self._choose_augmentation()

    def _take(self, key: str, value: Any, reason: str) -> None:
        self.config = with_setting(self.config, key, value)
        self.data = self.data.with_settings(self.config.data)
        self.reasons[key] = reason

    @cached_property
    def length(self) -> float:
        """The mean length of an example."""
        task = self.data.task
        if task.corpus is not None:
            return task.length
        rows = task.rows("train", np.arange(min(SAMPLE, task.size("train"))))
        lengths = getattr(rows, "lengths", None)
        return task.length if lengths is None else float(lengths.float().mean())

    @cached_property
    def examples(self) -> int:
        """Training examples; of a text, its windows without overlap."""
        task = self.data.task
        if task.corpus is None:
            return task.size("train")
        return max(1, len(task.corpus().tokens["train"]) // task.length)

    @property
    def is_text(self) -> bool:
        """Whether there is an answer for every element."""
        return self.data.task.kind in TEXTS

    def steps(self, size: str | None = None) -> int:
        """The steps of a run that starts now; size: of a model of another size."""
        training = self.config.training
        limits = [] if training.steps is None else [training.steps]
        if training.time is not None:
            limits.append(int(self._seconds / self._step_seconds(size)))
        return max(1, min(limits))

    @property
    def _seconds(self) -> float:
        """The time of the steps of one model."""
        config = self.config
        limit = (member_config(config, 0) if config.training.ensemble else config).training.time
        share = PRETRAINING if config.data.pretrain else 1.0
        return TRAINING_SHARE * share * (limit or 0.0)

    def _step_seconds(self, size: str | None) -> float:
        """The time of a step of the main process."""
        config = self.config if size is None else with_setting(self.config, "model.size", size)
        data, training = self.data, config.training
        if self.start is None:
            with torch.random.fork_rng(devices=[]):
                model = build(data.spec(config.model))
        else:
            model = self.start.model
        rows = data.batches(training.carry_state)(0)
        step = estimate_step(model, data.objective(training), rows, training)
        return ProcessGroup.current().broadcast(max(OPTIMIZER_SHARE * step.seconds, 1e-6))[0]

    def _choose_batch(self) -> None:
        if is_given(self.config, "data.batch_size"):
            return
        fitting = 2 ** round(math.log2(max(ELEMENTS / self.length, 1)))
        few = max(self.examples // FEWEST_BATCHES, BATCHES[0])
        size = min(max(min(fitting, BATCHES[1]), BATCHES[0]), 2 ** int(math.log2(few)))
        size = min(size, self.data.task.size("train"))
        ranks = ProcessGroup.current().ranks
        size = max(size // ranks, 1) * ranks
        reason = f"{self.examples:,} training examples of {self.length:,.0f} elements"
        self._take("data.batch_size", size, reason)

    def _choose_size(self) -> None:
        keys = ("size", "width", "depth", "from_model", "embedding")
        if self.start is not None or any(is_given(self.config, f"model.{key}") for key in keys):
            return
        least, what = (LEAST_EXAMPLES, "examples")
        amount: float = self.examples
        if self.is_text:
            least, what, amount = LEAST_ELEMENTS, "elements", self.examples * self.length
        chosen, reason = "tiny", ""
        for size in ("small", "medium"):
            if amount < least[size]:
                reason = f"{amount:,.0f} training {what}; {size}: from {least[size]:,}"
                break
            steps = self._steps_of(size, chosen)
            if steps < LEAST_STEPS[size]:
                limit = self.config.training.time
                within = "" if limit is None else f" in {format_duration(limit)}"
                reason = f"{size} from {LEAST_STEPS[size]:,} steps, but it makes {steps:,}{within}"
                break
            chosen = size
        self._take("model.size", chosen, reason or f"{amount:,.0f} training {what}")

    def _steps_of(self, size: str, smaller: str) -> int:
        """The steps of a size; it is not timed if the smaller one already makes too few."""
        steps = self.steps(smaller)
        return steps if steps < LEAST_STEPS[size] else self.steps(size)

    def _shrink_batch(self) -> None:
        """Smaller batches, if the time is for few steps only."""
        if "data.batch_size" not in self.reasons or self.config.training.time is None:
            return
        size, steps = self.config.data.batch_size, self.steps()
        ranks = ProcessGroup.current().ranks
        while steps < FEW_STEPS and size >= 2 * BATCHES[0] and size % (2 * ranks) == 0:
            size, steps = size // 2, 2 * steps
        if size < self.config.data.batch_size:
            reason = f"about {steps:,} steps in {format_duration(self.config.training.time)}"
            self._take("data.batch_size", size, reason)

    def _passes(self, steps: int) -> float:
        return steps * self.config.data.batch_size / self.examples

    def _limit_passes(self) -> None:
        training = self.config.training
        if training.steps is not None or training.target_score is not None:
            return
        most = MOST_PASSES["text" if self.data.task.corpus is not None else "examples"]
        batch = self.config.data.batch_size
        steps = max(SHORTEST, math.ceil(most * self.examples / batch))
        if steps < self.steps():
            reason = f"{self._passes(steps):,.0f} passes over {self.examples:,} examples; more "
            self._take("training.steps", steps, reason + "would only memorize them")

    def _regularise(self) -> None:
        config, task, steps = self.config, self.data.task, self.steps()
        passes = self._passes(steps)
        shown = f"about {passes:,.0f} passes over the training examples"
        suits = task.kind in DROPPED and (self.is_text or task.metric == "accuracy")
        suits = suits and steps >= DROPPED_FROM and "dropout" in KINDS[task.kind].options
        if suits and not is_given(config, "model.options.dropout"):
            for least, dropout in DROPOUTS:
                if passes >= least:
                    self._take("model.options.dropout", dropout, shown)
                    break
        evaluates = any(is_given(config, f"training.{n}") for n in ("keep_best", "eval_every"))
        if passes >= KEEP_FROM and task.size("valid") >= LEAST_VALID and not evaluates:
            self._take("training.keep_best", True, shown)

    def _choose_rate(self) -> None:
        config, data = self.config, self.data
        training = config.training
        if is_given(config, "training.learning_rate") or training.optimizer not in TESTED:
            return
        if MOST_RANGE * self.steps() < RANGE_COST * RANGE_STEPS:
            return
        model, _, _ = build_model(config, data, self.start)
        held_out = list(islice(data.limited(2 * config.data.batch_size).pieces("valid"), 2))
        batches, objective = data.batches(training.carry_state), data.objective(training)
        tested = range_test(model, batches, held_out, objective, training)
        rate = ProcessGroup.current().broadcast(tested.peak)[0]
        lowest = f"{tested.rate_of_lowest:.1g}"
        reason = f"range test of {len(tested.rates)} steps: the loss falls up to a rate of {lowest}"
        self._take("training.learning_rate", rate, reason)

    def _choose_augmentation(self) -> None:
        if is_given(self.config, "training.augment") or self.config.data.pretrain:
            return
        tried, folds = few_examples.candidates(self.data), few_examples.FOLDS
        if not tried:
            return
        least, most = few_examples.STEPS
        steps = min(max(self.steps() // COMPARED, least), most)
        tried = tried[: max(0, self._comparing_steps // (steps * folds) - 1)]
        if not tried or steps > self.steps():
            return
        runs, done = folds * (len(tried) + 1), count(1)
        shown = f"{runs} runs of {steps:,} steps"
        if self.dry:
            self.reasons["training.augment"] = f"compared when the run begins, by {shown}"
            return
        compare = few_examples.Comparison(
            self.config, self.data, self.start, steps, lambda: self.on_run(next(done), runs)
        )
        choice = few_examples.choose(compare, tried, shown)
        self._take("training.augment", choice.names, choice.reason)

    @property
    def _comparing_steps(self) -> int:
        """The most steps of all runs of a comparison: those of the run, or a share of the time."""
        training = self.config.training
        limits = [] if "training.steps" in self.reasons else [training.steps or math.inf]
        if training.time is not None:
            limits.append(COMPARING * training.time / self._step_seconds(None))
        return int(min(limits))


def suit(
    config: RunConfig,
    data: TrainingData,
    start: StartingModel | None = None,
    folder: Path | None = None,
    *,
    on_run: OnRun = lambda done, runs: None,
    dry: bool = False,
) -> tuple[RunConfig, TrainingData, Mapping[str, str]]:
    """The configuration with what suits the data; a run in the folder keeps what it has.

    Returns also the data with these settings, and the reasons by setting.  on_run: called with the
    done and all runs of a comparison.  dry: only say that there will be one.
    """
    if folder is not None and (folder / CONFIG).is_file():
        config, reasons = adopt(config, folder)
        return config, data.with_settings(config.data), reasons
    suiting = Suiting(config, data, start, on_run=on_run, dry=dry)
    suiting.choose()
    return suiting.config, suiting.data, suiting.reasons


def adopt(config: RunConfig, folder: Path) -> tuple[RunConfig, dict[str, str]]:
    """The configuration with what was chosen for the run in a folder, unless it is given now."""
    values = read_run_values(folder)
    reasons: dict[str, str] = {}
    for key, reason in values.get("chosen", {}).items():
        if not is_given(config, key):
            value: Any = values
            for part in key.split("."):
                value = value[part]
            value = tuple(value) if isinstance(value, list) else value
            config = with_setting(config, key, value)
            reasons[key] = reason
    return config, reasons


def is_given(config: RunConfig, key: str) -> bool:
    """Whether a setting was given, by its full name."""
    section, name = key.split(".", 1)
    if name.startswith("options."):
        return name.removeprefix("options.") in config.model.options
    return name in getattr(config, section).model_fields_set


def with_setting(config: RunConfig, key: str, value: Any) -> RunConfig:
    """A configuration with another value of one setting, by its full name."""
    section, name = key.split(".", 1)
    if name.startswith("options."):
        options = {**config.model.options, name.removeprefix("options."): value}
        name, value = "options", options
    changed = getattr(config, section).model_copy(update={name: value})
    return config.model_copy(update={section: changed})
