"""S = A ⋄ S₋ + k⊗v: the native linear recurrences and plain torch at its best chunk length.

Strong decays should cost no more than mild ones; `attention_crossing` measures growth with L.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Comparison, Contender, Target, min_speedup
from threefold.memory.linear.recurrence import linear_recurrence

Inputs = dict[str, Tensor]
Function = Callable[..., tuple[Tensor, Tensor]]

DECAYING = (
    "no decay",
    "scalar decay",
    "per-key decay",
    "per-key decay and bonus",
    "per-key and value decay",
)
ERASING = ("delta", "gated delta", "gated delta per key", "rank one per key")
CHUNKS = (32, 64, 128)  # plain torch is fastest at one of them


def make(kind: str, length: int, heads: int, size: int, strongest: float = 0.1) -> Inputs:
    """One row of unit queries and keys; log-decays lie between -strongest and 0."""
    unit = F.normalize(torch.randn(3, 1, length, heads, size), dim=-1)
    value, strength = torch.randn(1, length, heads, size), torch.rand(1, length, heads)
    inputs = {"query": unit[0], "key": unit[1], "value": value}
    if kind not in ("no decay", "delta"):
        decays = (size,) if "key" in kind else ()
        inputs["log_decay"] = -strongest * torch.rand(1, length, heads, *decays)
    if "bonus" in kind:
        inputs["bonus"] = torch.randn(heads, size)
    if "value" in kind:
        inputs["log_decay_value"] = -strongest * torch.rand(1, length, heads, size)
    if "rank one" in kind:
        return inputs | {"write": -unit[2], "read": unit[2] * strength.unsqueeze(-1)}
    return inputs | {"strength": strength} if "delta" in kind else inputs


def recurrence(chunk: int | None, form: str = "chunk", **inputs: Tensor) -> tuple[Tensor, Tensor]:
    pair = (inputs.pop("write"), inputs.pop("read")) if "write" in inputs else None
    return linear_recurrence(**inputs, rank_one=pair, form=form, chunk=chunk)  # type: ignore[arg-type]


def attention(query: Tensor, key: Tensor, value: Tensor, **_: Tensor) -> tuple[Tensor, Tensor]:
    transposed = (x.transpose(1, 2) for x in (query, key, value))
    return F.scaled_dot_product_attention(*transposed, is_causal=True).transpose(1, 2), value


FUNCTIONS: dict[str, Function] = {
    "threefold": partial(recurrence, None),
    **{f"torch, chunks of {chunk}": partial(recurrence, chunk) for chunk in CHUNKS},
}
PLAIN = [name for name in FUNCTIONS if name != "threefold"]
# How many times as fast as plain torch: forward, forward + backward.
TARGETS = {
    ("scalar decay", 64): (3, 2.5),
    ("per-key decay", 64): (3, 2.5),
    ("scalar decay", 128): (1.8, 1.5),
    ("per-key decay", 128): (1.8, 1.5),
    ("delta", 64): (5, 3),
    ("gated delta", 64): (5, 3),
    ("delta", 128): (2.5, 2),
    ("gated delta", 128): (2.5, 2),
}


def targets(kind: str, size: int, mode: str) -> tuple[Target, ...]:
    """The targets of the main structures."""
    if (kind, size) not in TARGETS:
        return ()
    return (min_speedup(TARGETS[kind, size][list(MODES).index(mode)], *PLAIN),)


def forward(function: Function, inputs: Inputs) -> Contender:
    def run() -> list[Tensor]:
        with torch.no_grad():
            return [function(**inputs)[0]]

    return run


def training(function: Function, inputs: Inputs) -> Contender:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    grad = torch.randn(inputs["value"].shape, generator=torch.Generator().manual_seed(0))

    def run() -> list[Tensor]:
        out, _ = function(**leaves)
        gradients = torch.autograd.grad(out, list(leaves.values()), grad, allow_unused=True)
        return [out, *gradients]

    return run


MODES = {"forward": forward, "forward + backward": training}


def without_results(contender: Contender, times: int = 1) -> Contender:
    """Drop the results, which differ from those of the other contenders."""

    def run() -> list[Tensor]:
        for _ in range(times):
            contender()
        return []

    return run


def steps(inputs: Inputs) -> dict[str, Contender]:
    """One element from a given state, a hundred times: the cost of a call."""
    state = torch.randn(1, *inputs["value"].shape[2:3], *[inputs["value"].shape[-1]] * 2)

    def native() -> list[Tensor]:
        with torch.no_grad():
            return [recurrence(None, "step", **inputs, state=state)[0] for _ in range(100)][-1:]

    def plain() -> list[Tensor]:
        return [recurrence(None, "step", **inputs, state=state)[0] for _ in range(100)][-1:]

    return {"threefold, 100 steps": native, "torch, 100 steps": plain}


def strong(kind: str, mode: str) -> dict[str, Contender]:
    """Decays so strong that their products underflow immediately, compared with mild ones."""
    ours = FUNCTIONS["threefold"]
    mild, extreme = (make(kind, 2048, 4, 64, strongest) for strongest in (0.1, 100.0))
    return {
        "decays up to e^−0.1": without_results(MODES[mode](ours, mild)),
        "decays up to e^−100": without_results(MODES[mode](ours, extreme)),
    }


def run() -> Iterator[Comparison]:
    """Comparisons with plain torch at several chunk lengths, strong decays, and one step."""
    for size in (64, 128):
        for kind in (*DECAYING, *ERASING):
            inputs = make(kind, 2048, 4, size)
            for label, mode in MODES.items():
                contenders = {n: mode(function, inputs) for n, function in FUNCTIONS.items()}
                title = f"{kind} H=4 L=2048 size {size}, {label}"
                yield Comparison(title, contenders, rounds=9, targets=targets(kind, size, label))
    for kind in ("scalar decay", "per-key decay"):
        for mode in MODES:
            yield Comparison(
                f"{kind} H=4 L=2048 size 64, mild and strong, {mode}", strong(kind, mode)
            )
    for kind in ("scalar decay", "gated delta"):
        yield Comparison(f"{kind} H=4 size 64, step", steps(make(kind, 1, 4, 64)))
