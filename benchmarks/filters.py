"""S4D, y = W gelu(K̄ ∗ x + D x): a layer compared with plain torch.

Plain torch is the usual implementation: complex exponentials [channels, poles, length], einsum, and
an FFT of twice the length. Batch size 8, width 256, 64 states, including the output projection,
forward and backward, and the peak memory of training.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import threefold
from benchmarks.measure import Comparison, Contender, MemoryComparison, max_ratio, min_speedup
from benchmarks.selective_scan import resident_bytes
from threefold.layers.s4d import S4D

Layer = Callable[[S4D, Tensor], Tensor]
PLAIN = "plain torch"


def ours(layer: S4D, x: Tensor) -> Tensor:
    return layer(x)[0]  # type: ignore[no-any-return]


def taps(layer: S4D, length: int) -> Tensor:
    """K̄ = 2 Re Σ_n C_n (e^{Δa_n} − 1)/a_n e^{Δa_n t}, from the matrix of all exponentials."""
    poles = torch.complex(-torch.exp(layer.decay_log), layer.frequency)
    step = torch.exp(layer.delta_log).unsqueeze(1) * poles
    read = torch.view_as_complex(layer.C) * (torch.exp(step) - 1) / poles
    powers = torch.exp(step.unsqueeze(-1) * torch.arange(length))
    return 2 * torch.einsum("hn,hnl->hl", read, powers).real


def plain(layer: S4D, x: Tensor) -> Tensor:
    length = x.shape[1]
    kernel = torch.fft.rfft(taps(layer, length), 2 * length)
    y = torch.fft.irfft(torch.fft.rfft(x.mT, 2 * length) * kernel, 2 * length)[..., :length].mT
    return F.glu(layer.out(F.gelu(y + layer.skip * x)))


LAYERS: dict[str, Layer] = {"threefold": ours, PLAIN: plain}


def make(length: int, width: int) -> tuple[S4D, Tensor]:
    torch.manual_seed(0)
    layer = threefold.mixer("s4d", width=width, state_size=64)
    assert isinstance(layer, S4D)
    return layer, torch.randn(8, length, width)


def forward(run_layer: Layer, layer: S4D, x: Tensor) -> Contender:
    @torch.no_grad()
    def run() -> list[Tensor]:
        return [run_layer(layer, x)]

    return run


def training(run_layer: Layer, layer: S4D, x: Tensor) -> Contender:
    x = x.detach().requires_grad_()
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    inputs = [x, *layer.parameters()]

    def run() -> list[Tensor]:
        y = run_layer(layer, x)
        return [y, *torch.autograd.grad(y, inputs, grad)]

    return run


MODES = {"forward": (forward, 4.0), "forward + backward": (training, 3.0)}


def comparison(mode: str, length: int, width: int, rounds: int) -> Comparison:
    """One layer, forward only or with the gradients of its input and all parameters."""
    contender, limit = MODES[mode]
    layer, x = make(length, width)
    return Comparison(
        f"S4D layer B=8 L={length} width {width} N=64, {mode}",
        {name: contender(run_layer, layer, x) for name, run_layer in LAYERS.items()},
        rounds,
        (min_speedup(limit, PLAIN),),
        slow=(PLAIN,),
    )


def peak(name: str, length: int, width: int) -> int:
    """Peak bytes of training in a fresh process, inputs and gradients included."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(peak_growth, (name, length, width, torch.get_num_threads()))


def peak_growth(name: str, length: int, width: int, threads: int) -> int:
    """How much one forward and backward pass raises the peak memory of this process."""
    torch.set_num_threads(threads)
    training(LAYERS[name], *make(2, width))()
    before = resident_bytes("VmRSS")
    training(LAYERS[name], *make(length, width))()
    return resident_bytes("VmHWM") - before


def memory_comparison(length: int, width: int) -> MemoryComparison:
    """Peak memory of training, each contender in its own process."""
    return MemoryComparison(
        f"S4D layer B=8 L={length} width {width} N=64, peak memory of training",
        {name: partial(peak, name, length, width) for name in LAYERS},
        (max_ratio(0.25, PLAIN),),
    )


def run() -> Iterator[Comparison | MemoryComparison]:
    """Three lengths, and the memory at the longest one."""
    for mode in MODES:
        for length, rounds in ((1024, 7), (4096, 4), (16384, 2)):
            yield comparison(mode, length, 256, rounds)
    if Path("/proc/self/status").exists():
        yield memory_comparison(16384, 256)


def quick() -> Iterator[Comparison]:
    """Narrow layers."""
    for mode in MODES:
        yield comparison(mode, 100, 16, rounds=2)
