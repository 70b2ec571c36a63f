"""Sections of a configuration: frozen, checked, the same in Python, TOML and on a command line.

Whatever is wrong is one message with the key, what was given, and the nearest known key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError

from threefold.errors import ThreefoldError, nearest


class Section(BaseModel):
    """Keywords with types; unknown ones and wrong values are refused in plain words."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            _tell(type(self), error)

    def differences(self, other: Section) -> list[str]:
        """Each key in which two differ, with both values."""
        mine, theirs = flat(self.model_dump(mode="json")), flat(other.model_dump(mode="json"))
        return [
            f"{key} is {mine.get(key)!r} and {theirs.get(key)!r}"
            for key in sorted({*mine, *theirs})
            if mine.get(key) != theirs.get(key)
        ]


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} → {"a.b": 1}."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found


class _ToldError(ThreefoldError):
    """What is wrong with a key: `template` has a place for its name."""

    def __init__(self, template: str, key: str) -> None:
        super().__init__(template.replace("KEY", key))
        self.template, self.key = template, key


def _tell(section: type[Section], error: ValidationError) -> NoReturn:
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, _ToldError):  # of a section inside this one
        raise _ToldError(inner.template, f"{place}.{inner.key}") from None
    if isinstance(inner, ThreefoldError):
        raise inner from None
    if first["type"] == "extra_forbidden":
        known = _known(section, first["loc"][:-1])
        raise _ToldError(
            f"unknown key 'KEY'; {nearest(str(first['loc'][-1]), known)}", place
        ) from None
    if first["type"] == "missing":
        raise _ToldError("KEY is missing", place) from None
    message = first["msg"].removeprefix("Input should be ")
    raise _ToldError(f"KEY is {first['input']!r}, expected {message}", place) from None


def _known(section: type[Section], path: tuple[int | str, ...]) -> list[str]:
    """The keys of a section inside a section."""
    for name in path:
        inner = section.model_fields[str(name)].annotation
        if not (isinstance(inner, type) and issubclass(inner, Section)):
            return []
        section = inner
    return list(section.model_fields)
