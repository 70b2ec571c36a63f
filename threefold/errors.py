"""Exceptions for invalid input: what was given, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ThreefoldError(ValueError):
    """Invalid input; the message is written for the user who gave it."""


class OtherProcessFailedError(ThreefoldError):
    """Another process of the same run has failed and reports the reason itself."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the most similar known name, or a list of all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: " + ", ".join(names)
