"""`threefold lab alarms`: studies of streams."""

from __future__ import annotations

from typing import Annotated

import typer

from threefold.cli.lab import Seed, say_lines


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
