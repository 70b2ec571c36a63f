"""Exceptions for invalid input: what was given, what was expected, what to do."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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


PLACEHOLDERS = ("N", "STEP", "COLUMN", "LABEL", "MODULE")  # in messages: what the user must fill in
_surface = "python"  # where messages are read: "python" or "command"


@contextmanager
def command_line() -> Iterator[None]:
    """Messages of this block spell options as a shell takes them, not as Python's keywords."""
    global _surface
    before, _surface = _surface, "command"
    try:
        yield
    finally:
        _surface = before


def in_command() -> bool:
    """Whether messages are read in a shell."""
    return _surface == "command"


def override(text: str) -> str:
    """A setting that was given as key=value, as its user spells it."""
    return f"--set {text!r}" if _surface == "command" else f"settings: {text!r}"


def option(name: str, value: str | None = None, *, flag: str | None = None) -> str:
    """An option as its user spells it: `--target flow` in a shell, `target="flow"` in Python.

    flag: its name in a shell, if that is another.
    """
    if _surface == "command":
        flag = f"--{(flag or name).replace('_', '-')}"
        return flag if value is None else f"{flag} {shlex.quote(value)}"
    quoted = value if value in (None, *PLACEHOLDERS) else json.dumps(value, ensure_ascii=False)
    return f"{name}={quoted or ''}"


def option_name(name: str) -> str:
    """The name of an option as its user spells it: `--batch-size` in a shell, or `batch_size`."""
    return option(name).rstrip("=")


def setting(name: str, value: str) -> str:
    """A setting as its user spells it: `--set data.length=96`, `settings={"data.length": 96}`."""
    if _surface == "command":
        return f"--set {name}={value if '|' in value else shlex.quote(value)}"
    return f'settings={{"{name}": {_literal(value)}}}'


def options(**values: str) -> str:
    """Several options beside each other."""
    between = " " if _surface == "command" else ", "
    return between.join(option(name, value) for name, value in values.items())


def _literal(value: str) -> str:
    """A value as Python writes it."""
    if value in ("true", "false"):
        return value.title()
    if value in PLACEHOLDERS or re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value):
        return value
    return json.dumps(value, ensure_ascii=False)


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
