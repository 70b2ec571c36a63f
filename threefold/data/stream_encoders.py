"""Encode a stream of bytes incrementally: encode(a) + encode(b) = encode(a + b) for every cut.

An encoder gets the bytes from the first one not yet encoded, and returns the elements that no later
byte can change and how many bytes they take; the remaining bytes are given again with what follows.

    bytes        all of them are final
    characters   all but the last few bytes, if they are a part of a character
    words        all words but the last one, which may continue
    byte pairs   pairs merge within words that a pattern cuts from left to right, never looking
                 back and at most two characters ahead: words that end further from the end than
                 that (and than the longest added token) are final
    word lists   complete lines; a sentence ends with an empty line, or with a line of several words
                 (of tagged lines, `tagged_lines.py`, only the first cell is a word)
    sentences    a sentence is final once white space follows it, or a line ends
    tables       complete lines, one element each (`stream_rows.py`)
    sounds       complete frames (`stream_sounds.py`)
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threefold.data.tagged_lines import tagged_cells, words_in
from threefold.data.tokenizers import (
    WORD_PATTERN,
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    WordTokenizer,
)
from threefold.errors import ThreefoldError

MOST_PENDING_BYTES = 1 << 20  # of one word or line: bounds the memory of a stream
BPE_LOOKAHEAD = (
    16  # bytes that the byte-pair pattern may look ahead; it needs two characters, 8 bytes
)

Elements = NDArray[Any]  # tokens [n], samples [n, 1], or records [n] of words or of rows
SENTENCE_TYPE = np.dtype([("tokens", object), ("text", object)])
WORD_TYPE = np.dtype([("token", np.int64), ("word", object), ("starts", bool)])


class UnreadableError(Exception):
    """Bytes that an encoder cannot read: what is wrong, and at which byte."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at = at


class Encoder(ABC):
    """Turns bytes into elements.

    line_by_line: a new input starts with a new line, perhaps with a header (`restart`); other
    inputs go on in the middle of a word.
    """

    line_by_line = False

    @abstractmethod
    def encode(self, data: bytes, final: bool) -> tuple[Elements, int]:
        """The elements that no later byte can change, and how many bytes they take.

        final: no bytes will follow.
        """

    def settings(self) -> dict[str, Any]:
        """What was inferred from the stream so far, as JSON; needed to resume in the middle."""
        return {}

    def restore(self, settings: dict[str, Any]) -> None:
        """Resume with the result of `settings`."""
        assert not settings  # encoders that have settings override both methods

    def restart(self) -> None:
        """Expect the beginning of another input, whose elements follow those so far."""
        return None


class ByteEncoder(Encoder):
    """Every byte is a token."""

    def encode(self, data: bytes, final: bool) -> tuple[Elements, int]:
        return np.frombuffer(data, dtype=np.uint8), len(data)


class TextEncoder(Encoder):
    """UTF-8 through a tokenizer; subclasses know which tokens are final."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def encode(self, data: bytes, final: bool) -> tuple[Elements, int]:
        text = decoded(data, final)
        tokens, used = self.tokens(text, final)
        if not final and not used and len(data) > MOST_PENDING_BYTES:
            raise UnreadableError(0, f"{MOST_PENDING_BYTES >> 20} MiB without the end of a word")
        return tokens, used

    @abstractmethod
    def tokens(self, text: str, final: bool) -> tuple[Elements, int]:
        """The final tokens of a text, and how many bytes they take."""


class CharacterEncoder(TextEncoder):
    """Every character is a token."""

    tokenizer: CharacterTokenizer

    def tokens(self, text: str, final: bool) -> tuple[Elements, int]:
        try:
            return self.tokenizer.encode(text), utf8_size(text)
        except ThreefoldError as error:
            known = set(self.tokenizer.characters)
            position = next(i for i, character in enumerate(text) if character not in known)
            raise UnreadableError(
                utf8_size(text[:position]),
                f"unknown character {text[position]!r}: the model knows {len(known)} others",
            ) from error


class WordEncoder(TextEncoder):
    """Words; a word is final once the next one has begun."""

    def tokens(self, text: str, final: bool) -> tuple[Elements, int]:
        if not final:
            starts = [match.start() for match in WORD_PATTERN.finditer(text)]
            text = text[: starts[-1]] if starts else ""
        return self.tokenizer.encode(text), utf8_size(text)


class BPEEncoder(TextEncoder):
    """Byte pairs, merged within the words that GPT-2's pattern cuts."""

    tokenizer: BPETokenizer

    def __init__(self, tokenizer: BPETokenizer) -> None:
        super().__init__(tokenizer)
        self.sizes = np.array([len(part) for part in tokenizer.parts])
        self.ahead = BPE_LOOKAHEAD + _longest_added(tokenizer)

    def tokens(self, text: str, final: bool) -> tuple[Elements, int]:
        encoding = self.tokenizer.merge(text)
        tokens = np.array(encoding.ids, dtype=self.tokenizer.dtype)
        ends = np.cumsum(self.sizes[tokens]) if len(tokens) else np.zeros(0, dtype=np.int64)
        if final:
            return tokens, utf8_size(text)
        words = np.array(encoding.word_ids)
        borders = np.flatnonzero(words[1:] != words[:-1]) + 1  # where a word begins
        final_borders = borders[ends[borders - 1] + self.ahead <= utf8_size(text)]
        count = int(final_borders[-1]) if len(final_borders) else 0
        return tokens[:count], int(ends[count - 1]) if count else 0


def _longest_added(tokenizer: BPETokenizer) -> int:
    """Bytes of the longest added token, 0 if there are none."""
    config = json.loads(tokenizer.description)
    framed = (config.get("post_processor") or {}).get("type", "ByteLevel") != "ByteLevel"
    unsplit = not config["pre_tokenizer"].get("use_regex", True)
    if unsplit or framed or config.get("truncation") or config.get("padding"):
        raise ThreefoldError(
            "this tokenizer.json merges pairs across words, or truncates, pads or frames the text, "
            "so a stream cannot be encoded before its end; expected ByteLevel with use_regex only"
        )
    added = config.get("added_tokens") or []
    for token in added:
        if token.get("lstrip") or token.get("rstrip") or token.get("single_word"):
            raise ThreefoldError(
                f"the added token {token['content']!r} depends on the white space or words around "
                "it, so a stream cannot be encoded before its end; expected lstrip, rstrip and "
                "single_word to be off"
            )
    return max((utf8_size(token["content"]) for token in added), default=0)


class WordListEncoder(Encoder):
    """Words between white space, by their numbers; words that the model does not know are 0.

    tagged: whether tags follow each word; None if a tab in the first line says so.
    """

    line_by_line = True

    def __init__(self, numbers: Mapping[str, int], tagged: bool | None = None) -> None:
        self.numbers, self.tagged = numbers, tagged
        self.starts = False  # whether the next word begins a sentence

    def encode(self, data: bytes, final: bool) -> tuple[Elements, int]:
        used = complete_lines(data, final)
        records: list[tuple[int, str, bool]] = []
        for line in decoded(data[:used], True).splitlines():
            if self.tagged is None and tagged_cells(line):
                self.tagged = "\t" in line
            words = words_in(line, bool(self.tagged))
            self.starts = self.starts or len(words) != 1
            for word in words:
                records.append((self.numbers.get(word, 0), word, self.starts))
                self.starts = False
            self.starts = len(words) != 1
        return np.array(records, dtype=WORD_TYPE), used

    def settings(self) -> dict[str, Any]:
        return {"starts": self.starts, "tagged": self.tagged}

    def restore(self, settings: dict[str, Any]) -> None:
        self.starts, self.tagged = settings["starts"], settings.get("tagged", self.tagged)


class SentenceEncoder(Encoder):
    """Whole sentences: the tokens of each, with the one that ends it, and its text.

    pattern: what lies between two sentences.  More white space after it changes nothing: what is
    left between two sentences is empty, and empty sentences do not count.
    """

    def __init__(self, pattern: str, tokens: Callable[[str], NDArray[np.int64]]) -> None:
        self.pattern, self.tokens = re.compile(pattern), tokens

    def encode(self, data: bytes, final: bool) -> tuple[Elements, int]:
        text = decoded(data, final)
        cuts = [match.end() for match in self.pattern.finditer(text)]
        cuts += [len(text)] if final and text else []
        if not cuts and len(data) > MOST_PENDING_BYTES:
            raise UnreadableError(0, f"{MOST_PENDING_BYTES >> 20} MiB without a sentence's end")
        parts = (text[a:b].strip() for a, b in pairwise([0, *cuts]))
        sentences = [part for part in parts if part]
        elements = np.empty(len(sentences), SENTENCE_TYPE)
        for row, sentence in enumerate(sentences):
            elements[row] = (self.tokens(sentence), sentence)
        return elements, utf8_size(text[: cuts[-1]]) if cuts else 0


def encoder_for(tokenizer: Any) -> Encoder:
    """The stream encoder for a tokenizer."""
    if isinstance(tokenizer, ByteTokenizer):
        return ByteEncoder()
    if isinstance(tokenizer, CharacterTokenizer):
        return CharacterEncoder(tokenizer)
    if isinstance(tokenizer, WordTokenizer):
        return WordEncoder(tokenizer)
    if isinstance(tokenizer, BPETokenizer):
        return BPEEncoder(tokenizer)
    raise ThreefoldError(
        f"{type(tokenizer).__name__} cannot encode a stream; expected a byte, character, word or "
        "byte-pair tokenizer"
    )


def decoded(data: bytes, final: bool) -> str:
    """Decode UTF-8 up to the last complete character; with `final`, all of it."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if not final and error.reason == "unexpected end of data" and error.end == len(data):
            return data[: error.start].decode()
        raise UnreadableError(
            error.start, f"0x{data[error.start]:02x} is not valid UTF-8; is this a text file?"
        ) from error


def complete_lines(data: bytes, final: bool) -> int:
    """The length of the complete lines; the last one is complete if no bytes will follow."""
    used = len(data) if final else data.rfind(b"\n") + 1
    if not used and len(data) > MOST_PENDING_BYTES:
        raise UnreadableError(0, f"{MOST_PENDING_BYTES >> 20} MiB without the end of a line")
    return used


def utf8_size(text: str) -> int:
    """The length of a text in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode())
