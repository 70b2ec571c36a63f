"""The decoder: rows of live sequences, each with its own prompt, sampling settings and end.

    decoder.read_prompts(tokens, rows)          at any time, beside rows that are already running
    for row, token in decoder.step(): …         one token for each row
    decoder.cancel(row)                         finished rows leave the batch before the next step

The random number of a token is addressed by (seed, row number, tokens drawn before), so the text of
a row depends neither on the other rows nor on when they come and go.  `generate`, `Session`, beam
search and the command line all decode here; what runs the model is the `Engine` alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.data.random_by_address import address_keys, hashed_by_keys
from threefold.errors import ThreefoldError
from threefold.layers.padding import pad_tokens
from threefold.memory import state as states
from threefold.memory.state import State
from threefold.models.model import Model, Predictor
from threefold.runtime.beam import BeamSettings, Hypothesis, beam_search
from threefold.runtime.native_loop import MOST_STEPS, TokenLoop
from threefold.runtime.sampling import Sampling, check_max_tokens, is_integer
from threefold.runtime.stops import LONGEST_STOP, Stops

SECONDS_AT_ONCE = 0.05  # of a native loop, during which nothing can interrupt it
PREFILL_CHUNK = 4096  # tokens of a prompt read at a time, which bounds the memory of any prompt


@dataclass(eq=False)
class DecodingRow:
    """One sequence: how its tokens are chosen, where it ends, and what continues it.

    number: rows with the same seed and different numbers draw different random numbers.
    max_tokens: tokens chosen before the row ends with the reason "length"; None: no limit.
    """

    sampling: Sampling
    seed: int
    seen: NDArray[np.bool_]  # [vocabulary], tokens in the prompt and the generated text
    number: int = 0
    stops: Stops = field(default_factory=Stops)
    max_tokens: int | None = None
    draws: int = 0  # random numbers used so far
    tail: deque[int] = field(default_factory=lambda: deque(maxlen=LONGEST_STOP))
    pending: int | None = None  # the last token, chosen but not yet read by the model
    count: int = 0  # tokens chosen
    finish_reason: str = ""  # "stop", "length" or "cancelled" once the row has ended
    state: State | None = None  # after the last token read, once the row has left the decoder

    def __post_init__(self) -> None:
        check_max_tokens(self.max_tokens)
        self.keys = address_keys((abs(self.seed), int(self.seed < 0), self.number))

    def record(self, token: int) -> None:
        """Append a token, and check whether the row ends with it."""
        self.pending = token
        self.count += 1
        self.seen[token] = True
        self.tail.append(token)
        if self.stops and self.stops.end(list(self.tail)):
            self.finish_reason = "stop"
        elif self.count == self.max_tokens:
            self.finish_reason = "length"


class Engine:
    """Runs a model without gradients in eval mode: prompts in chunks, then one token per row."""

    def __init__(self, model: Predictor) -> None:
        self.model = model

    def prefill(
        self, tokens: Tensor, state: State | None, mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Read prompts [B, L] of any length; return the logits [B, vocabulary] and the state."""
        state = None if state is None else states.detach(state)
        result: tuple[Tensor, State] | None = None
        with torch.no_grad(), eval_mode(self.model):
            for begin in range(0, tokens.shape[1], PREFILL_CHUNK):
                chunk = slice(begin, begin + PREFILL_CHUNK)
                real = None if mask is None else mask[:, chunk]
                logits, state = self.model(tokens[:, chunk], state, mask=real, last=True)
                if result is not None and real is not None:
                    logits = logits.where(real.any(1, keepdim=True), result[0])
                result = logits, state
        assert result is not None  # a prompt has at least one token
        return result

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token per row [B]; return the logits [B, vocabulary] and the state."""
        with torch.no_grad(), eval_mode(self.model):
            return self.model.step(tokens, state)

    def choose_and_read(
        self, loop: TokenLoop, tokens: Tensor, state: State, steps: int
    ) -> tuple[list[list[int]], State] | None:
        """Read a token per row, choose the next, and so on; None if only single steps work."""
        with torch.no_grad(), eval_mode(self.model):
            return loop.run(self.model, tokens, state, steps)


class TokenDecoder:
    """A batch of live rows of one model; rows are admitted and leave between two steps.

    max_rows: refuse more live rows than this.
    """

    def __init__(self, model: Predictor, *, max_rows: int | None = None) -> None:
        if max_rows is not None and (not is_integer(max_rows) or max_rows < 1):
            raise ThreefoldError(f"decoder: max_rows is {max_rows!r}, expected 1 or more, or None")
        self.engine, self.device, self.max_rows = Engine(model), model.device, max_rows
        self.token_count = decodable_tokens(model)
        self.rows: list[DecodingRow] = []
        self.state: State = {}
        self.logits: Tensor | None = None  # of the next tokens; None while tokens are pending
        self._steps_at_once = 16
        self._known_endings: dict[int, tuple[Stops, NDArray[np.uint8]]] = {}

    def read_prompts(
        self,
        tokens: Tensor,
        rows: Sequence[DecodingRow],
        state: State | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Admit rows with their prompts [B, L]; state: the one before the prompts."""
        self._check_capacity(len(rows))
        logits, after = self.engine.prefill(tokens, state, mask)
        for number, (row, prompt) in enumerate(zip(rows, tokens.cpu(), strict=True)):
            real = prompt if mask is None else prompt[mask[number].cpu()]
            row.seen[real.numpy()] = True
        self.admit(rows, after, logits)

    def admit(
        self, rows: Sequence[DecodingRow], state: State, logits: Tensor | None = None
    ) -> None:
        """Admit rows with the state [B] and the logits after their last token.

        Without logits the rows have a pending token, which the model has not read yet.
        """
        self._check_capacity(len(rows))
        self._drop_finished()
        if not self.rows:
            self.rows, self.state, self.logits = list(rows), state, logits
            return
        self._read_pending()
        if logits is None:
            logits, state = self.engine.step(self._pending_tokens(rows), state)
        self.rows = [*self.rows, *rows]
        self.state = states.join([self.state, state])
        self.logits = torch.cat([self._next_logits(), logits])

    def step(self) -> list[tuple[DecodingRow, int]]:
        """Choose a token for each live row; a row with a `finish_reason` has got its last one."""
        self._drop_finished()
        self._read_pending()
        return self.choose()

    def run(self, count: int) -> list[list[tuple[DecodingRow, int]]]:
        """Up to `count` steps, in one native call if possible; at least one.

        It ends at the step in which a row ends, and after a twentieth of a second.
        """
        self._drop_finished()
        left = [row.max_tokens - row.count for row in self.rows if row.max_tokens is not None]
        steps = min(count, self._steps_at_once, *left)
        if self.logits is not None or not self.rows or steps < 1:
            return [self.step()]
        started = time.perf_counter()
        loop = TokenLoop(self.rows, self.token_count, list(map(self._endings, self.rows)))
        found = self.engine.choose_and_read(
            loop, self._pending_tokens(self.rows), self.state, steps
        )
        if found is None:
            return [self.step()]
        chosen, self.state = found
        per_step = (time.perf_counter() - started) / len(chosen)
        self._steps_at_once = min(MOST_STEPS, max(2, int(SECONDS_AT_ONCE / per_step)))
        for tokens in chosen:
            for row, token in zip(self.rows, tokens, strict=True):
                row.draws += 1
                row.record(token)
        return [list(zip(self.rows, tokens, strict=True)) for tokens in chosen]

    def _endings(self, row: DecodingRow) -> NDArray[np.uint8] | None:
        if not row.stops:
            return None
        if id(row.stops) not in self._known_endings:
            self._known_endings[id(row.stops)] = row.stops, row.stops.endings(self.token_count)
        return self._known_endings[id(row.stops)][1]

    def cancel(self, row: DecodingRow) -> None:
        """End a row: it leaves the batch before the next step."""
        row.finish_reason = row.finish_reason or "cancelled"

    def choose(self) -> list[tuple[DecodingRow, int]]:
        """Choose a token for each row from the logits, without reading it."""
        if not self.rows:
            return []
        tokens = choose_tokens(self._next_logits()[:, : self.token_count], self.rows)
        for row, token in zip(self.rows, tokens, strict=True):
            row.record(token)
        self.logits = None
        return list(zip(self.rows, tokens, strict=True))

    def read(self) -> None:
        """Have the model read the pending token of every row."""
        tokens = self._pending_tokens(self.rows)
        self.logits, self.state = self.engine.step(tokens, self.state)
        for row in self.rows:
            row.pending = None

    def search(self, settings: BeamSettings) -> list[list[Hypothesis]]:
        """Find the best texts of each row by beam search, and let each row take its best."""
        logits = self._next_logits()[:, : self.token_count]
        stops = [row.stops for row in self.rows]
        found = beam_search(self.engine.step, logits, self.state, settings, stops)
        self._read_texts([row[0].tokens[:-1] for row in found])
        for row, hypotheses in zip(self.rows, found, strict=True):
            for token in hypotheses[0].tokens:
                row.record(token)
            row.finish_reason = hypotheses[0].finish_reason
        self.logits = None
        return found

    def states(self, rows: Sequence[DecodingRow]) -> State:
        """The states of these rows, whether they are live or have left the batch."""
        if list(rows) == self.rows:
            return self.state
        live = {id(row): index for index, row in enumerate(self.rows)}
        parts = [
            states.select(self.state, [live[id(row)]]) if row.state is None else row.state
            for row in rows
        ]
        return states.join(parts)

    def _read_pending(self) -> None:
        if self.rows and self.logits is None:
            self.read()

    def _read_texts(self, texts: Sequence[tuple[int, ...]]) -> None:
        """Have the model read texts of different lengths, one for each row."""
        if any(texts):
            tokens, mask = pad_tokens(texts)
            tokens, mask = tokens.to(self.device), mask.to(self.device)
            _, self.state = self.engine.prefill(tokens, self.state, mask)

    def _drop_finished(self) -> None:
        """Remove finished rows from the batch; each keeps its own state."""
        ended = [index for index, row in enumerate(self.rows) if row.finish_reason]
        if not ended:
            return
        for index in ended:
            self.rows[index].state = states.select(self.state, [index])
        live = [index for index, row in enumerate(self.rows) if not row.finish_reason]
        self.rows = [self.rows[index] for index in live]
        self.state = states.select(self.state, live) if live else {}
        self.logits = None if self.logits is None or not live else self.logits[live]

    def _pending_tokens(self, rows: Sequence[DecodingRow]) -> Tensor:
        return torch.tensor([row.pending for row in rows], device=self.device)

    def _next_logits(self) -> Tensor:
        assert self.logits is not None  # prompts and pending tokens have been read
        return self.logits

    def _check_capacity(self, count: int) -> None:
        live = sum(not row.finish_reason for row in self.rows)
        if self.max_rows is not None and live + count > self.max_rows:
            raise ThreefoldError(
                f"decoder: {live} rows are live and {count} more were given, but max_rows is "
                f"{self.max_rows}; wait until a row has finished, or cancel one"
            )


def choose_tokens(logits: Tensor, rows: Sequence[DecodingRow]) -> list[int]:
    """Choose a token for each row from logits [B, V], each by the row's own settings."""
    numbers = torch.from_numpy(_next_numbers(rows))
    tokens = _chosen(logits, rows, numbers)
    for row in rows:  # not where choosing failed: another try has the same numbers
        row.draws += 1
    return tokens


def _chosen(logits: Tensor, rows: Sequence[DecodingRow], numbers: Tensor) -> list[int]:
    groups: dict[Sampling, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row.sampling, []).append(index)
    if len(groups) == 1:
        return _choose(rows[0].sampling, logits, rows, numbers)
    tokens = [0] * len(rows)
    for sampling, group in groups.items():
        chosen = _choose(sampling, logits[group], [rows[i] for i in group], numbers[group])
        for index, token in zip(group, chosen, strict=True):
            tokens[index] = token
    return tokens


def _choose(
    sampling: Sampling, logits: Tensor, rows: Sequence[DecodingRow], numbers: Tensor
) -> list[int]:
    seen = None
    if sampling.repetition_penalty != 1:
        marks = np.stack([row.seen[: logits.shape[1]] for row in rows])
        seen = torch.from_numpy(marks).to(logits.device)
    tokens: list[int] = sampling.choose(logits, seen, numbers).tolist()
    return tokens


def _next_numbers(rows: Sequence[DecodingRow]) -> NDArray[np.float64]:
    """The next random number of each row."""
    keys = np.array([row.keys for row in rows], dtype=np.uint64)
    positions = np.array([row.draws for row in rows], dtype=np.int64)
    return hashed_by_keys(keys[:, 0], keys[:, 1], positions)


def decodable_tokens(model: Model) -> int:
    """Number of tokens that may be generated: those which the model's tokenizer can decode.

    A language model's vocabulary may be larger, for example padded to a multiple of 64.
    """
    size = model.spec.vocabulary
    if not model.writes_text or model.tokenizer is None:
        return size
    return min(size, int(getattr(model.tokenizer, "vocabulary", size)))


def choose_seed(seed: Any, owner: str) -> int:
    """Check a seed; None chooses one with torch's global generator."""
    if seed is None:
        return int(torch.randint(2**62, ()))
    if not is_integer(seed):
        raise ThreefoldError(f"{owner}: seed is {seed!r}, expected an integer or None")
    return int(seed)


@contextmanager
def eval_mode(model: Model) -> Iterator[None]:
    """Switch the model to eval mode inside the `with` block."""
    training = [module for module in model.modules() if module.training] if model.training else []
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
