"""Three objectives on one text: `threefold lab objectives`.

    causal    p(x_t | tokens to its left)                  Transformer-XL's attention
    masked    p(hidden tokens | the others)                attention to both sides, as BERT
    xlnet     p(x_t | tokens before it in a random order)  two streams of Transformer-XL's attention

Tokens, splits, width, depth, heads, wiring, batches and steps are the same.  The test loss of each
is that of its own objective, for targets that see different parts of the text; `one gap` is the
same question for all: single tokens of the test windows, the same ones, given all the rest (the
causal model: what is on the left).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from threefold.data.random_by_address import by_row
from threefold.data.readers import read_text
from threefold.errors import ThreefoldError
from threefold.models.model import Model
from threefold.runtime.decoding import eval_mode
from threefold.tasks.corpora import content
from threefold.training.config import DataSettings, ModelSettings, RunConfig
from threefold.training.experiment import run
from threefold.training.preparation import prepare
from threefold.training.settings import TrainingSettings
from threefold.training.training_data import TrainingData, open_data

NAMES = {"causal": "language", "masked": "masked", "xlnet": "xlnet"}  # and their kinds
MOST_BYTES = 1 << 20  # of Python's standard library, if no text is given
GAP = 23  # in the address of random numbers


@dataclass(frozen=True)
class ObjectiveStudy:
    """Settings of all three runs."""

    text: Path | None = None
    length: int = 64
    width: int = 128
    depth: int = 2
    steps: int = 1000
    batch_size: int = 16
    learning_rate: float = 2e-3
    seed: int = 0

    def config(self, name: str) -> RunConfig:
        """The run of one objective."""
        heads = {"heads": max(1, self.width // 32)}
        relative = ("transformer_xl", {**heads, "memory": self.length})
        kind = NAMES[name]
        return RunConfig(
            data=DataSettings(
                name="text",
                kind=kind,
                length=self.length,
                batch_size=self.batch_size,
                eval_examples=256,
                seed=self.seed,
            ),
            model=ModelSettings(
                mixers=(("attention", heads) if kind == "masked" else relative,),
                width=self.width,
                depth=self.depth,
                channel="mlp",
                seed=self.seed,
            ),
            training=TrainingSettings(
                steps=self.steps, learning_rate=self.learning_rate, seed=self.seed
            ),
        )

    def data(self, name: str) -> TrainingData:
        """The text as a task of one objective."""
        if self.text is not None:
            text = read_text(self.text)
        else:
            text = content("code")[:MOST_BYTES].decode("utf-8", "replace")
        return open_data(self.config(name).data, source=[text])


def table(study: ObjectiveStudy) -> Iterator[str]:
    """A line for each objective, as soon as it is trained."""
    yield f"{'objective':<12}{'parameters':>12}{'test loss':>12}{'bits':>8}{'one gap, bits':>16}"
    for name in NAMES:
        config = study.config(name)
        prepared = prepare(config, study.data(name))
        trained = run(config, prepared=prepared, reporters=(), samples=False)
        if trained.test is None:
            raise ThreefoldError(f"interrupted while the {name} model was trained or tested")
        loss, count = trained.test.loss, trained.model.parameter_count
        gap = one_gap(trained.model, prepared.data, study.batch_size)
        yield f"{name:<12}{count:>12,}{loss:>12.4f}{loss / math.log(2):>8.3f}{gap:>16.3f}"


def one_gap(model: Model, data: TrainingData, batch_size: int) -> float:
    """Bits of one token in each test window, given the rest of it."""
    size, length = data.task.size("test"), data.task.length
    numbers = np.arange(size)
    drawn = by_row((GAP,), numbers, 1)[:, 0] * (length - 1)
    places = torch.from_numpy(1 + drawn.astype(np.int64))  # the causal model needs one before it
    assert data.task.corpus is not None
    tokens, total = data.task.corpus().tokens["test"], 0.0
    with torch.no_grad(), eval_mode(model):
        for first in range(0, size, batch_size):
            here = numbers[first : first + batch_size, None] * length + np.arange(length)
            rows = torch.from_numpy(np.asarray(tokens[here], np.int64))
            place = places[first : first + batch_size]
            truth = rows.gather(1, place[:, None]).squeeze(1)
            logits = gap_logits(model, rows, place)
            total += float(F.cross_entropy(logits.float(), truth, reduction="sum"))
    return total / size / math.log(2)


def gap_logits(model: Any, rows: Tensor, place: Tensor) -> Tensor:
    """Logits [B, vocabulary] of the tokens at `place`, by each kind of model."""
    gap = F.one_hot(place, rows.shape[1])
    each = torch.arange(len(rows))
    if model.kind == "language":
        logits: Tensor = model(rows)[0][each, place - 1]
        return logits
    if model.kind == "xlnet":
        logits = model(rows.masked_fill(gap.bool(), 0), ranks=gap)[0][each, place]
        return logits
    mask_token = model.spec.vocabulary - 1
    logits = model(rows.masked_fill(gap.bool(), mask_token))[0][each, place, :mask_token]
    return logits
