"""Generation: the prompt in chunks, then one step a token; streamed or whole, the same tokens.

A result can be given back to `generate`, which then goes on as if it had never stopped.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, overload

import torch
from torch import Generator, Tensor

from threefold.errors import ThreefoldError
from threefold.layers.padding import PaddedRows
from threefold.memory import state as states
from threefold.memory.state import State
from threefold.models.model import Model, Predictor
from threefold.runtime.beam import Beams, Hypothesis, beam_search
from threefold.runtime.sampling import Sampling, row_generator, whole

Stop: TypeAlias = "int | Sequence[int | Sequence[int]]"

NOTHING = -1  # in place of a token, behind the end of a row
PIECE = 4096  # tokens of a prompt taken at once: bounds the memory of any prompt
LONGEST_STOP = 256  # tokens


@dataclass(frozen=True)
class Generation:
    """What was generated, and everything needed to go on.

    The state is the one after the last token that the model was given: the last token of each row
    has been chosen, not yet read.
    """

    tokens: Tensor  # [B, n] int64, −1 behind the end of a row
    lengths: Tensor  # [B]
    reasons: tuple[str, ...]  # of each row: "stop", "length", or "" while it goes on
    state: State
    seed: int
    pending: Tensor  # [B], the last token of each row
    seen: Tensor  # [B, vocabulary], tokens of prompt and text
    random: tuple[Tensor, ...]  # states of the rows' random generators
    tails: tuple[tuple[int, ...], ...]  # the newest tokens, where a stop sequence may have begun
    plain: bool  # the prompt was one row without a batch
    hypotheses: tuple[tuple[Hypothesis, ...], ...] = ()  # with beams: the best of each row

    def rows(self) -> list[list[int]]:
        """The tokens of each row, as lists of their own lengths."""
        return [row[:n].tolist() for row, n in zip(self.tokens, self.lengths, strict=True)]


@overload
def generate(
    model: Predictor,
    tokens: Any,
    state: State | None = ...,
    *,
    stream: Literal[False] = ...,
    max_tokens: int | None = ...,
    temperature: float = ...,
    top_k: int | None = ...,
    top_p: float | None = ...,
    repetition_penalty: float = ...,
    stop: Stop = ...,
    seed: int | None = ...,
    mask: Tensor | None = ...,
    beams: int | None = ...,
    length_penalty: float = ...,
) -> Generation: ...


@overload
def generate(
    model: Predictor,
    tokens: Any,
    state: State | None = ...,
    *,
    stream: Literal[True],
    max_tokens: int | None = ...,
    temperature: float = ...,
    top_k: int | None = ...,
    top_p: float | None = ...,
    repetition_penalty: float = ...,
    stop: Stop = ...,
    seed: int | None = ...,
    mask: Tensor | None = ...,
    beams: int | None = ...,
    length_penalty: float = ...,
) -> TokenGenerator: ...


def generate(
    model: Predictor,
    tokens: Any,
    state: State | None = None,
    *,
    max_tokens: int | None = 128,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: Stop = (),
    seed: int | None = None,
    mask: Tensor | None = None,
    beams: int | None = None,
    length_penalty: float = 0.0,
    stream: bool = False,
) -> Generation | TokenGenerator:
    """Continue a prompt: whole numbers [L] or [B, L], or an earlier result, which goes on exactly.

    mask [B, L]: prompts of different lengths.  state: what came before the prompt.
    temperature 0 takes the likeliest token; top_k and top_p keep the likeliest k, or a mass of p.
    stop: tokens, or sequences of them, after which a row ends; they are part of its text.
    seed: the same seed gives the same tokens, row by row.  stream: an iterator over the tokens as
    they are made ([B] each, −1 for rows that have ended; plain numbers for a prompt [L]), endless
    with max_tokens=None; its `result` is what this returns otherwise.
    beams: instead of sampling, search for the likeliest text among so many at a time, with lengths
    weighed by ((5 + n) / 6)^length_penalty; `hypotheses` are all that were found.
    """
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
    _check(max_tokens, seed, stream)
    plan = None if beams is None else Beams(beams, length_penalty, max_tokens or 0)
    if plan is not None and (stream or sampling != Sampling() or isinstance(tokens, Generation)):
        raise ThreefoldError(
            "generate: beams search for the likeliest whole text; leave out stream, temperature, "
            "top_k, top_p and repetition_penalty, and begin with a prompt"
        )
    if plan is None and length_penalty != 0:
        raise ThreefoldError(f"generate: length_penalty={length_penalty} belongs to beams=")
    made = TokenGenerator(model, sampling, _stops(stop, model), max_tokens)
    if isinstance(tokens, Generation):
        if state is not None or mask is not None:
            raise ThreefoldError("generate: an earlier result goes on from its own state")
        made.resume(tokens, seed)
    else:
        made.start(tokens, state, mask, seed)
    if plan is not None:
        return made.search(plan)
    if stream:
        return made
    for _ in made:
        pass
    return made.result


class TokenGenerator(Iterator[Any]):
    """Tokens as they are made; `result` is what there is so far."""

    state: State
    seen: Tensor
    pending: Tensor
    seed: int
    random: list[Generator]
    logits: Tensor | None = None  # of the next token, while nothing is pending
    plain: bool = False  # numbers instead of tensors: the prompt was one row without a batch

    def __init__(
        self,
        model: Predictor,
        sampling: Sampling,
        stops: tuple[tuple[int, ...], ...],
        max_tokens: int | None,
    ) -> None:
        self.model, self.sampling, self.stops, self.max_tokens = model, sampling, stops, max_tokens
        self.count = 0

    def start(
        self, tokens: Any, state: State | None, mask: Tensor | None, seed: int | None
    ) -> None:
        """Read the prompt."""
        prompt, self.plain = _prompt(tokens, self.model.device)
        real = torch.ones_like(prompt, dtype=torch.bool) if mask is None else mask
        empty = (
            (PaddedRows(real, prompt.shape, "generate").lengths == 0).nonzero().flatten().tolist()
        )
        if empty:
            raise ThreefoldError(f"generate: row {empty[0]} of the prompt has no token")
        with torch.no_grad(), evaluating(self.model):
            self.logits, self.state = prefill(self.model, prompt, state, mask)
        row, place = real.nonzero(as_tuple=True)
        self.seen = torch.zeros_like(self.logits, dtype=torch.bool)
        self.seen[row, prompt[row, place]] = True
        self.pending = torch.full_like(prompt[:, 0], NOTHING)
        self._seed(seed, len(prompt))
        self._begin([""] * len(prompt), [()] * len(prompt))

    def resume(self, earlier: Generation, seed: int | None) -> None:
        """Go on from an earlier result; rows that had stopped stay so."""
        self.state, self.seen, self.pending = earlier.state, earlier.seen.clone(), earlier.pending
        self.seed, self.plain = earlier.seed, earlier.plain
        self.random = [Generator().set_state(state) for state in earlier.random]
        if seed is not None:
            self._seed(seed, len(earlier.random))
        self._begin(["stop" if r == "stop" else "" for r in earlier.reasons], earlier.tails)

    def search(self, plan: Beams) -> Generation:
        """The likeliest text of each row, as if it had been sampled."""
        assert self.logits is not None  # the prompt was read
        with torch.no_grad(), evaluating(self.model):
            found = beam_search(
                self.model, self.logits, self.state, plan, self._at_end, len(self.stops)
            )
            best = [row[0].tokens for row in found]
            self._read_texts([text[:-1] for text in best])
        for row, text in enumerate(best):
            self.made[row].extend(text)
            self.tails[row].extend(text)
            self.seen[row, list(text)] = True
            self.reasons[row] = found[row][0].reason
        self.pending = torch.tensor([text[-1] for text in best], device=self.pending.device)
        self.count, self.logits = max(map(len, best)), None
        return replace(self.result, hypotheses=tuple(tuple(row) for row in found))

    def _at_end(self, text: tuple[int, ...]) -> bool:
        return any(text[-len(stop) :] == stop for stop in self.stops)

    def _read_texts(self, texts: Sequence[tuple[int, ...]]) -> None:
        """Give the model texts of different lengths, after the prompt."""
        lengths = torch.tensor([len(text) for text in texts])
        longest = int(lengths.max())
        if longest == 0:
            return
        padded = torch.zeros(len(texts), longest, dtype=torch.int64)
        for row, text in zip(padded, texts, strict=True):
            row[: len(text)] = torch.tensor(text, dtype=torch.int64)
        device = self.pending.device
        mask = (torch.arange(longest) < lengths.unsqueeze(1)).to(device)
        _, self.state = prefill(self.model, padded.to(device), self.state, mask)

    def __next__(self) -> Any:
        if self.count == self.max_tokens or all(self.reasons):
            raise StopIteration
        with torch.no_grad(), evaluating(self.model):
            active = torch.tensor([not r for r in self.reasons], device=self.pending.device)
            logits = self._read(active) if self.logits is None else self.logits
            chosen = self.sampling.choose(logits, self.seen, self.random)
        self.logits = None
        self.pending = chosen.where(active, self.pending)
        rows = active.nonzero().flatten()
        self.seen[rows, chosen[rows]] = True
        self._record(self.pending.tolist())
        shown = chosen.where(active, NOTHING)
        return int(shown) if self.plain else shown

    @property
    def result(self) -> Generation:
        """What was made so far, and everything needed to go on."""
        if not self.count and self.logits is not None:
            raise ThreefoldError(
                "generate: nothing was made yet; take a token from the stream first"
            )
        lengths = torch.tensor([len(row) for row in self.made])
        tokens = torch.full((len(self.made), int(lengths.max())), NOTHING)
        for row, made in zip(tokens, self.made, strict=True):
            row[: len(made)] = torch.tensor(made.tolist(), dtype=torch.int64)
        return Generation(
            tokens=tokens,
            lengths=lengths,
            reasons=tuple(self.reasons),
            state=self.state,
            seed=self.seed,
            pending=self.pending,
            seen=self.seen.clone(),
            random=tuple(generator.get_state() for generator in self.random),
            tails=tuple(tuple(tail) for tail in self.tails),
            plain=self.plain,
        )

    def _seed(self, seed: int | None, rows: int) -> None:
        self.seed = int(torch.randint(2**62, ())) if seed is None else seed
        self.random = [row_generator(self.seed, row) for row in range(rows)]

    def _begin(self, reasons: list[str], tails: Sequence[Sequence[int]]) -> None:
        self.reasons = reasons
        self.made = [array("q") for _ in reasons]
        self.tails = [deque(tail, maxlen=LONGEST_STOP) for tail in tails]

    def _read(self, active: Tensor) -> Tensor:
        """Give the model the pending tokens; rows that have ended stay as they are."""
        if bool(active.all()):
            logits, self.state = self.model.step(self.pending, self.state)
        else:
            logits, self.state = self.model(
                self.pending.unsqueeze(1), self.state, form="step", mask=active[:, None], last=True
            )
        return logits

    def _record(self, tokens: list[int]) -> None:
        """Append to each row that goes on, and see whether it ends."""
        self.count += 1
        for row, token in enumerate(tokens):
            if self.reasons[row]:
                continue
            tail = self.tails[row]
            self.made[row].append(token)
            tail.append(token)
            if any(_ends(tail, stop) for stop in self.stops):
                self.reasons[row] = "stop"
            elif self.count == self.max_tokens:
                self.reasons[row] = "length"


def prefill(
    model: Predictor, tokens: Tensor, state: State | None, mask: Tensor | None
) -> tuple[Tensor, State]:
    """Logits [B, vocabulary] after a prompt of any length, piece by piece, and the state."""
    state = None if state is None else states.detach(state)
    result: tuple[Tensor, State] | None = None
    for begin in range(0, tokens.shape[1], PIECE):
        piece = slice(begin, begin + PIECE)
        real = None if mask is None else mask[:, piece]
        logits, state = model(tokens[:, piece], state, mask=real, last=True)
        if result is not None and real is not None:
            logits = logits.where(real.any(1, keepdim=True), result[0])
        result = logits, state
    assert result is not None  # _prompt refuses an empty prompt
    return result


def _check(max_tokens: Any, seed: Any, stream: bool) -> None:
    if max_tokens is None and not stream:
        raise ThreefoldError("generate: max_tokens is None: an endless text needs stream=True")
    if max_tokens is not None and (not whole(max_tokens) or max_tokens < 1):
        raise ThreefoldError(f"generate: max_tokens is {max_tokens!r}, expected at least 1")
    if seed is not None and not whole(seed):
        raise ThreefoldError(f"generate: seed is {seed!r}, expected a whole number or None")


def _prompt(tokens: Any, device: torch.device) -> tuple[Tensor, bool]:
    """Tokens [B, L] int64, and whether they came without a batch."""
    try:
        given = tokens if isinstance(tokens, Tensor) else torch.tensor(tokens)
        prompt = given.to(device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ThreefoldError(
            f"generate: the prompt is no table of whole numbers ({error}); pad prompts of "
            "different lengths and give a mask"
        ) from error
    if prompt.dim() not in (1, 2) or prompt.numel() == 0:
        raise ThreefoldError(
            f"generate: the prompt is {tuple(prompt.shape)}, expected [length] or [batch, length] "
            "with at least one token"
        )
    if prompt.is_floating_point() or prompt.is_complex() or prompt.dtype == torch.bool:
        raise ThreefoldError(f"generate: the prompt is {prompt.dtype}, expected whole numbers")
    return prompt.long().view(-1, prompt.shape[-1]), prompt.dim() == 1


def _stops(stop: Any, model: Predictor) -> tuple[tuple[int, ...], ...]:
    """Stop sequences, single tokens as sequences of one."""
    known = range(model.spec.vocabulary)
    listed = [stop] if whole(stop) else stop
    try:
        stops = tuple((item,) if whole(item) else tuple(item) for item in listed)
    except TypeError:
        stops = ((),)
    for item in stops:
        right = all(whole(token) and token in known for token in item)
        if not right or not 1 <= len(item) <= LONGEST_STOP:
            raise ThreefoldError(
                f"generate: stop is {stop!r}, expected tokens from 0 to {len(known) - 1}, or "
                f"sequences of 1 to {LONGEST_STOP} of them"
            )
    return stops


def _ends(tail: deque[int], stop: tuple[int, ...]) -> bool:
    if len(tail) < len(stop):
        return False
    return all(tail[-i] == stop[-i] for i in range(1, len(stop) + 1))


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Dropout off, if it was on."""
    training = [module for module in model.modules() if module.training] if model.training else []
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
