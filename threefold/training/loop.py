"""The training loop: batches(step) → loss → gradients → clip → update, until the run is over.

In a folder (`keeping.py`) a run survives whatever stops it, and goes on bit for bit when it is
called again.  With `carry`, state goes from piece to piece, cut from the graph (truncated
back-propagation), and is emptied in the rows where a document starts.  Batches and random numbers
are addressed by step, and each of several processes has its rows of every batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from threefold.blocks.stack import Stack
from threefold.errors import LeftAloneError, ThreefoldError
from threefold.memory.state import State
from threefold.models.saving import unique_tensors
from threefold.runtime.interrupts import Interrupts
from threefold.tasks.task import Metric, accuracy
from threefold.training.distributed import Group
from threefold.training.ema import ExponentialMovingAverage
from threefold.training.evaluation import Scores, evaluate
from threefold.training.learning_rates import SCHEDULES
from threefold.training.nan_finder import NOT_AGAIN, first_bad
from threefold.training.objectives import Objective, objective_of
from threefold.training.optimizer import make_optimizer, set_rate
from threefold.training.reporters import Reporter, reporter
from threefold.training.run_folder import RunFolder, open_run_folder
from threefold.training.seeding import seed_step, undisturbed
from threefold.training.settings import TrainingSettings

SKIPS = 10  # steps one after another that may be skipped


@dataclass
class Result:
    """What a run reached."""

    losses: list[float] = field(default_factory=list)  # one for each step
    validation: list[tuple[int, Scores]] = field(default_factory=list)  # (steps done, scores)
    tokens: int = 0
    seconds: float = 0.0
    stopped: str = ""  # steps, seconds, target, patience or interrupted

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
    batches: Callable[[int], Any],
    settings: TrainingSettings,
    *,
    validation: Iterable[Any] | None = None,
    metric: Metric = accuracy,
    objective: Objective | None = None,
    console: Console | None = None,
    title: str = "training",
    folder: str | PathLike[str] | None = None,
    identity: Mapping[str, Any] | None = None,
    watchers: Sequence[Reporter] = (),
) -> Result:
    """Train `model` on batches(0), batches(1), …; shows progress on `console`, if given.

    With a `folder` checkpoints are kept there, and a run that was stopped or killed goes on from
    the newest; Ctrl-C and SIGTERM finish the step and save.  `identity` is what else must be the
    same for that, such as the hash of the data.  `objective`: by the kind of model.  `watchers`
    see every step, evaluation and checkpoint.
    """
    group = Group.current()
    how = {"smoothing": settings.label_smoothing, "sampled": settings.scheduled_sampling}
    run = Trainer(model, batches, settings, objective or objective_of(model, metric, **how), group)
    place = None if folder is None else Path(folder)
    with (
        open_run_folder(place, settings.keep_checkpoints, group) as keeper,
        undisturbed(),
        Interrupts() as interrupt,
        reporter(console if group.leads else None, title, watchers) as shown,
    ):
        run.begin(keeper, shown, identity or {})
        while not run.result.stopped:
            if not run.step(keeper):
                shown.remark(f"no number: back to step {run.result.steps:,}, at half the rate")
                continue
            stopped = bool(group.sum(float(interrupt.asked))[0])
            run.result.stopped = "interrupted" if stopped else run.end
            # Whoever interrupts is in a hurry; only what is due may not be left out for ever.
            last = bool(run.end) or (stopped and keeper is None)
            if validation is not None and (last or run.due):
                run.note_scores(run.evaluate(validation), shown)
            shown.show(run)
            run.keep(keeper, shown)
        run.finish()
    return run.result


class Learner(nn.Module):
    """A model and its objective: what DistributedDataParallel wraps."""

    def __init__(self, model: nn.Module, objective: Objective, carry: bool) -> None:
        super().__init__()
        self.model, self.objective, self.carry = model, objective, carry
        self.state: State | None = None  # after the newest batch

    def forward(self, rows: Any, state: State | None, done: float) -> Tensor:
        """The sum of the losses."""
        outcome = self.objective(self.model, rows, state, carry=self.carry, done=done)
        self.state = outcome.state
        return outcome.loss


class Trainer:
    """A run under way."""

    def __init__(
        self,
        model: nn.Module,
        batches: Callable[[int], Any],
        settings: TrainingSettings,
        objective: Objective,
        group: Group | None = None,
    ) -> None:
        self.model, self.batches, self.settings = model, batches, settings
        self.objective, self.group = objective, group or Group()
        for part in model.modules():
            if isinstance(part, Stack):
                part.gradient_checkpointing = settings.gradient_checkpointing
        self.optimiser = make_optimizer(model, settings)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.average = ExponentialMovingAverage(model, settings.ema) if settings.ema else None
        self.best: dict[str, Tensor] | None = None  # weights of the best evaluation, with patience
        self.inner = Learner(model, objective, settings.carry_state)
        self.learner: nn.Module | None = None  # the same, with gradients that are sent
        self.state: State | None = None
        self.norm = math.nan  # of the newest gradients
        self.factor = 1.0  # of the learning rate; halved by each roll-back
        self.skipped = 0  # steps one after another
        self.saved: Path | None = None  # the newest checkpoint
        self.result = Result()
        model.train()

    def begin(self, keeper: RunFolder | None, shown: Reporter, identity: Mapping[str, Any]) -> None:
        """Go on from the newest checkpoint, if there is one."""
        for remark in [] if keeper is None else keeper.begin(self, identity):
            shown.remark(remark)
        if keeper is not None and self.result.steps:
            self.result.stopped = self._reached or self.end or self._given_up

    def keep(self, keeper: RunFolder | None, shown: Reporter) -> None:
        """Log the step, and save where that is due or the run is over."""
        if keeper is None:
            return
        keeper.note(self)
        if self.result.stopped or self.result.steps % self.settings.save_every == 0:
            self.saved = keeper.save(self)
            shown.saved(self)

    def step(self, keeper: RunFolder | None = None) -> bool:
        """One batch, or a few: forward, backward, clip, update; False if it was rolled back."""
        start = time.perf_counter()
        step, done, many = self.result.steps, self.done, self.settings.gradient_accumulation
        seed_step(self.settings.seed, step, self.group.rank)
        rows = [self.group.part(self.batches(step * many + i)) for i in range(many)]
        count = self.group.sum(sum(self.objective.count(part) for part in rows))[0]
        set_rate(self.optimiser, self.rate)
        self.optimiser.zero_grad()
        before, total = self.state, 0.0
        if self.learner is None:
            self.learner = self.group.wrap(self.inner, rows[0], self.state, done)
            seed_step(self.settings.seed, step, self.group.rank)
        for i, part in enumerate(rows):
            with self.group.apart(self.learner, i == many - 1):
                loss = self.learner(part, self.state, done)
                total += loss.item()
                # The mean over ranks of these is the mean over all targets.
                (loss * (self.group.ranks / max(count, 1))).backward()
            self.state = self.inner.state
        loss_mean = self.group.sum(total)[0] / max(count, 1)
        self.norm = self._clip()
        if not (math.isfinite(loss_mean) and math.isfinite(self.norm)):
            if self._refuse(rows, before, loss_mean, keeper):
                return False
        else:
            self.optimiser.step()
            self.skipped = 0
            if self.average is not None:
                self.average.add(step)
        self.result.losses.append(loss_mean)
        self.result.tokens += self.group.ranks * sum(map(_elements, rows))
        spent = time.perf_counter() - start
        # All ranks end together; what is shown by one of them may ask no other.
        timed = self.settings.time is not None
        self.result.seconds += self.group.agree(spent)[0] if timed else spent
        return True

    @property
    def rate(self) -> float:
        """The learning rate now, as a factor of its peak."""
        return self.factor * SCHEDULES[self.settings.schedule](self.done, self.settings)

    @property
    def done(self) -> float:
        """The part of the run that is behind."""
        parts = [0.0]
        if self.settings.steps is not None:
            parts.append(self.result.steps / self.settings.steps)
        if self.settings.time is not None:
            parts.append(self.result.seconds / self.settings.time)
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
        """Whether to evaluate now, whether it is the end or not."""
        every = self.settings.eval_every
        return every is not None and self.result.steps % every == 0

    def evaluate(self, validation: Iterable[Any]) -> Scores:
        """Loss and metric, of the mean of the weights where there is one; the first rank looks."""
        scores = Scores(math.nan, math.nan)
        if self.group.leads:
            with nullcontext() if self.average is None else self.average.in_place():
                scores = evaluate(
                    self.model,
                    validation,
                    carry=self.settings.carry_state,
                    objective=self.objective,
                )
        return Scores(*self.group.agree(*scores))

    def note_scores(self, scores: Scores, shown: Reporter) -> None:
        """Remember an evaluation; it may end the run."""
        best = min(self._judged, default=math.inf)
        self.result.validation.append((self.result.steps, scores))
        if self.settings.patience is not None and scores.loss < best:
            live = unique_tensors(self.model) if self.average is None else self.average.mean
            self.best = {name: tensor.detach().clone() for name, tensor in live.items()}
        self.result.stopped = self._reached or self.result.stopped or self._given_up
        shown.scores(self)

    @property
    def _judged(self) -> list[float]:
        """The losses of all evaluations; none is worse than one that is no number."""
        losses = (scores.loss for _, scores in self.result.validation)
        return [math.inf if math.isnan(loss) else loss for loss in losses]

    @property
    def _reached(self) -> str:
        """`target`, if the newest evaluation is that good."""
        target, metric = self.settings.target_score, self.result.scores.metric
        if target is None:
            return ""
        return "target" if (metric <= target if self.objective.lower else metric >= target) else ""

    @property
    def _given_up(self) -> str:
        """`patience`, if the newest evaluations are all worse than one before them."""
        patience, losses = self.settings.patience, self._judged
        if patience is None or len(losses) <= patience:
            return ""
        return "patience" if min(losses[-patience:]) >= min(losses[:-patience]) else ""

    def finish(self) -> None:
        """Leave the model with the weights that were judged: their mean, or the best."""
        if self.result.stopped == "interrupted":
            return
        chosen = self.best or (None if self.average is None else self.average.mean)
        if chosen is not None:
            with torch.no_grad():
                for name, tensor in unique_tensors(self.model).items():
                    if name in chosen:
                        tensor.copy_(chosen[name])

    def _clip(self) -> float:
        """The norm of all gradients, which are shortened only where it is above the limit."""
        # As torch's get_total_norm, less its sorting by device, a fifth of what the loop costs.
        norms = torch._foreach_norm([p.grad for p in self.parameters if p.grad is not None])
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        if 0 < self.settings.grad_clip < norm.item() < math.inf:
            nn.utils.clip_grads_with_norm_(self.parameters, self.settings.grad_clip, norm)
        return norm.item()

    def _refuse(
        self, rows: list[Any], before: State | None, loss: float, keeper: RunFolder | None
    ) -> bool:
        """A loss or gradient that is no number: stop, leave the step out, or go back (True)."""
        self.optimiser.zero_grad()
        what = ("norm of the gradients", self.norm) if math.isfinite(loss) else ("loss", loss)
        self.state = before
        step, choice = self.result.steps, self.settings.on_non_finite
        self.skipped += 1
        if choice == "skip" and self.skipped <= SKIPS:
            return False
        if choice == "roll_back" and keeper is not None and keeper.roll_back(self):
            return True
        losses = self.result.losses
        was = f"the loss before was {losses[-1]:.4g}" if losses else "this was the first step"
        raise ThreefoldError(
            f"training stopped at step {step}: the {what[0]} is {what[1]}; {was}, the weights are "
            f"those of that step; {self._where(rows, before)}; lower the learning rate "
            f"({self.settings.learning_rate:g}) or look at the data of that step"
        )

    def _where(self, rows: list[Any], before: State | None) -> str:
        def again() -> Tensor:
            seed_step(self.settings.seed, self.result.steps, self.group.rank)
            losses, state = [], before
            for part in rows:
                losses.append(self.inner(part, state, self.done))
                state = self.inner.state
            return torch.stack(losses).sum()

        found = first_bad(self.model, again)
        self.optimiser.zero_grad()
        elsewhere = self.group.sum(float(found != NOT_AGAIN))[0] > 0
        if elsewhere and found == NOT_AGAIN:  # the rows are another's
            raise LeftAloneError("another process of this run found a number that is none")
        return found


def _elements(rows: Any) -> int:
    """Elements that a batch has, padding included."""
    inputs: Tensor = rows.inputs
    vectors = inputs.is_floating_point() and inputs.dim() == 3
    return inputs.shape[0] * inputs.shape[1] if vectors else inputs.numel()
