"""`threefold lab defaults`: the default settings beside a random search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from threefold.cli.lab import Seed, say_lines
from threefold.errors import ThreefoldError

PRESETS = {"quick": (8, "20s"), "full": (20, "2m")}


def defaults(
    kinds: Annotated[
        list[str] | None,
        typer.Argument(
            help="text, 'labelled texts', series, 'series with classes', 'tagged words'; all."
        ),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="quick: 8 settings of 20 s for each kind; full: 20 of 2 min.")
    ] = "quick",
    configurations: Annotated[int | None, typer.Option(min=1, help="Settings to try.")] = None,
    time: Annotated[str | None, typer.Option(metavar="DURATION", help="Of each training.")] = None,
    seed: Seed = 0,
    folder: Annotated[
        Path | None,
        typer.Option(help="Keeps finished trainings; a study with this folder resumes."),
    ] = None,
) -> None:
    """Compare the default settings of `threefold train` with a random search of equal times.

    Times are processor time of one thread, so that other processes do not count.
    """
    import tempfile

    from threefold.errors import nearest
    from threefold.lab.studies.default_settings import DefaultsSearch, lines
    from threefold.training.durations import as_seconds

    if preset not in PRESETS:
        raise ThreefoldError(f"--preset {preset}: {nearest(preset, PRESETS)}")
    count, duration = PRESETS[preset]
    study = DefaultsSearch(configurations or count, as_seconds(time or duration), seed)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary) if folder is None else folder
        place.mkdir(parents=True, exist_ok=True)
        say_lines(lines(kinds or [], study, place))
