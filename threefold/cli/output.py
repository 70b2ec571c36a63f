"""Output of the commands: tables and facts that fit the terminal, plain text when piped, JSON."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import IO, Any

from threefold.errors import ThreefoldError

GAP = "  "
INTERRUPTED = 130  # exit code after Ctrl-C or SIGTERM
OTHER_PROCESS_FAILED = 3  # exit code if another process of the run failed and reports why
COLOUR_CODE = re.compile(r"\x1b\[\d*m")
COLOURS = {"good": "32", "bad": "31", "weak": "33", "head": "1"}


def say(text: str = "") -> None:
    """Print a line to stdout."""
    print(text)


def say_json(value: Any) -> None:
    """Print a value as indented JSON, without escaping Unicode."""
    say(json.dumps(value, indent=2, ensure_ascii=False))


def whisper(message: str) -> None:
    """Print progress to stderr on a line of the terminal that the next message overwrites."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{message[:width].ljust(width)}\r", end="", file=sys.stderr, flush=True)


def note(message: str) -> None:
    """Print what a user should know to stderr, so that the output can be read by a program."""
    print(f"note: {message}", file=sys.stderr)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with rate and time left on a terminal, lines now and then elsewhere; on stderr.

    Yields a function of what is done and of the total.
    """
    from threefold.data.progress import CountMeter

    meter = CountMeter(title)
    try:
        yield meter.show
    finally:
        meter.close()


def complain(message: str) -> None:
    """Print an error message to stderr."""
    print(f"Error: {message}", file=sys.stderr)


def columns() -> int | None:
    """Return the width of the terminal; None when the output goes to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def paint(text: str, kind: str) -> str:
    """Colour a text on a terminal; leave it as it is elsewhere, and if NO_COLOR is set."""
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return text
    return f"\x1b[{COLOURS[kind]}m{text}\x1b[0m"


def tolerate_closed_streams() -> None:
    """Replace a closed stdout or stderr, so that printing does not fail."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def leave_stdout() -> None:
    """Discard what is still buffered for a stdout that cannot be written to."""
    with suppress(OSError, ValueError):  # stdout has no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def stdin_bytes() -> IO[bytes]:
    """Return standard input as a binary file."""
    if sys.stdin is None:
        raise ThreefoldError("standard input is closed; give a file or a text instead of -")
    return sys.stdin.buffer


def tolerate_narrow_encodings() -> None:
    """Print ? for characters that the terminal's encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def say_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, fold: Sequence[str] = ()
) -> None:
    """Print rows under a header; on a narrow terminal, the `fold` columns go below each row."""
    rows = list(rows)
    width = columns()
    lines = align([header, *rows])
    if width is None or max(map(len, lines)) <= width:
        inline, below = list(range(len(header))), []
    else:
        inline = [i for i, name in enumerate(header) if name not in fold]
        below = [i for i, name in enumerate(header) if name in fold]
        lines = align([[row[i] for i in inline] for row in (header, *rows)])
    say(paint(lines[0], "head"))
    for row, line in zip(rows, lines[1:], strict=True):
        say(line)
        for i in below:
            say(wrapped(row[i], width, indent=2))


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, with cells padded to the widest of their column."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def say_facts(facts: Iterable[tuple[str, str | Iterable[str]]]) -> None:
    """Print `name  value` lines with aligned values; a value may have several lines, or none."""
    pairs = [(name, [v] if isinstance(v, str) else list(v)) for name, v in facts]
    pairs = [(name, lines) for name, lines in pairs if lines]
    margin = max(len(name) for name, _ in pairs) + len(GAP)
    for name, lines in pairs:
        for i, line in enumerate(lines):
            label = (name if i == 0 else "").ljust(margin)
            say(paint(label, "head") + wrapped(line, columns(), indent=margin)[margin:])


def wrapped(text: str, width: int | None, indent: int) -> str:
    """Indent a text, and wrap it between words at the width of the terminal."""
    margin = " " * indent
    if width is None or indent + len(COLOUR_CODE.sub("", text)) <= width:
        return margin + text
    return textwrap.fill(
        text,
        max(width, indent + 20),
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )


def scores_text(summary: Mapping[str, Any], split: str) -> str:
    """Loss and metric of a run; of several targets the error of each, in its units."""
    scores = summary.get(split)
    if not scores or scores["loss"] is None:
        return ""
    loss, metric = f"loss {scores['loss']:.4f}", summary["metric"]
    if "by_target" in summary:
        errors = summary["by_target"] if split == "test" else None
        return f"{loss}, {metric} {_by_target(errors)}" if errors else loss
    return loss if scores["metric"] is None else f"{loss}, {metric} {scores['metric']:.4f}"


def chance_text(summary: Mapping[str, Any]) -> str:
    """The metric of a trivial answer."""
    errors, name = summary.get("chance_by_target"), summary.get("chance_name")
    if errors:
        return f"{summary['metric']} {_by_target(errors)}"
    by = f" ({name})" if name else ""
    return f"{summary['metric']} {summary['chance']:.4f}{by}"


def _by_target(errors: Mapping[str, float | None]) -> str:
    from threefold.drawing.text import format_number

    return ", ".join(f"{n} {'–' if x is None else format_number(x)}" for n, x in errors.items())
