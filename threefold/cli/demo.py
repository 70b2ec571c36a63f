"""`threefold demo`: five sequence models race on real text, and one page shows who suits it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from threefold.cli import output
from threefold.cli.compare import show


def demo(
    seconds: Annotated[float, typer.Option(min=1, help="In all, about.")] = 180,
    mixers: Annotated[
        str, typer.Option(help="Names separated by commas; see `threefold models`.")
    ] = "lstm,attention,s4d,mamba,gated_delta_net",
    folder: Annotated[Path, typer.Option(help="Where it is kept.")] = Path("runs/demo"),
) -> None:
    """Race small language models on the Python language reference, as `compare` does."""
    from threefold.lab.bench.bench import names_of
    from threefold.lab.race.demo import race
    from threefold.lab.race.runs import StoppedError

    names = names_of(mixers)
    output.say(f"{len(names)} models learn the Python language reference, three times each.")
    try:
        report, sample = race(seconds, folder, names, output.whisper)
    except StoppedError as error:
        output.complain(str(error))
        raise typer.Exit(130) from None
    show(report, folder)
    output.say(f"\nwhat {report.ranked[0].name} writes:\n{sample}")
