"""Progress of a stream, on stderr: a bar on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import sys
import time
from typing import Any

from threefold.cli.output import readable

LINE_SECONDS = 10.0  # between two lines, where there is no bar


class Meter:
    """Shows bytes, elements per second and the time left.

    total: bytes of the input, if known.  first: the byte at which this run started.
    printing: scores are printed to stdout; on the same terminal they would break the bar.
    """

    def __init__(self, total: int | None, first: int, quiet: bool, printing: bool) -> None:
        self.total, self.first, self.quiet = total, first, quiet
        self.start = self.shown = time.monotonic()
        self.progress: Any = None
        if not quiet and sys.stderr.isatty():
            self.quiet = printing and sys.stdout.isatty()
            self.progress = None if self.quiet else _bar(total)

    def show(self, position: int, elements: int) -> None:
        """Show the position in the input, in bytes, and the elements read by this run."""
        now = time.monotonic()
        if self.quiet or (self.progress is None and now - self.shown < LINE_SECONDS):
            return
        self.shown = now
        elapsed = max(now - self.start, 1e-9)
        rate = f"{elements / elapsed:,.0f} elements/s"
        left = "" if self.total is None else _time_left(self.total, position, self.first, elapsed)
        if self.progress is not None:
            task = self.progress.task_ids[0]
            self.progress.update(task, completed=position, rate=rate, left=left)
            return
        part = "" if not self.total else f" of {readable(self.total)} ({position / self.total:.0%})"
        line = ", ".join(filter(None, [f"{readable(position)}{part}", rate, left]))
        print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Stop updating the bar."""
        if self.progress is not None:
            self.progress.stop()


def _time_left(total: int, position: int, first: int, elapsed: float) -> str:
    rate = (position - first) / elapsed
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
