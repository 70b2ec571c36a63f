"""`threefold config`: every setting with its type, default and meaning."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from threefold.cli import options, output
from threefold.errors import ThreefoldError, nearest

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


def config(
    section: Annotated[
        str | None,
        typer.Argument(metavar="[SECTION]", help="Only this section: data, model or training."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """List all settings: for --set KEY=VALUE, for TOML files (train --config) and for Python."""
    rows = list_settings()
    sections = list(dict.fromkeys(row["key"].split(".")[0] for row in rows))
    if section is not None and section not in sections:
        raise ThreefoldError(f"unknown section {section!r}; {nearest(section, sections)}")
    rows = [row for row in rows if section in (None, row["key"].split(".")[0])]
    if as_json:
        output.say_json(rows)
        return
    columns = ("key", "type", "default", "meaning")
    table = [tuple(shown(row[name]) for name in columns) for row in rows]
    output.say_table(tuple(name.upper() for name in columns), table, fold=("TYPE", "MEANING"))


def list_settings() -> list[dict[str, Any]]:
    """Key, type, default and meaning of every setting, in the order of the sections."""
    from threefold.training.config import RunConfig
    from threefold.training.overrides import fields_of

    rows = [_describe(key, field) for key, field in fields_of(RunConfig)]
    mixer_options = {
        "key": "model.mixers.NAME.OPTION",
        "type": "any",
        "default": None,
        "meaning": "An option of one mixer of the model; `threefold mixers NAME` lists them.",
    }
    place = next(i for i, row in enumerate(rows) if row["key"] == "model.mixers")
    return [*rows[: place + 1], mixer_options, *rows[place + 1 :]]


def _describe(key: str, field: FieldInfo) -> dict[str, Any]:
    default = "required" if field.is_required() else field.get_default(call_default_factory=True)
    kind = "duration" if key == "training.time" else type_words(field.annotation)
    return {"key": key, "type": kind, "default": default, "meaning": field.description or ""}


def type_words(annotation: Any) -> str:
    """A type in plain words: "whole number", "yes or no", "one of a, b"."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_words(inner[0])
    if origin in (types.UnionType, Union):
        return " or ".join(dict.fromkeys(type_words(t) for t in inner if t is not type(None)))
    if origin is Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin is tuple and inner[-1] is not Ellipsis:
        return "name with options"
    if origin is tuple:
        return f"list of {type_words(inner[0])}"
    if origin is dict:
        return "table"
    plain = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    return plain.get(annotation, str(annotation))


def shown(value: Any) -> str:
    """A default as it is typed: lists with +, nothing for what is not given."""
    if value is None or value == {}:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)
