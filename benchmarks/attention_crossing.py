"""Time by length of every linear recurrence and of causal attention: crossings and growth.

A memory of constant size takes time proportional to L, attention to L². Every linear recurrence
should be faster from 2,048 elements on, and grow with an exponent of at most 1.05 up to 65,536.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Comparison, max_exponent, min_speedup
from benchmarks.recurrence import MODES, Function, Inputs, attention, recurrence

LENGTHS = (256, 512, 1024, 2048, 8192, 65536)
# Attention takes 16 times as long for 4 times the length.
ATTENTION = {"forward": (256, 512, 1024, 2048, 8192), "forward + backward": (256, 512, 1024, 2048)}
FROM, TO = 2048, 65536
# The exponent should be that of the work, not of getting fresh pages from the system.
MEMORY = ("kept",)
# Lengths from here on are measured in every third round only.
LONG = 8192

Fields = Callable[[tuple[int, int, int], Tensor], Inputs]


def mild(*shape: int) -> Tensor:
    """Log-decays of a memory that lasts tens of elements."""
    return -0.1 * torch.rand(1, *shape)


# The inputs of each structure besides query, key and value, from (length, heads, size) and random
# unit vectors.
STRUCTURES: dict[str, Fields] = {
    "no decay": lambda sizes, unit: {},
    "fixed decay": lambda sizes, unit: {"log_decay": mild(sizes[1])[0]},
    "scalar decay": lambda sizes, unit: {"log_decay": mild(*sizes[:2])},
    "decay per key": lambda sizes, unit: {"log_decay": mild(*sizes)},
    "decay on both sides": lambda sizes, unit: {
        "log_decay": mild(*sizes),
        "log_decay_value": mild(*sizes),
    },
    "decay per key, bonus": lambda sizes, unit: {
        "log_decay": mild(*sizes),
        "bonus": torch.rand(sizes[1:]),
    },
    "delta": lambda sizes, unit: {"strength": torch.rand(1, *sizes[:2])},
    "gated delta": lambda sizes, unit: {
        "strength": torch.rand(1, *sizes[:2]),
        "log_decay": mild(*sizes[:2]),
    },
    "gated delta per key": lambda sizes, unit: {
        "strength": torch.rand(1, *sizes[:2]),
        "log_decay": mild(*sizes),
    },
    "rank one per key": lambda sizes, unit: {
        "log_decay": mild(*sizes),
        "write": -unit,
        "read": unit * torch.rand(1, *sizes[:2], 1),
    },
}


def make(structure: str, length: int, heads: int, size: int) -> Inputs:
    """One row of inputs; attention gets the same query, key and value."""
    query, key, third = F.normalize(torch.randn(3, 1, length, heads, size), dim=-1)
    value = torch.randn(1, length, heads, size)
    fields = STRUCTURES[structure]((length, heads, size), third)
    return {"query": query, "key": key, "value": value, **fields}


def comparison(
    structure: str, mode: str, lengths: tuple[int, ...], heads: int = 8, rounds: int = 7
) -> Comparison:
    """One structure at every length, and attention at the lengths where it is not too slow."""
    contenders, points = {}, {}
    ours: Function = partial(recurrence, None)
    for length in sorted(lengths, key=lambda length: length != FROM):
        inputs = make(structure, length, heads, 64)
        competing = {"threefold": ours} | (
            {"attention": attention} if length in ATTENTION[mode] else {}
        )
        for name, function in competing.items():
            label = f"{name}, {length:,}"
            contenders[label] = MODES[mode](function, inputs)
            points[label] = (structure if name == "threefold" else "attention", length)
    targets = (
        min_speedup(1, f"attention, {FROM:,}"),
        max_exponent(1.05, f"threefold, {FROM:,}", f"threefold, {TO:,}", TO / FROM),
    )
    return Comparison(
        f"{structure} H={heads} size 64, {mode}",
        contenders,
        rounds=rounds,
        targets=targets if {FROM, TO} <= set(lengths) else (),
        unchecked=tuple(contenders),
        slow=tuple(name for name, (_, length) in points.items() if length >= LONG),
        panel=mode,
        points=points,
    )


def run() -> Iterator[Comparison]:
    """Every structure, forward and forward + backward."""
    for mode in MODES:
        for structure in STRUCTURES:
            yield comparison(structure, mode, LENGTHS)


def quick() -> Iterator[Comparison]:
    """One structure at two short lengths."""
    for mode in MODES:
        yield comparison("gated delta", mode, (256, 512), heads=1, rounds=2)
