"""Loaders on a memory-mapped token file of 2 GB: speed compared with small models, and memory."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Comparison, Contender, MemoryComparison, max_ratio, min_speedup
from threefold import LanguageModel, Spec
from threefold.data.loaders import Batches, TokenStream, Windows
from threefold.data.token_files import Piece, TokenFile, write_tokens

TOKENS = 1_000_000_000  # two bytes each
PIECE_TOKENS = 1 << 22
BATCH, LENGTH, STEPS = 8, 256, 8
MEMORY = ("default",)  # it measures memory
MEMORY_LIMIT = 300_000_000  # bytes of anonymous memory that training may add
VOCABULARY = 257  # the smallest that needs two bytes per token, so the model has little to do
MIXERS = ("min_gru", "lru", "retnet")  # the fastest one counts


def random_pieces(count: int) -> Iterator[Piece]:
    """Random tokens, drawn once and then rotated; each piece is one document."""
    drawn = np.random.default_rng(0).integers(
        0, VOCABULARY, min(count, PIECE_TOKENS), dtype=np.uint16
    )
    for begin in range(0, count, len(drawn)):
        yield np.roll(drawn, begin // len(drawn))[: count - begin], True


def small(mixer: str) -> LanguageModel:
    """One layer of width 64: no useful model trains on more tokens per second."""
    return LanguageModel(Spec("language", 64, 1, mixer, VOCABULARY, channel="none"))


def consume(model: LanguageModel, batches: Batches, steps: int) -> Contender:
    """Training without an optimiser, on batches prepared in advance."""
    ready = [batches(step) for step in range(steps)]

    def train() -> list[Tensor]:
        for batch in ready:
            logits, _ = model(batch.inputs)
            F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).backward()
        return []

    return train


def load(batches: Batches, steps: int) -> Contender:
    """As many batches from the file, at different positions in each call."""
    first_steps = iter(range(0, 1 << 62, steps))

    def read() -> list[Tensor]:
        first = next(first_steps)
        for step in range(first, first + steps):
            batches(step)
        return []

    return read


def anonymous() -> int:
    """Resident bytes that are not backed by a file (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no line RssAnon")


def growth(path: Path, steps: int) -> Callable[[], int]:
    """Anonymous memory added by opening the file and training across its whole length."""

    def work() -> int:
        gc.collect()
        before = anonymous()
        tokens = TokenFile(path).tokens
        model = small(MIXERS[0])
        optimiser = torch.optim.AdamW(model.parameters())
        stream, windows = TokenStream(tokens, BATCH, LENGTH), Windows(tokens, BATCH, LENGTH)
        peak = 0
        for step in range(steps):
            for batch in (stream(step * (stream.pieces // steps)), windows(step)):
                logits, _ = model(batch.inputs)
                loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            peak = max(peak, anonymous() - before)
        return max(peak, 1)

    return work


def comparisons(count: int, steps: int, training: int) -> Iterator[Comparison | MemoryComparison]:
    models = {f"{mixer} 64 × 1, forward + backward": mixer for mixer in MIXERS}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.tokens"
        tokens = write_tokens(path, random_pieces(count), VOCABULARY).tokens
        size = f"{tokens.nbytes / 1e9:.3g} GB"
        yield MemoryComparison(
            f"training on a token file of {size}, growth of anonymous memory",
            {"threefold": growth(path, training), "limit": lambda: MEMORY_LIMIT},
            targets=(max_ratio(1.0, "limit"),),
        )
        for name, loader in (
            ("token stream", TokenStream(tokens, BATCH, LENGTH)),
            ("windows", Windows(tokens, BATCH, LENGTH)),
        ):
            contenders: dict[str, Contender] = {"threefold": load(loader, steps)}
            for label, mixer in models.items():
                contenders[label] = consume(small(mixer), loader, steps)
            yield Comparison(
                f"loader, {name} of {size}, {steps} batches of {BATCH} × {LENGTH} tokens",
                contenders,
                rounds=9,
                targets=(min_speedup(20, *models),),
                unchecked=tuple(models),
            )


def run() -> Iterator[Comparison | MemoryComparison]:
    yield from comparisons(TOKENS, STEPS, training=50)


def quick() -> Iterator[Comparison | MemoryComparison]:
    yield from comparisons(1_000_000, 2, training=3)
