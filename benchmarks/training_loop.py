"""What the training loop costs beside the bare forward pass, backward pass and optimiser.

How fast a small model runs depends by some percent on where its tensors happen to lie, more than
the loop costs. So each side has several models with the same weights, which take turns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Contender, Race, at_most
from threefold import LanguageModel, Spec
from threefold.data.stream import Windows
from threefold.training.keeping import Keeper
from threefold.training.loop import Run
from threefold.training.objectives import Answers
from threefold.training.optimiser import parameter_groups
from threefold.training.progress import Reporter
from threefold.training.settings import Settings

STEPS, ENDLESS = 4, 10**9
KEEPS_MEMORY = True  # as `threefold train` does
SHAPES = {"tiny": (64, 2, 8, 128), "small": (128, 4, 16, 256)}  # width, depth, batch, length
MIXERS = ("mamba", "gla", "lstm")


def make(mixer: str, width: int, depth: int) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(Spec("language", width, depth, mixer))


def in_rotation(works: list[Contender]) -> Contender:
    """One work after another, each time the next; the first time of each does not count."""
    for work in works:
        work()
    endless = cycle(works)
    return lambda: next(endless)()


def ours(mixer: str, shape: tuple[int, int, int, int], folder: Path, steps: int) -> Contender:
    """Steps of the loop: loader, schedule, clipping, checks, log; no checkpoint falls into them."""
    width, depth, batch, length = shape
    settings = Settings(steps=ENDLESS, learning_rate=1e-3, save=ENDLESS, warmup=0.0)
    windows = Windows(_text(), batch, length)
    run = Run(make(mixer, width, depth), windows, settings, Answers())
    keeper, shown = Keeper(folder), Reporter()
    run.begin(keeper, shown, {})

    def work() -> list[Tensor]:
        for _ in range(steps):
            run.step(keeper)
            shown.show(run)
            run.keep(keeper, shown)
        return []

    return work


def bare(mixer: str, shape: tuple[int, int, int, int], steps: int) -> Contender:
    """The same model, optimiser and groups on a batch that lies ready."""
    width, depth, batch, length = shape
    model = make(mixer, width, depth).train()
    groups = parameter_groups(model, 1e-3, 0.1)
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
    ready = Windows(_text(), batch, length)(0)

    def work() -> list[Tensor]:
        for _ in range(steps):
            logits, _ = model(ready.inputs)
            loss = F.cross_entropy(logits.flatten(0, 1), ready.targets.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            optimiser.zero_grad()
        return []

    return work


def _text() -> torch.Tensor:
    return torch.randint(0, 256, (100_000,), generator=torch.Generator().manual_seed(0)).numpy()  # type: ignore[return-value]


def races(names: tuple[str, ...], steps: int, rounds: int, models: int) -> Iterator[Race]:
    """Every mixer at every size; `models` of each side."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            for mixer in MIXERS:
                place = Path(folder) / f"{name}-{mixer}"
                shape = SHAPES[name]
                other = "bare forward + backward + AdamW"
                places = [place / str(i) for i in range(models)]
                for one in places:
                    one.mkdir(parents=True)
                yield Race(
                    f"training loop, {mixer} {shape[0]} × {shape[1]}, {steps} steps of "
                    f"{shape[2]} × {shape[3]} tokens",
                    {
                        "threefold": in_rotation([ours(mixer, shape, p, steps) for p in places]),
                        other: in_rotation([bare(mixer, shape, steps) for _ in places]),
                    },
                    rounds=rounds,
                    targets=(at_most(1.05, other),),
                    apart=(other,),
                )


def run() -> Iterator[Race]:
    yield from races(("tiny", "small"), STEPS, rounds=21, models=5)


def quick() -> Iterator[Race]:
    yield from races(("tiny",), 1, rounds=1, models=1)
