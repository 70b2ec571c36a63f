"""Attention and sub-quadratic mixers: one token from a cache, and growth of time and memory.

`python -m benchmarks history` compares one decoded token with the bare matrix products it needs,
then prints, for every sub-quadratic mixer and for full attention, the exponents p of time ≈ L^p and
memory ≈ L^p from 4,096 to 32,768 elements.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor

import threefold
from benchmarks.measure import Comparison
from threefold.kernels import ops

WIDTH, HEADS, CACHE = 512, 8, 8_192
LENGTHS = (4_096, 32_768)
GROWTH_WIDTH = 64
MEMORY = ("default",)  # it measures memory
# Full attention is quadratic: shorter lengths are enough to show its exponent.
FULL = {"attention": (4_096, 16_384)}
LIMITS = {"fnet": 1.4}
SUBQUADRATIC = (
    "local_attention",
    "transformer_xl",
    "bigbird",
    "reformer",
    "linformer",
    "nystromformer",
    "luna",
    "fnet",
    "performer",
    "based",
)

# Runs in its own process: the peak resident memory of a call minus that before it, in kilobytes.
PEAK = """
import sys, torch
from benchmarks.history import build_mixer, random_input, resident
torch.set_num_threads(int(sys.argv[3]))
mixer, short, x = build_mixer(sys.argv[1]), random_input(256), random_input(int(sys.argv[2]))
with torch.no_grad():
    mixer(short)
    open("/proc/self/clear_refs", "w").write("5")  # reset the peak
    before = resident("VmRSS")
    mixer(x)
print(resident("VmHWM") - before)
"""


def token() -> Comparison:
    """One step of the mixer with a cache, and the products with its weights and its cache."""
    mixer = threefold.mixer("attention", width=WIDTH, heads=HEADS, positions="none").eval()
    x = torch.randn(1, WIDTH)
    heads = mixer.heads
    with torch.no_grad():
        _, state = mixer(torch.randn(1, CACHE - 2, WIDTH))
        _, state = mixer.step(torch.randn(1, WIDTH), state)
    size = WIDTH // HEADS
    keys, values = (state[name].transpose(1, 2).contiguous() for name in ("keys", "values"))
    with torch.no_grad():
        new_key, new_value = (f(x).view(1, HEADS, 1, size) for f in (heads.key, heads.value))
        keys, values = torch.cat([keys, new_key], 2), torch.cat([values, new_value], 2)

    def step() -> list[Tensor]:
        with torch.no_grad():
            # Restore the fill level, so that every step starts from the same state and length.
            state["keys"]._threefold_buffer.filled[0] = CACHE - 1
            state["values"]._threefold_buffer.filled[0] = CACHE - 1
            return [mixer.step(x, state)[0]]

    def bare_products() -> list[Tensor]:
        with torch.no_grad():
            query = ops.linear(x, heads.query.weight).view(1, HEADS, 1, size)
            ops.linear(x, heads.key.weight)
            ops.linear(x, heads.value.weight)
            out = ((query @ keys.mT) * size**-0.5).softmax(-1) @ values
            return [ops.linear(out.view(1, WIDTH), heads.out.weight)]

    title = f"one token of attention, {WIDTH} wide, after {CACHE - 1} others"
    return Comparison(title, {"threefold": step, "bare products": bare_products}, rounds=60)


def build_mixer(name: str) -> torch.nn.Module:
    """A mixer with its default options."""
    options = {"linformer": {"max_length": LENGTHS[1]}}.get(name, {})
    return threefold.mixer(name, width=GROWTH_WIDTH, **options).eval()


def random_input(length: int) -> Tensor:
    return torch.randn(1, length, GROWTH_WIDTH, generator=torch.Generator().manual_seed(0))


def seconds(mixer: torch.nn.Module, length: int, rounds: int = 6) -> float:
    """The shortest of several calls: the one that was disturbed least."""
    x, times = random_input(length), []
    with torch.no_grad():
        mixer(x)
        for _ in range(rounds):
            start = time.perf_counter()
            mixer(x)
            times.append(time.perf_counter() - start)
    return min(times)


def peak(name: str, length: int) -> float:
    """Megabytes that one call needs in addition to its input."""
    run = subprocess.run(
        [sys.executable, "-c", PEAK, name, str(length), str(torch.get_num_threads())],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(run.stdout) / 1024


def resident(field: str) -> int:
    """Resident kilobytes (Linux): VmRSS now, VmHWM at the peak."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))


def exponent(low: float, high: float, lengths: tuple[int, int]) -> float:
    return math.log(high / low) / math.log(lengths[1] / lengths[0])


def growth(name: str) -> str:
    """One printed line: time and memory at both lengths, and their exponents."""
    lengths = FULL.get(name, LENGTHS)
    mixer = build_mixer(name)
    times = [seconds(mixer, length) for length in lengths]
    peaks = [peak(name, length) for length in lengths]
    limit = "≥ 1.8" if name in FULL else f"≤ {LIMITS.get(name, 1.2)}"
    return (
        f"  {name:<18}{times[0] * 1e3:>10,.1f}{times[1] * 1e3:>10,.1f} ms"
        f"{exponent(times[0], times[1], lengths):>7.2f} ({limit})"
        f"{peaks[0]:>9,.1f}{peaks[1]:>9,.1f} MB{exponent(peaks[0], peaks[1], lengths):>7.2f}"
    )


def run() -> Iterator[Comparison]:
    """One decoded token, then the printed table of exponents."""
    yield token()
    print(f"\ntime and memory from {LENGTHS[0]:,} to {LENGTHS[1]:,} elements, width {GROWTH_WIDTH}")
    for name in (*FULL, *SUBQUADRATIC):
        print(growth(name), flush=True)
