"""One token of the Mamba-130M shape with weights in float32, bfloat16 and int8, and llama.cpp's.

Limits: reading the weights once, in float32 and in a quarter of the bytes. What rounding changes in
the logits is compared with int8's (at most 3 % of the largest); what it changes in the loss of a
trained model, `threefold evaluate --weights int8` says.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

import threefold
from benchmarks import llama_cpp, mamba
from benchmarks.decode import READING, reading
from benchmarks.measure import Comparison, Contender, max_ratio, min_speedup
from threefold.memory.state import State
from threefold.models.language import LanguageModel

STEPS = 4  # tokens of each contender in turn: another library's threads are still waiting at first
ROWS = 16
TOLERANCE = 3e-2
NAMES = {"int8": "threefold, int8", "bfloat16": "threefold, bfloat16"}
WHOLE = "threefold, float32"


def decoder(model: LanguageModel, rows: int = 1, steps: int = STEPS) -> Contender:
    """That many tokens of each row, one call each, from the state of the last call."""
    token, state = torch.ones(rows, dtype=torch.int64), None

    @torch.no_grad()
    def run() -> list[Tensor]:
        nonlocal state
        after: State | None = state
        for _ in range(steps):
            logits, after = model.step(token, after)
        state = after
        return [logits[:1]]

    return run


def repeated(read: Contender) -> Contender:
    def run() -> list[Tensor]:
        for _ in range(STEPS):
            read()
        return []

    return run


def one_row(shape: mamba.Shape, rounds: int) -> Comparison:
    """A token of one row, by the dtype of the weights."""
    model = mamba.threefold_model(shape)
    size = sum(parameter.nbytes for parameter in model.parameters())
    quarter = "reading a quarter of it"
    contenders = {
        **{NAMES[kind]: decoder(threefold.quantize(model, kind)) for kind in NAMES},
        WHOLE: decoder(model),
        READING: repeated(reading(size)),
        quarter: repeated(reading(size // 4)),
    }
    if llama_cpp.installed():
        for kind in llama_cpp.TYPES:
            contenders[f"llama.cpp, {kind}"] = llama_cpp.decoder(model, kind, STEPS)
    return Comparison(
        f"{shape.name}, {STEPS} tokens of one row",
        contenders,
        rounds=rounds,
        targets=(
            max_ratio(0.5, WHOLE),
            max_ratio(0.7, WHOLE, ours=NAMES["bfloat16"]),
            max_ratio(1.15, READING, ours=WHOLE),
            min_speedup(1.0, "llama.cpp, Q8_0"),
        ),
        unchecked=(READING, quarter),
        tolerance=TOLERANCE,
    )


def many_rows(shape: mamba.Shape, kind: str | None, growth: float, rounds: int) -> Comparison:
    """Sixteen rows beside one: `growth` is how many times the tokens a second should be."""
    model = mamba.threefold_model(shape)
    stored = model if kind is None else threefold.quantize(model, kind)
    return Comparison(
        f"{shape.name}, {STEPS} tokens of each row, weights in {kind or 'float32'}",
        {f"threefold, {ROWS} rows": decoder(stored, ROWS), "one row": decoder(stored)},
        rounds=rounds,
        targets=(max_ratio(ROWS / growth, "one row"),),
    )


def run() -> Iterator[Comparison]:
    """One row by the dtype of the weights, then sixteen."""
    yield one_row(mamba.MAMBA_130M, rounds=15)
    yield many_rows(mamba.MAMBA_130M, None, 5, rounds=9)
    yield many_rows(mamba.MAMBA_130M, "int8", 2.5, rounds=9)


def quick() -> Iterator[Comparison]:
    """One row of a model with two narrow layers."""
    yield one_row(mamba.TINY, rounds=2)
