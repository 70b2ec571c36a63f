"""Progress on stderr: a bar on a terminal, plain lines elsewhere, or nothing.

Rich is imported only when a bar is drawn.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from threefold.drawing.text import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

LINE_INTERVAL = 10.0  # seconds between two plain lines


class Meter:
    """Progress of reading a stream: bytes, elements per second and the time left.

    total: bytes of the input, None if it has no end.  first: the byte at which this run began.
    printing: results go to stdout; on the same terminal they would break the bar.
    """

    def __init__(self, total: int | None, first: int, quiet: bool, printing: bool) -> None:
        self.total, self.first, self.quiet = total, first, quiet
        self.start = self.shown = time.monotonic()
        self.progress: Any = None
        if not quiet and sys.stderr.isatty():
            self.quiet = printing and sys.stdout.isatty()
            self.progress = None if self.quiet else _stream_bar(total)

    def show(self, position: int, elements: int) -> None:
        """Show the position in the input in bytes, and the elements read by this run."""
        now = time.monotonic()
        if self.quiet or (self.progress is None and now - self.shown < LINE_INTERVAL):
            return
        self.shown = now
        spent = max(now - self.start, 1e-9)
        rate = f"{elements / spent:,.0f} elements/s"
        left = "" if self.total is None else _time_left(self.total, position, self.first, spent)
        if self.progress is not None:
            task = self.progress.task_ids[0]
            self.progress.update(task, completed=position, rate=rate, left=left)
            return
        part = (
            ""
            if not self.total
            else f" of {format_bytes(self.total)} ({position / self.total:.0%})"
        )
        line = ", ".join(filter(None, [f"{format_bytes(position)}{part}", rate, left]))
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Stop the bar and leave it on the screen."""
        if self.progress is not None:
            self.progress.stop()


class CountMeter:
    """Progress of a number of things: a bar on a terminal, lines now and then elsewhere."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.start = self.shown = time.monotonic()
        self.first: float | None = None  # what was done when the first was shown
        self.progress: Any = None

    def show(self, done: float, total: int, what: str = "") -> None:
        """Show how many are done, and what is under way; a part of one counts as such a part."""
        now = time.monotonic()
        if self.first is None:
            self.first, self.start = done, now
        if sys.stderr.isatty():
            self.progress = self.progress or _count_bar(self.title, total)
            title = f"{self.title}: {what}" if what else self.title
            self.progress.update(self.progress.task_ids[0], completed=done, description=title)
        elif now - self.shown >= LINE_INTERVAL:
            self.shown = now
            left = _time_left(total, done, self.first, max(now - self.start, 1e-9))
            line = f"{self.title}: {int(done):,} of {total:,}"
            print(", ".join(filter(None, [line, what, left])), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Stop the bar."""
        if self.progress is not None:
            self.progress.stop()


@contextmanager
def download_meter(
    console: Console | None, title: str, total: int
) -> Iterator[Callable[[int], None]]:
    """Progress of a download of `total` bytes; yields a function to call with the bytes so far."""
    if console is None:
        yield lambda done: None
    elif console.is_terminal:
        with _download_bar(console) as progress:
            task = progress.add_task(title, total=total)
            yield lambda done: progress.update(task, completed=min(done, total))
            progress.update(task, completed=total)
    else:
        start = time.monotonic()
        console.print(f"{title}: fetching {total / 1e6:.1f} MB", highlight=False)
        yield lambda done: None
        spent = time.monotonic() - start
        console.print(f"{title}: fetched in {spent:.1f} s", highlight=False)


def _time_left(total: float, position: float, first: float, spent: float) -> str:
    rate = (position - first) / spent
    if rate <= 0:
        return ""
    seconds = int(max(total - position, 0) / rate)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"


def _stream_bar(total: int | None) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    progress = Progress(
        BarColumn(bar_width=None),
        DownloadColumn(),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[left]}"),
        console=Console(stderr=True),
    )
    progress.add_task("", total=total, rate="", left="")
    progress.start()
    return progress


def _count_bar(title: str, total: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining()
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.add_task(title, total=total)
    progress.start()
    return progress


def _download_bar(console: Console) -> Any:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    title, bar = TextColumn("{task.description}"), BarColumn(bar_width=None)
    return Progress(title, bar, DownloadColumn(), TimeRemainingColumn(), console=console)
