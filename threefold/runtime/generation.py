"""Generation: the prompt in chunks, then one step per token; streamed or not, the same tokens.

A result can be passed to `generate` again, which then continues as if it had never stopped.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.layers.padding import PaddedRows, pad_tokens
from threefold.memory import state as states
from threefold.memory.state import State
from threefold.models.model import Model, Predictor
from threefold.runtime.beam import BeamSettings, Hypothesis
from threefold.runtime.decoding import DecodingRow, TokenDecoder, choose_seed
from threefold.runtime.sampling import Sampling, check_max_tokens
from threefold.runtime.stops import LONGEST_STOP, Stop, Stops, parse_stops

PADDING = -1  # in place of a token, after the end of a row


@dataclass(frozen=True)
class Generation:
    """The generated tokens, and everything needed to continue.

    The state is the one after the last token that the model has read; the last token of each row
    has been chosen but not read yet.
    """

    tokens: Tensor  # [B, n] int64, −1 after the end of a row
    lengths: Tensor  # [B]
    finish_reasons: tuple[str, ...]  # per row: "stop", "length", or "" if it has not ended
    state: State = field(repr=False)
    seed: int
    pending: Tensor = field(repr=False)  # [B], the last token of each row
    seen: Tensor = field(repr=False)  # [B, vocabulary], tokens in the prompt and the generated text
    draws: tuple[int, ...] = field(repr=False)  # random numbers that each row has used
    # The newest tokens, where a stop may have begun.
    tails: tuple[tuple[int, ...], ...] = field(repr=False)
    unbatched: bool = field(repr=False)  # the prompt was a text or [L], not several texts or [B, L]
    tokenizer: Any = field(default=None, repr=False)  # of the model
    # Beam search: the best of each row.
    hypotheses: tuple[tuple[Hypothesis, ...], ...] = field(default=(), repr=False)

    def rows(self) -> list[list[int]]:
        """Return the tokens of each row as a list, without padding."""
        return [row[:n].tolist() for row, n in zip(self.tokens, self.lengths, strict=True)]

    @property
    def texts(self) -> list[str]:
        """The generated text of each row, without the prompt."""
        if self.tokenizer is None:
            raise ThreefoldError(
                "generate: the model has no tokenizer, so there is no text; set model.tokenizer, "
                "or use the result's tokens"
            )
        return [self.tokenizer.decode(row) for row in self.rows()]

    @property
    def text(self) -> str:
        """The generated text of a result with one row, without the prompt."""
        if len(self.tokens) != 1:
            raise ThreefoldError(
                f"generate: the result has {len(self.tokens)} rows; use texts, a list of their "
                "texts"
            )
        return self.texts[0]


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
    min_p: float | None = ...,
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
    min_p: float | None = ...,
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
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    stop: Stop = (),
    seed: int | None = None,
    mask: Tensor | None = None,
    beams: int | None = None,
    length_penalty: float = 0.0,
    stream: bool = False,
) -> Generation | TokenGenerator:
    """Continue a prompt: a text, a list of texts, token ids [L] or [B, L], or an earlier result.

    The result has the `tokens` and, if the model has a tokenizer, the `text` (or `texts`) that
    follow the prompt.  An earlier result is continued exactly.
    mask [B, L]: marks the real tokens of padded prompts.  state: the state before the prompt.
    temperature 0 takes the most likely token; top_k keeps the k most likely tokens, top_p the most
    likely ones with a total probability of p, min_p those at least p times as likely as the most
    likely one.
    stop: tokens, sequences of tokens, or texts, after which a row ends; they are part of the
    output.
    seed: the same seed gives the same tokens in row 0, 1, …, whatever the other rows are.
    stream: return an iterator over the tokens ([B] each, −1 for rows that have ended; ints for a
    text or a prompt [L]), endless with max_tokens=None; its `result` is what is returned otherwise.
    beams: instead of sampling, run a beam search of this width, with scores divided by
    ((5 + n) / 6)^length_penalty; `hypotheses` has all texts that were found.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    _check_max_tokens(max_tokens, stream)
    if beams is not None and (stream or isinstance(tokens, Generation)):
        raise ThreefoldError("generate: beam search needs a prompt and stream=False")
    sampled = seed is not None or sampling != Sampling()
    settings = _beam_settings(beams, length_penalty, max_tokens, sampled)
    generator = TokenGenerator(_predictor(model), sampling, parse_stops(stop, model), max_tokens)
    generator.start(tokens, state, mask, seed)
    if settings is not None:
        return generator.search(settings)
    return generator if stream else generator.run()


class TokenGenerator(Iterator[Any]):
    """An iterator over generated tokens; `result` is everything generated so far."""

    rows: list[DecodingRow]
    tokens: list[array[int]]  # generated so far, of each row
    seed: int
    unbatched: bool = False  # yield ints instead of tensors: the prompt was a text or [L]

    def __init__(
        self, model: Predictor, sampling: Sampling, stops: Stops, max_tokens: int | None
    ) -> None:
        self.model, self.sampling, self.stops, self.max_tokens = model, sampling, stops, max_tokens
        self.decoder = TokenDecoder(model)

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
        self.tokens = [array("q") for _ in self.rows]

    def _read_prompt(
        self, tokens: Any, state: State | None, mask: Tensor | None, seed: int | None
    ) -> None:
        self.seed = choose_seed(seed, "generate")
        prompt, mask, self.unbatched = parse_prompt(tokens, mask, self.model)
        if mask is not None:
            _refuse_empty_rows(PaddedRows(mask, prompt.shape, "generate").lengths)
        size = self.model.spec.vocabulary
        self.rows = [self._row(row, np.zeros(size, dtype=bool)) for row in range(len(prompt))]
        self.decoder.read_prompts(prompt, self.rows, state, mask)

    def _resume(self, earlier: Generation, seed: int | None) -> None:
        """Continue an earlier result; rows that had stopped stay stopped."""
        self.seed = earlier.seed if seed is None else choose_seed(seed, "generate")
        self.unbatched = earlier.unbatched
        seen = earlier.seen.cpu().numpy().copy()
        self.rows = [self._row(number, marks) for number, marks in enumerate(seen)]
        for number, row in enumerate(self.rows):
            row.draws, row.pending = earlier.draws[number], int(earlier.pending[number])
            row.tail = deque(earlier.tails[number], maxlen=LONGEST_STOP)
            if earlier.finish_reasons[number] == "stop":
                row.finish_reason, row.state = "stop", states.select(earlier.state, [number])
        live = [number for number, row in enumerate(self.rows) if not row.finish_reason]
        state = earlier.state
        if live:
            state = state if len(live) == len(self.rows) else states.select(state, live)
            self.decoder.admit([self.rows[number] for number in live], state)

    def _row(self, number: int, seen: Any) -> DecodingRow:
        return DecodingRow(
            self.sampling, self.seed, seen, number, stops=self.stops, max_tokens=self.max_tokens
        )

    def run(self) -> Generation:
        """Generate all tokens."""
        while not all(row.finish_reason for row in self.rows):
            for chosen in self.decoder.run(self.max_tokens or 1):
                self._take(chosen)
        return self.result

    def search(self, settings: BeamSettings) -> Generation:
        """Find the most likely text of each row; the result is as if it had been sampled."""
        hypotheses = self.decoder.search(settings)
        for tokens, row in zip(self.tokens, hypotheses, strict=True):
            tokens.extend(row[0].tokens)
        return replace(self.result, hypotheses=tuple(tuple(row) for row in hypotheses))

    def __next__(self) -> Any:
        if all(row.finish_reason for row in self.rows):
            raise StopIteration
        tokens = self._take(self.decoder.step())
        return tokens[0] if self.unbatched else torch.tensor(tokens, device=self.decoder.device)

    def _take(self, chosen: list[tuple[DecodingRow, int]]) -> list[int]:
        """Append the tokens of one step; returns one for each row, padding for those that ended."""
        by_row = {id(row): token for row, token in chosen}
        tokens = [by_row.get(id(row), PADDING) for row in self.rows]
        for row, token in zip(self.tokens, tokens, strict=True):
            if token != PADDING:
                row.append(token)
        return tokens

    @property
    def result(self) -> Generation:
        """What has been generated so far, and everything needed to continue."""
        if any(row.pending is None for row in self.rows):
            raise ThreefoldError(
                "generate: no token has been generated yet; take one from the stream first"
            )
        tokens, _ = pad_tokens([row.tolist() for row in self.tokens], PADDING)
        return Generation(
            tokens=tokens,
            lengths=torch.tensor([len(row) for row in self.tokens]),
            finish_reasons=tuple(row.finish_reason for row in self.rows),
            state=self.decoder.states(self.rows),
            seed=self.seed,
            pending=torch.tensor([row.pending for row in self.rows], device=self.decoder.device),
            seen=torch.from_numpy(np.stack([row.seen for row in self.rows])),
            draws=tuple(row.draws for row in self.rows),
            tails=tuple(tuple(row.tail) for row in self.rows),
            unbatched=self.unbatched,
            tokenizer=self.model.tokenizer,
        )


def _predictor(model: Model) -> Predictor:
    if not isinstance(model, Model):
        raise ThreefoldError(
            f"generate: the model is {model!r:.80}, expected one, e.g. threefold.load(folder)"
        )
    if not isinstance(model, Predictor):
        raise ThreefoldError(f"generate: a {model.kind} model does not generate tokens")
    return model


def _check_max_tokens(max_tokens: Any, stream: bool) -> None:
    check_max_tokens(max_tokens)
    if max_tokens is None and not stream:
        raise ThreefoldError("generate: max_tokens is None, which needs stream=True")


def _beam_settings(
    beams: int | None, length_penalty: float, max_tokens: int | None, sampled: bool
) -> BeamSettings | None:
    if beams is None and length_penalty != 0:
        raise ThreefoldError(f"generate: length_penalty={length_penalty} is only used with beams=")
    if beams is None:
        return None
    if sampled:
        raise ThreefoldError(
            "generate: beam search does not sample; leave out temperature, top_k, top_p, "
            "min_p, repetition_penalty and seed"
        )
    assert max_tokens is not None  # only a stream may be endless
    return BeamSettings(beams, length_penalty, max_tokens)


def parse_prompt(
    tokens: Any, mask: Tensor | None, model: Predictor
) -> tuple[Tensor, Tensor | None, bool]:
    """Return tokens [B, L] int64, their mask, and whether they came without a batch dimension."""
    texts = [tokens] if isinstance(tokens, str) else tokens
    if isinstance(texts, list | tuple) and texts and all(isinstance(text, str) for text in texts):
        prompt, real = _encode(texts, mask, model)
        padding = None if bool(real.all()) else real.to(model.device)
        return prompt.to(model.device), padding, isinstance(tokens, str)
    prompt = _token_prompt(tokens, model.device)
    return prompt.long().view(-1, prompt.shape[-1]), mask, prompt.dim() == 1


def _encode(texts: Sequence[str], mask: Tensor | None, model: Predictor) -> tuple[Tensor, Tensor]:
    """Tokens [B, L] and mask of texts."""
    if mask is not None:
        raise ThreefoldError("generate: a mask goes with tokens; leave it out with texts")
    if not model.writes_text:
        raise ThreefoldError(
            f"generate: the prompt is a text, which only a language model continues; give a "
            f"{model.kind} model the tokens to begin with, and the state after its source"
        )
    if model.tokenizer is None:
        raise ThreefoldError(
            "generate: the prompt is a text, but the model has no tokenizer; set model.tokenizer, "
            "or give tokens"
        )
    rows = [[int(token) for token in model.tokenizer.encode(text)] for text in texts]
    if not all(rows):
        raise ThreefoldError(f"generate: row {rows.index([])} of the prompt is an empty text")
    return pad_tokens(rows)


def _token_prompt(tokens: Any, device: torch.device) -> Tensor:
    """Return the tokens as a tensor of integers [L] or [B, L]."""
    try:
        prompt = tokens if isinstance(tokens, Tensor) else torch.tensor(tokens)
        prompt = prompt.to(device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ThreefoldError(
            f"generate: the prompt is a {type(tokens).__name__}, but not an array of token ids "
            f"({error}); expected a text, texts or tokens; pad prompts of different lengths and "
            "pass a mask"
        ) from error
    if prompt.dim() not in (1, 2) or prompt.numel() == 0:
        raise ThreefoldError(
            f"generate: the prompt has shape {tuple(prompt.shape)}, expected [length] or "
            "[batch, length] with at least one token"
        )
    if prompt.is_floating_point() or prompt.is_complex() or prompt.dtype == torch.bool:
        raise ThreefoldError(f"generate: the prompt is {prompt.dtype}, expected integers")
    return prompt


def _refuse_empty_rows(lengths: Tensor) -> None:
    empty = (lengths == 0).nonzero().flatten().tolist()
    if empty:
        raise ThreefoldError(f"generate: row {empty[0]} of the prompt is empty")
