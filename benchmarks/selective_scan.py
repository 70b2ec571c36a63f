"""S = exp(ΔA) S₋ + Δ B x,  y = C·S + D x, gated: the native scan and its exponentials alone.

A scan over L elements of D channels needs L·D·N exponentials, so torch's exp over as many numbers
is a lower bound for a scan of separate operations. Training stores no state of that size.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.measure import Comparison, Contender, MemoryComparison, max_exponent, max_ratio
from threefold.kernels import library
from threefold.memory.linear.selective import selective_scan

Inputs = dict[str, Tensor]


def make(length: int, channels: int, size: int) -> Inputs:
    """One row of inputs as in a Mamba layer: softplus, skip and gate inside the scan."""
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
    """The same work with the reference kernels."""

    def run() -> list[Tensor]:
        with library.using("reference"):
            return list(contender())

    return run


def comparisons(length: int, channels: int, size: int, rounds: int) -> Iterator[Comparison]:
    """Forward, and forward + backward, compared with torch.exp over L·D·N numbers."""
    inputs = make(length, channels, size)
    numbers = torch.randn(length * channels * size)
    output = torch.empty_like(numbers)
    label = f"torch.exp of {len(numbers):,}"

    def exponentials() -> list[Tensor]:
        torch.exp(numbers, out=output)
        return []

    for mode, (make_contender, limit) in MODES.items():
        ours = make_contender(inputs)
        yield Comparison(
            f"selective scan B=1 L={length} D={channels} N={size}, {mode}",
            {"threefold": ours, label: exponentials, "torch": plain(ours)},
            rounds=rounds,
            targets=(max_ratio(limit, label),),
            unchecked=(label,),
            slow=("torch",),
        )


def peak(length: int, channels: int, size: int) -> int:
    """Peak bytes of training in a fresh process, inputs and gradients included."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(peak_growth, (length, channels, size, torch.get_num_threads()))


def peak_growth(length: int, channels: int, size: int, threads: int) -> int:
    """How much one forward and backward pass raises the peak memory of this process."""
    torch.set_num_threads(threads)
    training(make(2, channels, size))()
    before = resident_bytes("VmRSS")
    training(make(length, channels, size))()
    return resident_bytes("VmHWM") - before


def resident_bytes(field: str) -> int:
    """Resident memory of this process (Linux): VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def memory_comparison(length: int, channels: int) -> MemoryComparison:
    """Peak memory at twice the length, and at four times the state size."""
    sizes = {(length, 16), (2 * length, 16), (length, 64)}
    names = {(n, size): f"L={n:,} N={size}" for n, size in sizes}
    contenders: dict[str, Callable[[], int]] = {
        names[n, size]: partial(peak, n, channels, size) for n, size in sorted(sizes)
    }
    contenders["one array of L·D·N, N=64"] = lambda: 4 * length * channels * 64
    short, long, wide = names[length, 16], names[2 * length, 16], names[length, 64]
    return MemoryComparison(
        f"selective scan D={channels}, peak memory of training",
        contenders,
        targets=(max_exponent(1.05, short, long, 2), max_ratio(1.5, short, ours=wide)),
    )


def run() -> Iterator[Comparison | MemoryComparison]:
    """One layer of Mamba-130M."""
    yield from comparisons(1024, 1536, 16, rounds=13)
    if Path("/proc/self/status").exists():
        yield memory_comparison(8192, 512)


def quick() -> Iterator[Comparison | MemoryComparison]:
    """A narrow layer."""
    yield from comparisons(32, 16, 16, rounds=2)
