r"""Translators with and without attention, by length: `python -m threefold.lab.studies.translate`.

    python -m threefold.lab.studies.translate transformer --task number_to_words --length 12 \
        --depth 2 --learning-rate 3e-3 --steps 1200

Each model is trained on new pairs of all lengths, then translates other pairs greedily.  A column
is the share of exactly right answers at one length; the last one is for sources longer than half of
the longest.  Without attention, the source has to fit into one state.
A model takes about five minutes on one core.
`--pictures folder` draws the alignments of each model with attention.

Two things decide whether models with attention exceed 90 %.  A decoder that always reads the right
previous symbols finds its position by the last two or three of them, and loses it where they occur
twice; therefore a share of its input is hidden at first (word dropout, Bowman et al. 2016), and it
learns to count.  And the source has begin and end symbols that attention can use (tasks/pairs.py).
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

from threefold.data.random_by_address import uniform
from threefold.errors import ThreefoldError, nearest
from threefold.models.encoder_decoder import EncoderDecoder
from threefold.models.presets import transformer
from threefold.models.seq2seq import Seq2Seq
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.models.transformer import Transformer
from threefold.runtime.generation import generate
from threefold.tasks.number_to_words import DIGITS, WORDS, number_to_words
from threefold.tasks.pairs import BEGIN, END, Pairs
from threefold.tasks.reversal import reversal
from threefold.tasks.task import Task
from threefold.training.learning_rates import cosine
from threefold.training.objectives import cross_entropy
from threefold.training.optimizer import adamw, scale_learning_rate
from threefold.training.scheduled_sampling import scheduled_sampling

LENGTHS = {
    "reversal": 30,
    "number_to_words": 18,
}  # targets of 30 tokens, without begin and end symbols
TASKS: dict[str, Callable[..., Task[Pairs]]] = {
    "reversal": reversal,
    "number_to_words": number_to_words,
}
LETTERS = ("⟨", "⟩", *"abcdefghijklmnop")
TEXTS = {"reversal": (LETTERS, LETTERS), "number_to_words": (DIGITS, WORDS)}
MODELS: dict[str, Mapping[str, Any]] = {
    "none": {"attention": "none"},
    "bahdanau": {"attention": "bahdanau"},
    "luong": {"attention": "luong"},
    "luong_feeding": {"attention": "luong", "input_feeding": True},
    "transformer": {},  # the preset, with pre-norm blocks
}
# Models that feed the context back learn in fewer but slower steps.
STEPS = {
    "none": 1800,
    "bahdanau": 1200,
    "luong": 1800,
    "luong_feeding": 1200,
    "transformer": 2000,
}


@dataclass(frozen=True)
class TranslationStudy:
    """Training settings, the same for every model except the steps."""

    task: str = "reversal"
    mixer: str = "lstm"
    length: int = 0  # of the longest source; 0: from LENGTHS
    width: int = 128
    depth: int = 1
    batch: int = 64
    steps: int = 0  # 0: from STEPS
    learning_rate: float = 3e-3
    clip: float = 1.0
    hide: float = 0.3  # share of hidden decoder inputs; decays to 0 in the second half
    own: float = 0.0  # scheduled sampling: final share of own tokens, rising linearly
    seed: int = 0

    @property
    def longest(self) -> int:
        """Elements of the longest source that is evaluated."""
        return self.length or LENGTHS[self.task]

    def spec(self, model: str) -> Spec:
        """The spec of one of MODELS."""
        for what, name, known in (("task", self.task, TASKS), ("model", model, MODELS)):
            if name not in known:
                raise ThreefoldError(f"unknown {what} {name!r}; {nearest(name, known)}")
        sizes = TASKS[self.task]()
        if model == "transformer":
            return transformer(
                width=self.width,
                depth=self.depth,
                heads=max(1, self.width // 32),
                hidden=2 * self.width,
                vocabulary=sizes.classes,
                source_vocabulary=sizes.vocabulary,
                block="pre_norm",
                dropout=0.0,
                label_smoothing=0.0,
            )
        options = {**MODELS[model], "source_vocabulary": sizes.vocabulary}
        return Spec(
            "seq2seq",
            self.width,
            self.depth,
            self.mixer,
            sizes.classes,
            channel="none",
            block="plain" if self.depth == 1 else "pre_norm",
            options=options,
        )


def study(name: str, plan: TranslationStudy) -> EncoderDecoder:
    """Train one of MODELS."""
    torch.manual_seed(plan.seed)
    model: EncoderDecoder = build(plan.spec(name))  # type: ignore[assignment]
    optimiser = adamw(model, plan.learning_rate, 0.0, (0.9, 0.98))
    # Train on slightly longer sources than are evaluated, so that the longest is not an edge case.
    lengths = 1, plan.longest + plan.longest // 10
    batches = TASKS[plan.task](lengths, seed=plan.seed).batches(plan.batch, plan.seed)
    steps = plan.steps or STEPS[name]
    for step in range(steps):
        done = step / steps
        scale_learning_rate(optimiser, cosine(done, final=0.01))
        rows = batches(step)
        hidden = 0.0 if name == "transformer" else plan.hide * min(1.0, 2 - 2 * done)
        inputs = hide(rows.inputs, hidden, (plan.seed, step))
        optimiser.zero_grad(set_to_none=True)
        loss(model, rows, inputs, plan.own * done).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        optimiser.step()
    return model.eval()


def hide(tokens: Tensor, share: float, address: tuple[int, ...]) -> Tensor:
    """Replace a share of the tokens by BEGIN, which carries no information."""
    hidden = torch.from_numpy(uniform(address, *tokens.shape) < share)
    return tokens.masked_fill(hidden, BEGIN)


def loss(model: EncoderDecoder, rows: Pairs, inputs: Tensor, share: float = 0.0) -> Tensor:
    """Nats per token, with teacher forcing, or with a share of the model's own tokens."""
    state = model.encode(rows.source, mask=rows.source_mask)
    logits, _ = scheduled_sampling(model, inputs, state, share, mask=rows.inputs_mask)
    if isinstance(model, Transformer):
        return model.loss(logits, rows.answers)
    return cross_entropy(logits, rows.answers)


def exact(model: EncoderDecoder, rows: Pairs, beams: int | None = None) -> float:
    """The share of rows that are answered without a mistake, by greedy or beam search."""
    with torch.no_grad():
        state = model.encode(rows.source, mask=rows.source_mask)
    begin = torch.full((len(rows.source), 1), BEGIN)
    longest = rows.target.shape[1] + 1
    search: dict[str, Any] = {"temperature": 0.0} if beams is None else {"beams": beams}
    answers = generate(model, begin, state, max_tokens=longest, stop=END, **search).rows()
    right: list[bool] = [a == b for a, b in zip(answers, rows.texts(), strict=True)]
    return sum(right) / len(right)


def by_length(model: EncoderDecoder, plan: TranslationStudy, count: int = 200) -> dict[int, float]:
    """`exact` at a few lengths up to the longest."""
    lengths = sorted({max(1, plan.longest * part // 6) for part in range(1, 7)})
    make_task = TASKS[plan.task]
    return {n: exact(model, make_task((n, n)).batch("test", 0, count)) for n in lengths}


def picture(model: Seq2Seq, plan: TranslationStudy, path: Path) -> Tensor:
    """Draw the alignment of one pair, two thirds as long as the longest; returns the weights."""
    length = max(1, 2 * plan.longest // 3)
    rows = TASKS[plan.task]((length, length)).batch("test", 0, 1)
    source, target = rows.source[0], rows.target[0]
    texts = TEXTS[plan.task]
    labels = [texts[0][i] for i in source.tolist()], [texts[1][i] for i in target.tolist()]
    return model.draw_alignment(source, target, path, labels=labels)


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(
        prog="python -m threefold.lab.studies.translate", description=__doc__
    )
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="model")
    parser.add_argument("--pictures", type=Path, help="folder for alignment figures")
    for name, default in vars(TranslationStudy()).items():
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(default), default=default, dest=name
        )
    arguments = vars(parser.parse_args())
    names, pictures = arguments.pop("models"), arguments.pop("pictures")
    plan = TranslationStudy(**arguments)
    for name in names:
        start = time.perf_counter()
        model = study(name, plan)
        seconds = time.perf_counter() - start
        scores = "  ".join(f"{n}: {score:6.1%}" for n, score in by_length(model, plan).items())
        long = (plan.longest // 2 + 1, plan.longest)
        rows = TASKS[plan.task](long).batch("test", 0, 1000)
        longer = f"{long[0]}–{long[1]}: {exact(model, rows):.2%}"
        steps = plan.steps or STEPS[name]
        print(f"{name:<15}{scores}  {longer}   {steps} steps, {seconds:.0f} s", flush=True)
        if pictures is not None and isinstance(model, Seq2Seq) and model.decoder.attends:
            pictures.mkdir(parents=True, exist_ok=True)
            picture(model, plan, pictures / f"{plan.task}-{name}.png")


if __name__ == "__main__":
    main()
