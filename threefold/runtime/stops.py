"""Stops: where generated text ends, by sequences of tokens or by texts.

A text may end inside a token, and the same text can be tokenized in many ways, so texts are
compared as bytes; the token that completes a stop is the last one of its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from threefold.data.tokenizers import Tokenizer
from threefold.errors import ThreefoldError
from threefold.models.model import Model
from threefold.runtime.sampling import is_integer

Stop: TypeAlias = "int | str | Sequence[int | str | Sequence[int]]"

LONGEST_STOP = 256  # tokens in a stop sequence, and bytes in a stop text


@dataclass(frozen=True)
class Stops:
    """The token sequences and the texts after which a row ends."""

    sequences: tuple[tuple[int, ...], ...] = ()
    texts: tuple[bytes, ...] = ()
    tokenizer: Any = None  # of the texts

    def __bool__(self) -> bool:
        return bool(self.sequences or self.texts)

    def end(self, tokens: Sequence[int]) -> bool:
        """Whether the last of these tokens completes a stop."""
        if any(tuple(tokens[-len(stop) :]) == stop for stop in self.sequences):
            return True
        return any(self._completes(tokens, text) for text in self.texts)

    def endings(self, vocabulary: int) -> NDArray[np.uint8]:
        """Marks [vocabulary] of the tokens that may complete a stop."""
        marks = np.zeros(vocabulary, dtype=np.uint8)
        marks[[stop[-1] for stop in self.sequences]] = 1
        last_bytes = {text[-1:] for text in self.texts}
        if last_bytes:
            for token in range(vocabulary):
                part = self.tokenizer.decode_bytes([token])
                marks[token] |= any(byte in part for byte in last_bytes)
        return marks

    def count_endings(self) -> int:
        """How many different tokens may complete a stop, at most."""
        last_bytes = {text[-1:] for text in self.texts}
        parts = self.tokenizer.parts if last_bytes else ()
        endings = sum(any(byte in part for byte in last_bytes) for part in parts)
        return len({stop[-1] for stop in self.sequences}) + endings

    def _completes(self, tokens: Sequence[int], text: bytes) -> bool:
        newest = len(self.tokenizer.decode_bytes(tokens[-1:]))
        recent = self.tokenizer.decode_bytes(tokens[-len(text) :])
        return newest > 0 and text in recent[-(len(text) + newest - 1) :]


def parse_stops(stop: Any, model: Model) -> Stops:
    """Return the stops of an argument: tokens, texts, sequences of tokens, or a list of them."""
    items = [stop] if is_integer(stop) or isinstance(stop, str) else stop
    try:
        texts = tuple(_text_stop(item, model) for item in items if isinstance(item, str))
        others = [item for item in items if not isinstance(item, str)]
        sequences = tuple((item,) if is_integer(item) else tuple(item) for item in others)
    except TypeError:
        texts, sequences = (), ((),)
    for sequence in sequences:
        _check_sequence(sequence, stop, model.spec.vocabulary)
    return Stops(sequences, texts, model.tokenizer)


def _text_stop(text: str, model: Model) -> bytes:
    if not isinstance(model.tokenizer, Tokenizer):
        has = "no tokenizer" if model.tokenizer is None else f"a {type(model.tokenizer).__name__}"
        raise ThreefoldError(
            f"generate: the stop {text!r} is a text, but the model has {has}; set model.tokenizer "
            "to one of threefold.data, or give the tokens of the text"
        )
    data = text.encode("utf-8", "surrogateescape")
    if not 1 <= len(data) <= LONGEST_STOP:
        size = "empty" if not data else f"{len(data)} bytes long"
        raise ThreefoldError(
            f"a stop text is {size}; expected at least one character and at most {LONGEST_STOP} "
            "bytes"
        )
    return data


def _check_sequence(sequence: tuple[Any, ...], stop: Any, vocabulary: int) -> None:
    valid = all(is_integer(token) and 0 <= token < vocabulary for token in sequence)
    if not valid or not 1 <= len(sequence) <= LONGEST_STOP:
        raise ThreefoldError(
            f"generate: stop is {stop!r}, expected texts, tokens from 0 to {vocabulary - 1}, or "
            f"sequences of 1 to {LONGEST_STOP} of them"
        )
