"""Reporters, the callbacks of a run: a log, a live panel, plain lines, samples, TensorBoard."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from threefold.data.atomic_files import report_write_errors
from threefold.drawing.text import format_duration, sparkline
from threefold.errors import ThreefoldError
from threefold.runtime.generation import generate

if TYPE_CHECKING:
    from threefold.training.trainer import Trainer

logger = logging.getLogger("threefold.training")

PROGRESS_LINES = 5  # progress lines per run
PANEL_REFRESH_SECONDS = 0.2
SAMPLE_TOKENS = 160  # length of a text sample


class Reporter:
    """Base class of reporters; reports nothing. Override the hooks you need."""

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
        """Called when the run starts."""

    def close(self) -> None:
        """Called when the run has ended or failed."""

    def on_step(self, trainer: Trainer) -> None:
        """Called after each step."""

    def on_evaluate(self, trainer: Trainer) -> None:
        """Called after each evaluation, whose scores are the last of `result.validation`."""

    def on_save(self, trainer: Trainer) -> None:
        """Called after each checkpoint, whose path is `trainer.last_checkpoint`."""

    def message(self, text: str) -> None:
        """Show a message to the user."""

    def warn(self, text: str) -> None:
        """Show something that the user should know and did not expect."""
        self.message(text)


class ReporterGroup(Reporter):
    """Several reporters, called one after another."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self.reporters = reporters

    def open(self) -> None:
        for reporter in self.reporters:
            reporter.open()

    def close(self) -> None:
        for reporter in reversed(self.reporters):
            reporter.close()

    def on_step(self, trainer: Trainer) -> None:
        for reporter in self.reporters:
            reporter.on_step(trainer)

    def on_evaluate(self, trainer: Trainer) -> None:
        for reporter in self.reporters:
            reporter.on_evaluate(trainer)

    def on_save(self, trainer: Trainer) -> None:
        for reporter in self.reporters:
            reporter.on_save(trainer)

    def message(self, text: str) -> None:
        for reporter in self.reporters:
            reporter.message(text)

    def warn(self, text: str) -> None:
        for reporter in self.reporters:
            reporter.warn(text)


class LivePanel(Reporter):
    """A panel that updates in place: progress bar, scores, speed, time left and loss curve."""

    def __init__(self, console: Console, title: str) -> None:
        self.console, self.title = console, title
        self.live = Live(console=console, auto_refresh=False, transient=False)
        self.next_refresh = 0.0

    def open(self) -> None:
        self.live.start()

    def close(self) -> None:
        self.live.stop()

    def on_step(self, trainer: Trainer) -> None:
        now = time.monotonic()
        if now < self.next_refresh and not trainer.result.stopped:
            return
        self.next_refresh = now + PANEL_REFRESH_SECONDS
        self.live.update(self.render(trainer), refresh=True)

    def on_save(self, trainer: Trainer) -> None:
        self.live.update(self.render(trainer), refresh=True)

    def message(self, text: str) -> None:
        self.live.console.print(text, style="yellow", markup=False)

    def render(self, trainer: Trainer) -> Panel:
        """The panel for the current step."""
        width = max(20, min(self.console.width - 6, 100))
        cells = [f"[dim]{name}[/dim] {value}" for name, value in _facts(trainer)]
        widest = max(len(Text.from_markup(cell)) for cell in cells)
        columns = max(1, min(4, (width + 3) // (widest + 3)))
        facts = Table.grid(padding=(0, 3))
        for _ in range(columns):
            facts.add_column(no_wrap=True)
        for first in range(0, len(cells), columns):
            facts.add_row(*cells[first : first + columns])
        bar = ProgressBar(total=1.0, completed=trainer.progress, width=width)
        curve = Text(sparkline(trainer.result.losses, width), style="cyan")
        title = f"{self.title}  {trainer.progress:.0%}"
        rows = Table.grid()
        for row in (bar, facts, curve):
            rows.add_row(row)
        return Panel(rows, title=title, title_align="left", box=box.ROUNDED)


class LoggingReporter(Reporter):
    """Logs progress after each fifth of the run and after each evaluation."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.next_progress = 0.0

    def open(self) -> None:
        self.next_progress = 0.0  # a reporter may see pretraining first

    def on_step(self, trainer: Trainer) -> None:
        if trainer.progress < self.next_progress:
            return
        self.next_progress = (int(trainer.progress * PROGRESS_LINES) + 1) / PROGRESS_LINES
        result = trainer.result
        left = format_duration(trainer.seconds_left)
        self.message(
            f"{trainer.progress:4.0%}, step {result.steps}, loss {result.losses[-1]:.3f}, "
            f"{result.tokens_per_second:,.0f} elements/s, {left} left"
        )

    def on_evaluate(self, trainer: Trainer) -> None:
        if trainer.settings.eval_every is not None:
            steps, (loss, metric) = trainer.result.validation[-1]
            self.message(f"step {steps}, validation loss {loss:.4f}, metric {metric:.4f}")

    def message(self, text: str) -> None:
        logger.info("%s: %s", self.title, text)

    def warn(self, text: str) -> None:
        logger.warning("%s: %s", self.title, text)


class LineReporter(LoggingReporter):
    """Prints to a console what a LoggingReporter logs."""

    def __init__(self, console: Console, title: str) -> None:
        super().__init__(title)
        self.console = console

    def message(self, text: str) -> None:
        self.console.print(f"{self.title}: {text}", highlight=False, markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.message(text)


class TensorBoardReporter(Reporter):
    """Loss, learning rate, gradient norm and evaluations, for `tensorboard --logdir`."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ThreefoldError(
                "TensorBoard is not installed: pip install 'threefold[tensorboard]'"
            ) from error
        self.writer: Any = SummaryWriter(str(folder))

    def close(self) -> None:
        self.writer.close()

    def on_step(self, trainer: Trainer) -> None:
        step = trainer.result.steps
        for name, value in (
            ("loss/train", trainer.result.losses[-1]),
            ("learning_rate", trainer.optimizer.param_groups[0]["lr"]),
            ("grad_norm", trainer.grad_norm),
            ("tokens_per_second", trainer.result.tokens_per_second),
        ):
            self.writer.add_scalar(name, value, step)

    def on_evaluate(self, trainer: Trainer) -> None:
        step, (loss, metric) = trainer.result.validation[-1]
        self.writer.add_scalar("loss/valid", loss, step)
        self.writer.add_scalar("metric/valid", metric, step)


class SampleReporter(Reporter):
    """A text that the language model generates at each evaluation, appended to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_evaluate(self, trainer: Trainer) -> None:
        model, steps = trainer.model, trainer.result.steps
        tokenizer = getattr(model, "tokenizer", None)
        if not getattr(model, "writes_text", False) or tokenizer is None:
            return
        text = _sample(model, tokenizer)
        loss = trainer.result.scores.loss
        score = "" if math.isnan(loss) else f", validation loss {loss:.4f}"
        with report_write_errors(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(f"--- step {steps}{score}\n{text}\n")


def _sample(model: Any, tokenizer: Any) -> str:
    """Text that the model generates in eval mode, or the reason why it cannot."""
    was_training = model.training
    model.eval()
    prompt = _prompt(tokenizer)
    try:
        rows = generate(model, prompt, max_tokens=SAMPLE_TOKENS, temperature=0.8, seed=0).rows()
        text = tokenizer.decode(rows[0])
    except ThreefoldError as error:  # a failed sample must not end the run
        text = str(error)
    model.train(was_training)
    return "".join(c if c.isprintable() or c == "\n" else "·" for c in text)


def _prompt(tokenizer: Any) -> list[int]:
    """A line break, or token 0 if the tokenizer has no line break."""
    try:
        tokens: list[int] = tokenizer.encode("\n").tolist()
    except ThreefoldError:
        tokens = []
    return tokens or [0]


def _facts(trainer: Trainer) -> list[tuple[str, str]]:
    result, total = trainer.result, trainer.settings.steps
    loss, metric = result.scores
    checkpoint = trainer.last_checkpoint
    return [
        ("step", f"{result.steps:,}" + ("" if total is None else f" of {total:,}")),
        ("loss", f"{_recent_mean(result.losses):.4f}"),
        ("validation", "–" if math.isnan(loss) else f"{loss:.4f} ({metric:.4f})"),
        ("time left", format_duration(trainer.seconds_left)),
        ("speed", f"{result.tokens_per_second:,.0f} elements/s"),
        ("gradient norm", f"{trainer.grad_norm:.3g}"),
        ("process memory", _memory()),
        ("checkpoint", "–" if checkpoint is None else f"step {int(checkpoint.name[5:]):,}"),
    ]


def _recent_mean(losses: Sequence[float]) -> float:
    """The mean of the newest twentieth of the losses, at most 50."""
    newest = losses[-max(1, min(len(losses) // 20, 50)) :]
    return sum(newest) / max(len(newest), 1)


def _memory() -> str:
    """Resident memory of the process, where the system reports it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return f"{int(file.read().split()[1]) * 4096 / 2**20:,.0f} MiB"
    except (OSError, ValueError, IndexError):
        return "–"


def console_reporter(console: Console, title: str) -> Reporter:
    """A panel that updates in place on a terminal, plain lines elsewhere."""
    return LivePanel(console, title) if console.is_terminal else LineReporter(console, title)
