"""Linear recurrences compared with flash-linear-attention's plain-torch functions for the CPU.

Its `naive.py` files define what its GPU kernels compute; outputs and gradients agree with ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor

from benchmarks import peers
from benchmarks.attention_crossing import make
from benchmarks.measure import Comparison
from benchmarks.recurrence import MODES, Function, recurrence

Fields = dict[str, Tensor]


def scaled(query: Tensor) -> Tensor:
    """Undo flash-linear-attention's scaling of the query."""
    return query * float(query.shape[-1] ** 0.5)


def simple_gla(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor) -> Any:
    function = peers.fla_naive("simple_gla").naive_chunk_simple_gla
    return function(scaled(query), key, value, log_decay)


def gla(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor) -> Any:
    return peers.fla_naive("gla").naive_recurrent_gla(scaled(query), key, value, log_decay)


def delta(query: Tensor, key: Tensor, value: Tensor, strength: Tensor) -> Any:
    function = peers.fla_naive("delta_rule").delta_rule_chunkwise
    transposed = (x.transpose(1, 2) for x in (scaled(query), key, value, strength))
    out, state = function(*transposed)
    return out.transpose(1, 2), state


def gated_delta(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, strength: Tensor
) -> Any:
    function = peers.fla_naive("gated_delta_rule").naive_chunk_gated_delta_rule
    return function(scaled(query), key, value, log_decay, strength)


def kda(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, strength: Tensor) -> Any:
    function = peers.fla_naive("kda").naive_chunk_kda
    return function(scaled(query), key, value, log_decay, strength)


def rank_one(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, write: Tensor, read: Tensor
) -> Any:
    function = peers.fla_naive("generalized_delta_rule/dplr").dplr_chunkwise
    transposed = (x.transpose(1, 2) for x in (scaled(query), key, value, read, write, log_decay))
    out, state = function(*transposed)
    return out.transpose(1, 2), state


# Our structure: label and function of flash-linear-attention.
PAIRS: dict[str, tuple[str, Function]] = {
    "scalar decay": ("fla simple_gla, chunks of 64", simple_gla),
    "decay per key": ("fla gla, recurrent", gla),
    "delta": ("fla delta_rule, chunks of 32", delta),
    "gated delta": ("fla gated_delta_rule, chunks of 64", gated_delta),
    "gated delta per key": ("fla kda, chunks of 64", kda),
    "rank one per key": ("fla dplr (RWKV-7), chunks of 32", rank_one),
}


def comparisons(length: int, heads: int, rounds: int) -> Iterator[Comparison]:
    """Each pair, forward and forward + backward."""
    if not peers.installed("fla"):
        return
    for structure, (name, function) in PAIRS.items():
        inputs = make(structure, length, heads, 64)
        contenders: dict[str, Function] = {"threefold": partial(recurrence, None), name: function}
        for mode, contender in MODES.items():
            yield Comparison(
                f"{structure} H={heads} L={length} size 64, {mode}",
                {label: contender(function, inputs) for label, function in contenders.items()},
                rounds=rounds,
                slow=(name,),
            )


def run() -> Iterator[Comparison]:
    """Four heads, 1,024 elements."""
    yield from comparisons(1024, 4, rounds=9)


def quick() -> Iterator[Comparison]:
    """One head, one chunk."""
    yield from comparisons(64, 1, rounds=1)
