"""y_i = pending_i + (kernel_0 + skip) x_i,  pending updated by one tile per element

A long filter prepared for streaming; native/online_convolution.cpp describes the tiles. A tile's
spectrum is computed when a stream first reaches it, and shared by all streams of this filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.dispatch import register_kernel
from threefold.kernels.fourier import next_power_of_two, numbers_per_point, twiddle_factors

# Smaller tiles are summed directly, with the first taps.
SMALLEST_TRANSFORM = 64


class OnlineFilter:
    """kernel [D, K] with skip [D], and tables computed from them."""

    def __init__(self, kernel: Tensor, skip: Tensor | None) -> None:
        channels, taps = kernel.shape
        self.kernel, self.skip = kernel.contiguous(), library.contiguous(skip)
        self.near = kernel.new_zeros(SMALLEST_TRANSFORM, channels)
        self.near[: min(taps, SMALLEST_TRANSFORM)] = kernel[:, :SMALLEST_TRANSFORM].T
        # Tiles below this have their spectra; all channels of one point take `width` numbers.
        self.ready = SMALLEST_TRANSFORM
        numbers = numbers_per_point(kernel.dtype)
        self.width = -(-channels // numbers) * numbers
        self.spectra = kernel.new_empty(0)
        self.twiddle = kernel.new_empty(0)
        self.lock = Lock()

    def prepare(self, tile: int) -> None:
        """Compute the spectra of all tiles up to this one."""
        if tile < self.ready:
            return
        with self.lock:
            while self.ready <= tile:
                twiddles = twiddle_factors(2 * self.ready, self.kernel.dtype)
                # 2·64 + 2·128 + … + 2·ready points.
                spectra = self.kernel.new_empty(
                    (4 * self.ready - 2 * SMALLEST_TRANSFORM) * self.width
                )
                spectra[: len(self.spectra)] = self.spectra
                library.call(
                    "online_convolution_spectrum",
                    [spectra],
                    [self.kernel, twiddles],
                    [*self.kernel.shape, self.ready],
                )
                self.spectra, self.twiddle = spectra, twiddles
                self.ready *= 2


class OnlineStep:
    """A filter on the buffers of one stream: everything that is the same for all elements.

    inputs [B, C, D] holds all elements so far and has room for more.  pending [B, C′, D], C′ a
    power of two above all positions, holds their contributions to later outputs.
    """

    def __init__(self, filter: OnlineFilter, inputs: Tensor, pending: Tensor) -> None:
        self.filter, self.inputs, self.pending = filter, inputs, pending
        self.dtype, self.capacity = inputs.dtype, pending.shape[1]
        skip = None if filter.skip is None else filter.skip.data_ptr()
        self.buffers = pending.data_ptr(), inputs.data_ptr()
        self.taps = filter.near.data_ptr(), skip
        self.sizes = len(inputs), inputs.shape[2], pending.stride(0), inputs.stride(0)

    def advance(self, x: Tensor, positions: Tensor, largest: int, *, rebuild: bool) -> Tensor:
        """y of x [B, …, D], which is element positions[b] of row b and is appended to the inputs.

        A row that has p elements and gets none now has position −1 − p, and its y is unspecified.
        Sums are updated with tiles up to `largest`; with `rebuild` they start from zeros.
        """
        filter, workspace = self.filter, self.filter.near
        # Smaller tiles are summed directly and need no workspace.
        if largest >= SMALLEST_TRANSFORM:
            filter.prepare(largest)
            workspace = x.new_empty(
                torch.get_num_threads(), 2 * largest, numbers_per_point(x.dtype)
            )
        x, positions = x.contiguous(), positions.contiguous()
        spectra, twiddles = filter.spectra, filter.twiddle
        y = torch.empty_like(x)
        library.invoke(
            "online_convolution",
            self.dtype,
            (
                y.data_ptr(),
                *self.buffers,
                workspace.data_ptr(),
                x.data_ptr(),
                *self.taps,
                spectra.data_ptr(),
                twiddles.data_ptr(),
                positions.data_ptr(),
            ),
            (*self.sizes, rebuild),
        )
        return y


def largest_tile(places: Sequence[int], *, rebuild: bool) -> int:
    """The largest tile that ends at one of these elements, or before it with `rebuild`."""
    if rebuild:
        return max(next_power_of_two(max(places) + 1) // 2, 1)
    return max([1, *[place & -place for place in places]])


register_kernel("online_convolution", "cpu", OnlineFilter)
