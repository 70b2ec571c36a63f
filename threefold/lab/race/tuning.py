"""Learning rate, width against depth, and dropout of each contender, by short runs before the race.

    rung   runs per model                                 steps of each
    0      four learning rates                            1/8
    1      the best two                                   1/4
    2      half and twice the depth, at equal parameters  1/4
    3      dropout                                        1/4

Each run trains from scratch with a complete schedule and is ranked by its validation loss.  The
default stays where another choice is not better by more than 1 %: short runs cannot tell more.
Jamieson & Talwalkar 2016, "Non-stochastic Best Arm Identification and Hyperparameter Optimization"
(successive halving, for the learning rates).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from threefold.data.atomic_files import write_json
from threefold.errors import DivergedError, ThreefoldError
from threefold.lab.race.planning import PlannedModel, RacePlan, model_spec, with_shape
from threefold.lab.race.runs import RESULT, CurveRecorder, Progress, prepare_run, train_to_end
from threefold.lab.race.sizing import Sized, solve
from threefold.training.config import RunConfig
from threefold.training.data_cache import DataCache
from threefold.training.training_data import TrainingData

TUNING_RATES = (1e-3, 3e-3, 1e-2, 3e-4)  # learning rates that are tried, most likely first
DEPTH_FACTORS = (2.0, 0.5)  # depths that are tried, of the default
DROPOUTS = (0.1,)  # that are tried, beside none
TUNING_SEED = 1_000_003  # not used by any run of a race
INDISTINCT = 0.01  # relative difference of losses below which short runs cannot be ranked
# Successive halving: (number of learning rates that remain, fraction of a run's steps).
RUNGS = ((len(TUNING_RATES), 1 / 8), (2, 1 / 4))
LAST = 1 / 4  # fraction of a run's steps for shapes and dropout


@dataclass(frozen=True)
class Tuner:
    """Tunes the contenders of a plan; runs in `folder` that are finished are not repeated."""

    plan: RacePlan
    folder: Path | None
    progress: Progress
    cache: DataCache

    def tune(self, name: str) -> PlannedModel:
        """The contender with the learning rate, shape and dropout that suit it best."""
        rate, loss = self._rate(name)
        best = replace(self.plan.planned(name), learning_rate=rate)
        for label, other in self._shapes(best).items():
            best, loss = self._better(best, loss, other, label)
        for dropout in DROPOUTS if self._drops_nothing(name) else ():
            other = replace(best, dropout=dropout)
            best, loss = self._better(best, loss, other, f"dropout-{dropout:g}")
        return best

    def _rate(self, name: str) -> tuple[float, float]:
        """The best learning rate, and its loss on the last rung."""
        rates, losses = list(TUNING_RATES), {}
        planned = self.plan.planned(name)
        for rung, (count, fraction) in enumerate(RUNGS):
            losses = {
                rate: self._loss(
                    replace(planned, learning_rate=rate), f"rung{rung}-{rate:g}", fraction
                )
                for rate in rates[:count]
            }
            rates = rank_rates(losses, self.plan.request.learning_rate)
        return rates[0], losses[rates[0]]

    def _better(
        self, best: PlannedModel, loss: float, other: PlannedModel, label: str
    ) -> tuple[PlannedModel, float]:
        """The other contender with its loss, if it is clearly better."""
        found = self._loss(other, label, LAST)
        better = found < loss - INDISTINCT * abs(loss) or (math.isinf(loss) and found < loss)
        return (other, found) if better else (best, loss)

    def _shapes(self, planned: PlannedModel) -> dict[str, PlannedModel]:
        """The contender with other depths and as many parameters, by a label."""
        if self.plan.request.match != "parameters":
            return {}  # width and depth are matched, or the steps were timed for them
        data = self.cache.open(self.plan.config(planned.name, 0).data)
        shapes = {}
        for factor in DEPTH_FACTORS:
            sized = reshaped(self.plan, planned.name, data, factor)
            if sized is not None:
                label = f"shape-{sized.spec.width}x{sized.spec.depth}"
                shapes[label] = with_shape(planned, sized)
        return shapes

    def _drops_nothing(self, name: str) -> bool:
        """Whether the model could have dropout, but neither the request nor its kind sets any."""
        config = self.plan.config(name, 0)
        spec = self.cache.open(config.data).spec(config.model)
        return spec.option("dropout", None) == 0 and "dropout" not in config.model.options

    def _loss(self, planned: PlannedModel, label: str, fraction: float) -> float:
        """The validation loss of a short run; infinite if it diverged."""
        others = tuple(planned if c.name == planned.name else c for c in self.plan.contenders)
        plan = replace(self.plan, contenders=others)
        config = plan.config(planned.name, TUNING_SEED, fraction)
        folder = None if self.folder is None else self.folder / f"{planned.name}-{label}"
        return tuning_loss(plan, config, folder, self.progress, self.cache)


def reshaped(plan: RacePlan, name: str, data: TrainingData, factor: float) -> Sized | None:
    """A model of the same size with another depth; None if there is none."""
    spec = model_spec(data, plan.request, plan.request.entries[name])
    depth = factor * plan.planned(name).depth
    if depth < len(spec.entries) or depth % len(spec.entries):
        return None
    width = max(8, 8 * round(plan.planned(name).width / math.sqrt(factor) / 8))
    try:
        sized = solve(replace(spec, width=width, depth=int(depth)), plan.target)
    except ThreefoldError:
        return None
    return sized if sized.spec.depth == depth else None


def rank_rates(losses: Mapping[float, float], default: float) -> list[float]:
    """Learning rates, best first; those with equal losses by their distance from the default."""
    best = min(losses.values())
    near = best + INDISTINCT * abs(best)
    return sorted(
        losses,
        key=lambda rate: (
            (0, abs(math.log(rate / default))) if losses[rate] <= near else (1, losses[rate])
        ),
    )


def tuning_loss(
    plan: RacePlan, config: RunConfig, folder: Path | None, progress: Progress, cache: DataCache
) -> float:
    """The validation loss of a short run; infinite if it diverged."""
    if folder is not None and (folder / RESULT).is_file():
        return read_loss(folder / RESULT)
    training = config.training.model_copy(update={"eval_every": None})
    short = config.model_copy(update={"training": training})
    recorder = CurveRecorder(None, progress)
    try:
        trained = train_to_end(short, folder, prepare_run(plan, short, cache), recorder, test=False)
        loss = trained.result.scores.loss
    except DivergedError:
        loss = math.inf
    if folder is not None:
        write_json(folder / RESULT, {"loss": loss if math.isfinite(loss) else None})
    return loss


def read_loss(path: Path) -> float:
    """The loss of a finished tuning run."""
    loss = json.loads(path.read_text(encoding="utf-8"))["loss"]
    return math.inf if loss is None else float(loss)


def describe_choice(plan: RacePlan, tuned: PlannedModel) -> str:
    """What tuning chose for a contender, for the report."""
    before = plan.planned(tuned.name)
    shape = f"width {tuned.width}, depth {tuned.depth}"
    changed = (tuned.width, tuned.depth) != (before.width, before.depth)
    shape += f" instead of {before.width} and {before.depth}" if changed else " as before"
    dropout = f"dropout {tuned.dropout:g}" if tuned.dropout else "no further dropout"
    return f"{tuned.name}: learning rate {tuned.learning_rate:g}; {shape}; {dropout}"
