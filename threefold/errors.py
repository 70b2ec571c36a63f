"""Exceptions for invalid input: what was given, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class ThreefoldError(ValueError):
    """Invalid input; the message is written for the user who gave it."""


class AmbiguousError(ThreefoldError):
    """Input that can be read in several ways; `options` are the exact ways to say which."""

    def __init__(self, what: str, options: Sequence[str]) -> None:
        self.what, self.options = what, list(options)
        super().__init__(
            "\n".join([what, "Choose one of:", *(f"  {option}" for option in options)])
        )

    def __reduce__(self) -> tuple[type[AmbiguousError], tuple[str, list[str]]]:
        return AmbiguousError, (self.what, self.options)


class OtherProcessFailedError(ThreefoldError):
    """Another process of the same run has failed and reports the reason itself."""


class LockedError(ThreefoldError):
    """Another process is using the same folder."""


class DivergedError(ThreefoldError):
    """Training stopped because the loss or the gradient was not finite."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the most similar known name, or a list of all of them."""
    names = sorted(known)
    by_case = {known_name.lower(): known_name for known_name in names}
    close = difflib.get_close_matches(name.strip().lower(), by_case, n=1, cutoff=0.5)
    if close:
        return f"did you mean {by_case[close[0]]!r}?"
    return "known: " + ", ".join(names)
