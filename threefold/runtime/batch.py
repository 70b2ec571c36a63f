"""Batches of live rows: requests join and leave between two steps of one model.

    batch = LiveBatch(model)
    row = batch.admit("Once upon a time", max_tokens=50, seed=0)
    while batch:
        for token in batch.step(): …

A prompt is read in pieces between the steps, so that a long one does not stall the other rows; its
borders are multiples of the piece's length in the row's own text.  The tokens of a row are those of
`generate` with the same seed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.memory import state as states
from threefold.memory.state import State
from threefold.models.model import Model, Predictor
from threefold.runtime.decoding import DecodingRow, Engine, choose_seed
from threefold.runtime.generation import parse_prompt
from threefold.runtime.sampling import Sampling, is_integer
from threefold.runtime.slot_decoder import OrdinaryEngine, SlotDecoder, SlotRow, fixed_shapes
from threefold.runtime.stops import Stop, parse_stops

Chosen: TypeAlias = Sequence[tuple[DecodingRow, int]]


@dataclass(frozen=True)
class BatchToken:
    """One token of one row; a row whose token has a `finish_reason` has ended."""

    row: int  # as returned by `LiveBatch.admit`
    token: int
    finish_reason: str = ""  # "stop" or "length"
    log_probability: float | None = None  # of the token, before temperature and filters


@dataclass(eq=False)
class BatchRow(SlotRow):
    """A request: its prompt while that is being read, and what its tokens must come with."""

    id: int = 0
    prompt: Tensor | None = None  # [L], None once it has been read
    before: State | None = None  # the state after the pieces that have been read
    read: int = 0  # tokens of the prompt that have been read
    scored: bool = False


class RowsDroppedError(ThreefoldError):
    """Rows that could not go on were dropped from a batch; all others can be stepped on."""

    def __init__(self, failed: Sequence[tuple[BatchRow, ThreefoldError]]) -> None:
        self.rows = tuple(row.id for row, _ in failed)
        reasons = "; ".join(f"row {row.id} was dropped: {error}" for row, error in failed)
        super().__init__(f"batch: {reasons}")


class LiveBatch:
    """Live rows of one language model, each with its own prompt, sampling settings and end.

    max_rows: rows that are read or generated at the same time; others wait for their turn.
    max_waiting: refuse requests while this many rows are waiting.
    max_length: refuse requests that could become longer than this, with their prompts.
    prompt_piece: tokens of prompts read before each step, and the length of one piece.
    deterministic: a row has the same bits, alone or in any company, with the same number of
    threads; the prompts are read one by one in any case, and the steps run in groups of a fixed
    size, or row by row where a group cannot guarantee it.
    """

    def __init__(
        self,
        model: Model,
        *,
        max_rows: int = 64,
        max_waiting: int | None = None,
        max_length: int | None = None,
        prompt_piece: int = 256,
        deterministic: bool = False,
    ) -> None:
        self.model = _language_model(model)
        self.max_rows = _at_least_one("max_rows", max_rows)
        self.prompt_piece = _at_least_one("prompt_piece", prompt_piece)
        self.max_waiting = (
            None if max_waiting is None else _at_least_one("max_waiting", max_waiting)
        )
        self.max_length = None if max_length is None else _at_least_one("max_length", max_length)
        self.deterministic, self.closed = deterministic, False
        self._shapes = fixed_shapes(self.model) if deterministic else None
        self._reader: Engine = (OrdinaryEngine if deterministic else Engine)(self.model)
        self._decoders: list[SlotDecoder] = []
        self._waiting: deque[BatchRow] = deque()
        self._reading: deque[BatchRow] = deque()
        self._rows: dict[int, BatchRow] = {}  # all that have not ended
        self._next_id = 0
        self._held: list[BatchToken] = []  # chosen by a step that then raised an error

    def __len__(self) -> int:
        """The number of rows that have not ended, waiting ones included."""
        return len(self._rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def waiting(self) -> int:
        """The number of rows whose prompts are not being read yet."""
        return len(self._waiting)

    def admit(
        self,
        prompt: Any,
        *,
        max_tokens: int | None = 128,
        sampling: Sampling | None = None,
        stop: Stop = (),
        seed: int | None = None,
        state: State | None = None,
        log_probabilities: bool = False,
    ) -> int:
        """Add a row and return its number; its prompt is read by the next steps.

        prompt: a text, or tokens [L].  state: the state of one row before the prompt.
        max_tokens: None generates until the row is stopped or cancelled.
        """
        self._check_open()
        tokens = self._tokens(prompt)
        self._check_limits(len(tokens), max_tokens)
        if state is not None:
            self.model.check_state(state, 1)
            state = states.clone(states.detach(state))
        row = BatchRow(
            sampling or Sampling(),
            choose_seed(seed, "batch"),
            np.zeros(self.model.spec.vocabulary, dtype=bool),
            stops=parse_stops(stop, self.model),
            max_tokens=max_tokens,
            begun=len(tokens) + _position(state),
            id=self._next_id,
            prompt=tokens,
            before=state,
            scored=log_probabilities,
        )
        row.seen[tokens.cpu().numpy()] = True
        self._next_id += 1
        self._rows[row.id] = row
        self._waiting.append(row)
        return row.id

    def step(self, count: int = 1) -> list[BatchToken]:
        """Read a piece of the prompts, then choose a token for each row whose prompt has been read.

        count: up to so many tokens of each row at once, as long as no row joins or ends.
        `RowsDroppedError`: a row cannot go on (NaN, or the model's largest length), and has been
        dropped; the next call steps all others, and returns what this one had chosen already.
        """
        self._check_open()
        _at_least_one("count", count)
        joined = self._read_prompts()
        steps = count if not self._reading and not joined else 1
        chosen, self._held = self._held, []
        for decoder in self._decoders:
            try:
                chosen += self._step_group(decoder, steps)
            except ThreefoldError as error:
                self._held = chosen
                if isinstance(error, RowsDroppedError):
                    self._forget(error.rows)
                raise
        for token in chosen:
            if token.finish_reason:
                del self._rows[token.row]
        for decoder in self._decoders:
            decoder.forget()
        return chosen

    def cancel(self, row: int) -> None:
        """End a row: it gets no more tokens, and its slot is free for the next one."""
        self._check_open()
        if not is_integer(row) or row not in self._rows:
            known = is_integer(row) and 0 <= row < self._next_id
            raise ThreefoldError(
                f"batch: row {row!r} "
                + ("has already ended" if known else "is unknown; expected what admit returned")
            )
        found = self._rows[row]
        found.finish_reason = "cancelled"
        for queue in (self._waiting, self._reading):
            if found in queue:
                queue.remove(found)
        self._forget((row,))
        for decoder in self._decoders:
            decoder.forget()

    def _forget(self, rows: Sequence[int]) -> None:
        """Leave out rows that ended without a last token."""
        for row in rows:
            del self._rows[row]
        self._held = [token for token in self._held if token.row not in rows]

    def close(self) -> None:
        """Forget all rows; the batch cannot be used afterwards."""
        self.closed = True
        self._decoders = []
        self._waiting.clear()
        self._reading.clear()
        self._rows.clear()
        self._held = []

    def _read_prompts(self) -> bool:
        """Read pieces of prompts, in turns, until the budget is used; whether a row has joined."""
        while self._waiting and len(self._rows) - len(self._waiting) < self.max_rows:
            self._reading.append(self._waiting.popleft())
        budget, joined = self.prompt_piece, False
        while self._reading and budget > 0:
            row = self._reading.popleft()
            try:
                count, logits = self._read_piece(row)
            except ThreefoldError as error:
                self._forget((row.id,))
                raise RowsDroppedError([(row, error)]) from error
            budget -= count
            if row.prompt is not None:
                self._reading.append(row)
                continue
            assert row.before is not None  # at least one token has been read
            self._free_decoder().place(row, row.before, logits)
            row.before, joined = None, True
        return joined

    def _read_piece(self, row: BatchRow) -> tuple[int, Tensor]:
        """Read the next piece of a prompt: its length, and the logits after it."""
        assert row.prompt is not None
        piece = row.prompt[row.read : row.read + self.prompt_piece]
        logits, row.before = self._reader.prefill(piece.unsqueeze(0), row.before)
        row.read += len(piece)
        if row.read == len(row.prompt):
            row.prompt = None
        return len(piece), logits

    def _free_decoder(self) -> SlotDecoder:
        """The decoder of the next row."""
        for decoder in self._decoders:
            if decoder.size is None or len(decoder.live) < decoder.size:
                return decoder
        shapes = self._shapes
        new = SlotDecoder(self.model) if shapes is None else shapes.decoder(self.model)
        self._decoders.append(new)
        return new

    def _step_group(self, decoder: SlotDecoder, count: int) -> list[BatchToken]:
        rows = decoder.live
        if not rows:
            return []
        try:
            return self._choose(decoder, rows, count)
        except ThreefoldError as error:
            failed = [(row, why) for row, why in decoder.failing() if isinstance(row, BatchRow)]
            if failed:
                for row, _ in failed:
                    row.finish_reason = "dropped"
                raise RowsDroppedError(failed) from error
            if count == 1:
                raise
            return self._choose(decoder, rows, 1)  # the failure is not in the next step

    def _choose(
        self, decoder: SlotDecoder, rows: Sequence[DecodingRow], count: int
    ) -> list[BatchToken]:
        scored = [row for row in rows if isinstance(row, BatchRow) and row.scored]
        # In a group, whether another row joins decides how tokens are chosen: always the same way.
        shared = self.deterministic and decoder.size != 1
        if not scored and not shared:
            *earlier, last = decoder.run(count)
            found = [
                BatchToken(row.id, token) for chosen in earlier for row, token in _requests(chosen)
            ]
            return [*found, *_tokens_of(last, {})]
        decoder.prepare()
        scores = decoder.logits
        assert scores is not None
        chosen = decoder.choose()
        by_row = {
            id(row): _log_probability(scores[slot, : decoder.token_count], token)
            for slot, (row, token) in enumerate(chosen)
            if row in scored
        }
        return _tokens_of(chosen, by_row)

    def _tokens(self, prompt: Any) -> Tensor:
        tokens, _, single = parse_prompt(prompt, None, self.model)
        if not single:
            raise ThreefoldError(
                f"batch: the prompt has shape {tuple(tokens.shape)}, expected one text or tokens "
                "[length]; admit rows one by one"
            )
        low, high, size = int(tokens.min()), int(tokens.max()), self.model.spec.vocabulary
        if low < 0 or high >= size:
            raise ThreefoldError(
                f"batch: the prompt has tokens from {low} to {high}, expected 0 to {size - 1}"
            )
        return tokens[0]

    def _check_open(self) -> None:
        if self.closed:
            raise ThreefoldError("batch: it has been closed; make another one")

    def _check_limits(self, length: int, max_tokens: int | None) -> None:
        if max_tokens is not None:
            _at_least_one("max_tokens", max_tokens)
        if self.max_waiting is not None and self.waiting >= self.max_waiting:
            raise ThreefoldError(
                f"batch: {self.waiting} rows are waiting, and max_waiting is {self.max_waiting}; "
                "try again after a few steps"
            )
        longest = self.max_length
        if longest is not None and (max_tokens is None or length + max_tokens > longest):
            raise ThreefoldError(
                f"batch: the prompt has {length} tokens and max_tokens is {max_tokens}, but "
                f"max_length is {longest}; shorten the prompt or lower max_tokens"
            )


def _requests(chosen: Chosen) -> list[tuple[BatchRow, int]]:
    """The tokens of rows, without those of idle slots."""
    return [(row, token) for row, token in chosen if isinstance(row, BatchRow)]


def _tokens_of(chosen: Chosen, scores: dict[int, float]) -> list[BatchToken]:
    return [
        BatchToken(row.id, token, row.finish_reason, scores.get(id(row)))
        for row, token in _requests(chosen)
    ]


def _log_probability(logits: Tensor, token: int) -> float:
    return float(logits.double().log_softmax(-1)[token])


def _position(state: State | None) -> int:
    """The number of elements that a state of one row has read, as far as it tells."""
    leaves = [] if state is None else list(states.leaves(state))
    return max((int(leaf) for name, leaf in leaves if name.endswith(states.POSITION)), default=0)


def _at_least_one(name: str, value: Any) -> int:
    if not is_integer(value) or value < 1:
        raise ThreefoldError(f"batch: {name} is {value!r}, expected an integer of at least 1")
    return int(value)


def _language_model(model: Any) -> Predictor:
    if not isinstance(model, Predictor) or not model.writes_text:
        name = f"a {model.kind} model" if isinstance(model, Model) else repr(type(model).__name__)
        raise ThreefoldError(f"batch: {name} does not continue texts; expected a language model")
    return model
