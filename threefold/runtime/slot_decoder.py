"""A decoder whose rows have slots: one joins or leaves without a copy of the others' states.

The model always steps on all slots, some of them idle, so it sees few different batch sizes and
records few programs.  Slots are doubled when all are taken, and halved when a quarter is left; only
then the states move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.kernels.replay.activity import ordinary_steps
from threefold.kernels.replay.program import Program
from threefold.memory import slots
from threefold.memory import state as states
from threefold.memory.state import State
from threefold.models.model import Predictor
from threefold.runtime.decoding import DecodingRow, Engine, TokenDecoder
from threefold.runtime.native_loop import TokenLoop
from threefold.runtime.sampling import Sampling, check_numbers

# Slots of a deterministic group: as many rows as every product of a recorded step accepts.
GROUP = 8
_PROBE_STEPS, _PROBE_LENGTH = 4, 40


@dataclass(eq=False)
class SlotRow(DecodingRow):
    """A row with its position, or an idle slot."""

    begun: int = 0  # tokens read before the first one was chosen
    idle: bool = False

    @property
    def position(self) -> int:
        return self.begun + self.count


class OrdinaryEngine(Engine):
    """An engine without recorded steps."""

    def prefill(
        self, tokens: Tensor, state: State | None, mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Read prompts [B, L] of any length; return the logits [B, vocabulary] and the state."""
        with ordinary_steps():
            return super().prefill(tokens, state, mask)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token per row [B]; return the logits [B, vocabulary] and the state."""
        with ordinary_steps():
            return super().step(tokens, state)

    def choose_and_read(
        self, loop: TokenLoop, tokens: Tensor, state: State, steps: int
    ) -> tuple[list[list[int]], State] | None:
        """None: only single steps work."""
        return None


class SlotDecoder(TokenDecoder):
    """Rows in slots; `size`: a fixed number of them, else as many as needed."""

    def __init__(self, model: Predictor, *, size: int | None = None) -> None:
        super().__init__(model)
        self.model: Any = model
        self.size = size
        self._idle_seen = np.zeros(model.spec.vocabulary, dtype=bool)

    @property
    def live(self) -> list[DecodingRow]:
        """The rows that have not ended."""
        return [row for row in self.rows if not _ended(row)]

    def place(self, row: SlotRow, state: State, logits: Tensor) -> None:
        """Admit one row with its state and the logits [1, vocabulary] after its prompt."""
        self._drop_finished()
        if not self.rows:
            self.rows, self.state, self.logits = [row], state, logits
            if self.size is not None:
                self._resize(self.size)
            return
        self._read_pending()
        slot = next((i for i, one in enumerate(self.rows) if _is_idle(one)), None)
        if slot is None:
            if self.size is not None:
                raise ThreefoldError(f"decoder: all {self.size} slots are taken")
            slot = len(self.rows)
            self._resize(2 * slot)
        self.rows[slot] = row
        self.state = slots.place(self.state, slot, state)
        self._next_logits()[slot] = logits[0]

    def forget(self) -> None:
        """Release the states once all rows have ended."""
        if self.rows and not self.live:
            self.rows, self.state, self.logits = [], {}, None

    def prepare(self) -> None:
        """Compute the logits of the next token of every row."""
        self._drop_finished()
        self._read_pending()

    def failing(self) -> list[tuple[DecodingRow, ThreefoldError]]:
        """The live rows that cannot go on, each tried by itself, and why."""
        found = []
        for slot, row in enumerate(self.rows):
            if _ended(row):
                continue
            try:
                logits = self.logits
                if logits is None:
                    alone = states.clone(states.select(self.state, [slot]))
                    logits, _ = self.engine.step(self._pending_tokens([row]), alone)
                else:
                    logits = logits[slot : slot + 1]
                check_numbers(logits[:, : self.token_count])
            except ThreefoldError as error:
                found.append((row, error))
        return found

    def _resize(self, size: int) -> None:
        """Append idle slots; all states move."""
        missing = size - len(self.rows)
        if not missing:
            return
        logits = self._next_logits()
        self.state = states.join([self.state, self.model.empty_state(missing)])
        self.logits = torch.cat([logits, logits.new_zeros(missing, logits.shape[1])])
        self.rows = [*self.rows, *(self._idle_row() for _ in range(missing))]

    def _drop_finished(self) -> None:
        """Make the slots of finished rows idle."""
        ended = [i for i, row in enumerate(self.rows) if _ended(row) and not _is_idle(row)]
        live = self.live
        self.forget()
        for slot in ended if live else ():
            self._clear(slot)
        few = 4 * len(live) <= max(len(self.rows), 4)
        if self.size is None and few and len(self.rows) > 1:
            self._compact()
        # An idle slot reads tokens as well; it never gets longer than the longest row.
        longest = max((row.position for row in live if isinstance(row, SlotRow)), default=0)
        for slot, row in enumerate(self.rows):
            if _is_idle(row) and isinstance(row, SlotRow) and row.position >= longest:
                self._clear(slot)

    def _clear(self, slot: int) -> None:
        self.state = slots.clear(self.state, slot)
        if self.logits is not None:
            self.logits[slot] = 0
        self.rows[slot] = self._idle_row()

    def _compact(self) -> None:
        """Halve the slots; all states move."""
        slots_by_use = sorted(range(len(self.rows)), key=lambda slot: _is_idle(self.rows[slot]))
        kept = slots_by_use[: len(self.rows) // 2]
        self.rows = [self.rows[slot] for slot in kept]
        self.state = states.select(self.state, kept)
        self.logits = None if self.logits is None else self.logits[kept]

    def _idle_row(self) -> SlotRow:
        return SlotRow(Sampling(temperature=0), 0, self._idle_seen, pending=0, idle=True)


def _is_idle(row: DecodingRow) -> bool:
    return isinstance(row, SlotRow) and row.idle


def _ended(row: DecodingRow) -> bool:
    return bool(row.finish_reason) or _is_idle(row)


@dataclass(frozen=True)
class FixedShapes:
    """How a deterministic batch runs a model: in groups of this many slots, replayed or not."""

    group: int
    replayed: bool

    def decoder(self, model: Predictor) -> SlotDecoder:
        """A decoder for one group."""
        decoder = SlotDecoder(model, size=self.group)
        if not self.replayed:
            decoder.engine = OrdinaryEngine(model)
        return decoder


def fixed_shapes(model: Predictor) -> FixedShapes:
    """Find how the step of a model gives a row the same bits in any company.

    Groups of `GROUP` slots, if their step is one program and a few rows of different lengths have
    the same bits in other slots; else each row by itself, which needs no check.
    """
    if _replayed(model, GROUP) and _same_in_other_slots(model):
        return FixedShapes(GROUP, replayed=True)
    return FixedShapes(1, replayed=_replayed(model, 1))


def _replayed(model: Any, rows: int) -> bool:
    """Whether steps of so many rows run as one program."""
    engine, state = Engine(model), model.empty_state(rows)
    engine.step(torch.zeros(rows, dtype=torch.int64, device=model.device), state)
    found = model.programs.get((rows, torch.int64, torch.get_num_threads()))
    return isinstance(found, Program)


def _same_in_other_slots(model: Predictor) -> bool:
    """Whether rows of different lengths have the same bits in the opposite order."""
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(model.spec.vocabulary, (GROUP, _PROBE_LENGTH), generator=generator)
    texts = texts.to(model.device)
    engine, lengths = OrdinaryEngine(model), range(1, _PROBE_LENGTH, _PROBE_LENGTH // GROUP)
    try:
        rows = [
            engine.prefill(text[None, :length], None)[1]
            for text, length in zip(texts, lengths, strict=True)
        ]
        forward, backward = (_steps(model, states.join(x), t) for x, t in _orders(rows, texts))
    except ThreefoldError:  # the largest length of the model is shorter
        return False
    return all(torch.equal(a, b.flip(0)) for a, b in zip(forward, backward, strict=True))


def _orders(rows: list[State], texts: Tensor) -> list[tuple[list[State], Tensor]]:
    return [(rows, texts), (rows[::-1], texts.flip(0))]


def _steps(model: Predictor, state: State, texts: Tensor) -> list[Tensor]:
    """The logits after each of a few tokens."""
    engine, outputs = Engine(model), []
    for t in range(_PROBE_STEPS):
        logits, state = engine.step(texts[:, t].contiguous(), state)
        outputs.append(logits)
    return outputs
