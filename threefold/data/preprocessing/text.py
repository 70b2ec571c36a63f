"""Steps for texts, words and labels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from threefold.data.cells import label_order
from threefold.data.preprocessing.decisions import Array, check_thresholds, decide
from threefold.data.preprocessing.steps import Step
from threefold.data.tokenizers import Tokenizer, describe_tokenizer, make_tokenizer
from threefold.errors import ThreefoldError, nearest

Numbers = NDArray[np.int64]
MOST_LABELS_SHOWN = 12
MASK_WORD = "[MASK]"
# A sentence ends after . ! ? … and what closes it, before white space, or at the end of a line.
SENTENCE_END = r"(?<=[.!?…])[\"'”’)\]]*\s+|\s*\n\s*"


@dataclass(frozen=True)
class Tokenize(Step):
    """Text → tokens from `offset` on, at most `length` of them."""

    NAME: ClassVar[str] = "tokenize"
    description: dict[str, Any]  # of the tokenizer
    length: int | None = None
    offset: int = 0  # tokens below it have meanings of their own, such as the end of a text

    @classmethod
    def by(cls, tokenizer: Tokenizer, length: int | None = None, offset: int = 0) -> Tokenize:
        """The step of a tokenizer."""
        return cls(describe_tokenizer(tokenizer), length, offset)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer itself."""
        return make_tokenizer(self.description)

    @property
    def vocabulary(self) -> int:
        """The number of tokens, those below the offset included."""
        return self.tokenizer.vocabulary + self.offset

    def parts(self, data: Any) -> list[str]:
        """What the tokenizer reads of a text, part by part."""
        return [data]

    def apply(self, data: str) -> Numbers:
        """The tokens of a text."""
        return self.tokenizer.encode(data)[: self.length].astype(np.int64) + self.offset

    def invert(self, data: Iterable[int]) -> str:
        """The text of tokens, without those below the offset."""
        return self.tokenizer.decode(t - self.offset for t in map(int, data) if t >= self.offset)


@dataclass(frozen=True)
class TokenizeMasked(Tokenize):
    """As `Tokenize`, with one more token for each `[MASK]` in the text."""

    NAME: ClassVar[str] = "tokenize_masked"

    @property
    def mask_token(self) -> int:
        """The token that a masked model has to replace."""
        return self.tokenizer.vocabulary

    def parts(self, data: Any) -> list[str]:
        """The text between the gaps."""
        text: str = data
        return text.split(MASK_WORD)

    def apply(self, data: str) -> Numbers:
        """The tokens of a text with gaps."""
        parts = [super(TokenizeMasked, self).apply(part) for part in self.parts(data)]
        gap = np.array([self.mask_token], np.int64)
        return np.concatenate([parts[0], *(x for part in parts[1:] for x in (gap, part))])


def split_sentences(text: str, pattern: str = SENTENCE_END) -> list[str]:
    """The sentences of a text, without the white space between them; empty ones do not count."""
    cuts = [match.end() for match in re.finditer(pattern, text)]
    parts = (text[a:b].strip() for a, b in pairwise([0, *cuts, len(text)]))
    return [part for part in parts if part]


@dataclass(frozen=True)
class TokenizeSentences(Tokenize):
    """Text → the tokens of its sentences, with one more token at the end of each."""

    NAME: ClassVar[str] = "tokenize_sentences"
    pattern: str = SENTENCE_END  # what lies between two sentences, or ends the first of them

    @property
    def vocabulary(self) -> int:
        """The number of tokens, with the one that ends a sentence."""
        return self.tokenizer.vocabulary + 1

    @property
    def end(self) -> int:
        """The token that ends a sentence."""
        return self.tokenizer.vocabulary

    def parts(self, data: Any) -> list[str]:
        """The sentences of a text."""
        return split_sentences(data, self.pattern)

    def apply(self, data: str) -> Numbers:
        """The tokens of a document; one that is too long is cut, and ends there."""
        sentences = self.parts(data)
        if not sentences:
            raise ThreefoldError("the text is empty; expected at least one sentence")
        tokens = np.concatenate([self.sentence(text) for text in sentences])
        if self.length is None or len(tokens) <= self.length:
            return tokens
        cut = tokens[: self.length - 1]
        is_open = not len(cut) or cut[-1] != self.end
        return np.append(cut, self.end) if is_open else cut

    def sentence(self, text: str) -> Numbers:
        """The tokens of one sentence, the one that ends it included."""
        return np.append(self.tokenizer.encode(text).astype(np.int64), self.end)

    def invert(self, data: Iterable[int]) -> str:
        """The text of tokens, sentence after sentence."""
        sentences: list[list[int]] = [[]]
        for token in map(int, data):
            if token == self.end:
                sentences.append([])
            else:
                sentences[-1].append(token)
        return " ".join(self.tokenizer.decode(sentence) for sentence in sentences if sentence)


@dataclass(frozen=True)
class WordNumbers(Step):
    """A list of words → numbers from 1 on; words that training has not seen are 0."""

    NAME: ClassVar[str] = "word_numbers"
    words: tuple[str, ...]
    length: int | None = None

    @classmethod
    def fit(
        cls, texts: Iterable[Sequence[str]], vocabulary: int, length: int | None = None
    ) -> WordNumbers:
        """The commonest words; those that occur once are unknown."""
        counts = Counter(word for text in texts for word in text)
        ranked = sorted(
            (w for w in counts if counts[w] > 1), key=lambda word: (-counts[word], word)
        )
        return cls(tuple(ranked[: vocabulary - 1]), length)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each word."""
        return {word: number for number, word in enumerate(self.words, 1)}

    @property
    def vocabulary(self) -> int:
        """The number of different words, with the unknown one."""
        return len(self.words) + 1

    def apply(self, data: Sequence[str]) -> Numbers:
        """The numbers of words."""
        return np.array([self.numbers.get(word, 0) for word in data[: self.length]], np.int64)


@dataclass(frozen=True)
class WordPieces(Tokenize):
    """A list of words → the tokens of all of them; a word is known at its last token."""

    NAME: ClassVar[str] = "word_pieces"

    def parts(self, data: Any) -> list[str]:
        """The words, with the space before them."""
        return [*data[:1], *(f" {word}" for word in data[1:])]

    def _pieces(self, words: Sequence[str]) -> list[Numbers]:
        return [self.tokenizer.encode(word).astype(np.int64) for word in self.parts(words)]

    def apply(self, data: Sequence[str]) -> Numbers:
        """The tokens of words with a space between them, at most `length` of them."""
        pieces = self._pieces(data)
        return np.concatenate(pieces or [np.zeros(0, np.int64)])[: self.length]

    def ends(self, words: Sequence[str]) -> Numbers:
        """The last token of each word that is not cut off."""
        ends = np.cumsum([len(piece) for piece in self._pieces(words)], dtype=np.int64) - 1
        return ends if self.length is None else ends[ends < self.length]

    def spread(self, words: Sequence[str], tags: Numbers, nothing: int) -> Numbers:
        """The tags of words as those of tokens: of the last one of a word, `nothing` elsewhere."""
        ends = self.ends(words)
        spread = np.full(len(self.apply(words)), nothing, np.int64)
        spread[ends] = tags[: len(ends)]
        return spread


@dataclass(frozen=True)
class TokenNumbers(Step):
    """Tokens that are numbers already, from 0 to vocabulary − 1."""

    NAME: ClassVar[str] = "token_numbers"
    vocabulary: int

    def apply(self, data: Any) -> Numbers:
        """The tokens of a sequence; others than those of training are refused."""
        tokens = np.asarray(data)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or not len(tokens):
            raise ThreefoldError(
                f"tokens are {tokens.dtype} of shape {tokens.shape}; expected integers [length]"
            )
        if tokens.min() < 0 or tokens.max() >= self.vocabulary:
            raise ThreefoldError(
                f"tokens are from {tokens.min()} to {tokens.max()}; expected 0 to "
                f"{self.vocabulary - 1}, a vocabulary of {self.vocabulary}"
            )
        return tokens.astype(np.int64)


@dataclass(frozen=True)
class Labels(Step):
    """Names of classes → their numbers, in the order of training."""

    NAME: ClassVar[str] = "labels"
    names: tuple[str, ...]
    thresholds: tuple[float | None, ...] = ()  # of probabilities, by class; empty: none

    def __post_init__(self) -> None:
        check_thresholds(self.thresholds, len(self.names))

    @classmethod
    def fit(cls, labels: Iterable[str]) -> Labels:
        """All names, in alphabetical order (numbers in numerical order)."""
        return cls(tuple(sorted(set(labels), key=label_order)))

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each name."""
        return {name: number for number, name in enumerate(self.names)}

    def apply(self, data: Sequence[str]) -> Numbers:
        """The numbers of labels; an unknown one is refused."""
        for row, label in enumerate(data, 1):
            if label not in self.numbers:
                raise ThreefoldError(f"example {row}: unknown label {label!r}; {self.known(label)}")
        return np.array([self.numbers[label] for label in data], np.int64)

    def invert(self, data: Iterable[int]) -> list[str]:
        """The names of classes."""
        return [self.names[number] for number in data]

    def decide(self, probabilities: Array) -> Array:
        """The numbers of the classes that are answered for probabilities [n, classes]."""
        return decide(probabilities, self.thresholds)

    def with_thresholds(self, thresholds: Mapping[str, float]) -> Labels:
        """The same labels, of which some are answered from a probability on."""
        return replace(self, thresholds=tuple(thresholds.get(name) for name in self.names))

    def known(self, label: str) -> str:
        """The end of an error message: the labels that the model knows."""
        if len(self.names) > MOST_LABELS_SHOWN:
            return f"the model knows {len(self.names)} labels; {nearest(label, self.names)}"
        return f"the model was trained on {', '.join(map(repr, self.names))}"
