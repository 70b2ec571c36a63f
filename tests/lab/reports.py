"""An invented report for tests of pages: five models, three seeds, every figure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from threefold.lab.report.report import (
    BaselineResult,
    Contender,
    Cost,
    CurvePoint,
    RaceRun,
    Report,
    Subject,
)

LENGTHS = (256, 1024, 4096, 16_384)
# name: final loss, elements per second, decode seconds, growth of decoding, state bytes, growth
MODELS = {
    "mamba": (1.412, 21_000, 240e-6, 0.0, 61_440, 0),
    "gated_delta_net": (1.437, 18_500, 310e-6, 0.0, 98_304, 0),
    "attention": (1.455, 24_800, 190e-6, 0.9, 0, 1536),
    "s4d": (1.571, 30_100, 150e-6, 0.0, 49_152, 0),
    "lstm": (1.602, 11_900, 82e-6, 0.0, 1536, 0),
}


def contender(name: str, seeds: int = 3, steps: int = 1200, noise: float = 0.004) -> Contender:
    """One of `MODELS`, or a model of another name with the numbers of mamba."""
    loss, rate, decode, growth, state, more = MODELS.get(name, MODELS["mamba"])
    rng = np.random.default_rng([len(name), *name.encode()])
    runs = []
    for seed in range(seeds):
        end = loss + noise * float(rng.normal())
        at = np.linspace(steps / 12, steps, 12).astype(int)
        curve = tuple(
            CurvePoint(
                int(s),
                int(s) * 1024,
                float(s) * 1024 / rate,
                end + 2.6 * math.exp(-6 * s / steps) - 2.6 * math.exp(-6),
            )
            for s in at
        )
        runs.append(RaceRun(seed, end, steps, steps * 1024, steps * 1024 / rate, curve, "ab" * 32))
    cost = Cost(
        training=tuple((n, rate / (1 + growth * n / 6000)) for n in LENGTHS),
        inference=tuple((n, 3.2 * rate / (1 + growth * n / 6000)) for n in LENGTHS),
        prefill=tuple((n, n * (1 + growth * n / 6000) / (3.2 * rate)) for n in LENGTHS),
        decode=tuple((n, decode * (1 + growth * n / 3000)) for n in LENGTHS),
        memory=tuple((n, 6e6 + n * (9000 + growth * n)) for n in LENGTHS),
        state=tuple((n, float(state + more * n)) for n in LENGTHS),
    )
    longer = tuple(
        (n, loss + growth * 0.09 * math.log2(n / 256) ** 2 - 0.01 * math.log2(n / 256))
        for n in (256, 512, 1024, 2048)
    )
    return Contender(
        name=name,
        mixer=name,
        width=96,
        depth=2,
        channel="swiglu, hidden 272",
        parameters=255_648 + len(name) * 300,
        learning_rate=3e-3,
        digest="cd" * 32,
        runs=tuple(runs),
        cost=cost,
        other_lengths=longer,
    )


def report(*names: str, seeds: int = 3, steps: int = 1200, noise: float = 0.004) -> Report:
    """A report on some or all of `MODELS`."""
    subject = Subject(
        title="The Python language reference, byte by byte",
        task="reference",
        kind="language",
        metric="loss",
        lower=True,
        length=256,
        match="parameters",
        matched=(
            "parameters: within 3 % of 255,648",
            "batches: the same for one seed, in the same order",
            "evaluation: the whole test split, once, in the same pieces",
        ),
        command="threefold compare reference --mixers lstm,attention,s4d,mamba,gated_delta_net",
        time="10m",
        chance=3.2,
        versions={"threefold": "0.1.0", "torch": "2.13.0", "python": "3.12.3"},
        hashes={"batches, seed 0": "ab" * 32},
    )
    chosen = names or tuple(MODELS)
    return Report(subject, tuple(contender(name, seeds, steps, noise) for name in chosen))


def extras(name: str) -> dict[str, Any]:
    """What is measured besides the scores, of a model or baseline."""
    rng = np.random.default_rng([1, len(name), *name.encode()])
    wrong = float(rng.uniform(0, 0.1))
    bins = [
        {"n": 50, "confidence": c, "accuracy": max(0.0, c - wrong), "from": c, "to": c}
        for c in (0.15, 0.35, 0.55, 0.75, 0.95)
    ]
    strengths = {
        "noise": (0.0, 0.1, 0.5, 1.0),
        "gaps": (0.0, 0.25, 0.5),
        "rate": (1.0, 2.0, 4.0),
        "replaced": (0.0, 0.1, 0.2),
        "deleted": (0.0, 0.1, 0.2),
    }
    return {
        "weight_bytes": 1_000_000 + 1000 * len(name),
        "memory_bytes": 4096 * len(name),
        "disk_bytes": 1_100_000,
        "calibration": {"form": "confidence", "error": wrong, "bins": bins},
        "robustness": {
            kind: [[s, 1.4 + wrong + s * (1 + wrong)] for s in points]
            for kind, points in strengths.items()
        },
        "robustness_of": 40,
        "influence": [[d, 0.8 * d ** -(1 + 10 * wrong)] for d in (1, 2, 4, 8, 16, 32)],
    }


WORST: list[dict[str, Any]] = [
    {
        "form": "stretch",
        "place": "window 7",
        "bits": 5.25,
        "pieces": [["<p>", 0.2], ["ä", 9.0], ["\n", 3.0]],
    },
    {
        "form": "series",
        "place": "rows.csv:12",
        "label": "up & away",
        "answer": "down",
        "probability": 0.97,
        "places": [0, 1, 2, 3],
        "curves": [[0.0, 1.0, None, 3.0], [1.0, 1.0, 1.0, 1.0]],
        "more_channels": 2,
    },
    {
        "form": "image",
        "place": "example 3",
        "label": "3",
        "answer": "8",
        "probability": 0.5,
        "pixels": [[[0], [255]], [[128], [7]]],
    },
    {"form": "text", "place": "line 4", "target": 2.5, "answer": -1.25, "text": "a < b"},
    {
        "form": "forecast",
        "title": "worst",
        "place": "from row 9",
        "target": "flow",
        "levels": [0.1, 0.9],
        "history": [1.0, 2.0, 3.0],
        "truth": [3.0, 2.0],
        "forecast": [2.5, 2.5],
        "low": [2.0, 2.0],
        "high": [3.0, 3.5],
    },
]


def measured(plain: Report) -> Report:
    """The report with baselines, and with everything that can be measured."""
    leader, found = plain.ranked[0].name, {"worst": WORST, "worst_of": 64}
    contenders = tuple(
        replace(c, extras=extras(c.name) | (found if c.name == leader else {}))
        for c in plain.contenders
    )
    baselines = tuple(
        BaselineResult(name, tuple((seed, score) for seed in range(3)), 0.4, speed, extras(name))
        for name, score, speed in (("n-grams", 1.5, 4e-6), ("echo state network", 1.9, 3e-5))
    )
    return replace(plain, contenders=contenders, baselines=baselines)
