"""Generation: the prompt in chunks, then one step per token; streamed or not, the same tokens.

A result can be passed to `generate` again, which then continues as if it had never stopped.
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
from threefold.runtime.beam import BeamSettings, Hypothesis, beam_search
from threefold.runtime.sampling import Sampling, is_integer, row_generator

Stop: TypeAlias = "int | Sequence[int | Sequence[int]]"

PADDING = -1  # in place of a token, after the end of a row
PREFILL_CHUNK = 4096  # tokens of a prompt read at a time, which bounds the memory of any prompt
LONGEST_STOP = 256  # tokens in a stop sequence


@dataclass(frozen=True)
class Generation:
    """The generated tokens, and everything needed to continue.

    The state is the one after the last token that the model has read; the last token of each row
    has been chosen but not read yet.
    """

    tokens: Tensor  # [B, n] int64, −1 after the end of a row
    lengths: Tensor  # [B]
    finish_reasons: tuple[str, ...]  # per row: "stop", "length", or "" if it has not ended
    state: State
    seed: int
    pending: Tensor  # [B], the last token of each row
    seen: Tensor  # [B, vocabulary], tokens in the prompt and the generated text
    generator_states: tuple[Tensor, ...]  # states of the rows' random generators
    tails: tuple[tuple[int, ...], ...]  # the newest tokens, where a stop sequence may have begun
    unbatched: bool  # the prompt was [L], not [B, L]
    hypotheses: tuple[tuple[Hypothesis, ...], ...] = ()  # beam search: the best of each row

    def rows(self) -> list[list[int]]:
        """Return the tokens of each row as a list, without padding."""
        return [row[:n].tolist() for row, n in zip(self.tokens, self.lengths, strict=True)]


@overload
def generate(
    model: Model,
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
    model: Model,
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
    model: Model,
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
    """Continue a prompt: token ids [L] or [B, L], or an earlier result, which is continued exactly.

    mask [B, L]: marks the real tokens of padded prompts.  state: the state before the prompt.
    temperature 0 takes the most likely token; top_k keeps the k most likely tokens, top_p the most
    likely ones with a total probability of p.
    stop: tokens, or sequences of tokens, after which a row ends; they are part of the output.
    seed: the same seed gives the same tokens, row by row.  stream: return an iterator over the
    tokens ([B] each, −1 for rows that have ended; ints for a prompt [L]), endless with
    max_tokens=None; its `result` is what is returned otherwise.
    beams: instead of sampling, run a beam search of this width, with scores divided by
    ((5 + n) / 6)^length_penalty; `hypotheses` has all texts that were found.
    """
    if not isinstance(model, Predictor):
        raise ThreefoldError(f"generate: a {model.kind} model does not generate tokens")
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
    _check(max_tokens, seed, stream)
    settings = _beam_settings(beams, length_penalty, max_tokens, sampling)
    if settings is not None and (stream or isinstance(tokens, Generation)):
        raise ThreefoldError("generate: beam search needs a prompt and stream=False")
    generator = TokenGenerator(model, sampling, _stop_sequences(stop, model), max_tokens)
    generator.start(tokens, state, mask, seed)
    if settings is not None:
        return generator.search(settings)
    if stream:
        return generator
    for _ in generator:
        pass
    return generator.result


class TokenGenerator(Iterator[Any]):
    """An iterator over generated tokens; `result` is everything generated so far."""

    state: State
    seen: Tensor
    pending: Tensor
    seed: int
    generators: list[Generator]  # random, one per row
    logits: Tensor | None = None  # of the next token, while no token is pending
    unbatched: bool = False  # yield ints instead of tensors: the prompt was [L]

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
        """Read a prompt, or take over an earlier result."""
        if not isinstance(tokens, Generation):
            self._read_prompt(tokens, state, mask, seed)
        elif state is not None or mask is not None:
            raise ThreefoldError(
                "generate: an earlier result continues from its own state; leave out state and mask"
            )
        else:
            self._resume(tokens, seed)

    def _read_prompt(
        self, tokens: Any, state: State | None, mask: Tensor | None, seed: int | None
    ) -> None:
        prompt, self.unbatched = _prompt(tokens, self.model.device)
        real = torch.ones_like(prompt, dtype=torch.bool) if mask is None else mask
        empty = (
            (PaddedRows(real, prompt.shape, "generate").lengths == 0).nonzero().flatten().tolist()
        )
        if empty:
            raise ThreefoldError(f"generate: row {empty[0]} of the prompt is empty")
        with torch.no_grad(), eval_mode(self.model):
            self.logits, self.state = prefill(self.model, prompt, state, mask)
        row, position = real.nonzero(as_tuple=True)
        self.seen = torch.zeros_like(self.logits, dtype=torch.bool)
        self.seen[row, prompt[row, position]] = True
        self.pending = torch.full_like(prompt[:, 0], PADDING)
        self._seed(seed, len(prompt))
        self._begin([""] * len(prompt), [()] * len(prompt))

    def _resume(self, earlier: Generation, seed: int | None) -> None:
        """Continue an earlier result; rows that had stopped stay stopped."""
        self.state, self.seen, self.pending = earlier.state, earlier.seen.clone(), earlier.pending
        self.seed, self.unbatched = earlier.seed, earlier.unbatched
        self.generators = [Generator().set_state(state) for state in earlier.generator_states]
        if seed is not None:
            self._seed(seed, len(earlier.generator_states))
        reasons = ["stop" if reason == "stop" else "" for reason in earlier.finish_reasons]
        self._begin(reasons, earlier.tails)

    def search(self, settings: BeamSettings) -> Generation:
        """Find the most likely text of each row; the result is as if it had been sampled."""
        assert self.logits is not None  # the prompt has been read
        with torch.no_grad(), eval_mode(self.model):
            hypotheses = beam_search(
                self.model, self.logits, self.state, settings, self._is_finished, len(self.stops)
            )
            best = [row[0].tokens for row in hypotheses]
            self._read_texts([text[:-1] for text in best])
        for row, text in enumerate(best):
            self.rows[row].extend(text)
            self.tails[row].extend(text)
            self.seen[row, list(text)] = True
            self.finish_reasons[row] = hypotheses[row][0].finish_reason
        self.pending = torch.tensor([text[-1] for text in best], device=self.pending.device)
        self.count, self.logits = max(map(len, best)), None
        return replace(self.result, hypotheses=tuple(tuple(row) for row in hypotheses))

    def _is_finished(self, text: tuple[int, ...]) -> bool:
        return any(text[-len(stop) :] == stop for stop in self.stops)

    def _read_texts(self, texts: Sequence[tuple[int, ...]]) -> None:
        """Have the model read texts of different lengths after the prompt."""
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
        if self.count == self.max_tokens or all(self.finish_reasons):
            raise StopIteration
        with torch.no_grad(), eval_mode(self.model):
            going = [not reason for reason in self.finish_reasons]
            active = torch.tensor(going, device=self.pending.device)
            logits = self._read(active) if self.logits is None else self.logits
            chosen = self.sampling.choose(logits, self.seen, self.generators)
        self.logits = None
        self.pending = chosen.where(active, self.pending)
        rows = active.nonzero().flatten()
        self.seen[rows, chosen[rows]] = True
        self._record(self.pending.tolist())
        tokens = chosen.where(active, PADDING)
        return int(tokens) if self.unbatched else tokens

    @property
    def result(self) -> Generation:
        """What has been generated so far, and everything needed to continue."""
        if not self.count and self.logits is not None:
            raise ThreefoldError(
                "generate: no token has been generated yet; take one from the stream first"
            )
        lengths = torch.tensor([len(row) for row in self.rows])
        return Generation(
            tokens=self._padded_tokens(int(lengths.max())),
            lengths=lengths,
            finish_reasons=tuple(self.finish_reasons),
            state=self.state,
            seed=self.seed,
            pending=self.pending,
            seen=self.seen.clone(),
            generator_states=tuple(generator.get_state() for generator in self.generators),
            tails=tuple(tuple(tail) for tail in self.tails),
            unbatched=self.unbatched,
        )

    def _padded_tokens(self, length: int) -> Tensor:
        """The tokens of all rows, each padded to `length`."""
        tokens = torch.full((len(self.rows), length), PADDING)
        for padded, row in zip(tokens, self.rows, strict=True):
            padded[: len(row)] = torch.tensor(row.tolist(), dtype=torch.int64)
        return tokens

    def _seed(self, seed: int | None, rows: int) -> None:
        self.seed = int(torch.randint(2**62, ())) if seed is None else seed
        self.generators = [row_generator(self.seed, row) for row in range(rows)]

    def _begin(self, finish_reasons: list[str], tails: Sequence[Sequence[int]]) -> None:
        self.finish_reasons = finish_reasons
        self.rows = [array("q") for _ in finish_reasons]
        self.tails = [deque(tail, maxlen=LONGEST_STOP) for tail in tails]

    def _read(self, active: Tensor) -> Tensor:
        """Have the model read the pending tokens; rows that have ended do not change."""
        if bool(active.all()):
            logits, self.state = self.model.step(self.pending, self.state)
        else:
            logits, self.state = self.model(
                self.pending.unsqueeze(1), self.state, form="step", mask=active[:, None], last=True
            )
        return logits

    def _record(self, tokens: list[int]) -> None:
        """Append a token to each row that has not ended, and check whether it ends now."""
        self.count += 1
        for row, token in enumerate(tokens):
            if self.finish_reasons[row]:
                continue
            tail = self.tails[row]
            self.rows[row].append(token)
            tail.append(token)
            if any(_ends_with(tail, stop) for stop in self.stops):
                self.finish_reasons[row] = "stop"
            elif self.count == self.max_tokens:
                self.finish_reasons[row] = "length"


def prefill(
    model: Predictor, tokens: Tensor, state: State | None, mask: Tensor | None
) -> tuple[Tensor, State]:
    """Read a prompt of any length in chunks; return the logits [B, vocabulary] and the state."""
    state = None if state is None else states.detach(state)
    result: tuple[Tensor, State] | None = None
    for begin in range(0, tokens.shape[1], PREFILL_CHUNK):
        chunk = slice(begin, begin + PREFILL_CHUNK)
        real = None if mask is None else mask[:, chunk]
        logits, state = model(tokens[:, chunk], state, mask=real, last=True)
        if result is not None and real is not None:
            logits = logits.where(real.any(1, keepdim=True), result[0])
        result = logits, state
    assert result is not None  # _prompt refuses an empty prompt
    return result


def _check(max_tokens: Any, seed: Any, stream: bool) -> None:
    if max_tokens is None and not stream:
        raise ThreefoldError("generate: max_tokens is None, which needs stream=True")
    if max_tokens is not None and (not is_integer(max_tokens) or max_tokens < 1):
        raise ThreefoldError(f"generate: max_tokens is {max_tokens!r}, expected at least 1")
    if seed is not None and not is_integer(seed):
        raise ThreefoldError(f"generate: seed is {seed!r}, expected an integer or None")


def _beam_settings(
    beams: int | None, length_penalty: float, max_tokens: int | None, sampling: Sampling
) -> BeamSettings | None:
    if beams is None and length_penalty != 0:
        raise ThreefoldError(f"generate: length_penalty={length_penalty} is only used with beams=")
    if beams is None:
        return None
    if sampling != Sampling():
        raise ThreefoldError(
            "generate: beam search does not sample; leave out temperature, top_k, top_p and "
            "repetition_penalty"
        )
    return BeamSettings(beams, length_penalty, max_tokens or 0)


def _prompt(tokens: Any, device: torch.device) -> tuple[Tensor, bool]:
    """Return the tokens as [B, L] int64, and whether they came without a batch dimension."""
    try:
        prompt = tokens if isinstance(tokens, Tensor) else torch.tensor(tokens)
        prompt = prompt.to(device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ThreefoldError(
            f"generate: the prompt is not an array of token ids ({error}); pad prompts of "
            "different lengths and pass a mask"
        ) from error
    if prompt.dim() not in (1, 2) or prompt.numel() == 0:
        raise ThreefoldError(
            f"generate: the prompt has shape {tuple(prompt.shape)}, expected [length] or "
            "[batch, length] with at least one token"
        )
    if prompt.is_floating_point() or prompt.is_complex() or prompt.dtype == torch.bool:
        raise ThreefoldError(f"generate: the prompt is {prompt.dtype}, expected integers")
    return prompt.long().view(-1, prompt.shape[-1]), prompt.dim() == 1


def _stop_sequences(stop: Any, model: Predictor) -> tuple[tuple[int, ...], ...]:
    """Return the stop sequences; a single token is a sequence of one."""
    vocabulary = range(model.spec.vocabulary)
    items = [stop] if is_integer(stop) else stop
    try:
        stops = tuple((item,) if is_integer(item) else tuple(item) for item in items)
    except TypeError:
        stops = ((),)
    for item in stops:
        valid = all(is_integer(token) and token in vocabulary for token in item)
        if not valid or not 1 <= len(item) <= LONGEST_STOP:
            raise ThreefoldError(
                f"generate: stop is {stop!r}, expected tokens from 0 to {len(vocabulary) - 1}, or "
                f"sequences of 1 to {LONGEST_STOP} of them"
            )
    return stops


def _ends_with(tail: deque[int], stop: tuple[int, ...]) -> bool:
    if len(tail) < len(stop):
        return False
    return all(tail[-i] == stop[-i] for i in range(1, len(stop) + 1))


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
