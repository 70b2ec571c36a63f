"""An ensemble of seeds: the same run several times, each from other random numbers.

run/  config.toml, summary.json, model/   of the ensemble: one answer
      members/1, members/2, …             the runs of its members, which resume as every run does
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

from threefold.models.ensemble import ensemble_of
from threefold.models.model import Model
from threefold.training.config import RunConfig
from threefold.training.evaluation import evaluate
from threefold.training.preparation import PreparedRun, prepare
from threefold.training.result import Result

MEMBERS = "members"  # in the folder of the run
SHARE = 0.9  # of a time limit that is for the members

# Trains one member: (its configuration, folder, prepared run) → result.
TrainMember = Callable[[RunConfig, Path | None, PreparedRun], Result]


def member_config(config: RunConfig, number: int) -> RunConfig:
    """The run of one member, from 0 on: other initial weights, order of data and dropout."""
    count = config.training.ensemble or 1
    time = config.training.time
    training = {
        "ensemble": None,
        "seed": config.training.seed + number,
        "time": None if time is None else SHARE * time / count,
    }
    return config.model_copy(
        update={
            "data": config.data.model_copy(update={"seed": config.data.seed + number}),
            "model": config.model.model_copy(update={"seed": config.model.seed + number}),
            "training": config.training.model_copy(update=training),
        }
    )


def train_members(
    config: RunConfig, folder: Path | None, prepared: PreparedRun, train: TrainMember
) -> tuple[Model, Result]:
    """Train all members, one after another; returns the ensemble and its result."""
    models, results = [], []
    for number in range(config.training.ensemble or 1):
        own = member_config(config, number)
        member = prepare(own, prepared.data, prepared.start)
        path = None if folder is None else folder / MEMBERS / str(number + 1)
        result = train(own, path, member)
        if result.stopped == "interrupted":
            return prepared.model, result
        models.append(member.model.eval())
        results.append(result)
    ensemble = ensemble_of(models)
    return ensemble, _joined(config, prepared, ensemble, results)


def _joined(
    config: RunConfig, prepared: PreparedRun, ensemble: Model, results: Sequence[Result]
) -> Result:
    """The mean losses of the members, their cost, and the ensemble's own validation."""
    steps = min(result.steps for result in results)
    scores = evaluate(
        ensemble,
        prepared.split_batches("valid", False),
        objective=prepared.data.objective(config.training),
        precision=config.training.precision,
    )
    return Result(
        losses=[mean(result.losses[step] for result in results) for step in range(steps)],
        learning_rates=results[0].learning_rates[:steps],
        validation=[(steps, scores)],
        tokens=sum(result.tokens for result in results),
        seconds=sum(result.seconds for result in results),
        other_seconds=sum(result.other_seconds for result in results),
        stopped=results[-1].stopped,
    )
