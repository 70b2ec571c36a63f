"""`threefold compare DATA`: which sequence model suits it, in a fair race and one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from threefold.cli import output

if TYPE_CHECKING:
    from threefold.lab.report.report import Report

FOLDER = "runs/compare-NAME"


def compare(
    data: Annotated[str, typer.Argument(help="A task, or your own file or folder.")],
    mixers: Annotated[
        str, typer.Option(help="Names separated by commas; a+b is a hybrid, x=a another name.")
    ] = "lstm,attention,s4d,mamba,gated_delta_net",
    budget: Annotated[
        str, typer.Option(help="Time of training in all, e.g. 10m; or 200steps each.")
    ] = "10m",
    match: Annotated[
        Literal["parameters", "time", "tokens"], typer.Option(help="What is held equal.")
    ] = "parameters",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each model.")] = 3,
    tune: Annotated[
        bool, typer.Option("--tune", help="Choose each model's learning rate first.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(help=f"Where it is kept; {FOLDER} otherwise.")
    ] = None,
    width: Annotated[int, typer.Option(min=1, help="Of the models, about.")] = 64,
    depth: Annotated[int, typer.Option(min=1, help="Blocks, about.")] = 2,
    parameters: Annotated[int, typer.Option(min=0, help="The size; 0: from the width.")] = 0,
    learning_rate: Annotated[float, typer.Option(min=0, help="Without --tune.")] = 3e-3,
    batch: Annotated[int, typer.Option(min=1, help="Rows of a batch.")] = 16,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Of the data, e.g. length=512.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Race sequence models on your data, and write one page that shows the answer."""
    from threefold.kernels.system_memory import keep_memory
    from threefold.lab.race.planning import RaceRequest
    from threefold.lab.race.race import RaceFolder, ranks, run
    from threefold.lab.race.runs import StoppedError

    names = tuple(part.strip() for part in mixers.split(",") if part.strip())
    request = RaceRequest(
        data, names, budget, match, seeds, tune, width, depth, parameters, learning_rate, batch,
        read_changes(changes or []),
    )  # fmt: skip
    keep_memory()
    rank, _ = ranks()
    place = RaceFolder(folder or Path("runs") / f"compare-{Path(data).stem}", leads=rank == 0)
    try:
        report = run(request, place, output.whisper)
    except StoppedError as error:
        output.complain(str(error))
        raise typer.Exit(130) from None
    if rank:
        return
    if json:
        output.say_json(report.to_dict())
    else:
        show(report, place.folder)


def show(report: Report, folder: Path) -> None:
    """The verdict, the warnings, the table, and where the page is."""
    from threefold.lab.report.page import columns

    table = columns(report)
    header = ["model", *(title for title, _, _ in table)]
    rows = [[c.name, *(cells[i] for _, cells, _ in table)] for i, c in enumerate(report.ranked)]
    output.whisper("")
    output.say(output.paint(report.sentence, "head"))
    for warning in report.warnings:
        output.say(output.paint(f"note: {warning}", "weak"))
    output.say()
    output.say_table(header, rows, fold=header[-3:])
    output.say(f"\nreport: {folder / 'report.html'}")


def read_changes(changes: list[str]) -> dict[str, object]:
    """Fields of the section `data` from key=value."""
    import tomllib

    from threefold.errors import ThreefoldError

    found: dict[str, object] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise ThreefoldError(f"--set {change!r}: expected key=value, e.g. length=512")
        try:
            found[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            found[key.strip()] = text.strip()
    return found
