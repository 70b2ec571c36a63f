"""`threefold models`: the table of mixers, or one of them in detail."""

from __future__ import annotations

import inspect
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threefold.cli import output
from threefold.errors import ThreefoldError, nearest

if TYPE_CHECKING:
    from threefold.layers.mixer import Mixer
    from threefold.layers.table import Entry

Width = Annotated[int, typer.Option(min=1, help="Model size, a multiple of 16.")]
Length = Annotated[int, typer.Option(min=0, help="Elements seen, for memories that grow.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def mixers(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show this mixer in detail.")
    ] = None,
    width: Width = 256,
    length: Length = 1024,
    as_json: AsJson = False,
) -> None:
    """List the mixers: forms, size of the state of one row, equation."""
    from threefold.layers.table import MIXERS

    if width % 16:
        raise ThreefoldError(f"--width is {width}, expected a multiple of 16, e.g. 64 or 256")
    if name is None:
        rows = [summarise(entry, width, length) for entry in MIXERS.values()]
        return output.say_json(rows) if as_json else say_rows(rows)
    if name not in MIXERS:
        raise ThreefoldError(f"unknown mixer {name!r}; {nearest(name, MIXERS)}")
    detail = describe(MIXERS[name], width, length)
    return output.say_json(detail) if as_json else say_detail(detail)


def summarise(entry: Entry, width: int, length: int) -> dict[str, Any]:
    """One row of the table; `problem` says why a mixer cannot be built."""
    row: dict[str, Any] = {
        "name": entry.name,
        "title": entry.title,
        "year": entry.year,
        "memory": entry.memory,
        "forms": [],
        "state_bytes": None,
        "equation": entry.equation,
    }
    try:
        made = build_without_weights(entry.name, width)
    except Exception as problem:
        return {**row, "problem": f"{type(problem).__name__}: {problem}"}
    size = made.state_size(length) if made.causal else None
    return {**row, "forms": list(made.forms), "state_bytes": size}


def describe(entry: Entry, width: int, length: int) -> dict[str, Any]:
    """Everything about one mixer at a width."""
    made = build_without_weights(entry.name, width)
    text = inspect.cleandoc(sys.modules[type(made).__module__].__doc__ or "")
    return {
        **summarise(entry, width, length),
        "width": width,
        "description": text,
        "reference": reference_in(text),
        "causal": made.causal,
        "parameters": sum(p.numel() for p in made.parameters()),
        "options": options_of(type(made)),
        "state": leaves_of(made, length) if made.causal else [],
        "no_decay": list(made.no_decay),
        "slow": list(made.slow),
        "class": f"{type(made).__module__}.{type(made).__qualname__}",
    }


def build_without_weights(name: str, width: int) -> Mixer:
    """A mixer whose tensors have shapes but no numbers, so that any width costs nothing."""
    import torch

    from threefold.layers.table import mixer

    with torch.device("meta"):
        return mixer(name, width=width)


def reference_in(text: str) -> str:
    """The paper that a file's header names: from the line with the year to the end."""
    lines = text.splitlines()
    dated = (i for i, line in enumerate(lines[1:], 1) if re.search(r"\b(19|20)\d\d\b", line))
    return " ".join(line.strip() for line in lines[next(dated, len(lines)) :]).strip()


def options_of(cls: type[Mixer]) -> list[dict[str, str]]:
    """Names, types and defaults of the constructor's keywords."""
    parameters = inspect.signature(cls).parameters.values()
    return [
        {
            "name": p.name,
            "type": p.annotation if isinstance(p.annotation, str) else str(p.annotation),
            "default": "required" if p.default is p.empty else repr(p.default),
        }
        for p in parameters
    ]


def leaves_of(made: Mixer, length: int) -> list[dict[str, Any]]:
    """Names, shapes (without the batch) and dtypes of the state after `length` elements."""
    from threefold.memory import state

    dtype = next(made.parameters()).dtype
    leaves = state.leaves(state.empty(made.state_shapes(length), 1, dtype, None))
    return [
        {"name": name, "shape": list(leaf.shape[1:]), "dtype": str(leaf.dtype).split(".")[-1]}
        for name, leaf in leaves
    ]


def say_rows(rows: list[dict[str, Any]]) -> None:
    header = ("NAME", "FULL NAME", "YEAR", "MEMORY", "FORMS", "STATE", "EQUATION")
    cells = [
        (
            row["name"],
            row["title"],
            str(row["year"]),
            row["memory"],
            " ".join(row["forms"]) or "cannot be built",
            "–" if row["state_bytes"] is None else output.readable(row["state_bytes"]),
            row["equation"],
        )
        for row in rows
    ]
    output.say_table(header, cells, fold=("FULL NAME", "EQUATION"))
    for row in rows:
        if "problem" in row:
            output.complain(f"{row['name']} cannot be built: {row['problem']}")


def say_detail(detail: dict[str, Any]) -> None:
    width = detail["width"]
    size = detail["state_bytes"]
    leaves = [f"{leaf['name']} {leaf['shape']} {leaf['dtype']}" for leaf in detail["state"]]
    options = [f"{o['name']}: {o['type']} = {o['default']}" for o in detail["options"]]
    output.say(f"{detail['name']}: {detail['title']} ({detail['year']})\n")
    output.say(detail["description"] + "\n")
    output.say_facts(
        (
            ("memory", detail["memory"]),
            ("forms", " ".join(detail["forms"])),
            ("causal", "yes" if detail["causal"] else "no"),
            ("parameters", f"{detail['parameters']:,} at width {width}"),
            (
                "state of a row",
                "none" if size is None else f"{output.readable(size)} at width {width}",
            ),
            ("state leaves", leaves),
            ("options", options),
            ("no weight decay", ", ".join(detail["no_decay"]) or "none"),
            ("slow", ", ".join(detail["slow"]) or "none"),
            ("class", detail["class"]),
        )
    )
