"""What a run shows as it goes: a bar on a terminal, a line now and then elsewhere, or nothing."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

LINES = 5  # plain lines of one run


class Reporter:
    """Shows nothing; the ones below show something."""

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def show(self, done: float, step: int, loss: float, rate: float, left: float) -> None:
        """One step: part of the run, step, loss, tokens a second, seconds left."""


class Bar(Reporter):
    """A progress bar with loss, rate and time left."""

    def __init__(self, console: Console, title: str) -> None:
        self.progress = Progress(
            TextColumn("{task.description:<20}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[loss]}"),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self.task = self.progress.add_task(title, total=1.0, loss="", rate="", left="")

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()

    def show(self, done: float, step: int, loss: float, rate: float, left: float) -> None:
        self.progress.update(
            self.task,
            completed=done,
            loss=f"loss {loss:.3f}",
            rate=f"{rate:,.0f} tokens/s",
            left=f"{left:.0f} s left",
        )


class Lines(Reporter):
    """A plain line for every fifth of the run."""

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title = console, title
        self.next = 0.0

    def show(self, done: float, step: int, loss: float, rate: float, left: float) -> None:
        if done < self.next:
            return
        self.next = (int(done * LINES) + 1) / LINES
        self.console.print(
            f"{self.title}: {done:4.0%}, step {step}, loss {loss:.3f}, "
            f"{rate:,.0f} tokens/s, {left:.0f} s left",
            highlight=False,
        )


def reporter(console: Console | None, title: str) -> Reporter:
    """The right one for where the output goes; None for silence."""
    if console is None:
        return Reporter()
    return Bar(console, title) if console.is_terminal else Lines(console, title)
