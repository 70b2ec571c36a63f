"""The training loop: batch(step) → loss → gradients → clip → AdamW, until steps, seconds or Ctrl-C.

In a folder (`keeping.py`) a run survives whatever stops it, and goes on bit for bit when it is
called again.  With `carry`, state goes from piece to piece, cut from the graph (truncated
back-propagation), and is emptied in the rows where a document starts.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from threefold.data.stream import IGNORE, Batch, Batches
from threefold.errors import ThreefoldError
from threefold.memory.state import State
from threefold.tasks.task import Metric, accuracy
from threefold.training.keeping import Keeper, kept
from threefold.training.optimiser import adamw, set_rate
from threefold.training.progress import reporter
from threefold.training.schedule import cosine
from threefold.training.truncated import carry_on


@dataclass(frozen=True)
class Settings:
    """How to train; give steps, seconds or both (the first to be reached ends the run)."""

    steps: int | None = None
    seconds: float | None = None  # of training, evaluation not counted
    learning_rate: float = 3e-3
    weight_decay: float = 0.1
    warmup: float = 0.05  # a part of the run
    final: float = 0.1  # a part of the learning rate
    clip: float = 1.0  # largest norm of the gradients
    carry: bool = False
    every: int | None = None  # steps between evaluations; None: at the end only
    target: float | None = None  # a metric that ends the run
    seed: int = 0  # of what is random inside the model
    save: int = 100  # steps between checkpoints, in a folder

    def __post_init__(self) -> None:
        if self.steps is None and self.seconds is None:
            raise ThreefoldError("training without an end: give steps=, seconds= or both")
        if (self.steps is not None and self.steps < 1) or (
            self.seconds is not None and self.seconds <= 0
        ):
            raise ThreefoldError(
                f"training for steps={self.steps}, seconds={self.seconds}: expected more than 0"
            )


class Scores(NamedTuple):
    """Mean loss in nats and mean metric over the targets that count."""

    loss: float
    metric: float


@dataclass
class Result:
    """What a run reached."""

    losses: list[float] = field(default_factory=list)  # one for each step
    validation: list[tuple[int, Scores]] = field(default_factory=list)  # (steps done, scores)
    tokens: int = 0
    seconds: float = 0.0
    stopped: str = ""  # steps, seconds, target or interrupted

    @property
    def steps(self) -> int:
        return len(self.losses)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def scores(self) -> Scores:
        """The newest evaluation."""
        return self.validation[-1][1] if self.validation else Scores(math.nan, math.nan)


def train(
    model: nn.Module,
    batches: Batches,
    settings: Settings,
    *,
    validation: Iterable[Batch] | None = None,
    metric: Metric = accuracy,
    console: Console | None = None,
    title: str = "training",
    folder: str | PathLike[str] | None = None,
) -> Result:
    """Train `model` on batches(0), batches(1), …; shows progress on `console`, if given.

    With a `folder` checkpoints are kept there, and a run that was stopped or killed goes on from
    the newest; Ctrl-C and SIGTERM finish the step and save.
    """
    run = Run(model, batches, settings)
    place = None if folder is None else Path(folder)
    with (
        kept(place, settings.save) as keeper,
        _seeded(settings.seed),
        _interrupts() as interrupt,
        reporter(console, title) as bar,
    ):
        run.begin(keeper, console)
        while not run.result.stopped:
            run.step()
            bar.show(run.done, run.result.steps, run.result.losses[-1], run.result.rate, run.left)
            run.result.stopped = "interrupted" if interrupt.is_set() else run.end
            # What goes on later is not at its end, and whoever interrupts is in a hurry.
            pauses = keeper is not None and interrupt.is_set()
            if validation is not None and run.due and not pauses:
                scores = evaluate(model, validation, metric, carry=settings.carry)
                run.result.validation.append((run.result.steps, scores))
                if settings.target is not None and scores.metric >= settings.target:
                    run.result.stopped = "target"
            run.keep(keeper)
    return run.result


def evaluate(
    model: nn.Module, batches: Iterable[Batch], metric: Metric = accuracy, *, carry: bool = False
) -> Scores:
    """Mean loss and metric over batches, without gradients, in eval mode."""
    was_training = model.training
    model.eval()
    loss, scores, count = 0.0, 0.0, 0
    state: State | None = None
    with torch.no_grad():
        for batch in batches:
            logits, state = _forward(model, batch, state, carry)
            loss += float(cross_entropy(logits, batch.targets, "sum"))
            scores += float(metric(logits, batch.targets).sum())
            count += int((batch.targets != IGNORE).sum())
    model.train(was_training)
    if count == 0:
        raise ThreefoldError("nothing to evaluate: no batch has a target that counts")
    return Scores(loss / count, scores / count)


def cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Nats over the targets that count; logits […, classes], targets […]."""
    return F.cross_entropy(
        logits.flatten(0, -2).float(),
        targets.flatten(),
        ignore_index=IGNORE,
        reduction=reduction,
    )


class Run:
    """A run under way."""

    def __init__(self, model: nn.Module, batches: Batches, settings: Settings) -> None:
        self.model, self.batches, self.settings = model, batches, settings
        self.optimiser = adamw(model, settings.learning_rate, settings.weight_decay)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.state: State | None = None
        self.result = Result()
        model.train()

    def begin(self, keeper: Keeper | None, console: Console | None) -> None:
        """Go on from the newest checkpoint, if there is one."""
        for wrong in [] if keeper is None else keeper.begin(self):
            if console is not None:
                console.print(f"checkpoint left aside: {wrong}", style="yellow", markup=False)
        if keeper is not None and self.result.steps:
            self.result.stopped = self.end

    def keep(self, keeper: Keeper | None) -> None:
        """Log the step, and save where that is due or the run is over."""
        if keeper is None:
            return
        keeper.note(self)
        if self.result.stopped:
            keeper.save(self)

    def note_scores(self, validation: Iterable[tuple[int, float, float]]) -> None:
        """Evaluations of an earlier process."""
        self.result.validation[:] = [(steps, Scores(*scores)) for steps, *scores in validation]

    def step(self) -> None:
        """One batch: forward, backward, clip, update."""
        start = time.perf_counter()
        batch = self.batches(self.result.steps)
        set_rate(self.optimiser, cosine(self.done, self.settings.warmup, self.settings.final))
        self.optimiser.zero_grad(set_to_none=True)
        logits, self.state = _forward(self.model, batch, self.state, self.settings.carry)
        loss = cross_entropy(logits, batch.targets)
        self._refuse_non_finite("loss", loss.item())
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        self._refuse_non_finite("norm of the gradients", norm.item())
        self.optimiser.step()
        self.result.losses.append(loss.item())
        self.result.tokens += batch.inputs.numel()
        self.result.seconds += time.perf_counter() - start

    @property
    def done(self) -> float:
        """The part of the run that is behind."""
        parts = [0.0]
        if self.settings.steps is not None:
            parts.append(self.result.steps / self.settings.steps)
        if self.settings.seconds is not None:
            parts.append(self.result.seconds / self.settings.seconds)
        return min(max(parts), 1.0)

    @property
    def left(self) -> float:
        """Seconds left, by the speed so far."""
        return self.result.seconds * (1 / self.done - 1) if self.done else math.inf

    @property
    def end(self) -> str:
        """Why the run is over; empty while it is not."""
        if self.done < 1:
            return ""
        steps = self.settings.steps
        return "steps" if steps is not None and self.result.steps >= steps else "seconds"

    @property
    def due(self) -> bool:
        """Whether to evaluate now."""
        every = self.settings.every
        return bool(self.result.stopped) or (every is not None and self.result.steps % every == 0)

    def _refuse_non_finite(self, what: str, value: float) -> None:
        if math.isfinite(value):
            return
        losses = self.result.losses
        before = f"the loss before was {losses[-1]:.4g}" if losses else "this was the first step"
        raise ThreefoldError(
            f"training stopped at step {self.result.steps}: the {what} is {value}; {before}, the "
            f"weights are those of that step; lower the learning rate "
            f"({self.settings.learning_rate:g}) or look at the data of that step"
        )


def _forward(
    model: nn.Module, batch: Batch, state: State | None, carry: bool
) -> tuple[Tensor, State | None]:
    """Logits, and the state for the next piece if it is carried."""
    if not carry:
        return model(batch.inputs)[0], None
    before = None if state is None else carry_on(state, batch.starts)
    logits, after = model(batch.inputs, before)
    return logits, after


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random numbers of the run from its seed; the caller's go on undisturbed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Ctrl-C or SIGTERM sets an event, so that no step is cut in half; a second acts at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: Any) -> None:
        event.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, handle)
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
