"""Figures that others have published, by task and model, in the task's metric (parts, not percent).

Only what is there for exactly the same task: a smaller version of ours has none.
"""

from __future__ import annotations

from collections.abc import Mapping


def _percent(columns: str, table: str) -> dict[str, dict[str, float]]:
    """A table of percent by its columns; a model's name may have spaces, `-` is no figure."""
    names = columns.split()
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    for line in table.strip().splitlines():
        model, *figures = line.rsplit(maxsplit=len(names))
        for name, figure in zip(names, figures, strict=True):
            if figure != "-":
                found[name][model.strip()] = round(float(figure) / 100, 6)
    return found


# Tay et al. 2020, "Long Range Arena"; Gu et al. 2022, "Efficiently Modeling Long Sequences with
# Structured State Spaces", table 4.
_LONG_RANGE_ARENA = _percent(
    "listops text retrieval image pathfinder pathfinder128",
    """
    Transformer         36.37  64.27  57.46  42.44  71.40      -
    Reformer            37.27  56.10  53.40  38.07  68.50      -
    BigBird             36.05  64.02  59.29  40.83  74.87      -
    Linear Transformer  16.13  65.90  53.09  42.34  75.30      -
    Performer           18.01  65.40  53.82  42.77  77.05      -
    FNet                35.33  65.11  59.61  38.67  77.80      -
    Nyströmformer       37.15  65.52  79.56  41.58  70.94      -
    Luna-256            37.25  64.57  79.29  47.38  77.72      -
    S4                  59.60  86.82  90.90  88.65  94.20  96.35
    """,
)

# Delétang et al. 2023, "Neural Networks and the Chomsky Hierarchy", table 2: trained on lengths to
# 40, the mean over lengths from 41 to 500.
_CHOMSKY = _percent(
    "parity modular_arithmetic",
    """
    RNN          100.0  100.0
    LSTM         100.0  100.0
    Stack-RNN    100.0  100.0
    Tape-RNN     100.0  100.0
    Transformer   52.0   24.2
    """,
)

# Gu & Dao 2023, "Mamba", table 1.
_SELECTIVE = _percent(
    "selective_copying",
    """
    S4     18.3
    H3     57.0
    Hyena  30.1
    Mamba  99.8
    """,
)

PUBLISHED: Mapping[str, Mapping[str, float]] = {
    **_LONG_RANGE_ARENA,
    **_CHOMSKY,
    **_SELECTIVE,
    "induction_heads": {"attention": 1.0, "Mamba": 1.0},  # Gu & Dao 2023, table 11, length 256
    "recall": {"attention": 1.0},  # Arora et al. 2023, figure 2
}
