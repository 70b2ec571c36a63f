"""The parity of all mixers as one table: `python -m tests.peers.table` writes docs/parity.md."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
import torch

from tests.layers import (
    attention_oracles,
    cell_oracles,
    filter_oracles,
    linear_oracles,
    pixel_oracles,
)
from tests.layers.published import Case, parameters_of, run
from tests.peers import fla_cases, other_cases, torch_cases, transformers_cases
from tests.peers.parity import DTYPES, Deviations, Layer, Parity
from tests.surfaces.documents import table
from tests.tolerances import TOLERANCES
from threefold.layers.mixer import Mixer
from threefold.layers.table import MIXERS

PAGE = Path(__file__).parent.parent.parent / "docs" / "parity.md"
ORACLES = (attention_oracles, cell_oracles, filter_oracles, linear_oracles, pixel_oracles)
LIBRARIES = (
    *("torch", "transformers", "flash-linear-attention", "mambapy", "xlstm", "minGRU-pytorch"),
    *("s5-pytorch", "linformer", "performer-pytorch", "rwkv", "reservoirpy"),
)
QUANTITIES = Deviations._fields
HEADER = (
    *("mixer", "compared with"),
    *(f"{quantity}, float64" for quantity in QUANTITIES),
    *(f"{quantity}, float32" for quantity in QUANTITIES),
)
TEXT = """# Parity

Every mixer beside another implementation of its layer with the same weights: a library's, or the
published equations written out step by step (tests/layers). `make test-peers` installs the
libraries and prints this table; `python -m tests.peers.table` writes it here.

A number is max|ours − theirs| / max|theirs|. *output*: of a sequence. *gradient*: with respect to
the inputs. *state*: of the outputs after the ninth element, which we compute from the state carried
to there and they in one pass. A dash: the mixer is not causal and has no state, or the other layer
has no gradients.
"""

Row = tuple[str, ...]
Measured = Mapping[torch.dtype, Deviations]


def oracle_layer(oracle: Case, mixer: Mixer) -> Layer:
    _, function, options = oracle
    return partial(run, function, parameters_of(mixer), **options)


def oracle_cases(compared: set[str]) -> list[Parity]:
    """The first oracle of each mixer that is not compared with a library."""
    cases = {}
    for module in ORACLES:
        for case in module.CASES:
            name, oracle, options = case
            where = f"{module.__name__.replace('.', '/')}.py: {oracle.__name__}"
            parity = Parity(name, where, partial(oracle_layer, case), options, width=16)
            cases.setdefault(name, parity)
    return [case for name, case in cases.items() if name in MIXERS and name not in compared]


LIBRARY_CASES = (
    *torch_cases.CASES,
    *transformers_cases.CASES,
    *fla_cases.CASES,
    *other_cases.CASES,
)
CASES = (*LIBRARY_CASES, *oracle_cases({case.mixer for case in LIBRARY_CASES}))


def exceeded(case: Parity, measured: Measured) -> list[str]:
    """The differences above their tolerance."""
    wrong = []
    for dtype, deviations in measured.items():
        for quantity, error in deviations._asdict().items():
            limit = TOLERANCES[torch.float32 if case.reason else dtype, quantity]
            if error is not None and not error <= limit:
                wrong.append(f"{case.mixer} and {case.peer}: {quantity} {error:.1e} in {dtype}")
    return wrong


def row_of(case: Parity, measured: Measured) -> Row:
    """A line of the table."""
    numbers = (error for deviations in measured.values() for error in deviations)
    peer = case.peer + (f" ({case.reason})" if case.reason else "")
    return case.mixer, peer, *("–" if error is None else f"{error:.0e}" for error in numbers)


def in_order(rows: list[Row]) -> list[Row]:
    """In the order of the list of mixers."""
    order = list(MIXERS)
    return sorted(rows, key=lambda row: (order.index(row[0]), row[1]))


def versions() -> str:
    """The libraries that were compared with, in one sentence."""
    return ", ".join(f"{name} {metadata.version(name)}" for name in LIBRARIES)


def main() -> None:
    rows = []
    for case in CASES:
        try:
            measured = {dtype: case.measure(dtype) for dtype in DTYPES}
        except pytest.skip.Exception as absent:
            raise SystemExit(f"{case.mixer}: {absent}") from None
        rows.append(row_of(case, measured))
    made = f"Made with {versions()}."
    PAGE.write_text("\n".join([TEXT, table(HEADER, in_order(rows)), "", made, ""]), "utf-8")


if __name__ == "__main__":
    main()
