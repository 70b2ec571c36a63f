"""`threefold lab alarms` and `threefold lab streams`: studies of streams."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from threefold.cli.lab import Seed, say_lines
from threefold.errors import ThreefoldError, nearest


def alarms(
    kinds: Annotated[
        list[str] | None, typer.Argument(help="text, table, sound, bleed; default: all.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each model.")] = 300,
    clean: Annotated[int, typer.Option(min=1100, help="Clean elements of each part.")] = 30_000,
    seed: Seed = 0,
) -> None:
    """Count alarms on clean streams and on planted anomalies."""
    from threefold.lab.studies.alarms import AlarmStudy, lines

    say_lines(lines(kinds or (), AlarmStudy(steps=steps, clean=clean, seed=seed)))


def streams(
    text: Annotated[Path, typer.Argument(help="A text of 4 MB or more, to end with 1 MB.")],
    mixers: Annotated[
        str | None, typer.Option(help="Comma-separated; default: mamba,gru,gla,linear_attention.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each model.")] = 400,
    width: Annotated[int, typer.Option(min=1, help="Model width.")] = 64,
    depth: Annotated[int, typer.Option(min=1, help="Number of blocks.")] = 2,
    trained_on: Annotated[
        str | None, typer.Option(help="windows or streams; default: both, each a model.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="File for the figure (SVG).")] = None,
    seed: Seed = 0,
) -> None:
    """Measure bits per byte along a stream, for models trained on windows and on streams."""
    from threefold.lab.studies.streams import TRAININGS, StreamStudy, lines

    if trained_on is not None and trained_on not in TRAININGS:
        raise ThreefoldError(f"--trained-on {trained_on}: {nearest(trained_on, TRAININGS)}")
    trainings = tuple(TRAININGS) if trained_on is None else (trained_on,)
    plan = StreamStudy(steps=steps, width=width, depth=depth, trainings=trainings, seed=seed)
    names = [name.strip() for name in (mixers or "").split(",") if name.strip()]
    say_lines(lines(text, names, plan, figure))
