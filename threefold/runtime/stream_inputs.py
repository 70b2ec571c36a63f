"""From the elements of a stream to the inputs of a model, with the model's own preprocessing.

    text      tokens of one long text              columns  byte, token, text
    words     words, sentence by sentence          columns  word
    sentence  whole sentences of one document      columns  text
    sound     samples at the rate of training      columns  seconds
    rows      numbers of a table, by name          columns  series, time, missing

A reader keeps what preprocessing carries from element to element; rows are in `stream_rows.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.data.padding import pad_rows
from threefold.data.stream_encoders import Elements
from threefold.runtime.scores.grouping import Columns

Array = NDArray[Any]
Tallies = dict[str, dict[str, int]]  # counts by what was counted, and by column
NO_TOKEN = -1  # behind the end of a sentence


class SeriesRows(NamedTuple):
    """Elements of one series in a chunk."""

    series: str
    rows: Sequence[int]  # of the chunk
    starts: bool = False  # a new sequence begins


class Prepared(NamedTuple):
    """Inputs of the model, what a scorer compares with forecasts, and columns of the output."""

    inputs: Tensor  # tokens [L] or numbers [L, size]
    values: Tensor  # the inputs before missing numbers were filled; NaN where they are missing
    columns: Columns
    order: Sequence[int]  # row of the chunk, of each element


class StreamReader(ABC):
    """Prepares elements for a model; `single`: all elements are one sequence."""

    single = True

    def __init__(self, model: Any) -> None:
        self.model = model
        self.told_before: Tallies = {}  # of the inputs before this one, which the state continues

    def segments(self, elements: Elements) -> Iterator[SeriesRows]:
        """The elements by series, in order."""
        yield SeriesRows("", range(len(elements)))

    @abstractmethod
    def prepare(self, elements: Elements, segment: SeriesRows, position: int) -> Prepared | None:
        """Prepare a segment; position: elements of the stream before this chunk."""

    def state(self) -> dict[str, Any]:
        """What is carried to the next chunk, as JSON."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue with the result of `state`."""
        assert not state  # readers that have a state override both methods

    def tallies(self) -> Tallies:
        """What was counted since the stream began."""
        return {}

    def summary(self) -> dict[str, Any]:
        """What is to be told of this input at the end, as JSON."""
        return {}

    def _numbers(self, values: Array) -> Tensor:
        dtype = self.model.embedding.weight.dtype
        return torch.from_numpy(np.array(values)).to(self.model.device, dtype)


class TokenReader(StreamReader):
    """Tokens of a text; texts: of each token, None without a tokenizer."""

    def __init__(self, model: Any, token_bytes: Sequence[bytes] | None) -> None:
        super().__init__(model)
        self.token_bytes = token_bytes
        self.texts = None
        self.bytes = 0  # of the text so far
        self.unscored_bytes = 0  # of the first token, before which there is no prediction
        if token_bytes is not None:
            self.texts = [data.decode("utf-8", "replace") for data in token_bytes]
            self.sizes = np.array([len(data) for data in token_bytes], dtype=np.int64)

    def prepare(self, elements: Elements, segment: SeriesRows, position: int) -> Prepared:
        inputs = torch.from_numpy(elements.astype(np.int64)).to(self.model.device)
        columns = {} if self.texts is None else self._columns(elements, position)
        return Prepared(inputs, inputs, columns, segment.rows)

    def _columns(self, tokens: Elements, position: int) -> Columns:
        texts, sizes = self.texts or [], self.sizes[tokens]
        ends = self.bytes + np.cumsum(sizes)
        self.bytes = int(ends[-1])
        if position == 0:
            self.unscored_bytes = int(sizes[0])
        ids = tokens.tolist()
        return {
            "byte": (ends - sizes).tolist(),
            "token": ids,
            "text": [texts[token] for token in ids],
        }

    def state(self) -> dict[str, Any]:
        return {"bytes": self.bytes, "unscored_bytes": self.unscored_bytes}

    def restore(self, state: dict[str, Any]) -> None:
        self.bytes, self.unscored_bytes = state["bytes"], state["unscored_bytes"]


class WordReader(StreamReader):
    """Words of sentences; every sentence is a sequence of its own."""

    single = False

    def segments(self, elements: Elements) -> Iterator[SeriesRows]:
        starts = [0, *(row for row in np.flatnonzero(elements["starts"]).tolist() if row)]
        for first, end in zip(starts, [*starts[1:], len(elements)], strict=True):
            yield SeriesRows("", range(first, end), bool(elements["starts"][first]))

    def prepare(self, elements: Elements, segment: SeriesRows, position: int) -> Prepared:
        chosen = elements[list(segment.rows)]
        inputs = torch.from_numpy(chosen["token"].copy()).to(self.model.device)
        return Prepared(inputs, inputs, {"word": chosen["word"].tolist()}, segment.rows)


class SentenceReader(StreamReader):
    """Sentences of a document, as rows of tokens that are filled up with −1."""

    def prepare(self, elements: Elements, segment: SeriesRows, position: int) -> Prepared:
        table, _ = pad_rows(list(elements["tokens"]), NO_TOKEN)
        inputs = torch.from_numpy(table).to(self.model.device)
        return Prepared(inputs, inputs, {"text": elements["text"].tolist()}, segment.rows)


class SoundReader(StreamReader):
    """Samples or frames of a sound, `rate` of them per second."""

    def __init__(self, model: Any, rate: float) -> None:
        super().__init__(model)
        self.rate = rate

    def prepare(self, elements: Elements, segment: SeriesRows, position: int) -> Prepared:
        inputs = self._numbers(elements)
        seconds = ((position + np.arange(len(elements))) / self.rate).tolist()
        return Prepared(inputs, inputs, {"seconds": seconds}, segment.rows)
