"""`threefold evaluate`: loss and metric of a run or of a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from threefold.cli import options, output


def evaluate(
    model: Annotated[Path, typer.Argument(help="Folder of a run or of a saved model.")],
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="Data to evaluate on; default: the run's own."),
    ] = None,
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "test",
    overrides: options.Set = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the loss and the metric of a model on a split of its own data, or of other data."""
    from threefold.kernels.system_memory import keep_memory
    from threefold.training.experiment import evaluate_folder

    keep_memory()
    found = evaluate_folder(model, data, split, overrides or ())
    task, scores, metric = found.data.task, found.scores, found.data.metric
    if as_json:
        output.say_json(
            {
                "model": str(model),
                "data": found.data.data.name,
                "split": split,
                "n": found.examples,
                "loss": scores.loss,
                "metric": metric,
                metric: scores.metric,
                "chance": task.chance,
            }
        )
        return
    output.say_facts(
        [
            ("data", f"{task.title}, {split} split, {found.examples:,} examples"),
            ("loss", f"{scores.loss:.4f}"),
            (metric, f"{scores.metric:.4f} (chance {task.chance:.4g})"),
        ]
    )
