"""Random requests in float64: the native loop's tokens are those of the ordinary way.

make torture-requests            a thousand of them
python -m tests.surfaces.random_requests --count 1000
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import threefold
from threefold.kernels.replay.stepping import REPLAY_VARIABLE
from threefold.layers.table import MIXERS
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec

CAUSAL = [name for name, entry in MIXERS.items() if entry.load().causal]
CHANNELS = ("swiglu", "mlp", "none", "rwkv")


@contextmanager
def ordinary_way() -> Iterator[None]:
    before = os.environ.get(REPLAY_VARIABLE)
    os.environ[REPLAY_VARIABLE] = "0"
    try:
        yield
    finally:
        os.environ.pop(REPLAY_VARIABLE)
        if before is not None:
            os.environ[REPLAY_VARIABLE] = before


def random_model(chance: random.Random, mixer: str) -> LanguageModel:
    """A small model of one or two mixers."""
    mixers = (mixer,) if chance.random() < 0.6 else (mixer, chance.choice(CAUSAL))
    spec = Spec(
        "language",
        chance.choice((16, 32, 48)),
        chance.randint(len(mixers), 3),
        mixers,
        vocabulary=chance.choice((7, 40, 130)),
        channel=chance.choice(CHANNELS),
        options={"tie": chance.random() < 0.5},
    )
    torch.manual_seed(chance.randrange(2**31))
    return LanguageModel(spec).double().eval()


def random_settings(chance: random.Random, vocabulary: int) -> dict[str, Any]:
    """Sampling settings and stops."""
    settings: dict[str, Any] = {
        "max_tokens": chance.randint(1, 40),
        "temperature": chance.choice((0.0, 0.3, 1.0, 2.0)),
        "seed": chance.randrange(10**6),
    }
    if chance.random() < 0.4:
        settings["top_k"] = chance.randint(1, vocabulary + 2)
    if chance.random() < 0.4:
        settings["top_p"] = chance.uniform(0.1, 1.0)
    if chance.random() < 0.3:
        settings["min_p"] = chance.uniform(0.001, 0.5)
    if chance.random() < 0.4:
        settings["repetition_penalty"] = chance.uniform(0.7, 2.0)
    if chance.random() < 0.5:
        stops = [chance.randrange(vocabulary), (chance.randrange(vocabulary),) * 2]
        settings["stop"] = stops[: chance.randint(1, 2)]
    return settings


def compare(seed: int) -> str:
    """Run one request both ways; returns how they differ, empty if they do not."""
    chance = random.Random(seed)
    mixer = CAUSAL[seed % len(CAUSAL)]
    model = random_model(chance, mixer)
    rows, length = chance.choice((1, 1, 2, 3, 9, 17)), chance.randint(1, 20)
    prompt = torch.randint(model.spec.vocabulary, (rows, length))
    mask = None
    if rows > 1 and chance.random() < 0.5:
        lengths = torch.tensor([chance.randint(1, length) for _ in range(rows)])
        mask = torch.arange(length) >= length - lengths.unsqueeze(1)
    settings = random_settings(chance, model.spec.vocabulary)
    found = threefold.generate(model, prompt, mask=mask, **settings)
    with ordinary_way():
        expected = threefold.generate(model, prompt, mask=mask, **settings)
    same = torch.equal(found.tokens, expected.tokens) and found.draws == expected.draws
    if same and found.finish_reasons == expected.finish_reasons:
        found = threefold.generate(model, found, max_tokens=5)  # and where they go on
        with ordinary_way():
            expected = threefold.generate(model, expected, max_tokens=5)
        if torch.equal(found.tokens, expected.tokens):
            return ""
    return f"request {seed} ({model.spec.mixers}, {rows} rows, {settings}) differs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    wrong = []
    for seed in range(given.first, given.first + given.count):
        difference = compare(seed)
        if difference:
            wrong.append(difference)
            print(difference, flush=True)
    print(f"{given.count - len(wrong)} of {given.count} requests are equal")
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
