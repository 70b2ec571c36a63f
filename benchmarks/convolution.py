"""y_t = Σ_m k_m x_{t−m}: long filters and the padded FFT; streaming and dot products.

Full passes are compared with plain torch (rfft of twice the length, product, irfft), also with
gradients. Streaming, one element at a time at width 256, should be ten times as fast as the dot
product over the past at 16,384 elements, and grow with an exponent of at most 1.35 from 2,048 to
65,536.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import threefold
from benchmarks.measure import Comparison, Contender, max_exponent, min_speedup
from threefold.memory.convolution import PreparedFilter, StreamedConvolution

Function = Callable[[Tensor, Tensor], Tensor]

LENGTHS = (2048, 16384, 65536)
COMPARED_LENGTH = 16384  # where streaming is compared with the dot product


def ours(x: Tensor, kernel: Tensor) -> Tensor:
    return threefold.long_convolution(x, kernel)[0]


def padded(x: Tensor, kernel: Tensor) -> Tensor:
    """The usual way to write it in torch."""
    length = x.shape[1]
    spectrum = torch.fft.rfft(x.mT, 2 * length) * torch.fft.rfft(kernel, 2 * length)
    return torch.fft.irfft(spectrum, 2 * length)[..., :length].mT


def forward(function: Function, x: Tensor, kernel: Tensor) -> Contender:
    def run() -> list[Tensor]:
        with torch.no_grad():
            return [function(x, kernel)]

    return run


def training(function: Function, x: Tensor, kernel: Tensor) -> Contender:
    x, kernel = x.clone().requires_grad_(), kernel.clone().requires_grad_()
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))

    def run() -> list[Tensor]:
        y = function(x, kernel)
        return [y, *torch.autograd.grad(y, [x, kernel], grad)]

    return run


MODES = {"forward": forward, "forward + backward": training}


def decaying_filters(channels: int, taps: int) -> Tensor:
    """Filters whose taps decay to e⁻³ at their end."""
    return torch.randn(channels, taps) * torch.exp(-3 * torch.arange(taps) / taps) * taps**-0.5


def full_pass(mode: str, batch: int, length: int, width: int, rounds: int = 7) -> Comparison:
    """All elements in one call."""
    x, kernel = torch.randn(batch, length, width), decaying_filters(width, length)
    functions = {"threefold": ours, "padded FFT": padded}
    contenders = {key: MODES[mode](run, x, kernel) for key, run in functions.items()}
    title = f"long convolution B={batch} L={length} width {width}, {mode}"
    return Comparison(title, contenders, rounds, (min_speedup(1, "padded FFT"),))


def streamed(x: Tensor, kernel: Tensor) -> Contender:
    """The streamed convolution of Hyena and long_conv, without the rest of the layers."""
    with torch.no_grad():
        taps = PreparedFilter(kernel)

    def run() -> list[Tensor]:
        state = {"values": x.new_zeros(1, 0, 1, x.shape[2]), "position": torch.zeros(1).long()}
        outputs = []
        with torch.no_grad():
            for element in x.split(1, 1):
                stream = StreamedConvolution(state, 1, "step", None)
                outputs.append(stream.convolve(element, taps))
                state = stream.after()
        return [torch.cat(outputs, 1)]

    return run


def recomputed(x: Tensor, kernel: Tensor) -> Contender:
    """The dot product over the past for each element, both factors contiguous in memory."""
    past, reversed_kernel = x[0].T.contiguous(), kernel.flip(1)

    def run() -> list[Tensor]:
        length = past.shape[1]
        outputs = [
            torch.linalg.vecdot(past[:, : t + 1], reversed_kernel[:, length - t - 1 :])
            for t in range(length)
        ]
        return [torch.stack(outputs).unsqueeze(0)]

    return run


def streams(
    lengths: tuple[int, ...], compared: int, width: int, rounds: int = 3
) -> Iterator[Comparison]:
    """One element at a time: compared with the dot product, and at several lengths."""
    x, kernel = torch.randn(1, compared, width), decaying_filters(width, compared)
    naive = "dot product over the past"
    contenders = {"threefold": streamed(x, kernel), naive: recomputed(x, kernel)}
    title = f"streaming {compared} elements, width {width}"
    yield Comparison(title, contenders, rounds, (min_speedup(10, naive),), slow=(naive,))
    growing = {
        f"{length:,}": streamed(torch.randn(1, length, width), decaying_filters(width, length))
        for length in lengths
    }
    first, *_, last = growing
    limit = max_exponent(1.35, first, last, lengths[-1] / lengths[0])
    title = f"streaming, width {width}, by number of elements"
    yield Comparison(title, growing, rounds, (limit,), unchecked=tuple(growing))


def run() -> Iterator[Comparison]:
    """Full passes and streaming."""
    for mode in MODES:
        for length in (1024, 4096, 16384):
            yield full_pass(mode, 8, length, 256)
    yield from streams(LENGTHS, COMPARED_LENGTH, 256)


def quick() -> Iterator[Comparison]:
    """Tiny shapes."""
    for mode in MODES:
        yield full_pass(mode, 2, 100, 20, rounds=2)
    yield from streams((64, 256), 128, 16, rounds=2)
