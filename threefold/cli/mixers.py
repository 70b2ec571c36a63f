"""`threefold mixers`: the table of mixers, or one of them in detail."""

from __future__ import annotations

import inspect
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from threefold.cli import options, output
from threefold.drawing.text import format_bytes
from threefold.errors import ThreefoldError

if TYPE_CHECKING:
    from threefold.layers.mixer import Mixer
    from threefold.layers.table import Entry

Width = Annotated[int, typer.Option(min=1, help="Model width, a multiple of 16.")]
Length = Annotated[
    int,
    typer.Option(
        min=0, help="Elements read before the state is measured (that of attention grows)."
    ),
]

SET_BY_THE_MODEL = ("width", "layer", "depth", "first")  # options that a user does not choose
LEGEND = """
FAMILY  nonlinear cell: a classical RNN; linear recurrence: linear attention, Mamba and relatives; \
filter: state spaces and long convolutions with \
fixed kernels; attention: weighs all elements that it may see; Fourier transform: mixes by a fixed \
transform; wrapper: runs another mixer; plugin: registered by another package.
FORMS   how a mixer runs; all its forms give the same answer. step: one element at a time; chunk: \
pieces of a long sequence, state carried; parallel: the whole sequence at once. A mixer with \
parallel only is not causal and cannot stream.
STATE   memory per sequence at width {width} after {length:,} elements.
"""


def mixers(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show this mixer in detail.")
    ] = None,
    width: Width = 256,
    length: Length = 1024,
    plugins: options.Plugins = None,
    as_json: options.AsJson = False,
) -> None:
    """List the mixers (sequence layers) with their forms, state size and equation."""
    from threefold.layers.table import MIXERS, mixer_entry

    if width % 16:
        raise ThreefoldError(f"--width is {width}, expected a multiple of 16, e.g. 64 or 256")
    if name is None:
        MIXERS.load_plugins()
        rows = [summarise(entry, width, length) for entry in MIXERS.values()]
        return output.say_json(rows) if as_json else say_rows(rows, width, length)
    detail = describe(mixer_entry(name), width, length)
    return output.say_json(detail) if as_json else say_detail(detail)


def summarise(entry: Entry, width: int, length: int) -> dict[str, Any]:
    """One row of the table; `problem` says why a mixer cannot be built."""
    row: dict[str, Any] = {
        "name": entry.name,
        "title": entry.title,
        "year": entry.year,
        "family": entry.family,
        "forms": [],
        "state_bytes": None,
        "equation": entry.equation,
    }
    try:
        layer = build_without_weights(entry.name, width)
    except Exception as problem:
        return {**row, "problem": f"{type(problem).__name__}: {problem}"}
    size = layer.state_size(length) if layer.causal else None
    return {**row, "forms": list(layer.forms), "state_bytes": size}


def describe(entry: Entry, width: int, length: int) -> dict[str, Any]:
    """Everything about one mixer at a width."""
    layer = build_without_weights(entry.name, width)
    text = inspect.cleandoc(sys.modules[type(layer).__module__].__doc__ or "")
    notes = inspect.cleandoc(type(layer).__doc__ or "")
    return {
        **summarise(entry, width, length),
        "width": width,
        "description": text,
        "reference": reference_in(text),
        "notes": notes,
        "causal": layer.causal,
        "parameters": sum(p.numel() for p in layer.parameters()),
        "options": options_of(type(layer)),
        "state": leaves_of(layer, length) if layer.causal else [],
        "no_decay": list(layer.no_decay),
        "slow": list(layer.slow),
        "class": f"{type(layer).__module__}.{type(layer).__qualname__}",
    }


def build_without_weights(name: str, width: int) -> Mixer:
    """A mixer on the meta device: shapes without numbers, so that any width is cheap."""
    import torch

    from threefold.layers.table import mixer

    with torch.device("meta"):
        return mixer(name, width=width)


def reference_in(text: str) -> str:
    """The paper named in a file's header: from the line with the year to the end."""
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


def leaves_of(layer: Mixer, length: int) -> list[dict[str, Any]]:
    """Names, shapes (without the batch) and dtypes of the state after `length` elements."""
    from threefold.memory import state

    dtype = layer.dtype
    leaves = state.leaves(state.empty(layer.state_shapes(length), 1, dtype, None))
    return [
        {"name": name, "shape": list(leaf.shape[1:]), "dtype": str(leaf.dtype).split(".")[-1]}
        for name, leaf in leaves
    ]


def say_rows(rows: list[dict[str, Any]], width: int, length: int) -> None:
    header = ("NAME", "FULL NAME", "YEAR", "FAMILY", "FORMS", "STATE", "EQUATION")
    cells = [
        (
            row["name"],
            row["title"],
            str(row["year"] or "–"),
            row["family"],
            " ".join(row["forms"]) or "cannot be built",
            "–" if row["state_bytes"] is None else format_bytes(row["state_bytes"]),
            row["equation"],
        )
        for row in rows
    ]
    output.say_table(header, cells, fold=("FULL NAME", "EQUATION"))
    for row in rows:
        if "problem" in row:
            output.complain(f"{row['name']} cannot be built: {row['problem']}")
    for line in LEGEND.format(width=width, length=length).splitlines():
        output.say(output.wrapped(line, output.columns(), indent=0))


def _year(detail: dict[str, Any]) -> str:
    return f" ({detail['year']})" if detail["year"] else ""


def say_detail(detail: dict[str, Any]) -> None:
    width = detail["width"]
    size = detail["state_bytes"]
    leaves = [f"{leaf['name']} {leaf['shape']} {leaf['dtype']}" for leaf in detail["state"]]
    options = [
        f"{o['name']}: {o['type']} = {o['default']}"
        for o in detail["options"]
        if o["name"] not in SET_BY_THE_MODEL
    ]
    output.say(f"{detail['name']}: {detail['title']}{_year(detail)}\n")
    output.say(detail["description"] + "\n")
    output.say(detail["notes"] + "\n")
    output.say_facts(
        (
            ("family", detail["family"]),
            ("forms", " ".join(detail["forms"])),
            ("causal", "yes" if detail["causal"] else "no: it needs the whole sequence"),
            ("parameters", f"{detail['parameters']:,} at width {width}"),
            (
                "state",
                "none" if size is None else f"{format_bytes(size)} per sequence at width {width}",
            ),
            ("state tensors", leaves),
            ("options", options),
            ("no weight decay", ", ".join(detail["no_decay"]) or "none"),
            ("lower learning rate", ", ".join(detail["slow"]) or "none"),
            ("class", detail["class"]),
        )
    )
