"""Durations as users write them: 10m, 90s, 1.5h, 500steps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from threefold.errors import ThreefoldError, option_name

SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
EXPECTED = "expected a duration such as 10m, 90s, 1.5h or 500steps"


@dataclass(frozen=True)
class Duration:
    """A number of training steps or a time in seconds; exactly one of them is set."""

    steps: int | None = None
    seconds: float | None = None


def parse_duration(text: str, name: str | None = None) -> Duration:
    """Read 10m, 90s, 1.5h or 500steps; a unit is required.  name: of the setting, for messages."""
    said = name or option_name("time")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-zA-Z]*)\s*", text)
    amount, unit = (float(match[1]), match[2].lower()) if match else (0.0, "")
    if not amount > 0 or unit not in (*SECONDS, "step", "steps"):
        raise ThreefoldError(f"{said} is {text!r}, {EXPECTED}")
    if unit in SECONDS:
        return Duration(seconds=amount * SECONDS[unit])
    if amount != int(amount):
        raise ThreefoldError(f"{said} is {text!r}, expected a whole number of steps")
    return Duration(steps=int(amount))


def as_seconds(value: Any) -> Any:
    """The setting `training.time`: a text with a unit, or a number of seconds."""
    if not isinstance(value, str):
        return value
    duration = parse_duration(value, "training.time")
    if duration.seconds is None:
        raise ThreefoldError(
            f"training.time is {value!r}, expected a time such as 10m; set training.steps instead"
        )
    return duration.seconds
