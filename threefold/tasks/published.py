"""Published results, by task and model, in the task's metric (fractions, not per cent).

Most are for exactly the task of that name.  Those in `COMPARABLE` are for the same question asked
of other examples: they may be compared only roughly.  Smaller versions of a task have none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


def _percent(columns: str, table: str) -> dict[str, dict[str, float]]:
    """A table of per cent, by column and model; names may have spaces, `-` is a missing figure."""
    names = columns.split()
    results: dict[str, dict[str, float]] = {name: {} for name in names}
    for line in table.strip().splitlines():
        model, *figures = line.rsplit(maxsplit=len(names))
        for name, figure in zip(names, figures, strict=True):
            if figure != "-":
                results[name][model.strip()] = round(float(figure) / 100, 6)
    return results


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

# Gu et al. 2022, tables 7 and 8.
_PIXELS = _percent(
    "smnist pmnist scifar",
    """
    Transformer   98.90  97.90  62.20
    LSTM          98.90  95.11  63.01
    r-LSTM        98.40  95.20  72.20
    UR-LSTM       99.28  96.96  71.00
    UR-GRU        99.27  96.51  74.40
    HiPPO-RNN     98.90  98.30  61.10
    LMU-FFT           -  98.49      -
    LipschitzRNN  99.40  96.30  64.20
    TCN           99.00  97.20      -
    TrellisNet    99.20  98.13  73.42
    CKConv        99.32  98.54  63.74
    LSSL          99.53  98.76  84.65
    S4            99.63  98.70  91.13
    """,
)

# Gu et al. 2022, table 5: ten words; half: trained at the full sampling rate, tested at half of it.
_SPEECH = _percent(
    "speech-commands-mfcc speech-commands speech-commands-half",
    """
    Transformer   90.75      -      -
    Performer     80.85  30.77  30.68
    ODE-RNN       65.90      -      -
    NRDE          89.80  16.49  15.12
    ExpRNN        82.13  11.60  10.80
    LipschitzRNN  88.38      -      -
    CKConv        95.30  71.66  65.96
    WaveGAN-D         -  96.25      -
    LSSL          93.58      -      -
    S4            93.96  98.32  96.30
    """,
)

# Delétang et al. 2023, "Neural Networks and the Chomsky Hierarchy", table 2: trained on lengths up
# to 40, the mean over lengths from 41 to 500.
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

# Gu & Dao 2023, "Mamba", table 1: each layer in its own architecture (Hyena's is H3's).
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
    **_PIXELS,
    **_SPEECH,
    # nanoGPT's README: the best validation loss of 1.4697 nats per character, and 1.88 on a CPU.
    "shakespeare": {"nanoGPT, CPU": 1.88 / math.log(2), "nanoGPT": 1.4697 / math.log(2)},
    # Al-Rfou et al. 2019; Dai et al. 2019, table 2: bits per byte of the last five million.
    "enwik8": {"Transformer, 64 layers": 1.06, "Transformer-XL, 24 layers": 0.99},
    # Dau et al. 2018, "The UCR Time Series Archive", its summary's column "DTW (learned_w)": errors
    # of 0.0867, 0.3091, 0.0749 and 0.3806.
    "gunpoint": {"1-NN DTW": 0.9133},
    "forda": {"1-NN DTW": 0.6909},
    "ecg5000": {"1-NN DTW": 0.9251},
    "electric-devices": {"1-NN DTW": 0.6194},
    # Bagnall et al. 2018, "The UEA multivariate time series classification archive, 2018": DTW over
    # all dimensions together.
    "japanese-vowels": {"1-NN DTW": 0.949},
    "basic-motions": {"1-NN DTW": 0.975},
    **_CHOMSKY,
    **_SELECTIVE,
    # Gu & Dao 2023, table 11, at length 256, on which all were trained.
    "induction_heads": {"attention": 1.0, "H3": 1.0, "Mamba": 1.0},
}

# Tasks whose examples differ from those of the published results, and how.
COMPARABLE: Mapping[str, str] = {
    "listops": "the expressions are generated here, not those of the Long Range Arena",
    "pathfinder": "the images are generated here, not those of the Long Range Arena",
    "pathfinder128": "the images are generated here, not those of the Long Range Arena",
    "induction_heads": "17 tokens here, 16 in the paper",
}
