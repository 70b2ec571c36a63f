"""Data of polars where it is installed, which no test but these needs; else none."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def polars_series(values: Any) -> list[Any]:
    """One series of these values."""
    return [import_module("polars").Series(values)] if find_spec("polars") else []


def polars_frames(values: Mapping[str, Any]) -> dict[str, Any]:
    """A frame for each."""
    if not find_spec("polars"):
        return {}
    return {name: import_module("polars").DataFrame(data) for name, data in values.items()}
