"""Sections of a configuration: frozen, validated, the same in Python, TOML and on a command line.

An invalid value raises one message with the key, the value, and what was expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationError

from threefold.errors import ThreefoldError, nearest


class Section(BaseModel):
    """Typed settings; unknown keys and invalid values raise a readable ThreefoldError."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            _raise_readable(type(self), error)

    def differences(self, other: Section) -> list[str]:
        """Each key whose values differ, with both values."""
        mine, theirs = flat(self.model_dump(mode="json")), flat(other.model_dump(mode="json"))
        return [
            f"{key} was {_shown(mine.get(key))} and is now {_shown(theirs.get(key))}"
            for key in sorted({*mine, *theirs})
            if mine.get(key) != theirs.get(key)
        ]


def _shown(value: Any) -> str:
    return "not given" if value is None else repr(value)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} → {"a.b": 1}."""
    flattened: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flattened.update(flat(value, f"{prefix}{key}."))
        else:
            flattened[prefix + key] = value
    return flattened


# In place of pydantic's words, by its type of error.
EXPECTED = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a table",
}


class _SettingError(ThreefoldError):
    """An invalid setting; KEY in `template` stands for its name."""

    def __init__(self, template: str, key: str) -> None:
        super().__init__(template.replace("KEY", key))
        self.template, self.key = template, key


def _raise_readable(section: type[Section], error: ValidationError) -> NoReturn:
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, _SettingError):  # raised by a nested section
        raise _SettingError(inner.template, f"{key}.{inner.key}") from None
    if isinstance(inner, ThreefoldError):
        raise inner from None
    if first["type"] == "extra_forbidden":
        known = _known_keys(section, first["loc"][:-1])
        raise _SettingError(
            f"unknown key 'KEY'; {nearest(str(first['loc'][-1]), known)}", key
        ) from None
    if first["type"] == "missing":
        raise _SettingError("KEY is missing", key) from None
    message = EXPECTED.get(first["type"]) or first["msg"].removeprefix("Input should be ")
    raise _SettingError(f"KEY is {first['input']!r}, expected {message}", key) from None


def _known_keys(section: type[Section], path: tuple[int | str, ...]) -> list[str]:
    """The keys of a nested section."""
    for name in path:
        inner = section.model_fields[str(name)].annotation
        if not (isinstance(inner, type) and issubclass(inner, Section)):
            return []
        section = inner
    return list(section.model_fields)
