"""`threefold tasks`: the tasks there are, how each is scored, and where its data come from."""

from __future__ import annotations

import inspect
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threefold.cli import output
from threefold.cli.options import AsJson, Plugins

if TYPE_CHECKING:
    from threefold.tasks.table import Card


def tasks(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Describe this task in detail.")
    ] = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """List the tasks with their sizes, metric, chance level and best published result."""
    from threefold.tasks.table import TASKS, card

    if name is None:
        TASKS.load_plugins()
        rows = [summarise(task) for task in TASKS.values()]
        return output.say_json(rows) if as_json else say_rows(rows)
    detail = describe(card(name))
    return output.say_json(detail) if as_json else say_detail(detail)


def summarise(card: Card) -> dict[str, Any]:
    """One row of the table, from the card alone."""
    return {
        "name": card.name,
        "title": card.title,
        "domain": card.domain,
        "kind": card.kind,
        "length": card.length,
        "sizes": list(card.sizes),
        "metric": card.metric,
        "lower_is_better": card.lower,
        "chance": card.chance,
        "solved": card.solved,
        "best": None if card.best is None else {"model": card.best[0], "score": card.best[1]},
        "published_note": card.published_note or None,
        "where": card.where,
        "fetched": fetched(card),
    }


def fetched(card: Card) -> bool | None:
    """Whether the data are in the cache; None if there is nothing to fetch."""
    from threefold.data.fetch import cached
    from threefold.data.packages import PACKAGES

    names = [name for name in card.where.split(" + ") if name in PACKAGES]
    return all(cached(name) is not None for name in names) if names else None


def describe(card: Card) -> dict[str, Any]:
    """Everything that is known about a task."""
    text = inspect.cleandoc(sys.modules[card.maker.__module__].__doc__ or "")
    return {
        **summarise(card),
        "vocabulary": card.vocabulary,
        "features": card.features,
        "classes": card.classes,
        "options": options(card),
        "published": dict(card.published),
        "description": text,
    }


def options(card: Card) -> dict[str, Any]:
    """The options of a task with their defaults; `name` is fixed by the task itself."""
    parameters = inspect.signature(card.maker).parameters.values()
    defaults = {option.name: option.default for option in parameters if option.name != "name"}
    return {name: card.options.get(name, default) for name, default in defaults.items()}


def say_rows(rows: list[dict[str, Any]]) -> None:
    """The table of all tasks; ↑: higher scores are better, ↓: lower ones."""
    header = ("NAME", "TITLE", "DOMAIN", "MAX LENGTH", "EXAMPLES", "METRIC", "CHANCE LEVEL",
              "SOLVED AT", "BEST PUBLISHED", "DATA")  # fmt: skip
    output.say_table(header, [_cells(row) for row in rows], fold=("TITLE", "DATA"))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    """The cells of a task, in the order of the header of `say_rows`."""
    state = {True: " (fetched)", False: " (not fetched)", None: ""}
    return (
        row["name"],
        row["title"],
        row["domain"],
        f"{row['length']:,}",
        f"{sum(row['sizes']):,}",
        f"{row['metric']} {'↓' if row['lower_is_better'] else '↑'}",
        number(row["chance"]),
        number(row["solved"]),
        best_published(row),
        source(row) + state[row["fetched"]],
    )


def source(row: dict[str, Any]) -> str:
    """Where the data come from, e.g. "generated" or "package barrnap"."""
    if row["fetched"] is None:
        return str(row["where"])
    return f"package{'s' if ' + ' in row['where'] else ''} {row['where']}"


def best_published(row: dict[str, Any]) -> str:
    """The best published result, and whether it is for other examples than the task's."""
    if row["best"] is None:
        return "–"
    note = " (on other examples)" if row["published_note"] else ""
    return f"{number(row['best']['score'])} {row['best']['model']}{note}"


def say_detail(detail: dict[str, Any]) -> None:
    """The description of one task."""
    counts = zip(detail["sizes"], ("train", "valid", "test"), strict=True)
    direction = "lower" if detail["lower_is_better"] else "higher"
    state = {
        True: " (fetched)",
        False: f" (not fetched; run: threefold data fetch {detail['name']})",
        None: "",
    }
    published = [f"{number(score)} {model}" for model, score in detail["published"].items()]
    note = detail["published_note"]
    output.say(f"{detail['name']}: {detail['title']}\n")
    output.say(detail["description"] + "\n")
    output.say_facts(
        (
            ("domain", detail["domain"]),
            ("kind of model", detail["kind"]),
            ("max length", f"{detail['length']:,} elements"),
            ("input element", input_element(detail)),
            ("output", output_kind(detail)),
            ("examples", ", ".join(f"{count:,} {split}" for count, split in counts)),
            ("metric", f"{detail['metric']} ({direction} is better)"),
            ("chance level", number(detail["chance"])),
            ("solved at", number(detail["solved"])),
            ("published", [*published, *([f"({note})"] if note else [])]),
            ("data", source(detail) + state[detail["fetched"]]),
            ("options", [f"{name} = {option_text(v)}" for name, v in detail["options"].items()]),
        )
    )


def input_element(detail: dict[str, Any]) -> str:
    """What one element of an input is."""
    if detail["vocabulary"]:
        return f"one of {detail['vocabulary']:,} tokens"
    return "1 number" if detail["features"] == 1 else f"{detail['features']} numbers"


def output_kind(detail: dict[str, Any]) -> str:
    """What a model answers."""
    if not detail["classes"]:
        return "numbers"
    what = "tokens" if detail["kind"] in ("language", "seq2seq", "captioner") else "classes"
    return f"one of {detail['classes']:,} {what}"


def option_text(value: Any) -> str:
    """A default as it is written in a configuration; – if there is none."""
    return "–" if value is None else json.dumps(value, ensure_ascii=False)


def number(value: float) -> str:
    """At most four significant digits."""
    return f"{value:.4g}"
