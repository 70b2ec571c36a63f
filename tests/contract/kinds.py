"""A small model of every kind with a batch to train it on, for tests that cover all kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import threefold
from threefold import Spec
from threefold.data.loaders import Batch
from threefold.data.permutation import permute_batch
from threefold.data.random_by_address import uniform
from threefold.models.model import Model
from threefold.models.table import KINDS
from threefold.tasks.pairs import Pairs, captions, pairs
from threefold.training.objectives import objective_of

ROWS, LENGTH, TOKENS = 3, 12, 23
# A fitted method is no network: it has tests of its own (tests/lab/test_best_baseline.py).
NETWORKS = tuple(kind for kind in KINDS if kind != "simple")


@dataclass(frozen=True)
class Example:
    """A spec of one kind, and what its models are trained on."""

    spec: Spec
    rows: Callable[[], Batch | Pairs]

    def build(self) -> Model:
        torch.manual_seed(0)
        return threefold.build(self.spec)


def _batch(inputs: Tensor, targets: Tensor, *, padded: bool = True) -> Batch:
    lengths = torch.tensor([LENGTH, LENGTH - 5, 1]) if padded else None
    return Batch(inputs, targets, torch.ones(ROWS, dtype=torch.bool), lengths)


def _tokens(seed: int, *shape: int, most: int = TOKENS) -> Tensor:
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(seed))


def _numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def text(*, padded: bool = True) -> Batch:
    """Tokens, and the tokens to predict."""
    return _batch(_tokens(1, ROWS, LENGTH), _tokens(2, ROWS, LENGTH), padded=padded)


def permuted() -> Batch:
    """Tokens, and those to predict in an order that is drawn for each row."""
    return permute_batch(text(), uniform((0,), ROWS, LENGTH))


def labelled() -> Batch:
    """Tokens, and one of three classes per row."""
    return _batch(_tokens(1, ROWS, LENGTH), _tokens(2, ROWS, most=3))


def documents() -> Batch:
    """Tokens in sentences of four and three, and one of three classes per row."""
    tokens = _tokens(1, ROWS, LENGTH, most=TOKENS - 1)
    tokens[:, 3] = tokens[:, 6] = tokens[:, LENGTH - 1] = TOKENS - 1
    lengths = torch.tensor([LENGTH, LENGTH - 5, 4])
    starts = torch.ones(ROWS, dtype=torch.bool)
    return Batch(tokens, _tokens(2, ROWS, most=3), starts, lengths)


def tagged() -> Batch:
    """Vectors, and one of three classes per element."""
    return _batch(_numbers(1, ROWS, LENGTH, 5), _tokens(2, ROWS, LENGTH, most=3))


def measured() -> Batch:
    """Vectors, and two numbers per row."""
    return _batch(_numbers(1, ROWS, LENGTH, 5), _numbers(2, ROWS, 2))


def series() -> Batch:
    """Two series with one exogenous input, and their next four values."""
    return _batch(_numbers(1, ROWS, LENGTH, 3), _numbers(2, ROWS, 4, 2), padded=False)


def images() -> Batch:
    """Images of one channel, and one of three classes each."""
    return _batch(_numbers(1, ROWS, 1, 8, 8), _tokens(2, ROWS, most=3), padded=False)


def translations() -> Pairs:
    """Sources of different lengths and their reversals."""
    sources = [[4, 5, 6, 7], [8, 9], [10]]
    return pairs("reversal", sources, [row[::-1] for row in sources], TOKENS, TOKENS)


def described() -> Pairs:
    """Images of one channel and texts of different lengths."""
    return captions("described", _numbers(1, ROWS, 1, 8, 8), [[4, 5, 6, 7], [8, 9], [10]], TOKENS)


def language(mixer: Any, **options: Any) -> Spec:
    """A language model of one block."""
    return Spec("language", 32, 1, mixer, TOKENS, options=options)


_DROPOUT = {"dropout": 0.0, "embedding_dropout": 0.0}
_HYBRID = ("gla", ("attention", {"heads": 2}))

EXAMPLES: dict[str, Example] = {
    "language": Example(Spec("language", 32, 2, _HYBRID, TOKENS), text),
    "classifier": Example(
        Spec("classifier", 32, 1, "mamba", TOKENS, options={"classes": 3, "positions": "binary"}),
        labelled,
    ),
    "hierarchical": Example(
        Spec("hierarchical", 32, 1, "gla", TOKENS, options={"classes": 3}), documents
    ),
    "regressor": Example(
        Spec("regressor", 32, 1, "gru", TOKENS, options={"outputs": 2, "input_size": 5}), measured
    ),
    "tagger": Example(
        Spec("tagger", 32, 1, "gru", TOKENS, options={"classes": 3, "input_size": 5}), tagged
    ),
    "forecaster": Example(
        Spec(
            "forecaster",
            32,
            1,
            "s4d",
            TOKENS,
            options={"channels": 2, "exogenous": 1, "horizon": 4},
        ),
        series,
    ),
    "masked": Example(
        Spec("masked", 32, 1, "attention", TOKENS, options={"positions": "sinusoidal"}), text
    ),
    "xlnet": Example(
        Spec("xlnet", 32, 2, (("transformer_xl", {"heads": 2, "memory": 4}),), TOKENS), permuted
    ),
    "vision": Example(
        Spec(
            "vision",
            32,
            1,
            "attention",
            TOKENS,
            options={"image": (8, 8), "channels": 1, "classes": 3},
        ),
        images,
    ),
    "convolutional": Example(
        Spec("convolutional", 8, 2, options={"image": (8, 8), "channels": 1, "classes": 3}), images
    ),
    "swin": Example(
        Spec("swin", 16, 2, options={"image": (8, 8), "channels": 1, "classes": 3, "patch": 1}),
        images,
    ),
    "captioner": Example(
        Spec("captioner", 32, 1, "gru", TOKENS, options={"image": (8, 8), "channels": 1}), described
    ),
    "seq2seq": Example(Spec("seq2seq", 32, 1, "lstm", TOKENS), translations),
    "transformer": Example(
        Spec("transformer", 32, 1, "attention", TOKENS, options={**_DROPOUT}), translations
    ),
}


def mean_loss(model: nn.Module, rows: Any) -> Tensor:
    """The loss that training minimises."""
    objective = objective_of(model)
    loss = objective(model, rows, None, carry=False, progress=0.0).loss
    return loss / objective.count(rows)


def mixer_example(name: str) -> Example:
    """A language model of the mixer, or a tagger of tokens if it is not causal."""
    if threefold.MIXERS[name].load().causal:
        return Example(language(name), partial(text, padded=True))
    return Example(Spec("tagger", 32, 1, name, TOKENS, options={"classes": TOKENS}), text)
