"""king − man + woman ≈ queen: a vector for each word, from the words around it

    skip_gram   each word of a window foretells the one in its middle
    cbow        the mean of the window's words foretells it

Negative sampling: the true word against `negatives` others, drawn by their count to the power 3/4.
A window reaches 1 … `window` words, evenly drawn; frequent words are left out at random.
Mikolov, Chen, Corrado & Dean 2013, "Efficient Estimation of Word Representations in Vector Space";
Mikolov et al. 2013, "Distributed Representations of Words and Phrases and their Compositionality".

What differs from the authors' program: σ is exact, not read from a table; all products of a pair
are computed before its updates; and in CBOW the gradient is that of the mean, divided among its
words (İrsoy, Benton & Stratos 2021, "Corrected CBOW Performs as well as Skip-gram"), where the
program adds it whole to each, so the learning rate is larger here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from threefold.data.atomic_files import write_file
from threefold.data.random_by_address import address_keys, hashed, uniform
from threefold.data.readers import checked_path, file_error, read_lines
from threefold.errors import ThreefoldError, nearest
from threefold.kernels import ops
from threefold.kernels.word_vectors import LANES, Noise, WordPass, noise_table

Array = NDArray[Any]
RATES = {"skip_gram": 0.025, "cbow": 0.075}
LAST_RATE = 1e-4  # of the first
LONGEST_SENTENCE = 1000  # words; longer ones are cut
CHUNK_WORDS = 500_000  # between two reports of the progress
NOISE_POWER = 0.75

WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)|\n\s*\n")


@dataclass(frozen=True)
class WordVectorOptions:
    """How word vectors are trained."""

    method: str = "skip_gram"
    width: int = 100
    window: int = 5
    negatives: int = 5
    subsample: float = 1e-3  # the share of a text above which words are left out at random; 0: none
    minimum_count: int = 5
    passes: int = 5
    learning_rate: float | None = None  # falls to nearly 0; None: 0.025, for CBOW 0.075
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in RATES:
            raise ThreefoldError(f"unknown method {self.method!r}; {nearest(self.method, RATES)}")
        limits = {"width": 4096, "window": 256, "negatives": 64, "minimum_count": None}
        for name, most in {**limits, "passes": None}.items():
            value = getattr(self, name)
            if value < 1 or (most is not None and value > most):
                expected = "1 or more" if most is None else f"1 to {most}"
                raise ThreefoldError(f"{name} is {value}; expected {expected}")
        for name in ("subsample", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1e3:
                raise ThreefoldError(f"{name} is {value}; expected a number from 0")


def sentences_of(text: str, *, by_line: bool = False) -> Iterator[list[str]]:
    """The words of each sentence in lower case, without punctuation; by_line: of each line."""
    for part in text.split("\n") if by_line else SENTENCE_END.split(text):
        words = WORD.findall(part.lower())
        if words:
            yield words


@dataclass(frozen=True)
class WordCorpus:
    """Sentences of numbered words, the most frequent word being 0."""

    words: tuple[str, ...]
    counts: Array  # [V]
    text: Array  # [N] int32
    lengths: Array  # of the sentences

    @classmethod
    def read(cls, sentences: Iterable[str | Sequence[str]], minimum_count: int) -> WordCorpus:
        """Number the words that occur at least `minimum_count` times; the others are left out."""
        numbers: dict[str, int] = {}
        pieces, lengths = [], []
        for sentence in _split_texts(sentences):
            for first in range(0, len(sentence), LONGEST_SENTENCE):
                part = sentence[first : first + LONGEST_SENTENCE]
                found = [numbers.setdefault(word, len(numbers)) for word in part]
                pieces.append(np.array(found, np.int32))
                lengths.append(len(part))
        text = np.concatenate(pieces) if pieces else np.zeros(0, np.int32)
        counts = np.bincount(text, minlength=len(numbers))
        order = np.argsort(-counts, kind="stable")
        order = order[counts[order] >= minimum_count]
        if len(order) < 2:
            raise ThreefoldError(
                f"{len(text):,} words, {len(numbers):,} different, of which {len(order)} occur "
                f"{minimum_count} times or more; expected at least 2: give more text, or a "
                "smaller minimum_count"
            )
        names = list(numbers)
        renumbered = np.full(len(numbers), -1, np.int32)
        renumbered[order] = np.arange(len(order), dtype=np.int32)
        return cls(
            tuple(names[number] for number in order),
            counts[order],
            *_kept(renumbered[text], np.array(lengths, np.int64), renumbered[text] >= 0),
        )

    def subsampled(self, share: float, address: tuple[int, ...]) -> tuple[Array, Array]:
        """Words and lengths of sentences without some of the frequent words.

        A word stays with probability √(share/f) + share/f, f its share of the text.
        """
        if not share:
            return self.text, self.lengths
        ratio = share * len(self.text) / self.counts
        stays = np.sqrt(ratio) + ratio
        drawn = hashed(address, np.arange(len(self.text)))
        return _kept(self.text, self.lengths, drawn < stays[self.text])


def _split_texts(sentences: Iterable[str | Sequence[str]]) -> Iterator[Sequence[str]]:
    """Sentences as they are, and those of texts."""
    for sentence in [sentences] if isinstance(sentences, str) else sentences:
        if isinstance(sentence, str):
            yield from sentences_of(sentence)
        elif isinstance(sentence, Iterable) and all(isinstance(word, str) for word in sentence):
            yield sentence
        else:
            raise ThreefoldError(
                f"a sentence is {sentence!r:.60}; expected a text, or a list of its words"
            )


def _kept(text: Array, lengths: Array, stays: Array) -> tuple[Array, Array]:
    """The words that stay, and the lengths of the sentences with two or more of them."""
    ends = np.concatenate([[0], np.cumsum(stays)])[np.cumsum(lengths)]
    left = np.diff(ends, prepend=0)
    long = np.repeat(left > 1, left)
    return text[stays][long], left[left > 1]


Progress = Callable[[int, int], None]


class WordVectors:
    """Words and their vectors [V, width]: nearest words, analogies, similarities."""

    def __init__(self, words: Sequence[str], vectors: Array) -> None:
        self.words = tuple(words)
        self.vectors = np.ascontiguousarray(vectors, np.float32)
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.words):
            raise ThreefoldError(
                f"{len(self.words)} words and vectors {self.vectors.shape}; expected one for each"
            )
        self._numbers = {word: number for number, word in enumerate(self.words)}
        if len(self._numbers) < len(self.words):
            twice = next(word for n, word in enumerate(self.words) if self._numbers[word] != n)
            raise ThreefoldError(f"the word {twice!r} has two vectors; expected one for each word")
        lengths = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        self._directions = self.vectors / np.maximum(lengths, 1e-30)

    @classmethod
    def fit(
        cls,
        sentences: Iterable[str | Sequence[str]],
        *,
        progress: Progress | None = None,
        **settings: Any,
    ) -> WordVectors:
        """Train on sentences: lists of words, or texts, which are split as `sentences_of` does.

        settings: those of `WordVectorOptions`.  With one thread (`torch.set_num_threads(1)`) the
        result is the same every time; several threads change the same vectors without locks.
        progress(done, total) is in words.

        >>> vectors = WordVectors.fit(["the cat sat on the mat. the dog sat on the rug."] * 20)
        >>> "cat" in vectors, vectors.width
        (True, 100)
        """
        known = [item.name for item in fields(WordVectorOptions)]
        for name in settings:
            if name not in known:
                raise ThreefoldError(
                    f"word vectors have no setting {name!r}; {nearest(name, known)}"
                )
        options = WordVectorOptions(**settings)
        corpus = WordCorpus.read(sentences, options.minimum_count)
        return cls(corpus.words, train_vectors(corpus, options, progress))

    def __contains__(self, word: object) -> bool:
        return word in self._numbers

    def __len__(self) -> int:
        return len(self.words)

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return int(self.vectors.shape[1])

    def vector(self, word: str) -> Array:
        """The vector of a word."""
        vector: Array = self.vectors[self._number(word)]
        return vector

    def similarity(self, one: str, other: str) -> float:
        """The cosine of the angle between two words' vectors."""
        a, b = self._number(one), self._number(other)
        return float(self._directions[a] @ self._directions[b])

    def nearest(self, word: str, count: int = 10) -> list[tuple[str, float]]:
        """The words with the most similar vectors, with their similarities."""
        number = self._number(word)
        return self._nearest(self._directions[number], [number], count)

    def analogy(self, a: str, b: str, c: str, count: int = 10) -> list[tuple[str, float]]:
        """The words d for which a is to b as c is to d: the nearest to b − a + c, but for these."""
        numbers = [self._number(word) for word in (a, b, c)]
        directions = self._directions[numbers]
        return self._nearest(directions[1] - directions[0] + directions[2], numbers, count)

    def analogies_solved(self, questions: Iterable[tuple[str, str, str, str]]) -> tuple[int, int]:
        """How many questions (a, b, c, d) are answered with d, and how many have known words."""
        known = [question for question in questions if all(word in self for word in question)]
        right = sum(self.analogy(a, b, c, 1)[0][0] == d for a, b, c, d in known)
        return right, len(known)

    def _nearest(self, target: Array, left_out: list[int], count: int) -> list[tuple[str, float]]:
        if count < 1:
            raise ThreefoldError(f"count is {count}, expected at least 1 word")
        scores = self._directions @ (target / max(float(np.linalg.norm(target)), 1e-30))
        scores[left_out] = -np.inf
        count = min(count, len(self) - len(set(left_out)))
        best = np.argsort(-scores, kind="stable")[:count]
        return [(self.words[number], float(scores[number])) for number in best]

    def _number(self, word: str) -> int:
        number = self._numbers.get(word, self._numbers.get(word.lower()))
        if number is None:
            guess = get_close_matches(word.lower(), self.words[:20_000], 1)
            hint = f"; did you mean {guess[0]!r}?" if guess else ""
            raise ThreefoldError(
                f"no vector for {word!r}: the text has it too seldom or not at all{hint}"
            )
        return number

    # ------------------------------------------------------------------------------ files

    def save(self, path: Path | str) -> None:
        """Write word2vec's text format: a line with the sizes, then a word and its numbers."""

        def write(temporary: Path) -> None:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(f"{len(self)} {self.width}\n")
                for word, vector in zip(self.words, self.vectors.tolist(), strict=True):
                    file.write(f"{word} {' '.join(f'{value:.9g}' for value in vector)}\n")

        write_file(checked_path("path", path), write)

    @classmethod
    def load(cls, path: Path | str) -> WordVectors:
        """Read word2vec's text format; GloVe's, which has no first line, too."""
        path = checked_path("path", path)
        words: list[str] = []
        rows: list[Array] = []
        announced: tuple[int, int] | None = None
        for number, line in read_lines(path):
            parts = line.rstrip().split(" ")
            if number == 1 and len(parts) == 2 and all(part.isdecimal() for part in parts):
                announced = (int(parts[0]), int(parts[1]))
                continue
            width = len(rows[0]) if rows else announced[1] if announced else len(parts) - 1
            words.append(" ".join(parts[:-width]) if width < len(parts) else parts[0])
            rows.append(_numbers_of(path, number, parts, width))
        if announced and announced != (len(rows), len(rows[0]) if rows else announced[1]):
            raise file_error(
                path,
                1,
                f"announces {announced[0]:,} words of {announced[1]} numbers; the file has "
                f"{len(rows):,}: it was cut, or is not a file of word vectors",
            )
        if not rows:
            raise file_error(path, None, "no vectors in it")
        if len(set(words)) < len(words):
            first: dict[str, int] = {}
            number = next(n for n, word in enumerate(words) if first.setdefault(word, n) != n)
            what = f"a second vector of {words[number]!r}; expected one for each word"
            raise file_error(path, number + 1 + (announced is not None), what)
        return cls(words, np.stack(rows))


def _numbers_of(path: Path, line: int, parts: list[str], width: int) -> Array:
    """The last `width` parts of a line as numbers."""
    try:
        if width < 1 or len(parts) <= width:
            raise ValueError
        values = np.array([float(part) for part in parts[-width:]], np.float32)
        if not np.isfinite(values).all():
            raise ValueError
    except ValueError:
        raise file_error(
            path,
            line,
            f"expected a word and {width} numbers, as in word2vec's text format; found "
            f"{' '.join(parts)[:40]!r}",
        ) from None
    return values


# -------------------------------------------------------------------------------- training


def train_vectors(
    corpus: WordCorpus, options: WordVectorOptions, progress: Progress | None = None
) -> Array:
    """The vectors [V, width] after all passes, in float32."""
    count = len(corpus.words)
    padded = -(-options.width // LANES) * LANES
    inputs, outputs = torch.zeros(count, padded), torch.zeros(count, padded)
    drawn = uniform((options.seed, 0), count, options.width)
    inputs[:, : options.width] = torch.from_numpy((drawn - 0.5) / options.width)
    noise = noise_table(corpus.counts.astype(np.float64) ** NOISE_POWER)
    for number in range(options.passes):
        _one_pass(corpus, options, number, (inputs, outputs), noise, progress)
    if not inputs.isfinite().all():
        raise ThreefoldError(
            "the vectors have grown beyond all numbers (NaN or inf); train again with a smaller "
            f"learning_rate, e.g. {RATES[options.method]}"
        )
    return inputs[:, : options.width].numpy()


def _one_pass(
    corpus: WordCorpus,
    options: WordVectorOptions,
    number: int,
    tables: tuple[torch.Tensor, torch.Tensor],
    noise: Noise,
    progress: Progress | None,
) -> None:
    """One pass over the text, in chunks of sentences."""
    text, lengths = corpus.subsampled(options.subsample, (options.seed, 1, number))
    ends = np.concatenate([[0], np.cumsum(lengths)])
    first_rate = RATES[options.method] if options.learning_rate is None else options.learning_rate
    first, total = 0, options.passes * len(corpus.text)
    while first < len(lengths):
        last = int(np.searchsorted(ends, ends[first] + CHUNK_WORDS))
        last = min(max(last, first + 1), len(lengths))
        shares = [(number + ends[place] / ends[-1]) / options.passes for place in (first, last)]
        rates = [first_rate * max(LAST_RATE, 1 - share) for share in shares]
        key = int(address_keys((options.seed, 2, number, first))[0] >> np.uint64(1))
        what = WordPass(options.window, options.negatives, options.method == "cbow", key, *rates)
        words = torch.from_numpy(text[ends[first] : ends[last]].astype(np.int64))
        borders = torch.from_numpy(ends[first : last + 1] - ends[first])
        ops.word_vectors(*tables, words, borders, noise, what)
        if progress is not None:
            progress(int(shares[1] * total), total)
        first = last
