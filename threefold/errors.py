"""The one exception that bad input raises: what was given, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ThreefoldError(ValueError):
    """Input that cannot be used; the message is written for the person who gave it."""


class LeftAloneError(ThreefoldError):
    """Another process of the same run has ended; what is wrong is said there."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A closing remark that names the nearest known name, or lists all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: " + ", ".join(names)
