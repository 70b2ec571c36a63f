"""Bytes to elements as they come: encode(a) + encode(b) = encode(a + b), whatever the cut.

An encoder is given the bytes from a certain border on and answers with the elements that no later
byte can change, and how many bytes those stand for; the rest is given again with what follows.

    bytes        all of them are certain
    characters   all but the last few bytes, if they are a part of a character
    words        all pieces but the last one, which may go on
    byte pairs   pairs merge within pieces that a pattern cuts from left to right, never looking
                 back and at most two characters ahead: pieces that end further from the end than
                 that (and than the longest added token) are certain
    tables       whole lines, one element each
"""

from __future__ import annotations

import csv
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threefold.data.tokenizers import (
    WORD_PATTERN,
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    WordTokenizer,
)
from threefold.errors import ThreefoldError, nearest

MOST_PENDING_BYTES = 1 << 20  # bytes of one word, or one line: bounds the memory of any stream
BPE_LOOKAHEAD = (
    16  # bytes that a byte-pair pattern may look ahead; it needs two characters, 8 bytes
)
CANDIDATE_SEPARATORS = (
    "\t;,"  # of a table, in the order in which its first line is searched for them
)

Elements = NDArray[Any]  # tokens [n], or numbers [n, size]


class UnreadableError(Exception):
    """What is wrong with the bytes that an encoder was given, and at which of them."""

    def __init__(self, at: int, what: str) -> None:
        super().__init__(what)
        self.at = at


class Encoder(ABC):
    """Bytes in, elements out."""

    @abstractmethod
    def encode(self, data: bytes, final: bool) -> tuple[Elements, int]:
        """The certain elements of bytes that begin at a border, and how many bytes they are."""

    def settings(self) -> dict[str, Any]:
        """What was found out on the way, as JSON: needed to go on in the middle."""
        return {}

    def restore(self, settings: dict[str, Any]) -> None:
        """Go on with what `settings` said."""
        assert not settings  # who has some overrides both


class ByteEncoder(Encoder):
    """Every byte is a token."""

    def encode(self, data: bytes, final: bool) -> tuple[Elements, int]:
        return np.frombuffer(data, dtype=np.uint8), len(data)


class TextEncoder(Encoder):
    """UTF-8 through a tokenizer; how much of a text is certain differs."""

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
        """The certain tokens of a text, and how many bytes they are."""


class CharacterEncoder(TextEncoder):
    """Every character is a token."""

    tokenizer: CharacterTokenizer

    def tokens(self, text: str, final: bool) -> tuple[Elements, int]:
        try:
            return self.tokenizer.encode(text), utf8_size(text)
        except ThreefoldError as error:
            known = set(self.tokenizer.characters)
            place = next(i for i, character in enumerate(text) if character not in known)
            raise UnreadableError(
                utf8_size(text[:place]),
                f"the character {text[place]!r} is none of the {len(known)} that the model knows",
            ) from error


class WordEncoder(TextEncoder):
    """Words, each certain once the next has begun."""

    def tokens(self, text: str, final: bool) -> tuple[Elements, int]:
        if not final:
            starts = [found.start() for found in WORD_PATTERN.finditer(text)]
            text = text[: starts[-1]] if starts else ""
        return self.tokenizer.encode(text), utf8_size(text)


class BPEEncoder(TextEncoder):
    """Byte pairs, merged within the pieces that GPT-2's pattern cuts."""

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
        pieces = np.array(encoding.word_ids)
        borders = np.flatnonzero(pieces[1:] != pieces[:-1]) + 1  # where a piece begins
        certain = borders[ends[borders - 1] + self.ahead <= utf8_size(text)]
        count = int(certain[-1]) if len(certain) else 0
        return tokens[:count], int(ends[count - 1]) if count else 0


def _longest_added(tokenizer: BPETokenizer) -> int:
    """Bytes of the longest token that is found before the pattern cuts, 0 without any."""
    found = json.loads(tokenizer.description)
    framed = (found.get("post_processor") or {}).get("type", "ByteLevel") != "ByteLevel"
    whole = not found["pre_tokenizer"].get("use_regex", True)
    if whole or framed or found.get("truncation") or found.get("padding"):
        raise ThreefoldError(
            "this tokenizer.json merges pairs across a whole text, or cuts, fills or frames it, so "
            "that no token is certain before the end; expected ByteLevel with use_regex alone"
        )
    added = found.get("added_tokens") or []
    for token in added:
        if token.get("lstrip") or token.get("rstrip") or token.get("single_word"):
            raise ThreefoldError(
                f"the added token {token['content']!r} takes white space or whole words with it, "
                "so a text cannot be cut exactly before its end; expected lstrip, rstrip and "
                "single_word to be off"
            )
    return max((utf8_size(token["content"]) for token in added), default=0)


class RowEncoder(Encoder):
    """Lines of a table, one element of `size` numbers each.

    A first line that is no row of numbers is a header.  columns: names of the header, or numbers
    from 1 on; None takes all, of which there must be `size`.
    """

    def __init__(self, size: int, columns: Sequence[str] | None = None) -> None:
        if columns is not None and len(columns) != size:
            raise ThreefoldError(
                f"{len(columns)} columns ({', '.join(columns)}), the model reads {size} numbers "
                "with each element"
            )
        self.size, self.columns = size, columns
        self.separator, self.cells, self.places = "", 0, [0] * 0

    def encode(self, data: bytes, final: bool) -> tuple[Elements, int]:
        used = len(data) if final else data.rfind(b"\n") + 1
        if not used and len(data) > MOST_PENDING_BYTES:
            raise UnreadableError(0, f"{MOST_PENDING_BYTES >> 20} MiB without the end of a line")
        rows: list[list[float]] = []
        at = 0
        for line in BytesIO(data[:used]):
            cells = self._cells(line, at)
            if cells:
                row = self._row(cells, at)
                rows += [] if row is None else [row]
            at += len(line)
        return np.array(rows, dtype=np.float64).reshape(-1, self.size), used

    def settings(self) -> dict[str, Any]:
        return {"separator": self.separator, "cells": self.cells, "places": self.places}

    def restore(self, settings: dict[str, Any]) -> None:
        self.separator, self.cells = settings["separator"], settings["cells"]
        self.places = settings["places"]

    def _cells(self, data: bytes, at: int) -> list[str]:
        try:
            line = data.decode().strip("\r\n \ufeff")
        except UnicodeDecodeError as error:
            raise UnreadableError(at, f"0x{data[error.start]:02x} is no UTF-8") from error
        if line and not self.separator:
            self.separator = next((sign for sign in CANDIDATE_SEPARATORS if sign in line), ",")
        if '"' not in line:
            return [cell.strip() for cell in line.split(self.separator)] if line else []
        try:
            return next(csv.reader([line], delimiter=self.separator, strict=True))
        except csv.Error as error:
            raise UnreadableError(at, f"not a row of a table ({error})") from error

    def _row(self, cells: list[str], at: int) -> list[float] | None:
        """The numbers of a row; None for the header."""
        if not self.places:
            header = not all(map(_is_number, cells))
            self.places, self.cells = self._choose(cells, header, at), len(cells)
            if header:
                return None
        if len(cells) != self.cells:
            raise UnreadableError(at, f"{len(cells)} cells, expected {self.cells}")
        try:
            row = [float(cells[place]) for place in self.places]
        except ValueError:
            row = [math.nan]
        if not all(map(math.isfinite, row)):
            wrong = next(p for p in self.places if not _is_number(cells[p]))
            raise UnreadableError(
                at, f"column {wrong + 1} is {cells[wrong]!r}, expected a finite number"
            )
        return row

    def _choose(self, cells: list[str], header: bool, at: int) -> list[int]:
        """The places of the columns in a row, by the first line."""
        if self.columns is None:
            if len(cells) != self.size:
                raise UnreadableError(
                    at,
                    f"{len(cells)} columns ({', '.join(cells[:6])}), the model reads {self.size} "
                    "numbers with each element; choose columns",
                )
            return list(range(self.size))
        names = {name: place for place, name in enumerate(cells)} if header else {}
        numbers = {str(place + 1): place for place in range(len(cells))}
        for column in self.columns:
            if column not in names and column not in numbers:
                raise UnreadableError(
                    at, f"no column {column!r}; {nearest(column, names or numbers)}"
                )
        return [names.get(column, numbers.get(column, 0)) for column in self.columns]


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def encoder_for(tokenizer: Any) -> Encoder:
    """The encoder of a tokenizer."""
    if isinstance(tokenizer, ByteTokenizer):
        return ByteEncoder()
    if isinstance(tokenizer, CharacterTokenizer):
        return CharacterEncoder(tokenizer)
    if isinstance(tokenizer, WordTokenizer):
        return WordEncoder(tokenizer)
    if isinstance(tokenizer, BPETokenizer):
        return BPEEncoder(tokenizer)
    raise ThreefoldError(
        f"{type(tokenizer).__name__}: a stream cannot be cut by it; expected a byte, character, "
        "word or byte-pair tokenizer"
    )


def decoded(data: bytes, final: bool) -> str:
    """UTF-8, up to the last whole character unless it is all there will be."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if not final and error.reason == "unexpected end of data" and error.end == len(data):
            return data[: error.start].decode()
        raise UnreadableError(
            error.start, f"0x{data[error.start]:02x} is no UTF-8; is it a text?"
        ) from error


def utf8_size(text: str) -> int:
    """Bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())
