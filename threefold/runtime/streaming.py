"""for scores in stream(model, source): score an input of any length in constant memory.

Elements are read in chunks [kC, (k+1)C) of positions, each in the chunk form with the state of the
one before: the scores equal those of single steps within rounding.  A stream that was stopped, or
whose input ended and grew, continues to the same bits as one that never stopped: the state is that
of the last complete chunk, and what came after it is read again with what follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from threefold.data.stream_encoders import Elements
from threefold.errors import ThreefoldError, option_name
from threefold.models.alarm_calibration import AlarmCalibration
from threefold.models.forecaster import Forecaster
from threefold.runtime.alarm_calibrating import (
    fit_calibration,
    keep_calibration,
    known_judge,
    saved_judge,
)
from threefold.runtime.scores.alarms import (
    AlarmJudge,
    AlarmLog,
    CollectingJudge,
    Judge,
    WindowScorer,
)
from threefold.runtime.scores.grouping import Columns, Groups, concatenate, in_order
from threefold.runtime.scores.scorers import ResidualScorer, Scorer, make_scorer
from threefold.runtime.session import check_streams
from threefold.runtime.source import Input, SourcePosition, Wait
from threefold.runtime.state_files import StateFile, read_state, save_state, state_for_model
from threefold.runtime.stream_inputs import Prepared, TokenReader
from threefold.runtime.stream_past import CarriedPast, Part, Past, SentencePast, WindowedPast
from threefold.runtime.stream_rows import RowReader
from threefold.runtime.stream_settings import (
    ALL,
    StreamSettings,
    choose_settings,
    saved_settings,
)
from threefold.runtime.stream_sources import StreamInput, open_input

NOTE = "stream"  # key of the notes in a state file
NOTE_FORMAT = 1  # of what these notes contain


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

    def after(self, count: int) -> StreamScores:
        """The scores without the first rows."""
        return StreamScores({name: values[count:] for name, values in self.columns.items()})


@dataclass(frozen=True)
class StreamSnapshot:
    """Everything that a stream needs to continue, as JSON values and tensors."""

    state: Any
    positions: list[int]
    note: dict[str, Any]
    tensors: dict[str, Tensor]


class ScoreStream(Iterator[StreamScores]):
    """An iterator over the scores of an input, chunk by chunk."""

    def __init__(
        self,
        model: Any,
        opened: StreamInput,
        settings: StreamSettings,
        judge: Judge | None = None,
    ) -> None:
        self.model, self.settings, self.judge = model, settings, judge
        self.alarms = AlarmLog(judge) if isinstance(judge, AlarmJudge) else None
        self.source, self.reader = opened
        self.past = _make_past(model, opened, settings)
        self.scorers: dict[str, Scorer] = {}
        scorer = self._scorer("")  # refuses a mode that the model does not have
        if isinstance(self.reader, RowReader) and settings.mode == "predict":
            self.reader.horizon = getattr(model, "horizon", 0)
        size = settings.group_size
        if size > 1 and isinstance(self.reader, RowReader) and self.reader.named_series:
            raise ThreefoldError(
                "stream: rows of several series cannot be grouped; group_size is 1"
            )
        self.groups = None if size == 1 else Groups(size, scorer.reduction)
        self.taken = 0  # elements of the source
        self.position = 0  # elements answered
        self.skip = 0  # rows of the output that were written before the stream was resumed
        self.ended = False
        self._boundary: StreamSnapshot | None = (
            None  # after the last complete chunk, once it has ended
        )
        self._repeated = 0  # rows of the output after that chunk

    def __next__(self) -> StreamScores:
        if self.ended:
            raise StopIteration
        size = self.settings.chunk_size
        missing = size - self.taken % size
        count = self.source.load(missing)
        if count < missing:
            self._boundary, self.ended = self._snapshot(all_used=True), True
        columns = self._score(self.source.take(count)) if count else {}
        self.taken += count
        scores = StreamScores(self._grouped(columns))
        if self.ended and not len(scores):
            raise StopIteration
        skipped = min(self.skip, len(scores))
        self.skip -= skipped
        return scores.after(skipped) if skipped else scores

    def save(self, path: str | PathLike[str], **notes: Any) -> None:
        """Write everything needed to resume to a state file; call it between two chunks."""
        snapshot = self._boundary or self._snapshot()
        note = {
            "format": NOTE_FORMAT,
            **snapshot.note,
            "answered": self.position,
            "repeated": self._repeated,
            "tallies": self.reader.tallies(),
            **notes,
        }
        save_state(
            path,
            snapshot.state,
            self.model,
            position=snapshot.positions,
            notes={NOTE: note},
            extra_tensors=snapshot.tensors,
        )

    def _snapshot(self, all_used: bool = False) -> StreamSnapshot:
        position = asdict(self.source.position(all_used))
        unread = np.frombuffer(position.pop("unread"), dtype=np.uint8).copy()
        state, positions, past, tensors = self.past.snapshot()
        groups = self.groups
        note = {
            "settings": asdict(self.settings),
            "input_position": position,
            "reader": self.reader.state(),
            "past": past,
            "taken": self.taken,
            "position": self.position,
            "scorers": {name: scorer.state() for name, scorer in self.scorers.items()},
            "open_group": None if groups is None else [groups.number, groups.open_row],
            "one_session": self._is_one_session,
        }
        tensors["unread"] = torch.from_numpy(unread)
        if self.alarms is not None:
            note["alarms"] = self.alarms.state()
            keep_calibration(self.alarms.judge.calibration, note, tensors)
        return StreamSnapshot(state, positions, note, tensors)

    def restore(self, path: Any, state_file: StateFile, continue_with: str | None = None) -> None:
        """Continue where a saved stream stopped."""
        note, tensors = state_file.notes[NOTE], state_file.extra_tensors
        state = state_for_model(path, state_file, self.model)
        self.past.restore(state, state_file.position or [], note["past"], tensors)
        unread = tensors["unread"].numpy().tobytes()
        position = SourcePosition(**note["input_position"], unread=unread)
        self.reader.restore(note["reader"])  # first: it knows how the source writes times
        if self.source.restore(position, continue_with):
            self.reader.told_before = note["tallies"]
        self.taken, self.position = note["taken"], note["position"]
        self.skip = note["repeated"]
        for name, values in note["scorers"].items():
            self._scorer(name).restore(values)
        if self.groups is not None:
            self.groups.number, self.groups.open_row = note["open_group"]
        if self.alarms is not None:
            self.alarms.restore(note["alarms"])

    @property
    def _is_one_session(self) -> bool:
        return isinstance(self.past, CarriedPast) and self.past.single

    def _scorer(self, series: str) -> Scorer:
        """The scorer of a series."""
        if series not in self.scorers:
            reader, settings = self.reader, self.settings
            scorer = make_scorer(
                self.model,
                settings.mode,
                token_texts=reader.texts if isinstance(reader, TokenReader) else None,
                top_k=settings.top_k,
                series=series,
            )
            if isinstance(scorer, ResidualScorer) and isinstance(self.past, WindowedPast):
                scorer.look_twice(self.past.context)
            if settings.window is not None or self.judge is not None:
                scorer = WindowScorer(scorer, settings.window, self.judge)
            self.scorers[series] = scorer
        return self.scorers[series]

    def _score(self, elements: Elements) -> Columns:
        prepared = self._prepare(elements)
        parts = [part for part, _ in prepared]
        if self._boundary is not None and self._is_one_session and parts:
            self._boundary.tensors["pending"] = parts[0].inputs
        outputs = self.past.read(parts, complete=not self.ended)
        columns: list[Columns] = []
        for part, ready in prepared:
            before = None if part.starts else self.past.last_output(part.series)
            scorer = self._scorer(part.series)
            scorer.see(part.inputs)
            scores = scorer.columns(ready.values, before, next(outputs))
            columns.append({**ready.columns, **scores})
        merged = in_order(columns, [part.order for part in parts])
        start, count = self.position, sum(len(part.inputs) for part in parts)
        self.position += count
        columns_of_all = {"position": range(start, start + count), **merged} if count else {}
        if self.alarms is not None and count:
            self.alarms.add(columns_of_all)
        return columns_of_all

    def _prepare(self, elements: Elements) -> list[tuple[Part, Prepared]]:
        """The inputs of the model, by series; elements are numbered as they will be written."""
        ready = []
        for segment in self.reader.segments(elements):
            prepared = self.reader.prepare(elements, segment, self.position)
            if prepared is not None:
                ready.append((segment, prepared))
        places = [(row, i) for i, (_, p) in enumerate(ready) for row in p.order]
        order: list[list[int]] = [[] for _ in ready]
        for number, (_, part) in enumerate(sorted(places, key=lambda place: place[0])):
            order[part].append(number)
        return [
            (Part(segment.series, prepared.inputs, numbers, segment.starts), prepared)
            for (segment, prepared), numbers in zip(ready, order, strict=True)
        ]

    def _grouped(self, columns: Columns) -> Columns:
        if self.groups is None:
            self._repeated = len(columns.get("position", ())) if self.ended else 0
            return columns
        complete = self.groups.add(columns) if columns else {}
        self._repeated = len(complete.get("position", ())) if self.ended else 0
        return concatenate(complete, self.groups.finish() if self.ended else {})


def stream(
    model: Any,
    source: Input,
    *,
    mode: str | None = None,
    group_size: int | None = None,
    top_k: int | None = None,
    window: int | None = None,
    alarm: float | None = None,
    calibrate: Input | None = None,
    context: int | str | None = None,
    columns: Sequence[str] | None = None,
    missing: str | None = None,
    sound_format: str | None = None,
    chunk_size: int | None = None,
    state: str | PathLike[str] | None = None,
    continue_with: str | None = None,
    wait: Wait | None = None,
) -> ScoreStream:
    """Score an input of any length, a chunk at a time, in constant memory.

    source: a path, a binary file, bytes, an iterable of bytes or strings, or a DataFrame; lists,
    arrays and tensors hold the elements themselves.  Inputs are prepared as in training (columns by
    name), and answers are in original units.  mode: likelihood, predict or anomaly (`scorers.py`).
    group_size: elements per output row.  top_k: tokens or classes listed by predict.
    window: elements over which anomaly scores are averaged, as a column of their own.  alarm: the
    share of clean elements that may have an alarm; calibrate: a clean input to compare with, whose
    scores are kept as `model.alarms`.  context: elements that each forecast reads, or "all".
    columns: of a table, in the order of the model's.  missing: carry, mask or stop.
    sound_format: of samples without a header.  chunk_size: elements computed together, 1 answers
    each at once.  state: resume from a file of `ScoreStream.save`, with the settings saved there;
    continue_with: the source is then the "same" file (default) or holds only what is "new".
    """
    requested: dict[str, Any] = {
        "mode": mode, "group_size": group_size, "top_k": top_k, "window": window, "alarm": alarm,
        "calibrate": calibrate, "context": context, "missing": missing, "chunk_size": chunk_size,
        "sound_format": sound_format, "columns": None if columns is None else tuple(columns),
    }  # fmt: skip
    if state is not None:
        return resume_stream(
            model, source, requested, state, read_state(state), continue_with, wait
        )
    if continue_with is not None:
        raise ThreefoldError("stream: continue_with is given, but there is no state to resume from")
    return start_stream(model, source, requested, wait)


def start_stream(
    model: Any, source: Input, requested: Mapping[str, Any], wait: Wait | None = None
) -> ScoreStream:
    """Start a stream at the beginning of its input; requested: settings, None for the default."""
    model = check_streams(model)
    settings = choose_settings(model, requested)
    opened = open_input(model, source, settings.inputs, wait)
    if settings.alarm is None:
        return ScoreStream(model, opened, settings)
    if requested.get("calibrate") is not None:
        model.alarms = calibrate_alarms(model, requested["calibrate"], settings)
    return ScoreStream(model, opened, settings, known_judge(model, settings))


def calibrate_alarms(model: Any, clean: Input, settings: StreamSettings) -> AlarmCalibration:
    """The scores of a clean input, read as the stream will be."""
    judge = CollectingJudge()
    opened = open_input(model, clean, settings.inputs)
    reading = ScoreStream(model, opened, replace(settings, alarm=None, calibrate=None), judge)
    for _ in reading:
        pass
    opened.source.close()
    return fit_calibration(model, settings, judge, reading.position)


def resume_stream(
    model: Any,
    source: Input,
    requested: Mapping[str, Any],
    path: str | PathLike[str],
    state_file: StateFile,
    continue_with: str | None = None,
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
    _check_format(path, note)
    state_for_model(path, state_file, model)
    settings = saved_settings(note["settings"], requested, path)
    opened = open_input(model, source, settings.inputs, wait)
    judge = None if settings.alarm is None else saved_judge(note, state_file, settings)
    resumed = ScoreStream(model, opened, settings, judge)
    resumed.restore(path, state_file, continue_with)
    return resumed


def _check_format(path: str | PathLike[str], note: Mapping[str, Any]) -> None:
    saved = note.get("format", "unknown")
    if saved != NOTE_FORMAT:
        raise ThreefoldError(
            f"{path}: the state of a stream in format {saved}, but this version of Threefold reads "
            f"format {NOTE_FORMAT}; score the input again from its beginning with another "
            f"{option_name('state')}, or use the version that wrote it"
        )


def _make_past(model: Any, opened: StreamInput, settings: StreamSettings) -> Past:
    if settings.context == ALL and model.kind == "hierarchical":
        return SentencePast(model, settings.chunk_size)
    if settings.context == ALL:
        return CarriedPast(model, settings.chunk_size, opened.reader.single)
    if not isinstance(model, Forecaster):
        raise ThreefoldError(
            f"stream: context is {settings.context}, but a {model.kind} model reads everything; "
            "only forecasts are made from a context"
        )
    return WindowedPast(model, settings.chunk_size, int(settings.context))


def _none_if_not_finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
