"""The recurrences of flash-linear-attention in plain torch, which is what it has for a CPU.

Its `naive.py` files define what its GPU kernels compute; outputs, and gradients, agree with ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor

from benchmarks import peers
from benchmarks.attention_crossing import make
from benchmarks.measure import Race
from benchmarks.recurrence import MODES, Function, recurrence

Fields = dict[str, Tensor]


def scaled(query: Tensor) -> Tensor:
    """Undoes their scaling of the query."""
    return query * float(query.shape[-1] ** 0.5)


def simple_gla(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor) -> Any:
    function = peers.fla_naive("simple_gla").naive_chunk_simple_gla
    return function(scaled(query), key, value, log_decay)


def gla(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor) -> Any:
    return peers.fla_naive("gla").naive_recurrent_gla(scaled(query), key, value, log_decay)


def delta(query: Tensor, key: Tensor, value: Tensor, strength: Tensor) -> Any:
    function = peers.fla_naive("delta_rule").delta_rule_chunkwise
    turned = (x.transpose(1, 2) for x in (scaled(query), key, value, strength))
    out, state = function(*turned)
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
    turned = (x.transpose(1, 2) for x in (scaled(query), key, value, read, write, log_decay))
    out, state = function(*turned)
    return out.transpose(1, 2), state


# Our structure, and their function for it.
PAIRS: dict[str, tuple[str, Function]] = {
    "scalar decay": ("fla simple_gla, chunks of 64", simple_gla),
    "decay per key": ("fla gla, recurrent", gla),
    "delta": ("fla delta_rule, chunks of 32", delta),
    "gated delta": ("fla gated_delta_rule, chunks of 64", gated_delta),
    "gated delta per key": ("fla kda, chunks of 64", kda),
    "rank one per key": ("fla dplr (RWKV-7), chunks of 32", rank_one),
}


def races(length: int, heads: int, rounds: int) -> Iterator[Race]:
    """Each pair, forward and with backward."""
    if not peers.installed("fla"):
        return
    for structure, (name, function) in PAIRS.items():
        inputs = make(structure, length, heads, 64)
        contenders: dict[str, Function] = {"threefold": partial(recurrence, None), name: function}
        for mode, contender in MODES.items():
            yield Race(
                f"{structure} H={heads} L={length} size 64, {mode}",
                {label: contender(function, inputs) for label, function in contenders.items()},
                rounds=rounds,
                seldom=(name,),
            )


def run() -> Iterator[Race]:
    """Four heads, 1,024 elements."""
    yield from races(1024, 4, rounds=9)


def quick() -> Iterator[Race]:
    """One head, one chunk."""
    yield from races(64, 1, rounds=1)
