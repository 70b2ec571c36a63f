"""Watchers of a run: TensorBoard, and samples of what a language model writes by now."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from threefold.data.atomic_files import report_write_errors
from threefold.errors import ThreefoldError
from threefold.models.language import LanguageModel
from threefold.runtime.generation import generate
from threefold.training.reporters import Reporter

if TYPE_CHECKING:
    from threefold.training.loop import Trainer

SAMPLE = 160  # tokens


class TensorBoardReporter(Reporter):
    """Loss, learning rate, norm of the gradients and evaluations, for `tensorboard --logdir`."""

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

    def show(self, run: Trainer) -> None:
        step = run.result.steps
        for name, value in (
            ("loss/train", run.result.losses[-1]),
            ("learning_rate", run.optimiser.param_groups[0]["lr"]),
            ("gradients/norm", run.norm),
            ("tokens_per_second", run.result.rate),
        ):
            self.writer.add_scalar(name, value, step)

    def scores(self, run: Trainer) -> None:
        step, (loss, metric) = run.result.validation[-1]
        self.writer.add_scalar("loss/valid", loss, step)
        self.writer.add_scalar("metric/valid", metric, step)


class SampleReporter(Reporter):
    """At each evaluation a text that the model writes, added to a file and shown."""

    def __init__(self, path: Path, console: Console | None = None) -> None:
        self.path, self.console = path, console

    def scores(self, run: Trainer) -> None:
        tokenizer = getattr(run.model, "tokenizer", None)
        if not isinstance(run.model, LanguageModel) or tokenizer is None:
            return
        was_training = run.model.training
        run.model.eval()
        prompt = _first(tokenizer)
        try:
            made = generate(run.model, prompt, max_tokens=SAMPLE, temperature=0.8, seed=0).rows()[0]
            text = tokenizer.decode(made)
        except ThreefoldError as error:  # a sample is no reason to end a run
            text = str(error)
        run.model.train(was_training)
        text = "".join(c if c.isprintable() or c == "\n" else "·" for c in text)
        loss = run.result.scores.loss
        shown = "" if math.isnan(loss) else f", validation loss {loss:.4f}"
        with report_write_errors(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(f"--- step {run.result.steps}{shown}\n{text}\n")
        if self.console is not None:
            self.console.print(
                f"step {run.result.steps} writes: {text.strip()[:200]}", markup=False
            )


def _first(tokenizer: Any) -> list[int]:
    """A new line, or the first token where a text has none."""
    try:
        found: list[int] = tokenizer.encode("\n").tolist()
    except ThreefoldError:
        found = []
    return found or [0]
