"""`threefold evaluate`: loss and metric of a run or of a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from threefold.cli import options, output

SetData = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change settings of the data, e.g. data.length=1024."
    ),
]


def evaluate(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Folder of a run or of a saved model.")
    ],
    data: Annotated[
        str | None,
        typer.Argument(metavar="DATA", help="Data to evaluate on; default: the data of the run."),
    ] = None,
    split: Annotated[
        str, typer.Option(help="Split to evaluate on: train, valid or test.")
    ] = "test",
    overrides: SetData = None,
    plugins: options.Plugins = None,
    as_json: options.AsJson = False,
) -> None:
    """Print the loss and the metric of a model on a split of its data or of other data."""
    from threefold.kernels.system_memory import keep_memory
    from threefold.training.experiment import evaluate_folder

    keep_memory()
    evaluation = evaluate_folder(model, data, split, overrides or ())
    task, scores, metric = evaluation.data.task, evaluation.scores, evaluation.data.metric
    if as_json:
        output.say_json(
            {
                "model": str(model),
                "data": evaluation.data.data.name,
                "split": split,
                "n": evaluation.examples,
                "loss": scores.loss,
                "metric": metric,
                metric: scores.metric,
                "chance": task.chance,
            }
        )
        return
    output.say_facts(
        [
            ("data", f"{task.title}, {split} split, {evaluation.examples:,} examples"),
            ("loss", f"{scores.loss:.4f}"),
            (metric, f"{scores.metric:.4f} (chance level {task.chance:.4g})"),
        ]
    )
