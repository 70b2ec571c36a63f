"""How much of something has come: a bar on a terminal, two plain lines elsewhere, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def meter(console: Console | None, title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function that is told how many bytes have come, of a total."""
    if console is None:
        yield lambda done: None
    elif console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            DownloadColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as progress:
            task = progress.add_task(title, total=total)
            yield lambda done: progress.update(task, completed=min(done, total))
            progress.update(task, completed=total)
    else:
        start = time.monotonic()
        console.print(f"{title}: fetching {total / 1e6:.1f} MB", highlight=False)
        yield lambda done: None
        spent = time.monotonic() - start
        console.print(f"{title}: fetched in {spent:.1f} s", highlight=False)
