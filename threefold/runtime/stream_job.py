"""A stream with an output file, totals and a state file, which can be stopped and resumed.

The state file records the size of the output file after the last complete chunk.  A resumed job
truncates the output to that size first, so the finished file is the same, byte for byte, as that of
a job that never stopped; on another output it leaves out the rows that were written before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from threefold.data.stream_rows import RowEncoder
from threefold.errors import ThreefoldError, option
from threefold.models.saving import OpenedModel
from threefold.runtime.scores.files import ScoreFile
from threefold.runtime.scores.totals import Totals
from threefold.runtime.source import Input, Wait, WaitInterruptedError
from threefold.runtime.state_files import read_state
from threefold.runtime.stream_inputs import TokenReader
from threefold.runtime.streaming import (
    NOTE,
    ScoreStream,
    StreamScores,
    resume_stream,
    start_stream,
)

SAVE_SECONDS = 30.0  # between two saved states: the work that a crash may cost


class StreamJob:
    """A stream, the file of its scores, and its state file.

    note: what the state file says about the job, empty if the stream starts at the beginning.
    """

    def __init__(
        self, stream: ScoreStream, state_path: Path | None, note: Mapping[str, Any]
    ) -> None:
        self.stream, self.state_path, self.note = stream, state_path, note
        self.totals = Totals(note.get("totals"))
        self.output: ScoreFile | None = None
        self.first_position: int = note.get("answered", 0)
        self.seconds = 0.0
        self._written_before, stream.skip = stream.skip, 0  # totals count all rows
        self._boundary: dict[str, Any] | None = None  # notes after the last complete chunk

    @classmethod
    def open(
        cls,
        opened: OpenedModel,
        source: Input,
        settings: Mapping[str, Any],
        state_path: Path | None = None,
        continue_with: str | None = None,
        wait: Wait | None = None,
    ) -> StreamJob:
        """Open an input at its beginning, or where the state file stopped, if there is one.

        settings: those of `threefold.stream`, None for the default or the saved value.
        continue_with: what the input of a resumed stream is, "same" or "new".
        """
        if state_path is None or not state_path.exists():
            if continue_with is not None:
                raise ThreefoldError(
                    f"{option('continue_with', continue_with)}, but there is no state to continue "
                    "from; leave it out for the first part, and name the state file: "
                    f"{option('state')}"
                )
            stream = start_stream(opened.model, source, settings, wait)
            return cls(stream, state_path, {})
        state_file = read_state(state_path)
        stream = resume_stream(
            opened.model, source, settings, state_path, state_file, continue_with, wait
        )
        return cls(stream, state_path, state_file.notes[NOTE])

    @property
    def elements(self) -> int:
        """Elements scored by this job, without those before the state that it resumed from."""
        return self.stream.position - self.first_position

    def open_output(self, path: Path | None, file_format: str) -> None:
        """Write scores to a file, or to standard output (None), in jsonl or csv format.

        Only the file that the state continues may exist.
        """
        saved = self.note.get("output") or {}
        same = path is not None and saved.get("path") == str(path.resolve())
        if same and saved["format"] != file_format:
            raise ThreefoldError(
                f"{path}: was started as {saved['format']}, but now the format is {file_format}; "
                "use the same format"
            )
        if not same and path is not None and _is_in_the_way(path):
            raise ThreefoldError(f"{path}: exists already; choose another name, or delete it")
        self.output = ScoreFile(path, file_format, saved["size"] if same else None)
        if same:
            self._written_before = 0

    def run(
        self,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        on_chunk: Callable[[], None] = lambda: None,
    ) -> None:
        """Score to the end of the input, or until `should_stop`; then save and close."""
        start = time.monotonic()
        try:
            self._run_chunks(should_stop, on_chunk)
        except ThreefoldError:
            if self.elements or self.note:
                with suppress(ThreefoldError):  # the chunks before the error are valid
                    self.save()
            else:
                self._remove_empty_output()
            raise
        self.save()
        self.stream.source.close()
        if self.output is not None:
            self.output.close()
        self.seconds = time.monotonic() - start

    def _remove_empty_output(self) -> None:
        """Leave no empty file behind that would be in the way of the next attempt."""
        path = None if self.output is None else self.output.path
        if self.output is None or path is None or self.output.size:
            return
        self.output.close()
        if path.is_file():  # not a device
            path.unlink()

    def _run_chunks(self, should_stop: Callable[[], bool], on_chunk: Callable[[], None]) -> None:
        saved = -SAVE_SECONDS  # after the first chunk, so that its output does not block a restart
        while not should_stop():
            try:
                scores = next(self.stream, None)
            except WaitInterruptedError:
                return
            if scores is None:
                return
            if self.stream.ended:
                self._boundary = self._notes()
            self._write(scores)
            on_chunk()
            if time.monotonic() - saved > SAVE_SECONDS:
                self.save()
                saved = time.monotonic()

    def _write(self, scores: StreamScores) -> None:
        self.totals.add(scores.columns)
        before = min(self._written_before, len(scores))
        self._written_before -= before
        if self.output is not None:
            self.output.write(scores.after(before).columns if before else scores.columns)

    def save(self) -> None:
        """Write the scores to disk first, then the state that records their size."""
        if self.output is not None:
            self.output.sync()
        if self.state_path is not None:
            self.stream.save(self.state_path, **(self._boundary or self._notes()))

    def _notes(self) -> dict[str, Any]:
        """What the state file says about output and totals."""
        output = None
        if self.output is not None:
            path = self.output.path
            output = {
                "path": None if path is None else str(path.resolve()),
                "size": self.output.size,
                "format": self.output.format,
            }
        return {"output": output, "totals": self.totals.to_dict()}

    def summary(self) -> dict[str, Any]:
        """Describe the job after `run`: input, position, speed, files and totals."""
        stream, output = self.stream, self.output
        size, scored_bytes = None, None
        if isinstance(stream.reader, TokenReader) and stream.reader.texts is not None:
            size = stream.reader.bytes
            scored_bytes = size - stream.reader.unscored_bytes
        output_path = None if output is None else output.path
        speed = round(self.elements / self.seconds, 1) if self.seconds > 0 else None
        read = stream.reader.summary()
        if notes := [*read.get("notes", []), *self._row_notes(), *self._band_notes()]:
            read["notes"] = notes
        return {
            "input": stream.source.name,
            "mode": stream.settings.mode,
            "finished": stream.ended,
            "position": stream.position,
            "elements": self.elements,
            "bytes": size,
            "seconds": round(self.seconds, 3),
            "elements_per_second": speed,
            "state_bytes": stream.past.size,
            "output": None if output_path is None else str(output_path),
            "state": None if self.state_path is None else str(self.state_path),
            **self.totals.summary(scored_bytes),
            **({} if stream.alarms is None else stream.alarms.summary()),
            **read,
        }

    def _row_notes(self) -> list[str]:
        """What was odd in the cells and rows of a table."""
        source = self.stream.source
        return source.encoder.notes(source.name) if isinstance(source.encoder, RowEncoder) else []

    def _band_notes(self) -> list[str]:
        """Which bands of the forecasts rest on too few windows."""
        calibration = self.stream.model.calibration
        if calibration is None or self.stream.settings.mode != "predict":
            return []
        return list(calibration.notes)


def _is_in_the_way(path: Path) -> bool:
    """Whether something would be lost: a killed stream may have left an empty file."""
    return path.is_dir() or (path.is_file() and path.stat().st_size > 0)  # not a device
