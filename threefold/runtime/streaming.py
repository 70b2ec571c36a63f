"""for scores in stream(model, source): score an input of any length in constant memory.

Elements are read in chunks [kC, (k+1)C) of positions, each in the chunk form with the state of the
one before: the scores equal those of single steps within rounding, and a stream that was stopped
between two chunks continues to the same bits as one that never stopped.  A stream that reached the
end of its input and resumes when there is more treats that end as a border: its last chunk is a
short one, and words and byte pairs do not merge across it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from threefold.data.stream_encoders import Elements, RowEncoder, encoder_for
from threefold.errors import ThreefoldError
from threefold.memory.forms import CHUNK_LENGTH
from threefold.runtime.array_source import ArrayEncoder, array_bytes, is_array
from threefold.runtime.sampling import is_integer
from threefold.runtime.scores.grouping import Columns, Groups
from threefold.runtime.scores.scorers import make_scorer
from threefold.runtime.session import Session, check_streams
from threefold.runtime.source import Input, Source, SourcePosition, Wait
from threefold.runtime.state_files import StateFile, read_state

NOTE = "stream"  # key of the notes in a state file
LARGEST_CHUNK = 2048  # elements
CHUNK_OUTPUTS = 1 << 22  # numbers in the outputs of a chunk, at most
DEFAULTS = {"mode": "likelihood", "group_size": 1, "top_k": 1, "window": None, "columns": None}


@dataclass(frozen=True)
class StreamSettings:
    """What a stream computes; a resumed stream keeps the settings that it was started with."""

    mode: str  # likelihood, predict or anomaly
    chunk_size: int  # elements computed together
    group_size: int  # elements per row of the output
    top_k: int  # tokens or classes listed by `predict`
    window: int | None  # elements over which surprises are averaged
    columns: tuple[str, ...] | None  # of a table

    def __post_init__(self) -> None:
        for name in ("chunk_size", "group_size", "top_k", "window"):
            value = getattr(self, name)
            if not (name == "window" and value is None) and (not is_integer(value) or value < 1):
                raise ThreefoldError(f"stream: {name} is {value!r}, expected 1 or more")


@dataclass(frozen=True)
class StreamScores:
    """The scores of a chunk, by column; a missing number is NaN."""

    columns: Columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Iterate over the rows as dicts; a missing number is None."""
        for values in zip(*self.columns.values(), strict=True):
            named = zip(self.columns, values, strict=True)
            yield {name: _none_if_not_finite(value) for name, value in named}


class ScoreStream(Iterator[StreamScores]):
    """An iterator over the scores of an input, chunk by chunk."""

    def __init__(self, session: Session, source: Source, settings: StreamSettings) -> None:
        self.session, self.source, self.settings = session, source, settings
        model, tokenizer = session.model, session.model.tokenizer
        has_text = not model.input_size and tokenizer is not None
        self.token_bytes: Sequence[bytes] | None = tokenizer.parts if has_text else None
        self.scorer = make_scorer(
            model,
            settings.mode,
            token_texts=self.token_texts,
            top_k=settings.top_k,
            window=settings.window,
        )
        size = settings.group_size
        self.groups = None if size == 1 else Groups(size, self.scorer.reduction)
        self.bytes = 0  # of the text so far
        self.unscored_bytes = 0  # of the first token, before which there is no prediction
        self.ended = False

    @cached_property
    def token_texts(self) -> list[str] | None:
        """Each token as text; a part of a character is U+FFFD."""
        if self.token_bytes is None:
            return None
        return [data.decode("utf-8", "replace") for data in self.token_bytes]

    @cached_property
    def token_sizes(self) -> Elements:
        """Length of each token in bytes."""
        return np.array([len(data) for data in self.token_bytes or ()], dtype=np.int64)

    def __next__(self) -> StreamScores:
        if self.ended:
            raise StopIteration
        size = self.settings.chunk_size
        missing = size - self.session.position % size
        count = self.source.load(missing)
        self.ended = count < missing
        columns = self._score(self.source.take(count)) if count else {}
        if self.groups is not None:
            complete = self.groups.add(columns) if columns else {}
            rest = self.groups.finish() if self.ended else {}
            columns = _concatenate(complete, rest)
        if not columns and self.ended:
            raise StopIteration
        return StreamScores(columns)

    def save(self, path: str | PathLike[str], **notes: Any) -> None:
        """Write everything needed to resume to a state file; call it between two chunks."""
        position = asdict(self.source.position())
        unread = np.frombuffer(position.pop("unread"), dtype=np.uint8).copy()
        groups = self.groups
        note = {
            "settings": asdict(self.settings),
            "input_position": position,
            "encoder": self.source.encoder.settings(),
            "bytes": self.bytes,
            "unscored_bytes": self.unscored_bytes,
            "scorer": self.scorer.state(),
            "open_group": None if groups is None else [groups.number, groups.open_row],
            **notes,
        }
        tensors = {"unread": torch.from_numpy(unread)}
        self.session.save(path, notes={NOTE: note}, extra_tensors=tensors)

    def restore(self, note: Mapping[str, Any], unread: Tensor) -> None:
        """Continue where a saved stream stopped; the session has been restored already."""
        self.source.encoder.restore(note["encoder"])
        unread_bytes = unread.numpy().tobytes()
        self.source.restore(SourcePosition(**note["input_position"], unread=unread_bytes))
        self.bytes, self.unscored_bytes = note["bytes"], note["unscored_bytes"]
        self.scorer.restore(note["scorer"])
        if self.groups is not None:
            self.groups.number, self.groups.open_row = note["open_group"]

    def _score(self, elements: Elements) -> Columns:
        start, before = self.session.position, self.session.last_output
        model = self.session.model
        dtype = model.dtype if model.input_size else torch.int64
        inputs = torch.from_numpy(elements.astype(np.float64 if model.input_size else np.int64))
        inputs = inputs.to(model.device, dtype)
        outputs = self.session.read(inputs)
        scores = self.scorer.columns(inputs, before, outputs)
        positions: Columns = {"position": range(start, start + len(elements))}
        tokens = {} if self.token_texts is None else self._token_columns(elements, start)
        return {**positions, **tokens, **scores}

    def _token_columns(self, tokens: Elements, start: int) -> Columns:
        texts, sizes = self.token_texts or [], self.token_sizes[tokens]
        ends = self.bytes + np.cumsum(sizes)
        self.bytes = int(ends[-1])
        if start == 0:
            self.unscored_bytes = int(sizes[0])
        ids = tokens.tolist()
        return {
            "byte": (ends - sizes).tolist(),
            "token": ids,
            "text": [texts[token] for token in ids],
        }


def stream(
    model: Any,
    source: Input,
    *,
    mode: str | None = None,
    group_size: int | None = None,
    top_k: int | None = None,
    window: int | None = None,
    columns: Sequence[str] | None = None,
    chunk_size: int | None = None,
    state: str | PathLike[str] | None = None,
    wait: Wait | None = None,
) -> ScoreStream:
    """Score an input of any length, a chunk at a time, in constant memory.

    source: a path, a binary file, bytes, or an iterable of bytes or strings: text for a model of
    tokens (encoded by its tokenizer), or a table of numbers with one element per line.  Lists,
    numpy arrays and tensors hold the elements themselves: tokens [length], or numbers [length, n].
    mode: likelihood (default), predict or anomaly; see threefold/runtime/scores/scorers.py.
    group_size: elements per output row, default 1.  top_k: tokens or classes listed by predict.
    window: elements over which surprises are averaged, default all.  columns: of a table.
    chunk_size: elements computed together; 1 answers each at once, larger chunks are faster.
    state: resume from a file written by `ScoreStream.save`, with the settings saved there.
    """
    requested = {
        "mode": mode,
        "group_size": group_size,
        "top_k": top_k,
        "window": window,
        "columns": columns,
        "chunk_size": chunk_size,
    }
    if state is None:
        return start_stream(model, source, requested, wait)
    return resume_stream(model, source, requested, state, read_state(state), wait)


def start_stream(
    model: Any, source: Input, requested: Mapping[str, Any], wait: Wait | None = None
) -> ScoreStream:
    """Start a stream at the beginning of its input; requested: settings, None for the default."""
    model = check_streams(model)
    chosen = {"chunk_size": plan_chunk_size(model), **_without_none(requested)}
    settings = StreamSettings(**{**DEFAULTS, **chosen})
    reader = _open_source(model, source, settings, wait)
    return ScoreStream(Session(model, seed=0), reader, settings)


def resume_stream(
    model: Any,
    source: Input,
    requested: Mapping[str, Any],
    path: str | PathLike[str],
    state_file: StateFile,
    wait: Wait | None = None,
) -> ScoreStream:
    """Resume a stream from a state file that has already been read."""
    model = check_streams(model)
    note = state_file.notes.get(NOTE)
    if note is None:
        raise ThreefoldError(
            f"{path}: this state was not saved by a stream, so it does not contain the position in "
            "the input; expected a file that a stream saved"
        )
    session = Session.from_state_file(path, state_file, model)
    settings = _saved_settings(note["settings"], requested, path)
    reader = _open_source(model, source, settings, wait)
    resumed = ScoreStream(session, reader, settings)
    resumed.restore(note, state_file.extra_tensors["unread"])
    return resumed


def plan_chunk_size(model: Any) -> int:
    """Choose the number of elements per chunk: large, while their outputs take little memory."""
    outputs: int = model.spec.vocabulary  # numbers per element
    if model.input_size:
        head = model.head[-1] if hasattr(model.head, "__getitem__") else model.head
        outputs = head.out_features
    return max(
        CHUNK_LENGTH, min(LARGEST_CHUNK, CHUNK_OUTPUTS // outputs) // CHUNK_LENGTH * CHUNK_LENGTH
    )


def _open_source(model: Any, source: Input, settings: StreamSettings, wait: Wait | None) -> Source:
    if not is_array(source):
        return Source(source, _encoder(model, settings), wait)
    if settings.columns is not None:
        raise ThreefoldError("stream: columns can only be chosen in a table; this is an array")
    size = model.input_size
    parts = getattr(model.tokenizer, "parts", range(model.spec.vocabulary))
    data = array_bytes(source, size, min(len(parts), model.spec.vocabulary))
    return Source(data, ArrayEncoder(size), wait)


def _encoder(model: Any, settings: StreamSettings) -> Any:
    if model.input_size:
        return RowEncoder(model.input_size, settings.columns)
    if settings.columns is not None:
        raise ThreefoldError("stream: columns can only be chosen in a table; this model reads text")
    if model.tokenizer is None:
        raise ThreefoldError(
            f"this {model.kind} model reads tokens, but was saved without a tokenizer, so it "
            "cannot read text; set model.tokenizer and save it again"
        )
    return encoder_for(model.tokenizer)


def _without_none(requested: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in requested.items() if value is not None}
    return {name: tuple(v) if name == "columns" else v for name, v in values.items()}


def _saved_settings(
    saved: Mapping[str, Any], requested: Mapping[str, Any], path: Any
) -> StreamSettings:
    """Return the settings of a saved stream; refuse a request for others."""
    columns = saved["columns"]
    settings = StreamSettings(**{**saved, "columns": None if columns is None else tuple(columns)})
    for name, value in _without_none(requested).items():
        before = getattr(settings, name)
        if value != before:
            raise ThreefoldError(
                f"{path}: the stream was started with {name} {before!r}, but now {name} is "
                f"{value!r}; leave it out, or start again with another state file"
            )
    return settings


def _concatenate(first: Columns, second: Columns) -> Columns:
    if not first or not second:
        return first or second
    return {name: [*first[name], *second[name]] for name in first}


def _none_if_not_finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
