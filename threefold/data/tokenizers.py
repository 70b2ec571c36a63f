"""Tokenizers: bytes, characters, words and byte pairs; decoding gives back the text exactly.

    bytes        "naïve" → 6e 61 c3 af 76 65         nothing to learn, any text and any bytes
    characters   "naïve" → n a ï v e                 those of a given text; others are refused
    words        "naïve cat" → "naïve" " cat"        the commonest; others are spelt in bytes
    byte pairs   "naïve" → "na" "ïve"                merged while they are common

A token is a string of bytes, and a text is the bytes of its tokens one after another.  Nothing else
is needed to decode tokens exactly, even one at a time.
Sennrich, Haddow & Birch 2016, "Neural Machine Translation of Rare Words with Subword Units".
"""

from __future__ import annotations

import codecs
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from threefold.errors import ThreefoldError

Tokens: TypeAlias = NDArray[np.integer[Any]]
BYTES = tuple(bytes([value]) for value in range(256))
# A word with the space before it, punctuation likewise, or one white space: nothing is lost.
WORD_PATTERN = re.compile(r" ?\w+| ?[^\w\s]+|\s")


class Tokenizer(ABC):
    """Encodes text as tokens and decodes tokens to text; `parts` are the bytes of each token."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = tuple(parts)

    @property
    def vocabulary(self) -> int:
        """The number of different tokens."""
        return len(self.parts)

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        """The smallest integer type for all tokens."""
        return smallest_dtype(self.vocabulary)

    @abstractmethod
    def encode(self, text: str) -> Tokens:
        """The tokens of a text."""

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """The bytes of tokens, valid UTF-8 or not."""
        return b"".join(self._part(token) for token in tokens)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; invalid UTF-8 (a character cut at an end) becomes U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", "replace")

    def stream(self, tokens: Iterable[int]) -> Iterator[str]:
        """Decode token by token; a character is returned when all its bytes have come."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in tokens:
            yield decoder.decode(self._part(token))
        yield decoder.decode(b"", final=True)

    def _part(self, token: int) -> bytes:
        if not 0 <= token < len(self.parts):
            raise ThreefoldError(f"unknown token {token}; expected 0 to {len(self.parts) - 1}")
        return self.parts[int(token)]


def smallest_dtype(vocabulary: int) -> type[np.unsignedinteger[Any]]:
    """The smallest unsigned integer type for a vocabulary: uint8, uint16 or uint32."""
    for dtype in (np.uint8, np.uint16, np.uint32):
        if vocabulary <= np.iinfo(dtype).max + 1:
            return dtype
    raise ThreefoldError(f"a vocabulary of {vocabulary} tokens; expected at most 2³²")


def as_utf8(text: str) -> bytes:
    """Encode as UTF-8, or raise an error that says which character cannot be encoded."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ThreefoldError(
            f"the text cannot be encoded as UTF-8: character {error.start} is "
            f"{text[error.start]!r}, half of a surrogate pair"
        ) from error


class ByteTokenizer(Tokenizer):
    """The bytes of UTF-8 as tokens: works for every text, and there is nothing to learn."""

    vocabulary = 256

    def __init__(self) -> None:
        super().__init__(BYTES)

    def encode(self, text: str | bytes) -> NDArray[np.uint8]:
        """One token per byte; bytes are used as they are, valid UTF-8 or not."""
        return np.frombuffer(as_utf8(text) if isinstance(text, str) else text, dtype=np.uint8)

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """The bytes of tokens."""
        if isinstance(tokens, np.ndarray) and tokens.dtype == np.uint8:
            return tokens.tobytes()
        return super().decode_bytes(tokens)

    def _part(self, token: int) -> bytes:
        if not 0 <= token < 256:
            raise ThreefoldError(f"token {token} is not a byte; expected 0 to 255")
        return BYTES[int(token)]


class CharacterTokenizer(Tokenizer):
    """Characters as tokens, in the order of their code points."""

    FILE = "characters.json"

    def __init__(self, characters: Iterable[str]) -> None:
        self.characters = "".join(sorted(set(characters)))
        if not self.characters:
            raise ThreefoldError("no characters given; expected a text or its characters")
        super().__init__([as_utf8(character) for character in self.characters])
        # The sorted code points; the index of a code point is its token.
        self._codes = np.array([ord(character) for character in self.characters])

    def encode(self, text: str) -> Tokens:
        """One token per character."""
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        tokens = np.searchsorted(self._codes, codes)
        known = self._codes[np.minimum(tokens, len(self._codes) - 1)] == codes
        if not known.all():
            first = int(np.argmin(known))
            raise ThreefoldError(
                f"unknown character {text[first]!r} at position {first} of the text; the tokenizer "
                f"has {self.vocabulary} others: make it from all texts, or use bytes"
            )
        return tokens.astype(self.dtype)

    def save(self, folder: Path) -> None:
        """Write the characters to a file in `folder`."""
        write_list(folder / self.FILE, list(self.characters))

    @classmethod
    def load(cls, folder: Path) -> CharacterTokenizer:
        """Load the tokenizer that was saved in `folder`."""
        return cls(read_list(folder / cls.FILE))


class WordTokenizer(Tokenizer):
    """Words with the space before them, from token 256 on; unknown words are spelt in bytes."""

    FILE = "words.json"

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(dict.fromkeys(words))
        super().__init__([*BYTES, *map(as_utf8, self.words)])
        self._tokens = {word: 256 + index for index, word in enumerate(self.words)}

    @classmethod
    def learn(cls, texts: Iterable[str], vocabulary: int = 20_000) -> WordTokenizer:
        """Learn the commonest words of texts; equally common ones in alphabetical order."""
        if vocabulary < 256:
            raise ThreefoldError(f"vocabulary is {vocabulary}; expected at least the 256 bytes")
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(WORD_PATTERN.findall(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(ranked[: vocabulary - 256])

    def encode(self, text: str) -> Tokens:
        """One token per known word, the bytes of unknown ones."""
        tokens: list[int] = []
        for word in WORD_PATTERN.findall(text):
            token = self._tokens.get(word)
            if token is None:
                tokens.extend(as_utf8(word))
            else:
                tokens.append(token)
        return np.array(tokens, dtype=self.dtype)

    def words_of(self, text: str) -> list[str]:
        """The words of a text, without spaces and punctuation."""
        return [word.strip() for word in WORD_PATTERN.findall(text) if word[-1].isalnum()]

    def unknown_words(self, text: str) -> list[str]:
        """Those of its words that are spelt in bytes."""
        found = WORD_PATTERN.findall(text)
        return [w.strip() for w in found if w[-1].isalnum() and w not in self._tokens]

    def save(self, folder: Path) -> None:
        """Write the words to a file in `folder`."""
        write_list(folder / self.FILE, self.words)

    @classmethod
    def load(cls, folder: Path) -> WordTokenizer:
        """Load the tokenizer that was saved in `folder`."""
        return cls(read_list(folder / cls.FILE))


class BPETokenizer(Tokenizer):
    """Byte-pair encoding by the package `tokenizers`; its file is the usual tokenizer.json."""

    FILE = "tokenizer.json"

    def __init__(self, description: str) -> None:
        from tokenizers import Tokenizer as Merger

        try:
            self._merger: Any = Merger.from_str(description)
        except Exception as error:  # the package has no exception class of its own
            raise ThreefoldError(f"not a tokenizer.json ({error})") from error
        self._check(description)
        self.description = description
        words = {token: word for word, token in self._merger.get_vocab().items()}
        alphabet = _byte_alphabet()
        try:
            parts = [bytes(alphabet[c] for c in words[token]) for token in range(len(words))]
        except KeyError as error:
            raise ThreefoldError(
                f"tokenizer.json: no byte or token for {error.args[0]!r}; expected byte-level "
                "pairs without special tokens"
            ) from error
        super().__init__(parts)

    @classmethod
    def learn(cls, texts: Iterable[str], vocabulary: int = 4096) -> BPETokenizer:
        """Learn a vocabulary by merging the commonest pairs of texts."""
        from tokenizers import Tokenizer as Merger
        from tokenizers import decoders, models, pre_tokenizers, trainers

        if vocabulary < 256:
            raise ThreefoldError(f"vocabulary is {vocabulary}; expected at least the 256 bytes")
        merger = Merger(models.BPE())
        merger.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        merger.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary,
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )
        merger.train_from_iterator(texts, trainer)
        return cls(merger.to_str())

    def encode(self, text: str) -> Tokens:
        """The byte-pair tokens of a text."""
        return np.array(self.merge(text).ids, dtype=self.dtype)

    def merge(self, text: str) -> Any:
        """The package's encoding of a text: `ids`, and `word_ids`, the word of each token."""
        as_utf8(text)
        return self._merger.encode(text)

    def save(self, folder: Path) -> None:
        """Write tokenizer.json to `folder`."""
        (folder / self.FILE).write_text(self._merger.to_str(pretty=True), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> BPETokenizer:
        """Load the tokenizer that was saved in `folder`."""
        path = folder / cls.FILE
        try:
            return cls(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeError) as error:
            raise ThreefoldError(f"{path}: cannot be read ({error})") from error
        except ThreefoldError as error:
            raise ThreefoldError(f"{path}: {error}") from error

    @staticmethod
    def _check(description: str) -> None:
        """Refuse a tokenizer that changes the text first: decoding would not be exact."""
        config = json.loads(description)
        level = config.get("pre_tokenizer") or {}
        if (
            config.get("normalizer")
            or level.get("type") != "ByteLevel"
            or level["add_prefix_space"]
        ):
            raise ThreefoldError(
                "tokenizer.json normalises text, or does not work on bytes; expected ByteLevel "
                "without a prefix space, so that decoding gives back the exact text"
            )


def describe_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """A tokenizer as JSON values, which `make_tokenizer` reads."""
    if isinstance(tokenizer, CharacterTokenizer):
        return {"tokenizer": "character", "characters": tokenizer.characters}
    if isinstance(tokenizer, WordTokenizer):
        return {"tokenizer": "word", "words": list(tokenizer.words)}
    if isinstance(tokenizer, BPETokenizer):
        return {"tokenizer": "bpe", "description": tokenizer.description}
    if isinstance(tokenizer, ByteTokenizer):
        return {"tokenizer": "byte"}
    raise ThreefoldError(f"a {type(tokenizer).__name__} cannot be saved with a model's data")


def make_tokenizer(description: dict[str, Any]) -> Tokenizer:
    """The tokenizer that `describe_tokenizer` described."""
    makers: dict[str, Any] = {
        "byte": lambda: ByteTokenizer(),
        "character": lambda: CharacterTokenizer(description["characters"]),
        "word": lambda: WordTokenizer(description["words"]),
        "bpe": lambda: BPETokenizer(description["description"]),
    }
    name = description.get("tokenizer")
    if name not in makers:
        raise ThreefoldError(f"unknown tokenizer {name!r}; expected one of {', '.join(makers)}")
    tokenizer: Tokenizer = makers[name]()
    return tokenizer


@cache
def _byte_alphabet() -> dict[str, int]:
    """The byte for each character of ByteLevel's alphabet (Radford et al. 2019, GPT-2)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in shown]
    spelt = {chr(value): value for value in shown}
    return {**spelt, **{chr(256 + index): value for index, value in enumerate(hidden)}}


def write_list(path: Path, words: Sequence[str]) -> None:
    """Write a list of strings as JSON."""
    path.write_text(json.dumps(words, ensure_ascii=False) + "\n", encoding="utf-8")


def read_list(path: Path) -> list[str]:
    """Read a list of distinct strings, as written by `write_list`."""
    try:
        words: list[str] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ThreefoldError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ThreefoldError(f"{path}: not JSON, or incomplete ({error})") from error
    good = isinstance(words, list) and all(isinstance(word, str) and word for word in words)
    if not good or len(set(words)) != len(words):
        raise ThreefoldError(f"{path}: damaged; expected a list of distinct strings")
    return words
