"""`threefold tasks`: what there is to learn, how it is judged, and where its data are."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threefold.cli import output

if TYPE_CHECKING:
    from threefold.tasks.table import Card


def tasks(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show this task in detail.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the tasks: domain, length, size, metric, chance, published best, where the data are."""
    from threefold.tasks.table import TASKS, card

    if name is None:
        rows = [summarise(one) for one in TASKS.values()]
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
        "where": card.where,
        "fetched": fetched(card),
    }


def fetched(card: Card) -> bool | None:
    """Whether the data are in the cache; None where there is nothing to fetch."""
    from threefold.data.fetch import cached
    from threefold.data.packages import PACKAGES

    names = [name for name in card.where.split(" + ") if name in PACKAGES]
    return all(cached(name) is not None for name in names) if names else None


def describe(card: Card) -> dict[str, Any]:
    """Everything that is declared of a task."""
    file = card.make.partition(".")[0]
    text = inspect.cleandoc(import_module(f"threefold.tasks.{file}").__doc__ or "")
    return {
        **summarise(card),
        "vocabulary": card.vocabulary,
        "features": card.features,
        "classes": card.classes,
        "options": dict(card.options),
        "published": dict(card.published),
        "description": text,
    }


def say_rows(rows: list[dict[str, Any]]) -> None:
    header = ("NAME", "TITLE", "DOMAIN", "LENGTH", "EXAMPLES", "METRIC", "CHANCE", "SOLVED",
              "PUBLISHED", "DATA")  # fmt: skip
    cells = [
        (
            row["name"],
            row["title"],
            row["domain"],
            f"{row['length']:,}",
            f"{sum(row['sizes']):,}",
            row["metric"],
            number(row["chance"]),
            number(row["solved"]),
            "–"
            if row["best"] is None
            else f"{number(row['best']['score'])} {row['best']['model']}",
            row["where"] + {True: " (fetched)", False: " (to fetch)", None: ""}[row["fetched"]],
        )
        for row in rows
    ]
    output.say_table(header, cells, fold=("TITLE", "DATA"))


def say_detail(detail: dict[str, Any]) -> None:
    sizes = ", ".join(
        f"{count:,} {split}"
        for count, split in zip(detail["sizes"], ("train", "valid", "test"), strict=True)
    )
    element = (
        f"one of {detail['vocabulary']:,} tokens"
        if detail["vocabulary"]
        else f"{detail['features']} numbers"
    )
    better = "less" if detail["lower_is_better"] else "more"
    state = {True: ", fetched", False: f": threefold data fetch {detail['name']}", None: ""}
    output.say(f"{detail['name']}: {detail['title']}\n")
    output.say(detail["description"] + "\n")
    output.say_facts(
        (
            ("domain", detail["domain"]),
            ("model", detail["kind"]),
            ("length", f"{detail['length']:,}"),
            ("an element is", element),
            ("answers", str(detail["classes"] or "numbers")),
            ("examples", sizes),
            ("metric", f"{detail['metric']}, {better} is better"),
            ("chance", number(detail["chance"])),
            ("solved", number(detail["solved"])),
            ("published", [f"{number(v)} {model}" for model, v in detail["published"].items()]),
            ("data", detail["where"] + state[detail["fetched"]]),
        )
    )


def number(value: float) -> str:
    """Four digits at most."""
    return f"{value:.4g}"
