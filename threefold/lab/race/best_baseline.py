"""The recommended model that is no sequence model: a baseline as a model folder, `best-baseline/`.

It is fitted again to the training split as it was for the race, from the first seed, or to all data
with `--then-train`.  Baselines that answer whole sequences can be saved; n-grams, `xz` and simple
forecasts cannot.
"""

from __future__ import annotations

import shutil

from threefold.classical.whole_sequences import NearestSeries
from threefold.lab.race.baseline_fits import Answer, TestFacts, WholeAnswer
from threefold.lab.race.baselines import baselines_for
from threefold.lab.race.best import use_command
from threefold.lab.race.folder import RaceFolder
from threefold.lab.report.recommendation import recommended
from threefold.lab.report.report import BaselineResult, BestModel, Report
from threefold.models.simple import SimpleModel
from threefold.training.config import ModelSettings
from threefold.training.training_data import TrainingData


def keep_baseline(
    report: Report, folder: RaceFolder, data: TrainingData, examples: int, refitted: str = ""
) -> BestModel | None:
    """Save the best baseline if the race recommends it; None if not, or if it cannot be saved.

    data: what it is fitted to.  examples: of the test of the race.  refitted: how long the best
    model was trained on all data, if these are all data.
    """
    best = recommended(report)
    answer: Answer | None = None
    if isinstance(best, BaselineResult):
        baseline = next(b for b in baselines_for(data.task, "strong") if b.name == best.name)
        answer = baseline.fit(data.task, 0, TestFacts(examples, data.task.length))
    if not isinstance(answer, WholeAnswer):
        shutil.rmtree(folder.best_baseline, ignore_errors=True)  # of a race with other results
        return None
    saved_form(best.name, answer, data).save(folder.best_baseline)
    command = use_command(folder.best_baseline, data)
    return BestModel(best.name, 0, str(folder.best_baseline), command, refitted)


def saved_form(name: str, answer: WholeAnswer, data: TrainingData) -> SimpleModel:
    """A fitted baseline as a model with everything that raw inputs need."""
    fitted = answer.fitted
    if isinstance(fitted, NearestSeries) and answer.classes:
        fitted = fitted.calibrated()
    spec = data.spec(ModelSettings())
    model = SimpleModel.of(
        name,
        fitted,
        spec.vocabulary,
        answers=spec.kind,
        classes=answer.classes,
        outputs=spec.option("outputs", 1),
        input_size=spec.option("input_size", 0),
    )
    model.tokenizer, model.preprocessing = data.tokenizer, data.preprocessing
    return model
