"""A token is a string of bytes; a text is the tokens' bytes one after another.

That is all a tokenizer needs to go back from tokens to text, exactly, and as they come.
"""

from __future__ import annotations

import codecs
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from threefold.errors import ThreefoldError

Tokens: TypeAlias = NDArray[np.integer[Any]]


class Tokenizer(ABC):
    """Text to tokens and back; `parts` are the bytes of each token."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = tuple(parts)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return len(self.parts)

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        """The smallest numbers that hold every token."""
        return smallest(self.vocabulary)

    @abstractmethod
    def encode(self, text: str) -> Tokens:
        """The tokens of a text."""

    def decode_bytes(self, tokens: Iterable[int]) -> bytes:
        """The bytes of tokens, whatever they are."""
        return b"".join(self._part(token) for token in tokens)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text; bytes that are no UTF-8 (a character cut at an end) become U+FFFD."""
        return self.decode_bytes(tokens).decode("utf-8", "replace")

    def stream(self, tokens: Iterable[int]) -> Iterator[str]:
        """The text of each token as it comes; a character is held until its bytes are whole."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in tokens:
            yield decoder.decode(self._part(token))
        yield decoder.decode(b"", final=True)

    def _part(self, token: int) -> bytes:
        if not 0 <= token < len(self.parts):
            raise ThreefoldError(f"token {token} is unknown; expected 0 to {len(self.parts) - 1}")
        return self.parts[int(token)]


def smallest(vocabulary: int) -> type[np.unsignedinteger[Any]]:
    """The smallest unsigned numbers that count so far: uint8, uint16 or uint32."""
    for dtype in (np.uint8, np.uint16, np.uint32):
        if vocabulary <= np.iinfo(dtype).max + 1:
            return dtype
    raise ThreefoldError(f"a vocabulary of {vocabulary} tokens; expected at most 2³²")


def as_utf8(text: str) -> bytes:
    """UTF-8, or an error that says where a text has none."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ThreefoldError(
            f"the text has no UTF-8 form: character {error.start} is "
            f"{text[error.start]!r}, half of a surrogate pair"
        ) from error


def write_list(path: Path, words: Sequence[str]) -> None:
    """A list of strings as JSON."""
    path.write_text(json.dumps(words, ensure_ascii=False) + "\n", encoding="utf-8")


def read_list(path: Path) -> list[str]:
    """A list of different strings, as `write_list` wrote it."""
    try:
        words: list[str] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ThreefoldError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ThreefoldError(f"{path}: not JSON, or cut short ({error})") from error
    good = isinstance(words, list) and all(isinstance(word, str) and word for word in words)
    if not good or len(set(words)) != len(words):
        raise ThreefoldError(f"{path}: damaged; expected a list of different strings")
    return words
