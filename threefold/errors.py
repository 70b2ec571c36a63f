"""Exceptions for invalid input: what was given, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class ThreefoldError(ValueError):
    """Invalid input; the message is written for the user who gave it."""


class AmbiguousError(ThreefoldError):
    """Input that can be read in several ways; `options` are the exact ways to say which.

    questions: (what, options) of each, if there are several; `what` is then about all of them.
    """

    def __init__(
        self, what: str, options: Sequence[str], questions: Sequence[tuple[str, list[str]]] = ()
    ) -> None:
        self.what, self.options = what, list(options)
        self.questions = list(questions) or [(what, self.options)]
        lines = [what] if questions else []
        for number, (question, choices) in enumerate(self.questions, 1):
            lines.append(f"{number}. {question}" if questions else question)
            lines += ["Choose one of:", *(f"  {option}" for option in choices)]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type[AmbiguousError], tuple[Any, ...]]:
        several = self.questions if len(self.questions) > 1 else []
        return AmbiguousError, (self.what, self.options, several)

    @staticmethod
    def join(errors: Sequence[AmbiguousError]) -> AmbiguousError:
        """One error that asks everything at once."""
        questions = [question for error in errors for question in error.questions]
        if len(questions) == 1:
            return errors[0]
        options = [option for _, choices in questions for option in choices]
        what = f"{len(questions)} questions about the data; answer all of them together:"
        return AmbiguousError(what, options, questions)


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
