"""`threefold lab fine-tuning`: few labels, with and without a pretrained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from threefold.cli.lab import Seed, say_lines


def fine_tuning(
    data: Annotated[str, typer.Option(help="reviews (IMDb) or news (Reuters).")] = "reviews",
    draws: Annotated[int, typer.Option(min=1, help="Draws of labelled texts.")] = 10,
    labels: Annotated[int, typer.Option(min=20, help="Labelled texts of a draw.")] = 200,
    pretrain_steps: Annotated[
        int, typer.Option(min=1, help="Steps of the language model that the others start from.")
    ] = 150,
    folder: Annotated[
        Path | None, typer.Option(help="Keep runs and results; the same command continues them.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Compare fine-tuning, adapters and training from scratch on few labelled texts."""
    from threefold.lab.studies.fine_tuning import FineTuningStudy, table

    study = FineTuningStudy(
        data, draws, labels, pretrain_steps=pretrain_steps, seed=seed, folder=folder
    )
    say_lines(table(study))
