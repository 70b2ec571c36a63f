"""A run under way: one step (forward, backward, clip, update), one evaluation, and when to stop.

Batches and random numbers depend on the step only, and each of several processes trains on its
rows of every batch.  With `carry_state` the state is passed from batch to batch, detached from the
graph (truncated back-propagation), and reset in the rows where a document starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sized
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from threefold.blocks.stack import Stack
from threefold.errors import DivergedError, OtherProcessFailedError
from threefold.memory.state import State
from threefold.models.saving import unique_tensors
from threefold.runtime.interrupts import InterruptedByUser, Interrupts
from threefold.training import clock
from threefold.training.devices import computing, device_of, move, place
from threefold.training.distributed import ProcessGroup
from threefold.training.ema import ExponentialMovingAverage
from threefold.training.evaluation import Scores, evaluate
from threefold.training.learning_rates import SCHEDULES
from threefold.training.nan_finder import NOT_REPRODUCED, find_non_finite
from threefold.training.objectives import Objective
from threefold.training.optimizer import make_optimizer, scale_learning_rate
from threefold.training.regular_evaluations import (
    EVALUATIONS,
    evaluates_regularly,
    starts_fitted,
)
from threefold.training.reporters import Reporter
from threefold.training.result import Result
from threefold.training.run_folder import RunFolder
from threefold.training.seeding import seed_step
from threefold.training.settings import TrainingSettings
from threefold.training.time_budget import TimeBudget

MAX_SKIPS = 10  # consecutive steps that on_non_finite="skip" may skip


class Learner(nn.Module):
    """A model with its objective: the module that DistributedDataParallel wraps."""

    def __init__(self, model: nn.Module, objective: Objective, settings: TrainingSettings) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        self.carry, self.precision = settings.carry_state, settings.precision
        self.state: State | None = None  # after the newest batch

    def forward(self, rows: Any, state: State | None, progress: float) -> Tensor:
        """The sum of the losses of a batch."""
        with computing(device_of(self.model), self.precision):
            batch_loss = self.objective(
                self.model, rows, state, carry=self.carry, progress=progress
            )
        self.state = batch_loss.state
        return batch_loss.loss


class Trainer:
    """A run under way: model, optimiser, carried state and results so far."""

    def __init__(
        self,
        model: nn.Module,
        batches: Callable[[int], Any],
        settings: TrainingSettings,
        objective: Objective,
        group: ProcessGroup | None = None,
    ) -> None:
        self.model, self.batches, self.settings = model, batches, settings
        self.objective, self.group = objective, group or ProcessGroup()
        self.device = place(model, settings)
        for module in model.modules():
            if isinstance(module, Stack):
                module.gradient_checkpointing = settings.gradient_checkpointing
        self.optimizer = make_optimizer(model, settings)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.ema = ExponentialMovingAverage(model, settings.ema) if settings.ema else None
        self.best: dict[str, Tensor] | None = None  # weights of the best evaluation, if kept
        self.local_learner = Learner(model, objective, settings)
        self.learner: nn.Module | None = None  # local_learner, with gradients averaged over ranks
        self.state: State | None = None  # carried to the next batch
        self.grad_norm = math.nan  # of the newest step
        self.lr_scale = 1.0  # factor of the learning rate; halved by each rollback
        self.skipped = 0  # consecutive steps that were skipped
        self.evaluated = 0  # batches of the newest validation
        self.last_checkpoint: Path | None = None
        self.budget: TimeBudget | None = None  # of a run with a time limit
        if settings.time is not None:
            self.budget = TimeBudget(settings.time, clock.now())
        self.result = Result()
        model.train()

    def start(
        self, run_folder: RunFolder | None, reporter: Reporter, identity: Mapping[str, Any]
    ) -> None:
        """Resume from the newest checkpoint, if there is one."""
        for warning in [] if run_folder is None else run_folder.start(self, identity):
            reporter.warn(warning)
        if self.result.steps:
            reporter.message(f"resumed after step {self.result.steps:,}")
        if self.budget is not None:
            self.budget.begin(self.spent, self.group)
        if run_folder is not None and self.result.steps:
            self.result.stopped = self._target_reached or self.end_reason or self._out_of_patience

    def log_and_save(self, run_folder: RunFolder | None, reporter: Reporter) -> None:
        """Log the step; save a checkpoint if one is due or the run has ended."""
        if run_folder is None:
            return
        run_folder.log_step(self)
        if self.result.stopped or self.result.steps % self.settings.save_every == 0:
            self.last_checkpoint = run_folder.save(self)
            reporter.on_save(self)

    def step(self, run_folder: RunFolder | None = None) -> bool:
        """Forward, backward, clip, update; False if the run was rolled back instead."""
        start = clock.now()
        step, count = self.result.steps, self.settings.gradient_accumulation
        seed_step(self.settings.seed, step, self.group.rank)
        batches = [self._rows(step * count + i) for i in range(count)]
        state_before = self.state
        loss = self._backward(batches)
        self.grad_norm = self._clip()
        if not (math.isfinite(loss) and math.isfinite(self.grad_norm)):
            if self._rolls_back(batches, state_before, loss, run_folder):
                return False
        else:
            self.optimizer.step()
            self.skipped = 0
            if self.ema is not None:
                self.ema.update(step)
        self.result.losses.append(loss)
        self.result.learning_rates.append(self.optimizer.param_groups[0]["lr"])
        self.result.tokens += self.group.ranks * sum(map(_elements, batches))
        seconds = clock.now() - start
        if self.budget is not None:
            seconds = self.group.broadcast(seconds)[0]
            self.budget.count_step(seconds)
        self.result.seconds += seconds
        return True

    def _rows(self, number: int) -> Any:
        """This rank's rows of a batch, on the device."""
        rows = self.group.shard(self.batches(number))
        return move(rows, self.device, self.settings.precision)

    def _backward(self, batches: list[Any]) -> float:
        """Gradients of the mean loss over all targets of all ranks; returns that loss."""
        progress = self.progress
        count = self.group.sum(sum(self.objective.count(rows) for rows in batches))[0]
        scale_learning_rate(self.optimizer, self.lr_factor)
        self.optimizer.zero_grad()
        if self.learner is None:
            self.learner = self.group.wrap(self.local_learner, batches[0], self.state, progress)
            seed_step(self.settings.seed, self.result.steps, self.group.rank)
        total = 0.0
        for i, rows in enumerate(batches):
            with self.group.no_sync(self.learner, last=i == len(batches) - 1):
                loss = self.learner(rows, self.state, progress)
                total += loss.item()
                # DistributedDataParallel averages over ranks, so multiply by their number.
                (loss * (self.group.ranks / max(count, 1))).backward()
            self.state = self.local_learner.state
        return self.group.sum(total)[0] / max(count, 1)

    @property
    def lr_factor(self) -> float:
        """The current learning rate as a factor of its peak."""
        return self.lr_scale * SCHEDULES[self.settings.schedule](self.progress, self.settings)

    @property
    def progress(self) -> float:
        """The fraction of the run that is done, 0 to 1."""
        fractions = [0.0]
        if self.settings.steps is not None:
            fractions.append(self.result.steps / self.settings.steps)
        if self.budget is not None:
            fractions.append(self.spent / self.budget.training)
        return min(max(fractions), 1.0)

    @property
    def spent(self) -> float:
        """Seconds of all steps and of what was done between them."""
        return self.result.seconds + self.result.other_seconds

    def count_other_time(self, seconds: float) -> None:
        """Count what was spent between two steps towards the time limit."""
        self.result.other_seconds += self.group.broadcast(seconds)[0] if self.budget else seconds

    @property
    def seconds_left(self) -> float:
        """Seconds left at the speed so far."""
        return self.spent * (1 / self.progress - 1) if self.progress else math.inf

    @property
    def end_reason(self) -> str:
        """`steps` or `time` if that limit is reached, else empty."""
        if self.progress < 1:
            return ""
        steps = self.settings.steps
        return "steps" if steps is not None and self.result.steps >= steps else "time"

    @property
    def evaluation_is_due(self) -> bool:
        """Whether `eval_every` asks for an evaluation at this step, or a tenth of a run is over."""
        every = self.settings.eval_every
        if every is None and evaluates_regularly(self.model, self.settings):
            return int(EVALUATIONS * self.progress) > len(self.result.validation)
        return every is not None and self.result.steps % every == 0

    @property
    def is_before_start(self) -> bool:
        """Whether the start of a fitted model is still to be evaluated."""
        return starts_fitted(self.model) and not self.result.steps and self.result.start is None

    @property
    def evaluation_is_missing(self) -> bool:
        """Whether a run that resumes was interrupted before the evaluation of its last step."""
        evaluated = [steps for steps, _ in self.result.validation]
        due = bool(self.end_reason) or self.evaluation_is_due
        return bool(self.result.steps) and due and self.result.steps not in evaluated

    def evaluate_and_record(
        self, validation: Iterable[Any], reporter: Reporter, interrupt: Interrupts
    ) -> None:
        """Evaluate, or end the run as interrupted if there is a signal meanwhile."""
        start = clock.now()
        scores = self.evaluate(validation, interrupt)
        if scores is None:
            self.result.stopped = "interrupted"
            return
        if self.budget is not None and isinstance(validation, Sized):
            self._count_validation(self.budget, len(validation), start, reporter)
        if not self.result.steps:
            self.result.start = scores
            self._keep_weights()
        else:
            self.record_scores(scores, reporter)

    def _count_validation(
        self, budget: TimeBudget, batches: int, start: float, reporter: Reporter
    ) -> None:
        """Note how long all batches of a validation take, and say it if some were left out."""
        done, seconds = self.group.broadcast(self.evaluated, clock.now() - start)
        budget.count_validation(seconds * batches / max(done, 1))
        if done < batches:
            reporter.warn(f"validated on {done:,.0f} of {batches:,} batches: the time is over")

    def evaluate(self, validation: Iterable[Any], interrupt: Interrupts) -> Scores | None:
        """Loss and metric, with averaged weights if there are any; None if interrupted.

        Only the main rank computes.  With a time limit its last batches may be left out.
        """
        scores, done = Scores(math.nan, math.nan), True
        self.evaluated = 0

        def on_batch(*_: Any) -> None:
            self.evaluated += 1
            interrupt.check("during an evaluation")

        if self.group.is_main:
            try:
                with nullcontext() if self.ema is None else self.ema.applied():
                    scores = evaluate(
                        self.model,
                        validation,
                        carry=self.settings.carry_state,
                        objective=self.objective,
                        on_batch=on_batch,
                        precision=self.settings.precision,
                    )
            except InterruptedByUser:
                done = False
        loss, metric, finished = self.group.broadcast(*scores, float(done))
        return Scores(loss, metric) if finished else None

    def record_scores(self, scores: Scores, reporter: Reporter) -> None:
        """Add an evaluation to the result; it may end the run."""
        best = min(self._validation_losses, default=math.inf)
        self.result.validation.append((self.result.steps, scores))
        keeps = self.settings.patience is not None or evaluates_regularly(self.model, self.settings)
        if keeps and scores.loss < best:
            self._keep_weights()
        self.result.stopped = self._target_reached or self.result.stopped or self._out_of_patience
        reporter.on_evaluate(self)

    def _keep_weights(self) -> None:
        """Remember the weights that were just evaluated."""
        averaged = {} if self.ema is None else self.ema.mean
        weights = {**unique_tensors(self.model), **averaged}
        self.best = {name: tensor.detach().clone() for name, tensor in weights.items()}

    @property
    def _validation_losses(self) -> list[float]:
        """The losses of all evaluations, that of the start included; NaN counts as infinite."""
        start = [] if self.result.start is None else [self.result.start.loss]
        losses = (*start, *(scores.loss for _, scores in self.result.validation))
        return [math.inf if math.isnan(loss) else loss for loss in losses]

    @property
    def _target_reached(self) -> str:
        """`target` if the newest evaluation reaches the target score, else empty."""
        target, metric = self.settings.target_score, self.result.scores.metric
        if target is None:
            return ""
        reached = metric <= target if self.objective.lower else metric >= target
        return "target" if reached else ""

    @property
    def _out_of_patience(self) -> str:
        """`patience` if the newest evaluations are all worse than an earlier one, else empty."""
        patience, losses = self.settings.patience, self._validation_losses
        if patience is None or len(losses) <= patience:
            return ""
        return "patience" if min(losses[-patience:]) >= min(losses[:-patience]) else ""

    def finish(self) -> None:
        """Leave the model with the weights that were evaluated: the best, or the averaged ones."""
        if self.result.stopped == "interrupted":
            return
        weights = self.best or (None if self.ema is None else self.ema.mean)
        if self.best is not None:
            losses = self._validation_losses
            steps = [0] * (self.result.start is not None) + [s for s, _ in self.result.validation]
            self.result.kept_step = steps[losses.index(min(losses))]
        if weights is not None:
            with torch.no_grad():
                for name, tensor in unique_tensors(self.model).items():
                    if name in weights:
                        tensor.copy_(weights[name])

    def _clip(self) -> float:
        """The gradient norm before clipping; gradients are scaled down if it is above the limit."""
        # torch's get_total_norm without its grouping by device, a fifth of the loop's overhead.
        norms = torch._foreach_norm([p.grad for p in self.parameters if p.grad is not None])
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        if 0 < self.settings.grad_clip < norm.item() < math.inf:
            nn.utils.clip_grads_with_norm_(self.parameters, self.settings.grad_clip, norm)
        return norm.item()

    def _rolls_back(
        self,
        batches: list[Any],
        state_before: State | None,
        loss: float,
        run_folder: RunFolder | None,
    ) -> bool:
        """Handle non-finite numbers: roll back (True), skip the step (False) or raise."""
        self.optimizer.zero_grad()
        self.state = state_before
        self.skipped += 1
        choice = self.settings.on_non_finite
        if choice == "skip" and self.skipped <= MAX_SKIPS:
            return False
        if choice == "roll_back" and run_folder is not None and run_folder.roll_back(self):
            return True
        what = f"gradient norm is {self.grad_norm}" if math.isfinite(loss) else f"loss is {loss}"
        losses = self.result.losses
        before = f"the previous loss was {losses[-1]:.4g}" if losses else "this was the first step"
        raise DivergedError(
            f"training stopped at step {self.result.steps}: the {what}; {before}; the weights were "
            f"not updated at this step; {self._locate_non_finite(batches, state_before)}; lower "
            f"the learning rate ({self.settings.learning_rate:g}) or check the data of this step"
        )

    def _locate_non_finite(self, batches: list[Any], state_before: State | None) -> str:
        """Repeat the step to find the module in which non-finite numbers first appear."""

        def repeat() -> Tensor:
            seed_step(self.settings.seed, self.result.steps, self.group.rank)
            losses, state = [], state_before
            for rows in batches:
                losses.append(self.local_learner(rows, state, self.progress))
                state = self.local_learner.state
            return torch.stack(losses).sum()

        cause = find_non_finite(self.model, repeat)
        self.optimizer.zero_grad()
        found_by_any = self.group.sum(float(cause != NOT_REPRODUCED))[0] > 0
        if found_by_any and cause == NOT_REPRODUCED:  # the bad rows are those of another rank
            raise OtherProcessFailedError("another process of this run found non-finite numbers")
        return cause


def _elements(rows: Any) -> int:
    """Number of elements of a batch, padding included."""
    inputs: Tensor = rows.inputs
    are_vectors = inputs.is_floating_point() and inputs.dim() == 3
    return inputs.shape[0] * inputs.shape[1] if are_vectors else inputs.numel()
