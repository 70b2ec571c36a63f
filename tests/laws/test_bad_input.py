"""Errors repeat what was given and what was expected; nothing broadcasts silently."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import threefold
from tests.laws.cases import make, run

L = 6


def lists(structure: str, **changes: Any) -> dict[str, Any]:
    return make(structure, L, torch.float32) | changes


CASES: list[tuple[str, str, dict[str, Any], str]] = [
    ("three axes", "none", {"query": torch.zeros(2, L, 5)}, r"query is \(2, 6, 5\).*4 axes"),
    ("another length", "none", {"key": torch.zeros(2, 7, 4, 5)}, r"key is \(2, 7, 4, 5\).*\(2, 6"),
    (
        "key size",
        "none",
        {"key": torch.zeros(2, L, 4, 3)},
        r"key is \(2, 6, 4, 3\).*\(2, 6, 4, 5\)",
    ),
    (
        "heads that do not divide",
        "none",
        {"query": torch.zeros(2, L, 3, 5), "key": torch.zeros(2, L, 3, 5)},
        "3 heads, value 4",
    ),
    ("a batch of one", "scalar", {"log_decay": -torch.ones(1, L, 4)}, r"log_decay is \(1, 6, 4\)"),
    ("two axes", "scalar", {"log_decay": -torch.ones(L, 4)}, r"log_decay is \(6, 4\)"),
    ("fixed", "fixed", {"log_decay": -torch.ones(3)}, r"log_decay is \(3,\).*\(4,\)"),
    ("growth", "scalar", {"log_decay": torch.full((2, L, 4), 0.25)}, "log_decay must be ≤ 0.*0.25"),
    ("strength", "delta", {"strength": torch.ones(2, L, 4, 1)}, r"strength is \(2, 6, 4, 1\)"),
    ("bonus", "bonus_none", {"bonus": torch.ones(5)}, r"bonus is \(5,\).*\(4, 5\)"),
    ("two of them", "delta", {"bonus": torch.ones(4, 5)}, "strength and bonus cannot be combined"),
    ("mixed dtypes", "none", {"key": torch.zeros(2, L, 4, 5).double()}, "float32, torch.float64"),
    ("integers", "none", {"value": torch.zeros(2, L, 4, 6).long()}, "int64.*floating"),
    ("state shape", "none", {"state": torch.zeros(2, 4, 6, 5)}, r"state is \(2, 4, 6, 5\)"),
    ("state dtype", "none", {"state": torch.zeros(2, 4, 5, 6).double()}, "float64, expected.*32"),
    ("B", "elementwise_bare", {"B": torch.zeros(2, L, 4)}, r"B is \(2, 6, 4\), expected \(2, 6, 3"),
    ("A positive", "elementwise_bare", {"A": torch.ones(7, 3)}, "A must be ≤ 0.*1"),
    ("x flat", "elementwise_bare", {"x": torch.zeros(2, L)}, r"x is \(2, 6\)"),
    ("state", "elementwise_bare", {"state": torch.zeros(2, 3, 7)}, r"state is \(2, 3, 7\)"),
]


@pytest.mark.parametrize(
    ("structure", "changes", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_refused(structure: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(threefold.ThreefoldError, match=message):
        run(structure, lists(structure, **changes), "auto")


@pytest.mark.parametrize("structure", ["none", "elementwise_bare"])
def test_empty_sequences_and_unknown_forms(structure: str) -> None:
    with pytest.raises(threefold.ThreefoldError, match="empty"):
        run(structure, make(structure, 0, torch.float32), "auto")
    with pytest.raises(threefold.ThreefoldError, match=r"'chnk'.*'chunk'"):
        run(structure, make(structure, 2, torch.float32), "chnk")


def test_chunk_of_nothing() -> None:
    with pytest.raises(threefold.ThreefoldError, match="chunk=0"):
        run("none", make("none", 2, torch.float32), "chunk", 0)
