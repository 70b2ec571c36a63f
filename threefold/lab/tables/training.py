"""A cell that is trained by the one training loop, and resumes from its checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from threefold.lab.tables.table import Advance, Values
from threefold.training.config import RunConfig
from threefold.training.data_cache import DataCache
from threefold.training.experiment import evaluate_split, run
from threefold.training.loop import Trainer
from threefold.training.preparation import prepare
from threefold.training.reporters import Reporter
from threefold.training.training_data import TrainingData

CACHE = DataCache()  # cells of one process read the same data


class AdvanceReporter(Reporter):
    """Passes on the completed fraction of a run."""

    def __init__(self, advance: Advance) -> None:
        self.advance = advance

    def on_step(self, trainer: Trainer) -> None:
        self.advance(trainer.progress)


def train_cell(
    config: RunConfig, folder: Path, advance: Advance, lengths: Sequence[int] = ()
) -> Values:
    """Train a model; its scores on the test split, also at other lengths, and its size."""
    prepared = prepare(config, CACHE.open(config.data))
    trained = run(
        config,
        folder,
        prepared=prepared,
        reporters=[AdvanceReporter(advance)],
        samples=False,
    ).complete()
    assert trained.test is not None  # the run is complete
    result = trained.result
    others = {
        str(n): evaluate_split(at_length(prepared.data, n), trained.model, "test").metric
        for n in lengths
    }
    return {
        "test": trained.test.metric,
        "loss": trained.test.loss,
        "lengths": others,
        "steps": result.steps,
        "parameters": trained.model.parameter_count,
        "curve": [[step, scores.metric] for step, scores in result.validation],
    }


def at_length(data: TrainingData, length: int) -> TrainingData:
    """The same task with longer examples, as many elements in a batch and fewer batches."""
    rows = max(1, data.data.batch_size * data.task.length // length)
    options = {**data.data.options, "length": length}
    settings = data.data.model_copy(update={"options": options, "batch_size": rows})
    return CACHE.open(settings)
