"""What language-modelling tasks share: splits by position, tokens, windows, the chance level.

    text → 90 % train | 5 % valid | 5 % test → tokens → windows of `length` + 1 tokens

The chance level is that of a unigram model: token frequencies of the training split, each count
plus one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from threefold.data.loaders import Batch
from threefold.data.tokenizers import (
    BPETokenizer,
    CharacterTokenizer,
    Tokenizer,
    Tokens,
    WordTokenizer,
)
from threefold.errors import ThreefoldError, nearest
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Corpus, Numbers, make_batch

TOKENIZER_NAMES = ("byte", "character", "bpe", "word")
Content = TypeVar("Content", bytes, str, NDArray[np.uint8])


def check_tokenizer_name(task: str, name: str) -> None:
    """Refuse a tokenizer that does not exist."""
    if name not in TOKENIZER_NAMES:
        raise ThreefoldError(
            f"{task}: unknown tokenizer {name!r}; {nearest(name, TOKENIZER_NAMES)}"
        )


def split_by_position(content: Content) -> dict[str, Content]:
    """The first 90 per cent for training, the next 5 for validation, the last 5 for testing."""
    first, second = int(len(content) * 0.9), int(len(content) * 0.95)
    parts = (content[:first], content[first:second], content[second:])
    return dict(zip(SPLITS, parts, strict=True))


def tokenize_splits(texts: Mapping[str, str], tokenizer_name: str, vocabulary: int) -> Corpus:
    """Tokens of every split; byte pairs and words are learnt from the training split."""
    if tokenizer_name == "character":
        tokenizer: Tokenizer = CharacterTokenizer("".join(texts.values()))
    else:
        learn = BPETokenizer.learn if tokenizer_name == "bpe" else WordTokenizer.learn
        tokenizer = learn([part + "\n\n" for part in texts["train"].split("\n\n")], vocabulary)
    return Corpus({split: tokenizer.encode(text) for split, text in texts.items()}, tokenizer)


def count_windows(corpus: Corpus, length: int) -> tuple[int, ...]:
    """How many windows of `length` inputs each split has."""
    return tuple((len(corpus.tokens[split]) - 1) // length for split in SPLITS)


def cut_windows(tokens: Tokens, numbers: Numbers, length: int) -> Batch:
    """The windows with these numbers, as inputs and next tokens."""
    windows = np.asarray(tokens[numbers[:, None] * length + np.arange(length + 1)], np.int64)
    return make_batch(windows[:, :-1], windows[:, 1:])


def unigram_bits(corpus: Corpus) -> float:
    """Bits per token of the test split under the training split's frequencies plus one."""
    return unigram_bits_of(
        corpus.tokens["train"], corpus.tokens["test"], corpus.tokenizer.vocabulary
    )


def unigram_bits_of(train: Tokens, test: Tokens, vocabulary: int) -> float:
    """The same from arrays of tokens."""
    counts = np.bincount(train, minlength=vocabulary) + 1.0
    return float(-np.log2(counts / counts.sum())[test].mean())
