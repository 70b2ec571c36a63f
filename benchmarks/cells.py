"""h = cell(W x + U h₋): LSTM, its variants, GRU and RNN and torch.nn's with the same weights.

LSTM, GRU (torch's convention) and RNN should be at least as fast as torch's. The peephole and
coupled LSTMs, which torch does not have, should take at most 1.3 times as long as torch.nn.LSTM:
a ratio of 0.77 or more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

import threefold
from benchmarks.measure import Comparison, Contender
from threefold.layers.cell_mixer import CellMixer
from threefold.models.pretrained.torch_weights import load_torch_weights

Function = Callable[[Tensor], Tensor]

# Mixer, its options, and the torch class that computes the same; None: only time, with nn.LSTM.
PAIRS: tuple[tuple[str, dict[str, bool], type[nn.RNNBase] | None], ...] = (
    ("lstm", {}, nn.LSTM),
    ("gru", {"reset_after": True}, nn.GRU),
    ("rnn", {"readout": False}, nn.RNN),
    ("peephole_lstm", {}, None),
    ("coupled_lstm", {}, None),
    ("gru", {}, None),
    ("slstm", {}, None),
)


def forward(function: Function, module: nn.Module, x: Tensor) -> Contender:
    def run() -> list[Tensor]:
        with torch.no_grad():
            return [function(x)]

    return run


def training(function: Function, module: nn.Module, x: Tensor) -> Contender:
    x = x.clone().requires_grad_()
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    parameters = list(module.parameters())

    def run() -> list[Tensor]:
        y = function(x)
        return [y, torch.autograd.grad(y, [x, *parameters], grad)[0]]

    return run


def without_results(contender: Contender) -> Contender:
    """Drop the results, which differ from those of the other contender."""

    def run() -> list[Tensor]:
        contender()
        return []

    return run


MODES = {"forward": forward, "forward + backward": training}


def run(width: int = 256, batch: int = 8) -> Iterator[Comparison]:
    """Lengths 512 and 2,048, forward and forward + backward."""
    for length in (512, 2048):
        x = torch.randn(batch, length, width)
        for name, options, peer in PAIRS:
            ours = threefold.mixer(name, width=width, **options)
            theirs = (peer or nn.LSTM)(width, width, batch_first=True)
            if peer is not None and isinstance(ours, CellMixer):
                load_torch_weights(ours, theirs)
            for label, mode in MODES.items():
                contenders = {
                    f"threefold {name}": mode(lambda x, m=ours: m(x)[0], ours, x),
                    f"torch.nn.{type(theirs).__name__}": mode(
                        lambda x, m=theirs: m(x)[0], theirs, x
                    ),
                }
                if peer is None:
                    contenders = {key: without_results(run) for key, run in contenders.items()}
                described = " ".join([name, *(f"{key}={value}" for key, value in options.items())])
                yield Comparison(
                    f"{described} B={batch} L={length} width {width}, {label}", contenders, 5
                )
