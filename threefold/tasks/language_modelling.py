"""Language modelling on any text: its splits, tokens and windows, and the chance level.

    text → 90 % train | 5 % valid | 5 % test → tokens → windows of `length` + 1 tokens

The chance level is that of a unigram model: token frequencies of the training split, each count
plus one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from threefold.data.documents import DocumentChunks
from threefold.data.loaders import Batch, Batches
from threefold.data.masking import MASKED, MaskedBatches, mask_batch
from threefold.data.permutation import PERMUTED, PermutedBatches, permute_batch
from threefold.data.random_by_address import by_row
from threefold.data.tokenizers import (
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    Tokens,
    WordTokenizer,
)
from threefold.errors import ThreefoldError, nearest
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Corpus, Numbers, address, make_batch

TOKENIZER_NAMES = ("byte", "character", "bpe", "word")
DEFAULT_LENGTH = 256
DEFAULT_VOCABULARY = 4096
TOKENS_AT_ONCE = 1 << 20  # counted together: a corpus may be larger than memory
Content = TypeVar("Content", bytes, str, Tokens)


def check_tokenizer_name(where: str, name: str) -> None:
    """Refuse a tokenizer that does not exist."""
    if name not in TOKENIZER_NAMES:
        raise ThreefoldError(
            f"{where}: unknown tokenizer {name!r}; {nearest(name, TOKENIZER_NAMES)}"
        )


def learn_tokenizer(name: str, texts: Sequence[str], vocabulary: int) -> Tokenizer:
    """A tokenizer by name; what it has to know is learnt from texts."""
    check_tokenizer_name("data.tokenizer", name)
    if name == "byte":
        return ByteTokenizer()
    if name == "character":
        return CharacterTokenizer("".join(texts))
    return (BPETokenizer if name == "bpe" else WordTokenizer).learn(texts, vocabulary)


def split_by_position(content: Content) -> dict[str, Content]:
    """The first 90 per cent for training, the next 5 for validation, the last 5 for testing."""
    first, second = int(len(content) * 0.9), int(len(content) * 0.95)
    parts = (content[:first], content[first:second], content[second:])
    return dict(zip(SPLITS, parts, strict=True))


def text_corpus(
    parts: Mapping[str, bytes] | Mapping[str, str], tokenizer: Tokenizer | str, vocabulary: int
) -> Corpus:
    """The tokens of every split; bytes need no valid UTF-8, other tokenizers are given texts.

    tokenizer: one that is known, or the name of one to learn: byte pairs and words from the
    training split, characters from all splits.
    """
    if isinstance(tokenizer, str):
        tokenizer = learn_tokenizer(tokenizer, _texts_to_learn(parts, tokenizer), vocabulary)
    encoded: dict[int, Tokens] = {}  # all of a text may be every split
    for part in parts.values():
        if id(part) not in encoded:
            encoded[id(part)] = tokenizer.encode(part)  # type: ignore[arg-type]
    return Corpus({split: encoded[id(part)] for split, part in parts.items()}, tokenizer)


def _texts_to_learn(parts: Mapping[str, Any], name: str) -> Sequence[str]:
    if name == "byte":
        return ()
    if name == "character":
        return list(parts.values())
    return [paragraph + "\n\n" for paragraph in parts["train"].split("\n\n")]


@dataclass(frozen=True)
class TextWindows:
    """The examples of a text: windows of `length` inputs and their next tokens.

    Where documents are known, windows are their chunks.  kind: masked, some inputs are masked, and
    these are the targets (the mask token follows those of the tokenizer); xlnet, the targets are
    the last inputs of an order that is drawn for each window.
    """

    name: str
    corpus: Callable[[], Corpus]
    length: int
    kind: str = "language"

    def draw(self, split: str, numbers: Numbers) -> Batch:
        """The windows with these numbers."""
        rows = self._rows(split, numbers)
        if self.kind == "xlnet":
            return permute_batch(rows, by_row(address(PERMUTED, split), numbers, self.length))
        if self.kind != "masked":
            return rows
        drawn = by_row(address(MASKED, split), numbers, 3, self.length).swapaxes(0, 1)
        return mask_batch(rows, self.vocabulary, self.vocabulary, np.ascontiguousarray(drawn))

    @property
    def augment(self) -> Callable[[Batches, int], Batches] | None:
        """From batches and a seed to batches with masks or orders drawn anew at every step."""
        if self.kind == "xlnet":
            return lambda batches, seed: PermutedBatches(batches, seed=seed)
        if self.kind == "masked":
            size = self.vocabulary
            return lambda batches, seed: MaskedBatches(batches, size, size, seed=seed)
        return None

    @property
    def vocabulary(self) -> int:
        """The number of tokens, without the mask token."""
        return self.corpus().tokenizer.vocabulary

    def fields(self) -> dict[str, Any]:
        """What a task declares of them."""
        tokens, total = self.corpus().tokens, self.vocabulary + (self.kind == "masked")
        return {
            "length": self.length,
            "sizes": self._sizes(),
            "vocabulary": total,
            "classes": total,
            "chance": unigram_bits(tokens["train"], tokens["test"], self.vocabulary),
        }

    @cached_property
    def _chunks(self) -> dict[str, DocumentChunks]:
        """The chunks of every split of a corpus with documents."""
        tokens, starts = self.corpus().tokens, self.corpus().starts or {}
        return {
            split: DocumentChunks(tokens[split], starts[split], self.length) for split in starts
        }

    def _rows(self, split: str, numbers: Numbers) -> Batch:
        if self.corpus().starts is not None:
            return self._chunks[split].rows(numbers)
        places = numbers[:, None] * self.length + np.arange(self.length + 1)
        windows = np.asarray(self.corpus().tokens[split][places], np.int64)
        return make_batch(windows[:, :-1], windows[:, 1:])

    def _sizes(self) -> tuple[int, ...]:
        tokens = self.corpus().tokens
        if self.corpus().starts is None:
            sizes = tuple((len(tokens[split]) - 1) // self.length for split in SPLITS)
        else:
            sizes = tuple(len(self._chunks[split]) for split in SPLITS)
        if min(sizes) < 1:
            counts = ", ".join(f"{len(tokens[split]):,} {split}" for split in SPLITS)
            raise ThreefoldError(
                f"{self.name}: the tokens ({counts}) are too few: each split needs at least "
                f"{self.length + 1}; give more text, or a length below {self.length}"
            )
        return sizes


def unigram_bits(train: Tokens, test: Tokens, vocabulary: int) -> float:
    """Bits per token of a test split under a training split's frequencies plus one."""
    counts, asked = _count(train, vocabulary) + 1.0, _count(test, vocabulary)
    return float(-(asked * np.log2(counts / counts.sum())).sum() / asked.sum())


def _count(tokens: Tokens, vocabulary: int) -> NDArray[np.int64]:
    counts = np.zeros(vocabulary, np.int64)
    for begin in range(0, len(tokens), TOKENS_AT_ONCE):
        counts += np.bincount(tokens[begin : begin + TOKENS_AT_ONCE], minlength=vocabulary)
    return counts
