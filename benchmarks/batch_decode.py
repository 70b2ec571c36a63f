"""Batches of live rows: 1, 4, 16 and 64 requests at once, and one after another by `generate`.

Every request has a prompt of 32 tokens and gets 64 greedy ones, in any of the ways the same. A time
is that of all requests, so tokens a second are 64 × rows / time. A server takes a token of each row
at every step; `eight at once` takes up to eight. The deterministic batch has the same bits for a
row in any company.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import threefold
from benchmarks.measure import Comparison, Contender, min_speedup
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec
from threefold.runtime.batch import LiveBatch
from threefold.runtime.sampling import Sampling

MEMORY = ("kept",)
ROWS = (1, 4, 16, 64)
PROMPT, TOKENS, VOCABULARY = 32, 64, 256
SEQUENTIAL = "generate, one by one"


def language_model(mixer: str, width: int, depth: int) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(Spec("language", width, depth, mixer, vocabulary=VOCABULARY)).eval()


def prompts(rows: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    numbers: list[list[int]] = torch.randint(
        VOCABULARY, (rows, PROMPT), generator=generator
    ).tolist()
    return numbers


def sequential(model: LanguageModel, rows: int) -> Contender:
    """`threefold.generate` for each request."""

    def run() -> list[Tensor]:
        found = [
            threefold.generate(model, prompt, max_tokens=TOKENS, temperature=0).tokens[0]
            for prompt in prompts(rows)
        ]
        return [torch.stack(found).double()]

    return run


def batched(model: LanguageModel, rows: int, count: int = 1, **settings: Any) -> Contender:
    """All requests in one batch, up to `count` tokens of each row at a time."""
    batch = LiveBatch(model, max_rows=rows, prompt_piece=rows * PROMPT, **settings)
    greedy = Sampling(temperature=0)

    def run() -> list[Tensor]:
        found: dict[int, list[int]] = {
            batch.admit(prompt, max_tokens=TOKENS, sampling=greedy): [] for prompt in prompts(rows)
        }
        while len(batch):
            for token in batch.step(count):
                found[token.row].append(token.token)
        return [torch.tensor(list(found.values())).double()]

    return run


def compared(mixer: str, width: int, depth: int, rows: int, rounds: int = 5) -> Comparison:
    model = language_model(mixer, width, depth)
    contenders = {
        "threefold, batch": batched(model, rows),
        "threefold, batch, eight at once": batched(model, rows, 8),
        "threefold, deterministic batch": batched(model, rows, deterministic=True),
        SEQUENTIAL: sequential(model, rows),
    }
    title = f"{mixer}, width {width} × {depth}, {rows} rows, {rows * TOKENS} tokens"
    # Where torch's products serve many rows, two equally likely tokens may change places.
    exact = rows <= 8 or width <= 64
    targets = (min_speedup(1.0, SEQUENTIAL),) if rows >= 16 else ()
    return Comparison(
        title,
        contenders,
        rounds=rounds,
        targets=targets,
        unchecked=() if exact else tuple(contenders),
    )


def run() -> Iterator[Comparison]:
    """Small models, where calls take the time, and one that does not fit in the cache."""
    for mixer, width, depth in (
        ("lstm", 64, 2),
        ("mamba", 64, 2),
        ("attention", 64, 2),
        ("mamba", 512, 8),
    ):
        for rows in ROWS:
            yield compared(mixer, width, depth, rows)


def quick() -> Iterator[Comparison]:
    """One small model, one round."""
    yield compared("lstm", 16, 1, 4, rounds=1)
