"""What a run shows as it goes: a panel on a terminal, a line now and then elsewhere, or nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from threefold.drawing.text import format_duration, sparkline

if TYPE_CHECKING:
    from threefold.training.loop import Trainer

LINES = 5  # plain lines of one run
REFRESH = 0.2  # seconds between two pictures of the panel


class Reporter:
    """Shows nothing; the ones below show something, and so may a user's own."""

    def __enter__(self) -> Reporter:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """The run begins."""

    def close(self) -> None:
        """The run is over, or has failed."""

    def show(self, run: Trainer) -> None:
        """A step is done."""

    def scores(self, run: Trainer) -> None:
        """An evaluation is done; it is the last of run.result.validation."""

    def saved(self, run: Trainer) -> None:
        """A checkpoint is written; it is run.saved."""

    def remark(self, text: str) -> None:
        """Something the user should know."""


class Several(Reporter):
    """All of some reporters."""

    def __init__(self, parts: Sequence[Reporter]) -> None:
        self.parts = parts

    def open(self) -> None:
        for part in self.parts:
            part.open()

    def close(self) -> None:
        for part in reversed(self.parts):
            part.close()

    def show(self, run: Trainer) -> None:
        for part in self.parts:
            part.show(run)

    def scores(self, run: Trainer) -> None:
        for part in self.parts:
            part.scores(run)

    def saved(self, run: Trainer) -> None:
        for part in self.parts:
            part.saved(run)

    def remark(self, text: str) -> None:
        for part in self.parts:
            part.remark(text)


class Board(Reporter):
    """A live panel: bar, loss and its curve, validation, rate, time left, gradients, memory."""

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title = console, title
        self.live = Live(console=console, auto_refresh=False, transient=False)
        self.next = 0.0

    def open(self) -> None:
        self.live.start()

    def close(self) -> None:
        self.live.stop()

    def show(self, run: Trainer) -> None:
        now = time.monotonic()
        if now < self.next and not run.result.stopped:
            return
        self.next = now + REFRESH
        self.live.update(self.picture(run), refresh=True)

    def saved(self, run: Trainer) -> None:
        self.live.update(self.picture(run), refresh=True)

    def remark(self, text: str) -> None:
        self.live.console.print(text, style="yellow", markup=False)

    def picture(self, run: Trainer) -> Panel:
        """The panel as it is now."""
        facts = Table.grid(padding=(0, 3))
        for _ in range(4):
            facts.add_column(no_wrap=True)
        cells = [f"[dim]{name}[/dim] {value}" for name, value in _facts(run)]
        for begin in range(0, len(cells), 4):
            facts.add_row(*cells[begin : begin + 4])
        width = max(20, min(self.console.width - 6, 100))
        bar = ProgressBar(total=1.0, completed=run.done, width=width)
        curve = Text(sparkline(run.result.losses, width), style="cyan")
        title = f"{self.title}  {run.done:.0%}"
        rows = Table.grid()
        for part in (bar, facts, curve):
            rows.add_row(part)
        return Panel(rows, title=title, title_align="left", box=box.ROUNDED)


class Lines(Reporter):
    """A plain line for every fifth of the run, and for every evaluation."""

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title = console, title
        self.next = 0.0

    def show(self, run: Trainer) -> None:
        if run.done < self.next:
            return
        self.next = (int(run.done * LINES) + 1) / LINES
        self._say(
            f"{run.done:4.0%}, step {run.result.steps}, loss {run.result.losses[-1]:.3f}, "
            f"{run.result.rate:,.0f} tokens/s, {format_duration(run.left)} left"
        )

    def scores(self, run: Trainer) -> None:
        if run.settings.eval_every is not None:
            steps, (loss, metric) = run.result.validation[-1]
            self._say(f"step {steps}, validation loss {loss:.4f}, metric {metric:.4f}")

    def remark(self, text: str) -> None:
        self._say(text)

    def _say(self, text: str) -> None:
        self.console.print(f"{self.title}: {text}", highlight=False, markup=False, soft_wrap=True)


def _facts(run: Trainer) -> list[tuple[str, str]]:
    result = run.result
    steps = run.settings.steps
    of = "" if steps is None else f" of {steps:,}"
    loss, metric = result.scores
    facts = [
        ("step", f"{result.steps:,}{of}"),
        ("loss", f"{_recent(result.losses):.4f}"),
        ("validation", "–" if math.isnan(loss) else f"{loss:.4f} ({metric:.4f})"),
        ("left", format_duration(run.left)),
        ("rate", f"{result.rate:,.0f} tokens/s"),
        ("gradients", f"{run.norm:.3g}"),
        ("memory", _memory()),
        ("saved", "–" if run.saved is None else f"step {int(run.saved.name[5:]):,}"),
    ]
    return facts


def _recent(losses: Sequence[float]) -> float:
    """The mean of the newest twentieth."""
    newest = losses[-max(1, min(len(losses) // 20, 50)) :]
    return sum(newest) / max(len(newest), 1)


def _memory() -> str:
    """What the process holds, where the system tells."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return f"{int(file.read().split()[1]) * 4096 / 2**20:,.0f} MiB"
    except (OSError, ValueError, IndexError):
        return "–"


def reporter(console: Console | None, title: str, watchers: Sequence[Reporter] = ()) -> Reporter:
    """What suits where the output goes (None: silence), and the watchers beside it."""
    if console is None:
        own = Reporter()
    else:
        own = Board(console, title) if console.is_terminal else Lines(console, title)
    return Several([own, *watchers]) if watchers else own
