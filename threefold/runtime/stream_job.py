"""A stream with an output file, totals and a state file, which can be stopped and resumed.

The state file records the size of the output file.  A resumed job truncates the output to that
size first, so the finished file is the same, byte for byte, as that of a job that never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from threefold.errors import ThreefoldError
from threefold.models.saving import OpenedModel
from threefold.runtime.scores.files import ScoreFile
from threefold.runtime.scores.totals import Totals
from threefold.runtime.source import Input, Wait, WaitInterruptedError
from threefold.runtime.state_files import read_state
from threefold.runtime.streaming import NOTE, ScoreStream, resume_stream, start_stream

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
        self.first_position = stream.session.position
        self.seconds = 0.0

    @classmethod
    def open(
        cls,
        opened: OpenedModel,
        source: Input,
        settings: Mapping[str, Any],
        state_path: Path | None = None,
        wait: Wait | None = None,
    ) -> StreamJob:
        """Open an input at its beginning, or where the state file stopped, if there is one.

        settings: those of `threefold.stream`, None for the default or the saved value.
        """
        if state_path is None or not state_path.exists():
            stream = start_stream(opened.model, source, settings, wait)
            return cls(stream, state_path, {})
        state_file = read_state(state_path)
        stream = resume_stream(opened.model, source, settings, state_path, state_file, wait)
        return cls(stream, state_path, state_file.notes[NOTE])

    @property
    def elements(self) -> int:
        """Elements scored by this job, without those before the state that it resumed from."""
        return self.stream.session.position - self.first_position

    def open_output(self, path: Path | None, file_format: str) -> None:
        """Write scores to a file, or to standard output (None), in jsonl or csv format."""
        saved = self.note.get("output") or {}
        same = path is not None and saved.get("path") == str(path.resolve())
        if same and saved["format"] != file_format:
            raise ThreefoldError(
                f"{path}: was started as {saved['format']}, but now the format is {file_format}; "
                "use the same format"
            )
        self.output = ScoreFile(path, file_format, saved["size"] if same else None)

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
            with suppress(ThreefoldError):  # the chunks before the error are valid
                self.save()
            raise
        self.save()
        self.stream.source.close()
        if self.output is not None:
            self.output.close()
        self.seconds = time.monotonic() - start

    def _run_chunks(self, should_stop: Callable[[], bool], on_chunk: Callable[[], None]) -> None:
        saved = time.monotonic()
        while not should_stop():
            try:
                scores = next(self.stream, None)
            except WaitInterruptedError:
                return
            if scores is None:
                return
            self.totals.add(scores.columns)
            if self.output is not None:
                self.output.write(scores.columns)
            on_chunk()
            if time.monotonic() - saved > SAVE_SECONDS:
                self.save()
                saved = time.monotonic()

    def save(self) -> None:
        """Write the scores to disk first, then the state that records their size."""
        output = None
        if self.output is not None:
            self.output.sync()
            path = self.output.path
            output = {
                "path": None if path is None else str(path.resolve()),
                "size": self.output.size,
                "format": self.output.format,
            }
        if self.state_path is not None:
            self.stream.save(self.state_path, output=output, totals=self.totals.to_dict())

    def summary(self) -> dict[str, Any]:
        """Describe the job after `run`: input, position, speed, files and totals."""
        stream, output = self.stream, self.output
        size = None if stream.token_bytes is None else stream.bytes
        scored_bytes = None if size is None else size - stream.unscored_bytes
        output_path = None if output is None else output.path
        speed = round(self.elements / self.seconds, 1) if self.seconds > 0 else None
        return {
            "input": stream.source.name,
            "mode": stream.settings.mode,
            "finished": stream.ended,
            "position": stream.session.position,
            "elements": self.elements,
            "bytes": size,
            "seconds": round(self.seconds, 3),
            "elements_per_second": speed,
            "state_bytes": stream.session.state_bytes,
            "output": None if output_path is None else str(output_path),
            "state": None if self.state_path is None else str(self.state_path),
            **self.totals.summary(scored_bytes),
        }
