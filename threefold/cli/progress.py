"""How far a stream has come, on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from typing import Any

from threefold.cli.output import readable

SECONDS = 10.0  # between plain lines


class Meter:
    """Told of bytes and elements; `total` bytes, if there is an end; `first` is where it began.

    printing: scores go to standard output; on the same terminal they would tear a bar.
    """

    def __init__(self, total: int | None, first: int, quiet: bool, printing: bool) -> None:
        self.total, self.first, self.quiet = total, first, quiet
        self.start = self.shown = time.monotonic()
        self.progress: Any = None
        if not quiet and sys.stderr.isatty():
            self.quiet = printing and sys.stdout.isatty()
            self.progress = None if self.quiet else _bar(total)

    def show(self, position: int, elements: int) -> None:
        """Bytes of the input so far, and elements since the beginning of this run."""
        now = time.monotonic()
        if self.quiet or (self.progress is None and now - self.shown < SECONDS):
            return
        self.shown = now
        spent = max(now - self.start, 1e-9)
        rate = f"{elements / spent:,.0f} elements/s"
        left = "" if self.total is None else _left(self.total, position, self.first, spent)
        if self.progress is not None:
            task = self.progress.task_ids[0]
            self.progress.update(task, completed=position, rate=rate, left=left)
            return
        part = "" if not self.total else f" of {readable(self.total)} ({position / self.total:.0%})"
        line = ", ".join(filter(None, [f"{readable(position)}{part}", rate, left]))
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self.progress is not None:
            self.progress.stop()


def _left(total: int, position: int, first: int, spent: float) -> str:
    rate = (position - first) / spent
    if rate <= 0:
        return ""
    seconds = int(max(total - position, 0) / rate)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"


def _bar(total: int | None) -> Any:
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
