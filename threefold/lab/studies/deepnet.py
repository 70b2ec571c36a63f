"""norm(α x + f(x)) against norm(x + f(x)) in 200 layers: `threefold lab deepnet`.

Symbols of which each has one usual successor, otherwise a random one, are predicted by a narrow
Transformer of many layers (attention and a feed-forward part each).  Every addition of the
post-norm wiring takes up to half of the variance from the input, so after 200 layers nothing of it
arrives; DeepNorm's α > 1 keeps it.  A shallow post-norm Transformer shows that depth is the reason.
Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from threefold.data.loaders import Batch
from threefold.drawing.figures import COLOURS, FAINT, GREY, new_figure, save, style
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.training.loop import train
from threefold.training.settings import TrainingSettings

SHALLOW = 12
WINDOW = 10  # steps of the moving average that is drawn and printed


@dataclass(frozen=True)
class DeepNetStudy:
    """The Transformers and their training, the same but for wiring and depth."""

    depth: int = 200
    width: int = 16
    steps: int = 150
    seeds: tuple[int, ...] = (0, 1, 2)
    learning_rate: float = 3e-3
    symbols: int = 8
    noise: float = 0.1  # share of successors that are random
    batch_size: int = 8
    length: int = 16

    @property
    def chance(self) -> float:
        """Bits per symbol of a model that does not see its input."""
        return math.log2(self.symbols)

    @property
    def best(self) -> float:
        """Bits per symbol of the best prediction."""
        rare = self.noise / self.symbols
        usual = 1 - self.noise + rare
        return -usual * math.log2(usual) - (self.symbols - 1) * rare * math.log2(rare)

    @property
    def models(self) -> dict[str, tuple[str, int]]:
        """Wiring and depth by the name in the figure."""
        return {
            f"DeepNorm, {self.depth} layers": ("deep_norm", self.depth),
            f"post-norm, {self.depth} layers": ("post_norm", self.depth),
            f"post-norm, {SHALLOW} layers": ("post_norm", SHALLOW),
        }

    def rows(self, seed: int, step: int) -> Batch:
        """New sequences for each step."""
        generator = torch.Generator().manual_seed(1_000_003 * seed + step)
        usual = torch.randperm(self.symbols, generator=torch.Generator().manual_seed(seed))
        shape = self.batch_size, self.length + 1
        drawn = torch.randint(0, self.symbols, shape, generator=generator)
        surprising = torch.rand(shape, generator=generator) < self.noise
        symbols = [drawn[:, 0]]
        for t in range(1, shape[1]):
            symbols.append(torch.where(surprising[:, t], drawn[:, t], usual[symbols[-1]]))
        tokens = torch.stack(symbols, 1)
        return Batch(tokens[:, :-1], tokens[:, 1:], torch.ones(len(tokens), dtype=torch.bool))


def study(block: str, depth: int, seed: int, plan: DeepNetStudy) -> list[float]:
    """Train one Transformer; the loss of each step in bits per symbol."""
    torch.manual_seed(seed)
    attention = ("attention", {"heads": 1, "positions": "none"})
    spec = Spec(
        "language", plan.width, depth, (attention,), plan.symbols, channel="mlp", block=block
    )
    settings = TrainingSettings(steps=plan.steps, learning_rate=plan.learning_rate, seed=seed)
    result = train(build(spec), lambda step: plan.rows(seed, step), settings, reporters=())
    return [loss / math.log(2) for loss in result.losses]


def averaged(losses: list[float]) -> list[float]:
    """The mean of the last steps, for each step."""
    return [fmean(losses[max(0, t + 1 - WINDOW) : t + 1]) for t in range(len(losses))]


def draw(results: Mapping[str, list[list[float]]], plan: DeepNetStudy) -> Any:
    """A line for each seed of each Transformer."""
    with style():
        figure = new_figure(6.4, 3.8)
        axes = figure.subplots()
        for (name, runs), colour in zip(results.items(), COLOURS, strict=False):
            for number, losses in enumerate(runs):
                label = name if number == 0 else None
                axes.plot(averaged(losses), color=colour, linewidth=1.4, label=label)
        for level, text in ((plan.chance, "input not seen"), (plan.best, "best possible")):
            axes.axhline(level, color=GREY, linewidth=0.8, linestyle=":")
            axes.annotate(text, (0, level), xytext=(2, 3), textcoords="offset points", color=GREY)
        axes.set(xlabel="training step", ylim=(0, 1.2 * plan.chance), xlim=(0, plan.steps))
        axes.set_title(
            f"loss in bits per symbol of Transformers of width {plan.width}, "
            f"{len(plan.seeds)} seeds, mean of {WINDOW} steps"
        )
        axes.grid(axis="y", color=FAINT, linewidth=0.7)
        axes.legend(loc="upper right", bbox_to_anchor=(1, 0.82))
    return figure


def run(folder: Path, plan: DeepNetStudy) -> Iterator[str]:
    """Train all, draw deepnet.png and deepnet.svg; yields the lines to print."""
    results = {}
    yield f"{'':<24}bits per symbol after {plan.steps} steps, by seed"
    for name, (block, depth) in plan.models.items():
        results[name] = [study(block, depth, seed, plan) for seed in plan.seeds]
        yield f"{name:<24}" + "  ".join(f"{averaged(run_)[-1]:.2f}" for run_ in results[name])
    yield f"{'input not seen':<24}{plan.chance:.2f}\n{'best possible':<24}{plan.best:.2f}"
    yield from (f"wrote {path}" for path in save(draw(results, plan), folder, "deepnet"))
