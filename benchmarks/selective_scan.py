"""S = exp(ΔA) S₋ + Δ B x,  y = C·S + D x, gated: the native scan beside its exponentials alone.

A scan over L elements of D channels needs L·D·N exponentials, so that torch's exp over as many
numbers is what a scan of separate operations cannot go below. Training keeps no state of that size.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measure import Contender, Race, Weighing, at_most, exponent
from threefold.kernels import library
from threefold.memory.linear.selective import selective_scan

Inputs = dict[str, Tensor]


def make(length: int, channels: int, size: int) -> Inputs:
    """One row as Mamba's layers give it: softplus, skip and gate inside the scan."""
    x, delta, gate = torch.randn(3, 1, length, channels)
    B, C = torch.randn(2, 1, length, size)
    A = -torch.arange(1.0, size + 1).repeat(channels, 1)
    D, bias = torch.ones(channels), torch.full((channels,), -4.0)
    return {"x": x, "delta": delta, "A": A, "B": B, "C": C, "D": D, "gate": gate} | {
        "delta_bias": bias
    }


def scan(inputs: Inputs) -> Tensor:
    return selective_scan(**inputs, softplus=True)[0]  # type: ignore[arg-type]


def forward(inputs: Inputs) -> Contender:
    @torch.no_grad()
    def run() -> list[Tensor]:
        return [scan(inputs)]

    return run


def training(inputs: Inputs) -> Contender:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    grad = torch.randn(inputs["x"].shape, generator=torch.Generator().manual_seed(0))

    def run() -> list[Tensor]:
        out = scan(leaves)
        return [out, *torch.autograd.grad(out, list(leaves.values()), grad)]

    return run


MODES = {"forward": (forward, 1.0), "forward + backward": (training, 3.0)}


def plain(contender: Contender) -> Contender:
    """The same with the reference kernels."""

    def run() -> list[Tensor]:
        with library.using("reference"):
            return list(contender())

    return run


def races(length: int, channels: int, size: int, rounds: int) -> Iterator[Race]:
    """Forward, and forward with backward, beside torch.exp over L·D·N numbers."""
    inputs = make(length, channels, size)
    numbers = torch.randn(length * channels * size)
    room = torch.empty_like(numbers)
    label = f"torch.exp of {len(numbers):,}"

    def exponentials() -> list[Tensor]:
        torch.exp(numbers, out=room)
        return []

    for mode, (make_contender, limit) in MODES.items():
        ours = make_contender(inputs)
        yield Race(
            f"selective scan B=1 L={length} D={channels} N={size}, {mode}",
            {"threefold": ours, label: exponentials, "torch": plain(ours)},
            rounds=rounds,
            targets=(at_most(limit, label),),
            apart=(label,),
            seldom=("torch",),
        )


def peak(length: int, channels: int, size: int) -> int:
    """Bytes that training takes at most in a fresh process, inputs and gradients included."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(grown, (length, channels, size, torch.get_num_threads()))


def grown(length: int, channels: int, size: int, threads: int) -> int:
    """How far the peak of this process rises by one forward and backward."""
    torch.set_num_threads(threads)
    training(make(2, channels, size))()
    before = memory("VmRSS")
    training(make(length, channels, size))()
    return memory("VmHWM") - before


def memory(name: str) -> int:
    """Bytes of this process, as Linux tells them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def weighing(length: int, channels: int) -> Weighing:
    """Twice the length, and four times the state."""
    sizes = {(length, 16), (2 * length, 16), (length, 64)}
    names = {(n, size): f"L={n:,} N={size}" for n, size in sizes}
    works: dict[str, Callable[[], int]] = {
        names[n, size]: partial(peak, n, channels, size) for n, size in sorted(sizes)
    }
    works["one array of L·D·N, N=64"] = lambda: 4 * length * channels * 64
    short, long, wide = names[length, 16], names[2 * length, 16], names[length, 64]
    return Weighing(
        f"selective scan D={channels}, peak memory of training",
        works,
        targets=(exponent(1.05, short, long, 2), at_most(1.5, short, ours=wide)),
    )


def run() -> Iterator[Race | Weighing]:
    """The shape of a layer of Mamba-130M."""
    yield from races(1024, 1536, 16, rounds=13)
    if Path("/proc/self/status").exists():
        yield weighing(8192, 512)


def quick() -> Iterator[Race | Weighing]:
    """A narrow layer."""
    yield from races(32, 16, 16, rounds=2)
