"""What a stream remembers of each series, and the model's outputs after new elements.

    carried    the model's state goes on from element to element
    windows    every output is computed from the last `context` elements alone, as a forecaster that
               was trained on windows of that length was trained and evaluated
    sentences  the state of a hierarchical model goes on from sentence to sentence

Outputs do not depend on where a stream is cut, bit for bit: chunks and batches have a fixed size
(filled up with zeros, which no earlier element and no other row can see), and a chunk is remembered
once it is complete; series that share a stream are read element by element.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from threefold.memory import state as states
from threefold.memory.state import State
from threefold.runtime.decoding import eval_mode
from threefold.runtime.session import Session
from threefold.runtime.stream_inputs import NO_TOKEN

WINDOWS = 64  # computed together


class Part(NamedTuple):
    """New elements of one series."""

    series: str
    inputs: Tensor  # [L] or [L, size]
    order: Sequence[int]  # of each element among those of the chunk
    starts: bool = False  # a new sequence begins


class Past(ABC):
    """The past of every series of a stream."""

    def __init__(self, model: Any, chunk_size: int) -> None:
        self.model, self.chunk_size = model, chunk_size

    @abstractmethod
    def last_output(self, series: str) -> Tensor | None:
        """The output after the last element of a series; None before the first."""

    @abstractmethod
    def read(self, parts: Sequence[Part], complete: bool) -> Iterator[Tensor]:
        """Outputs [L, …] after each element of each part; what is not complete is forgotten."""

    @abstractmethod
    def snapshot(self) -> tuple[State, list[int], dict[str, Any], dict[str, Tensor]]:
        """State (a row per series), positions, notes and tensors from which `restore` goes on."""

    @abstractmethod
    def restore(
        self, state: State, positions: Sequence[int], note: Any, tensors: dict[str, Tensor]
    ) -> None:
        """Continue from a snapshot."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes that are remembered."""


class CarriedPast(Past):
    """A session for each series; `single`: there is only one, and it is read in chunks."""

    def __init__(self, model: Any, chunk_size: int, single: bool) -> None:
        super().__init__(model, chunk_size)
        self.single = single
        self.sessions: dict[str, Session] = {}

    @property
    def size(self) -> int:
        return sum(session.state_bytes for session in self.sessions.values())

    def last_output(self, series: str) -> Tensor | None:
        session = self.sessions.get(series)
        return None if session is None else session.last_output

    def read(self, parts: Sequence[Part], complete: bool) -> Iterator[Tensor]:
        for part in parts:
            session = self.sessions.setdefault(part.series, Session(self.model, seed=0))
            if part.starts:
                session.reset()
            if self.single:
                yield self._read_chunk(session, part.inputs, complete)
            else:
                yield session.read_steps(part.inputs)

    def _read_chunk(self, session: Session, inputs: Tensor, complete: bool) -> Tensor:
        """Outputs of a chunk, computed with its full length."""
        count = len(inputs)
        if complete and count == self.chunk_size:
            return session.read(inputs)
        padding = inputs.new_zeros(self.chunk_size - count, *inputs.shape[1:])
        outputs = session.fork().read(torch.cat([inputs, padding]))[:count]
        if complete:  # with lines that were skipped
            session.read(inputs)
        return outputs

    def snapshot(self) -> tuple[State, list[int], dict[str, Any], dict[str, Tensor]]:
        sessions = self.sessions or {"": Session(self.model, seed=0)}
        state = states.join([session.state for session in sessions.values()])
        positions = [session.position for session in sessions.values()]
        outputs = [s.last_output for s in sessions.values() if s.last_output is not None]
        tensors = {"last_outputs": torch.stack(outputs)} if outputs else {}
        if self.single:  # for a session that goes on from here
            if outputs:
                tensors["last_output"] = outputs[0]
            seen = next(iter(sessions.values())).seen_tokens
            tensors["seen_tokens"] = torch.from_numpy(seen.copy())
        return state, positions, {"series": list(self.sessions)}, tensors

    def restore(
        self, state: State, positions: Sequence[int], note: Any, tensors: dict[str, Tensor]
    ) -> None:
        for row, name in enumerate(note["series"]):
            session = Session(self.model, seed=0)
            session.state = states.select(state, [row])
            session.position = positions[row]
            session.last_output = tensors["last_outputs"][row].to(self.model.device)
            if self.single:
                session.seen_tokens = tensors["seen_tokens"].numpy().copy()
            self.sessions[name] = session


class SentencePast(Past):
    """The state of a document after its last sentence; each is read by itself."""

    def __init__(self, model: Any, chunk_size: int) -> None:
        super().__init__(model, chunk_size)
        self.state: State = model.empty_state(1)
        self.output: Tensor | None = None
        self.position = 0

    @property
    def size(self) -> int:
        return sum(leaf.nbytes for _, leaf in states.leaves(self.state))

    def last_output(self, series: str) -> Tensor | None:
        return self.output

    def read(self, parts: Sequence[Part], complete: bool) -> Iterator[Tensor]:
        for part in parts:
            state, outputs = self.state, []
            with torch.no_grad(), eval_mode(self.model):
                for sentence in part.inputs:
                    tokens = sentence[sentence != NO_TOKEN].unsqueeze(0)
                    logits, state = self.model(tokens, state)
                    outputs.append(logits[0])
            if complete:
                self.state, self.output = state, outputs[-1]
                self.position += len(outputs)
            yield torch.stack(outputs)

    def snapshot(self) -> tuple[State, list[int], dict[str, Any], dict[str, Tensor]]:
        tensors = {} if self.output is None else {"last_output": self.output}
        return self.state, [self.position], {}, tensors

    def restore(
        self, state: State, positions: Sequence[int], note: Any, tensors: dict[str, Tensor]
    ) -> None:
        self.state, self.position = state, positions[0]
        output = tensors.get("last_output")
        self.output = None if output is None else output.to(self.model.device)


class WindowedPast(Past):
    """The last elements of each series, and the output after the last one."""

    def __init__(self, model: Any, chunk_size: int, context: int) -> None:
        super().__init__(model, chunk_size)
        self.context, self.batch_size = context, min(chunk_size, WINDOWS)
        self.inputs: dict[str, Tensor] = {}  # the last context − 1 or fewer elements
        self.outputs: dict[str, Tensor] = {}
        self.positions: dict[str, int] = {}

    @property
    def size(self) -> int:
        return sum(inputs.nbytes for inputs in self.inputs.values())

    def last_output(self, series: str) -> Tensor | None:
        return self.outputs.get(series)

    def read(self, parts: Sequence[Part], complete: bool) -> Iterator[Tensor]:
        windows: dict[int, Tensor] = {}
        for part in parts:
            before = self.inputs.get(part.series)
            past = part.inputs if before is None else torch.cat([before, part.inputs])
            ends = range(len(past) - len(part.inputs) + 1, len(past) + 1)
            for number, end in zip(part.order, ends, strict=True):
                windows[number] = past[max(0, end - self.context) : end]
            self.inputs[part.series] = past[max(0, len(past) - self.context + 1) :].clone()
            position = self.positions.get(part.series, 0)
            self.positions[part.series] = position + len(part.inputs)
        outputs = self._outputs(windows)
        for part in parts:
            rows = torch.stack([outputs[number] for number in part.order])
            self.outputs[part.series] = rows[-1].clone()
            yield rows

    def _outputs(self, windows: dict[int, Tensor]) -> dict[int, Tensor]:
        """The output after each window; those of full length together."""
        numbers = sorted(windows)
        short = [number for number in numbers if len(windows[number]) < self.context]
        full = [number for number in numbers if len(windows[number]) == self.context]
        outputs: dict[int, Tensor] = {}
        for number in short:
            outputs[number] = self._run(windows[number].unsqueeze(0))[0]
        for first in range(0, len(full), self.batch_size):
            chosen = full[first : first + self.batch_size]
            rows = torch.stack([windows[number] for number in chosen])
            padding = rows.new_zeros(self.batch_size - len(rows), *rows.shape[1:])
            made = self._run(torch.cat([rows, padding]))
            outputs |= dict(zip(chosen, made, strict=False))
        return outputs

    def _run(self, windows: Tensor) -> Tensor:
        with torch.no_grad(), eval_mode(self.model):
            state = self.model.empty_state(len(windows))
            outputs: Tensor = self.model.respond(windows, state, last=True)[0]
            return outputs

    def snapshot(self) -> tuple[State, list[int], dict[str, Any], dict[str, Tensor]]:
        names = list(self.inputs)
        tensors = {f"window.{row}": self.inputs[name] for row, name in enumerate(names)}
        if names:
            tensors["last_outputs"] = torch.stack([self.outputs[name] for name in names])
        positions = [self.positions[name] for name in names] or [0]
        return self.model.empty_state(len(positions)), positions, {"series": names}, tensors

    def restore(
        self, state: State, positions: Sequence[int], note: Any, tensors: dict[str, Tensor]
    ) -> None:
        for row, name in enumerate(note["series"]):
            self.inputs[name] = tensors[f"window.{row}"].to(self.model.device)
            self.outputs[name] = tensors["last_outputs"][row].to(self.model.device)
            self.positions[name] = positions[row]
