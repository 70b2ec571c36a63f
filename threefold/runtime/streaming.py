"""for scores in stream(model, source): an endless input in constant memory, scored as it comes.

Elements are read in pieces [kP, (k+1)P) of positions, each in the chunk form with the state of the
one before: the scores are those of single steps within rounding, and a stream that stopped between
two pieces goes on to the same bits as one that never did.  What stops at the end of its input and
goes on when there is more takes that end as an end: its last piece is a short one, and words and
byte pairs do not merge across it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from threefold.data.stream_encoders import Elements, RowEncoder, encoder_for
from threefold.errors import ThreefoldError
from threefold.memory.forms import CHUNK
from threefold.runtime.sampling import whole
from threefold.runtime.scores.grouping import Columns, Groups
from threefold.runtime.scores.scorers import make_scorer
from threefold.runtime.session import Session, streaming
from threefold.runtime.source import Given, Source, SourcePosition, Wait
from threefold.runtime.state_files import read_state

NOTE = "stream"
MOST = 2048  # elements of a piece
NUMBERS = 1 << 22  # of the answers to a piece
BEGINNINGS = {"what": "likelihood", "every": 1, "top": 1, "window": None, "columns": None}


@dataclass(frozen=True)
class StreamSettings:
    """What is said of which elements; a stream goes on with those that it began with."""

    what: str
    piece: int  # elements that are computed together
    every: int  # elements that one row of the output stands for
    top: int  # tokens or classes that `predict` names
    window: int | None  # elements over which surprises are averaged
    columns: tuple[str, ...] | None  # of a table

    def __post_init__(self) -> None:
        for name in ("piece", "every", "top", "window"):
            value = getattr(self, name)
            if not (name == "window" and value is None) and (not whole(value) or value < 1):
                raise ThreefoldError(f"stream: {name} is {value!r}, expected 1 or more")


@dataclass(frozen=True)
class StreamScores:
    """What is said of a piece, by column; a number that there is not (yet) is NaN."""

    columns: Columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict for each row; None for numbers that there are not."""
        for values in zip(*self.columns.values(), strict=True):
            named = zip(self.columns, values, strict=True)
            yield {name: _plain(value) for name, value in named}


class ScoreStream(Iterator[StreamScores]):
    """A model on its way through an input."""

    def __init__(self, session: Session, source: Source, settings: StreamSettings) -> None:
        self.session, self.source, self.settings = session, source, settings
        model, tokenizer = session.model, session.model.tokenizer
        self.parts: Sequence[bytes] | None = None if model.input_size else tokenizer.parts
        self.scorer = make_scorer(
            model,
            settings.what,
            texts=self.texts,
            top=settings.top,
            window=settings.window,
        )
        self.groups = None if settings.every == 1 else Groups(settings.every, self.scorer.reduces)
        self.bytes = 0  # that the tokens so far stand for
        self.unscored = 0  # of these, of the first token, before which nothing is expected
        self.ended = False

    @cached_property
    def texts(self) -> list[str] | None:
        """Each token as text; a part of a character is U+FFFD."""
        return None if self.parts is None else [p.decode("utf-8", "replace") for p in self.parts]

    @cached_property
    def sizes(self) -> Elements:
        """Bytes of each token."""
        return np.array([len(part) for part in self.parts or ()], dtype=np.int64)

    def __next__(self) -> StreamScores:
        if self.ended:
            raise StopIteration
        start = self.session.position
        wanted = self.settings.piece - start % self.settings.piece
        count = self.source.load(wanted)
        self.ended = count < wanted
        columns = self._score(self.source.take(count)) if count else {}
        if self.groups is not None:
            done = self.groups.add(columns) if columns else {}
            rest = self.groups.finish() if self.ended else {}
            columns = _joined(done, rest)
        if not columns and self.ended:
            raise StopIteration
        return StreamScores(columns)

    def save(self, path: str | PathLike[str], **notes: Any) -> None:
        """Write everything that is needed to go on; between two pieces, never within one."""
        place = asdict(self.source.place())
        rest = torch.from_numpy(np.frombuffer(place.pop("rest"), dtype=np.uint8).copy())
        noted = {
            "settings": asdict(self.settings),
            "place": place,
            "encoder": self.source.encoder.settings(),
            "bytes": self.bytes,
            "unscored": self.unscored,
            "carried": self.scorer.carried(),
            "open": None if self.groups is None else [self.groups.number, self.groups.open],
            **notes,
        }
        self.session.save(path, notes={NOTE: noted}, beside={"rest": rest})

    def go_on(self, noted: dict[str, Any], rest: Tensor) -> None:
        """Stand where a saved stream stood; the session does already."""
        self.source.encoder.restore(noted["encoder"])
        self.source.go_on(SourcePosition(**noted["place"], rest=rest.numpy().tobytes()))
        self.bytes, self.unscored = noted["bytes"], noted["unscored"]
        self.scorer.carry(noted["carried"])
        if self.groups is not None:
            self.groups.number, self.groups.open = noted["open"]

    def _score(self, elements: Elements) -> Columns:
        start, before = self.session.position, self.session.last
        model = self.session.model
        dtype = model.embedding.weight.dtype if model.input_size else torch.int64
        inputs = torch.from_numpy(elements.astype(np.float64 if model.input_size else np.int64))
        inputs = inputs.to(model.device, dtype)
        answers = self.session.read(inputs)
        scored = self.scorer.columns(inputs, before, answers)
        columns: Columns = {"position": range(start, start + len(elements))}
        if self.texts is not None:
            tokens = elements.tolist()
            ends = self.bytes + np.cumsum(self.sizes[elements])
            columns["byte"] = (ends - self.sizes[elements]).tolist()
            columns["token"] = tokens
            columns["text"] = [self.texts[token] for token in tokens]
            self.bytes = int(ends[-1])
            if start == 0:
                self.unscored = int(self.sizes[elements[0]])
        return {**columns, **scored}


def stream(
    model: Any,
    source: Given,
    *,
    what: str | None = None,
    every: int | None = None,
    top: int | None = None,
    window: int | None = None,
    columns: Sequence[str] | None = None,
    piece: int | None = None,
    state: str | PathLike[str] | None = None,
    wait: Wait | None = None,
) -> ScoreStream:
    """Scores of an input of any length, a piece at a time, in constant memory.

    source: a path, a binary file, bytes, or an iterable of bytes or texts: text for a model of
    tokens (through its tokenizer), a table of numbers, one element a line, for one of vectors.
    what: likelihood, predict or anomaly (threefold/runtime/scores/scorers.py says what they mean).
    every: elements that one row stands for.  top: tokens or classes that predict names.
    window: elements over which surprises are averaged; all unless given.  columns: of a table.
    piece: elements that are computed together; 1 answers each at once, more are faster.
    state: a file that `Stream.save` wrote, to go on from; what is not given is as it was then.
    """
    model = streaming(model)
    listed = None if columns is None else tuple(columns)
    asked = {"what": what, "every": every, "top": top, "window": window, "columns": listed}
    asked["piece"] = piece
    if state is None:
        settings = StreamSettings(**{**BEGINNINGS, "piece": plan_piece(model), **_given(asked)})
        reader = Source(source, _encoder(model, settings), wait)
        return ScoreStream(Session(model, seed=0), reader, settings)
    found = read_state(state)
    noted = found.notes.get(NOTE)
    if noted is None:
        raise ThreefoldError(
            f"{state}: a state, but not of a stream, so it does not say where the input stood; "
            "expected a file that a stream saved"
        )
    session = Session.restored(state, found, model)
    settings = _settings(noted["settings"], asked, state)
    made = ScoreStream(session, Source(source, _encoder(model, settings), wait), settings)
    made.go_on(noted, found.beside["rest"])
    return made


def plan_piece(model: Any) -> int:
    """Elements of a piece: many, as long as their answers take little memory."""
    numbers: int = model.spec.vocabulary
    if model.input_size:
        head = model.head[-1] if hasattr(model.head, "__getitem__") else model.head
        numbers = head.out_features
    return max(CHUNK, min(MOST, NUMBERS // numbers) // CHUNK * CHUNK)


def _encoder(model: Any, settings: StreamSettings) -> Any:
    if model.input_size:
        return RowEncoder(model.input_size, settings.columns)
    if settings.columns is not None:
        raise ThreefoldError("stream: columns are of tables, and this model reads text")
    if model.tokenizer is None:
        raise ThreefoldError(
            f"this {model.kind} model reads tokens and was saved without a tokenizer, so a text "
            "means nothing to it; set model.tokenizer and save it again"
        )
    return encoder_for(model.tokenizer)


def _given(asked: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if value is not None}


def _settings(noted: dict[str, Any], asked: dict[str, Any], path: Any) -> StreamSettings:
    """The settings of a saved stream; others are refused."""
    listed = noted["columns"]
    then = StreamSettings(**{**noted, "columns": None if listed is None else tuple(listed)})
    for name, value in _given(asked).items():
        if value != getattr(then, name):
            raise ThreefoldError(
                f"{path}: the stream was begun with {name} {getattr(then, name)!r}, and now it is "
                f"{value!r}; leave it out, or begin anew with another state file"
            )
    return then


def _joined(one: Columns, two: Columns) -> Columns:
    if not one or not two:
        return one or two
    return {name: [*one[name], *two[name]] for name in one}


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
