"""y_i = pending_i + (kernel_0 + skip) x_i,  pending updated by one tile per element

A long filter prepared for streaming; native/online_convolution.cpp describes the tiles. A tile's
spectrum is computed when a stream first reaches it, and shared by all streams of this filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.dispatch import register_kernel
from threefold.kernels.fourier import next_power_of_two, numbers_per_point, twiddle_factors
from threefold.kernels.growing_buffer import NotCopied, claim_buffer
from threefold.kernels.replay.growth import Grown, LeafGrowth
from threefold.kernels.replay.listing import Operand
from threefold.kernels.replay.recorder import Recorder

# The attribute by which a leaf knows its `PendingSums`; copies of the leaf do not have it.
PENDING = "_threefold_pending"
_CLAIM = Lock()
# What a program needs of each convolution at a run.
_STREAM_WORDS = (
    *("pending", "inputs", "spectra", "twiddle", "tiles", "pending_row", "inputs_row"),
)

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


class PendingSums(NotCopied):
    """The contributions of past inputs to later outputs, for each convolution of one stream.

    `at` is the next element of each row.  Position t belongs to element t and is written only
    before that element is read.
    """

    def __init__(self, at: list[int]) -> None:
        self.at = at
        self.steps: dict[int, OnlineStep] = {}

    def claim(self, starts: list[int], ends: list[int]) -> bool:
        """Advance past these elements; False if they are not the next ones."""
        with _CLAIM:
            if self.at != starts:
                return False
            self.at = ends
            return True

    def serves(self, filters: Sequence[OnlineFilter]) -> bool:
        """Whether it has the sums of exactly these filters."""
        known = [self.steps.get(group) for group in range(len(filters))]
        return all(
            step is not None and step.filter is filter
            for step, filter in zip(known, filters, strict=True)
        )

    def step(
        self, group: int, filter: OnlineFilter, inputs: Tensor, last: int
    ) -> tuple[OnlineStep, bool]:
        """One convolution with sums for element `last` at least, and whether to rebuild them."""
        previous = self.steps.get(group)
        known = previous is not None and previous.filter is filter
        if previous is not None and known and previous.capacity > last:
            if previous.inputs is inputs:
                return previous, False
            sums = previous.pending
        else:
            sums = inputs.new_zeros(len(inputs), next_power_of_two(last + 1), inputs.shape[2])
            if previous is not None and known:
                sums[:, : previous.capacity] = previous.pending
        step = self.steps[group] = OnlineStep(filter, inputs, sums)
        return step, not known


@dataclass
class StreamGrown(Grown):
    """Room for elements of a stream, and the sums and tables of its convolutions."""

    pending: PendingSums
    tiles: Tensor  # workspace

    def words(self, index: int) -> dict[str, dict[int, int]]:
        """Addresses and sizes of every convolution, by slot."""
        found: dict[str, dict[int, int]] = {kind: {} for kind in _STREAM_WORDS}
        for group, step in self.pending.steps.items():
            filter, slot = step.filter, _slot(index, group)
            tables = (x.data_ptr() for x in (filter.spectra, filter.twiddle, self.tiles))
            words = (*step.buffers, *tables, *step.sizes[2:])
            for kind, word in zip(_STREAM_WORDS, words, strict=True):
                found[kind][slot] = word
        return found

    def give_back(self, done: int) -> None:
        """Free the room of steps that were not made."""
        super().give_back(done)
        if done < self.steps:
            ends = [start + self.steps for start in self.starts]
            self.pending.claim(ends, [start + done for start in self.starts])

    def leaf(self, done: int) -> Tensor:
        """The leaf after `done` steps, which knows the sums."""
        leaf = super().leaf(done)
        setattr(leaf, PENDING, self.pending)
        return leaf


@dataclass(frozen=True)
class StreamGrowth(LeafGrowth):
    """The inputs of convolutions with these filters, one after another."""

    filters: tuple[OnlineFilter, ...]
    from_anywhere = False

    def claim(self, leaf: Tensor, before: Sequence[Any], steps: int) -> StreamGrown | None:
        """Claim room and the sums of a stream; None where they must be computed first."""
        assert self.position is not None
        starts: list[int] = before[self.position].tolist()
        ends = [start + steps for start in starts]
        pending: PendingSums | None = getattr(leaf, PENDING, None)
        if pending is None or not pending.serves(self.filters) or min(starts) < 0:
            return None
        if max(ends) > min(filter.kernel.shape[1] for filter in self.filters):
            return None
        if not pending.claim(starts, ends):
            return None
        buffer = claim_buffer(leaf, starts, ends)
        largest = max(_largest_between(start, end) for start, end in zip(starts, ends, strict=True))
        for group, filter in enumerate(self.filters):
            pending.step(group, filter, buffer.heads[group], max(ends) - 1)
            filter.prepare(largest)
        threads, numbers = torch.get_num_threads(), numbers_per_point(leaf.dtype)
        tiles = leaf.new_empty(threads, 2 * largest, numbers)
        return StreamGrown(buffer, starts, steps, None, pending, tiles)


def record_online_step(
    recorder: Recorder, past: Tensor, group: int, step: OnlineStep, x: Tensor, y: Tensor
) -> None:
    """Record y = one element x [B, 1, D] of a convolution, appended to the leaf `past`."""
    recorder.add_result(y)
    leaf, filter = recorder.leaf_of(past), step.filter
    recorder.listing.pinned.append(filter)
    slot = _slot(leaf, group)
    word = {kind: Operand(kind, slot) for kind in _STREAM_WORDS}
    rows, channels = step.sizes[:2]
    recorder.listing.call(
        "online_convolution",
        y.dtype,
        [
            recorder.address(y, y.dtype),
            word["pending"],
            word["inputs"],
            word["tiles"],
            recorder.address(x, x.dtype),
            filter.near.data_ptr(),
            0 if filter.skip is None else filter.skip.data_ptr(),
            word["spectra"],
            word["twiddle"],
            Operand("starts", leaf),
        ],
        [rows, channels, word["pending_row"], word["inputs_row"], 0],
    )


def _slot(leaf: int, group: int) -> int:
    """The number of a convolution among all of a program: leaves and convolutions are few."""
    return leaf * 64 + group


def _largest_between(start: int, end: int) -> int:
    """The largest tile that ends at an element start … end − 1."""
    tile = 1
    while (end - 1) // (2 * tile) * 2 * tile >= max(start, 1):
        tile *= 2
    return tile


register_kernel("online_convolution", "cpu", OnlineFilter)
