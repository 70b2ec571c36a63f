"""Text to tokens and back."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from threefold.errors import ThreefoldError


class ByteTokenizer:
    """The bytes of UTF-8 as tokens: every text, nothing to learn, an exact round trip."""

    vocabulary = 256

    def encode(self, text: str) -> NDArray[np.uint8]:
        """One token for each byte."""
        try:
            return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)
        except UnicodeEncodeError as error:
            raise ThreefoldError(
                f"the text has no UTF-8 form: character {error.start} is "
                f"{text[error.start]!r}, half of a surrogate pair"
            ) from error

    def decode(self, tokens: Iterable[int]) -> str:
        """The text; bytes that are no UTF-8 (a character cut at an end) become U+FFFD."""
        return _as_bytes(tokens).decode("utf-8", "replace")

    def stream(self, tokens: Iterable[int]) -> Iterator[str]:
        """The text of each token as it comes; a character is held until its bytes are whole."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in tokens:
            yield decoder.decode(_as_bytes([token]))
        yield decoder.decode(b"", final=True)


def _as_bytes(tokens: Iterable[int]) -> bytes:
    values = [int(token) for token in tokens]
    wrong = next((value for value in values if not 0 <= value < 256), None)
    if wrong is not None:
        raise ThreefoldError(f"token {wrong} is no byte; expected 0 to 255")
    return bytes(values)
