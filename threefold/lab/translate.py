r"""Translators with and without attention, by length: `python -m threefold.lab.translate`.

    python -m threefold.lab.translate transformer --task number_to_words --length 12 --depth 2 \
        --learning-rate 3e-3 --steps 1200

Each model learns from fresh pairs of all lengths, then answers others greedily; a column is the
part that is exactly right at one length, the last one that of sources longer than half the longest.
Without attention the source has to fit in one state.
`--pictures folder` draws where each model with attention looks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError, nearest
from threefold.memory.state import State
from threefold.models.presets import transformer
from threefold.models.seq2seq import Seq2Seq
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.models.transformer import Transformer
from threefold.models.translator import Translator
from threefold.runtime.generation import generate
from threefold.tasks import number_to_words, reversal
from threefold.tasks.number_to_words import DIGITS, WORDS
from threefold.tasks.pairs import BEGIN, END, Pairs
from threefold.training.loop import cross_entropy
from threefold.training.optimiser import adamw, set_rate
from threefold.training.schedule import cosine
from threefold.training.scheduled import scheduled_sampling

TASKS: dict[str, Callable[..., Pairs]] = {
    "reversal": reversal,
    "number_to_words": number_to_words,
}
MODELS: dict[str, Mapping[str, Any]] = {
    "none": {"attention": "none"},
    "bahdanau": {"attention": "bahdanau"},
    "luong": {"attention": "luong"},
    "luong_feeding": {"attention": "luong", "input_feeding": True},
    "transformer": {},  # the preset, with norms before the additions
}
HELD_OUT = 10**9  # seeds from here on are for measuring


@dataclass(frozen=True)
class Plan:
    """How to train; the same for every model."""

    task: str = "reversal"
    mixer: str = "gru"
    length: int = 30  # the longest source
    width: int = 128
    depth: int = 1
    batch: int = 64
    steps: int = 1600
    learning_rate: float = 2e-3
    clip: float = 1.0
    own: float = 0.0  # scheduled sampling: the share at the end, rising in a line
    seed: int = 0

    def spec(self, model: str) -> Spec:
        """The description of one of MODELS."""
        for what, name, known in (("task", self.task, TASKS), ("model", model, MODELS)):
            if name not in known:
                raise ThreefoldError(f"unknown {what} {name!r}; {nearest(name, known)}")
        sizes = TASKS[self.task](count=1)
        if model == "transformer":
            return transformer(
                width=self.width,
                depth=self.depth,
                heads=max(1, self.width // 32),
                hidden=2 * self.width,
                vocabulary=sizes.vocabulary,
                source_vocabulary=sizes.source_vocabulary,
                block="pre_norm",
                dropout=0.0,
                label_smoothing=0.0,
            )
        options = {**MODELS[model], "source_vocabulary": sizes.source_vocabulary}
        return Spec(
            "seq2seq",
            self.width,
            self.depth,
            self.mixer,
            sizes.vocabulary,
            channel="none",
            block="plain" if self.depth == 1 else "pre_norm",
            options=options,
        )


def study(name: str, plan: Plan) -> Translator:
    """Train one of MODELS."""
    torch.manual_seed(plan.seed)
    model: Translator = build(plan.spec(name))  # type: ignore[assignment]
    optimiser = adamw(model, plan.learning_rate, 0.0, (0.9, 0.98))
    for step in range(plan.steps):
        done = step / plan.steps
        set_rate(optimiser, cosine(done, final=0.01))
        rows = batch(plan, step, mixed=isinstance(model, Transformer))
        optimiser.zero_grad(set_to_none=True)
        loss(model, rows, plan.own * done).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        optimiser.step()
    return model.eval()


def batch(plan: Plan, step: int, mixed: bool = False) -> Pairs:
    """Fresh pairs of one length, another for each step, so that no element is padding.

    mixed: of all lengths; where nothing loops over a sequence, padding costs little.
    """
    seed = plan.seed * 10**6 + step
    if mixed:
        return TASKS[plan.task]((1, plan.length), seed=seed, count=plan.batch)
    length = 1 + int(torch.randint(plan.length, (), generator=torch.Generator().manual_seed(seed)))
    return TASKS[plan.task]((length, length), seed=seed, count=plan.batch)


def loss(model: Translator, rows: Pairs, share: float = 0.0) -> Tensor:
    """Nats a token, with teacher forcing, or with a share of the model's own tokens."""
    state = read(model, rows)
    logits, _ = scheduled_sampling(model, rows.inputs, state, share, mask=rows.inputs_mask)
    if isinstance(model, Transformer):
        return model.loss(logits, rows.answers)
    return cross_entropy(logits, rows.answers)


def read(model: Translator, rows: Pairs) -> State:
    """The state after the sources; a Transformer's have an END, as published."""
    given = rows.ended() if isinstance(model, Transformer) else rows
    return model.encode(given.source, mask=given.source_mask)


def exact(model: Translator, rows: Pairs, beams: int | None = None) -> float:
    """The part of the rows that is answered without a mistake, greedily or with beams."""
    with torch.no_grad():
        state = read(model, rows)
    begin = torch.full((len(rows.source), 1), BEGIN)
    longest = rows.target.shape[1] + 1
    how: dict[str, Any] = {"temperature": 0.0} if beams is None else {"beams": beams}
    answers = generate(model, begin, state, max_tokens=longest, stop=END, **how).rows()
    right: list[bool] = [a == b for a, b in zip(answers, rows.texts(), strict=True)]
    return sum(right) / len(right)


def by_length(model: Translator, plan: Plan, count: int = 200) -> dict[int, float]:
    """`exact` at a few lengths up to the longest."""
    lengths = sorted({max(1, plan.length * part // 6) for part in range(1, 7)})
    made = TASKS[plan.task]
    return {n: exact(model, made((n, n), seed=HELD_OUT + plan.seed, count=count)) for n in lengths}


def picture(model: Seq2Seq, plan: Plan, path: Path) -> Tensor:
    """Draw the alignment of one pair, two thirds as long as the longest; returns the weights."""
    length = max(1, 2 * plan.length // 3)
    rows = TASKS[plan.task]((length, length), seed=HELD_OUT, count=1)
    source, target = rows.source[0], rows.target[0]
    labels = None
    if plan.task == "number_to_words":
        labels = [DIGITS[i] for i in source.tolist()], [WORDS[i] for i in target.tolist()]
    return model.draw_alignment(source, target, path, labels=labels)


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(prog="python -m threefold.lab.translate", description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="model")
    parser.add_argument("--pictures", type=Path)
    for name, default in vars(Plan()).items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(default), default=default, dest=name
        )
    given = vars(parser.parse_args())
    names, pictures = given.pop("models"), given.pop("pictures")
    plan = Plan(**given)
    for name in names:
        start = time.perf_counter()
        model = study(name, plan)
        seconds = time.perf_counter() - start
        scores = "  ".join(f"{n}: {score:6.1%}" for n, score in by_length(model, plan).items())
        long = (plan.length // 2 + 1, plan.length)
        rows = TASKS[plan.task](long, seed=2 * HELD_OUT + plan.seed, count=2000)
        longer = f"{long[0]}–{long[1]}: {exact(model, rows):.2%}"
        print(f"{name:<15}{scores}  {longer}   {plan.steps} steps, {seconds:.0f} s", flush=True)
        if pictures is not None and isinstance(model, Seq2Seq) and model.decoder.attends:
            pictures.mkdir(parents=True, exist_ok=True)
            picture(model, plan, pictures / f"{plan.task}-{name}.png")


if __name__ == "__main__":
    main()
