"""What commands print: tables and facts that fit a terminal, plain when piped, JSON on request."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import IO, Any

from threefold.errors import ThreefoldError

GAP = "  "
OTHER_PROCESS_FAILED = 3  # exit code if another process of the run failed and reports why
COLOUR_CODE = re.compile(r"\x1b\[\d*m")
COLOURS = {"good": "32", "bad": "31", "weak": "33", "head": "1"}


def say(text: str = "") -> None:
    """One line on stdout."""
    print(text)


def say_json(value: Any) -> None:
    """A value as indented JSON, Unicode as it is."""
    say(json.dumps(value, indent=2, ensure_ascii=False))


def whisper(message: str) -> None:
    """What is going on, on one line of a terminal that the next one replaces."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{message[:width].ljust(width)}\r", end="", file=sys.stderr, flush=True)


def complain(message: str) -> None:
    """One message on stderr."""
    print(f"Error: {message}", file=sys.stderr)


def columns() -> int | None:
    """The terminal's width; None when the output goes to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def paint(text: str, kind: str) -> str:
    """Coloured on a terminal, as it is elsewhere or under NO_COLOR."""
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return text
    return f"\x1b[{COLOURS[kind]}m{text}\x1b[0m"


def tolerate_closed_streams() -> None:
    """Print to nowhere where a stream is closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def leave_stdout() -> None:
    """Have what is still held for an output that fails go nowhere."""
    with suppress(OSError, ValueError):  # what is no file of the system
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def typed() -> IO[bytes]:
    """Standard input, as bytes."""
    if sys.stdin is None:
        raise ThreefoldError("standard input is closed; give a file, or a text, instead of -")
    return sys.stdin.buffer


def tolerate_narrow_encodings() -> None:
    """Print ? for letters that the terminal's encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def say_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, fold: Sequence[str] = ()
) -> None:
    """Rows under a header; on a terminal too narrow, the `fold` columns go below each row."""
    rows = list(rows)
    width = columns()
    lines = align([header, *rows])
    if width is None or max(map(len, lines)) <= width:
        kept, below = list(range(len(header))), []
    else:
        kept = [i for i, name in enumerate(header) if name not in fold]
        below = [i for i, name in enumerate(header) if name in fold]
        lines = align([[row[i] for i in kept] for row in (header, *rows)])
    say(paint(lines[0], "head"))
    for row, line in zip(rows, lines[1:], strict=True):
        say(line)
        for i in below:
            say(wrapped(row[i], width, indent=2))


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Cells padded to the widest of their column."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def say_facts(facts: Iterable[tuple[str, str | Iterable[str]]]) -> None:
    """`name  value` lines, values aligned; a value may be several lines, and none is left out."""
    pairs = [(name, [v] if isinstance(v, str) else list(v)) for name, v in facts]
    pairs = [(name, lines) for name, lines in pairs if lines]
    margin = max(len(name) for name, _ in pairs) + len(GAP)
    for name, lines in pairs:
        for i, line in enumerate(lines):
            label = (name if i == 0 else "").ljust(margin)
            say(paint(label, "head") + wrapped(line, columns(), indent=margin)[margin:])


def wrapped(text: str, width: int | None, indent: int) -> str:
    """Text behind an indent, broken between words where the terminal ends."""
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


def readable(size: float) -> str:
    """Bytes in the unit that a person would choose, e.g. 64 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size >= 100 or size == int(size) else f"{size:.1f} {unit}"
