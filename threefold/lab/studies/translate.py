r"""Translators with and without attention, by length: `threefold lab translate`.

    threefold lab translate transformer --task number_to_words --length 12 --depth 2 --steps 1200

Each model is trained on new pairs of all lengths, then translates other pairs greedily.  A column
is the share of exactly right answers at one length; the last one is for sources longer than half of
the longest.  Without attention, the source has to fit into one state.
A model takes about five minutes on one core.
`--folder FOLDER` draws the alignments of each model with attention.

Two things decide whether models with attention exceed 90 %.  A decoder that always reads the right
previous symbols finds its position by the last two or three of them, and loses it where they occur
twice; therefore a share of its input is hidden at first (word dropout, Bowman et al. 2016), and it
learns to count.  And the source has begin and end symbols that attention can use (tasks/pairs.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from threefold.data.random_by_address import uniform
from threefold.errors import ThreefoldError, nearest
from threefold.models.encoder_decoder import EncoderDecoder
from threefold.models.presets import transformer
from threefold.models.seq2seq import Seq2Seq
from threefold.models.spec import Spec
from threefold.runtime.generation import generate
from threefold.tasks.number_to_words import DIGITS, WORDS, number_to_words
from threefold.tasks.pairs import BEGIN, END, Pairs
from threefold.tasks.reversal import reversal
from threefold.tasks.task import Task
from threefold.training.config import DataSettings, ModelSettings, RunConfig
from threefold.training.experiment import run
from threefold.training.objectives import exact_match, translate_greedily
from threefold.training.preparation import prepare
from threefold.training.settings import TrainingSettings

MODEL_FIELDS = ("kind", "width", "depth", "mixers", "channel", "block", "options")
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
    batch_size: int = 64
    steps: int = 0  # 0: from STEPS
    learning_rate: float = 3e-3
    hide: float = 0.3  # share of hidden decoder inputs; decays to 0 in the second half
    scheduled_sampling: float = 0.0  # final share of the model's own tokens, rising linearly
    seed: int = 0

    @property
    def longest(self) -> int:
        """Elements of the longest source that is evaluated."""
        return self.length or LENGTHS[self.task]

    def steps_of(self, model: str) -> int:
        """The steps of one of MODELS."""
        return self.steps or STEPS[model]

    def config(self, model: str) -> RunConfig:
        """The run of one of MODELS.

        Sources are slightly longer than those evaluated, so that the longest is not an edge case.
        """
        spec, lengths = self.spec(model).to_dict(), (1, self.longest + self.longest // 10)
        return RunConfig(
            data=DataSettings(
                name=self.task,
                batch_size=self.batch_size,
                eval_examples=64,
                options={"lengths": lengths, "seed": self.seed},
                seed=self.seed,
            ),
            model=ModelSettings(
                seed=self.seed,
                **{name: spec[name] for name in MODEL_FIELDS},
            ),
            training=TrainingSettings(
                steps=self.steps_of(model),
                learning_rate=self.learning_rate,
                final_lr=0.01 * self.learning_rate,
                beta2=0.98,
                weight_decay=0.0,
                scheduled_sampling=self.scheduled_sampling,
                seed=self.seed,
            ),
        )

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


class HiddenInputs:
    """Batches with a share of the decoder's inputs hidden; it decays to 0 in the second half."""

    def __init__(self, batches: Callable[[int], Pairs], plan: TranslationStudy, steps: int) -> None:
        self.batches, self.plan, self.steps = batches, plan, steps

    def __call__(self, step: int) -> Pairs:
        rows, share = self.batches(step), self.plan.hide * min(1.0, 2 - 2 * step / self.steps)
        return HiddenPairs(**vars(rows), hidden=hide(rows.inputs, share, (self.plan.seed, step)))


@dataclass(frozen=True, kw_only=True)
class HiddenPairs(Pairs):
    """Pairs of which the decoder reads other inputs than the beginning of the target."""

    hidden: Tensor

    @property
    def inputs(self) -> Tensor:
        """The decoder's inputs."""
        return self.hidden


def hide(tokens: Tensor, share: float, address: tuple[int, ...]) -> Tensor:
    """Replace a share of the tokens by BEGIN, which carries no information."""
    hidden = torch.from_numpy(uniform(address, *tokens.shape) < share)
    return tokens.masked_fill(hidden, BEGIN)


def study(name: str, plan: TranslationStudy) -> EncoderDecoder:
    """Train one of MODELS."""
    config = plan.config(name)
    prepared = prepare(config)
    if name != "transformer":
        assert config.training.steps is not None
        hidden = HiddenInputs(prepared.batches, plan, config.training.steps)
        prepared = replace(prepared, batches=hidden)
    model = run(config, prepared=prepared, reporters=(), test=False).complete().model
    assert isinstance(model, EncoderDecoder)
    return model


def share_correct(model: EncoderDecoder, rows: Pairs, beams: int | None = None) -> float:
    """The share of rows that are answered without a mistake, by greedy or beam search."""
    if beams is None:
        return exact_match(translate_greedily(model, rows), rows.texts())
    with torch.no_grad():
        state = model.encode(rows.source, mask=rows.source_mask)
    begin, longest = torch.full((len(rows.source), 1), BEGIN), rows.target.shape[1] + 1
    answers = generate(model, begin, state, max_tokens=longest, stop=END, beams=beams)
    return exact_match(answers.rows(), rows.texts())


def by_length(model: EncoderDecoder, plan: TranslationStudy, count: int = 200) -> dict[int, float]:
    """`share_correct` at a few lengths up to the longest."""
    lengths = sorted({max(1, plan.longest * part // 6) for part in range(1, 7)})
    make_task = TASKS[plan.task]
    return {n: share_correct(model, make_task((n, n)).batch("test", 0, count)) for n in lengths}


def picture(model: Seq2Seq, plan: TranslationStudy, path: Path) -> Tensor:
    """Draw the alignment of one pair, two thirds as long as the longest; returns the weights."""
    length = max(1, 2 * plan.longest // 3)
    rows = TASKS[plan.task]((length, length)).batch("test", 0, 1)
    source, target = rows.source[0], rows.target[0]
    texts = TEXTS[plan.task]
    labels = [texts[0][i] for i in source.tolist()], [texts[1][i] for i in target.tolist()]
    return model.draw_alignment(source, target, path, labels=labels)


def table(
    models: Sequence[str], plan: TranslationStudy, folder: Path | None = None
) -> Iterator[str]:
    """A line for each model, as soon as it is trained; with a folder, draw the alignments."""
    for name in models or list(MODELS):
        start = time.perf_counter()
        model = study(name, plan)
        seconds = time.perf_counter() - start
        scores = "  ".join(f"{n}: {score:6.1%}" for n, score in by_length(model, plan).items())
        long = (plan.longest // 2 + 1, plan.longest)
        rows = TASKS[plan.task](long).batch("test", 0, 1000)
        longer = f"{long[0]}–{long[1]}: {share_correct(model, rows):.2%}"
        yield f"{name:<15}{scores}  {longer}   {plan.steps_of(name)} steps, {seconds:.0f} s"
        if folder is not None and isinstance(model, Seq2Seq) and model.decoder.attends:
            folder.mkdir(parents=True, exist_ok=True)
            picture(model, plan, folder / f"{plan.task}-{name}.png")
