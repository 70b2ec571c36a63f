"""y_t = Σ_{m < K} kernel_m x_{t−m} + skip x_t: a long filter, known by its taps.

The past is kept as it was: the state is the inputs.  One element is the sum itself where gradients
are needed; without, the online convolution (native/online_convolution.cpp), whose sums of what is
still to come are derived from the inputs.  They belong to whoever goes on from the newest state; a
fork or a loaded state makes its own again, to the same bits.
step    the sum, or one tile of the online convolution
chunk   Fourier transforms of blocks, after the inputs that were carried
parallel  one Fourier transform
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.kernels import ops
from threefold.kernels.fourier import next_power_of_two
from threefold.kernels.online_convolution import OnlineFilter, OnlineStep, largest_tile
from threefold.memory.buffer import (
    Places,
    Room,
    claimed,
    grow,
    leaf,
    needs_gradient,
    places_of,
)
from threefold.memory.state import State, memory_dtype

# The attribute of a leaf that knows what its inputs do to later outputs; copies do not have it.
_PENDING = "_threefold_pending"
_CLAIM = Lock()


def long_convolution(
    x: Tensor, kernel: Tensor, *, skip: Tensor | None = None, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Convolve x [B, L, D] causally with the taps of each channel, kernel [D, M].

    `y_t = Σ_m kernel_m x_{t−m} + skip x_t`, skip [D]; `state` [B, M−1, D] is the inputs before x,
    zeros if None.  Gives y [B, L, D] and the last M−1 inputs.  All of one floating-point dtype.
    """
    if x.dim() != 3 or kernel.dim() != 2:
        raise ThreefoldError(
            f"long_convolution: x is {tuple(x.shape)} and kernel {tuple(kernel.shape)}, expected "
            "[batch, length, channels] and [channels, taps]"
        )
    rows, length, channels = x.shape
    carried = kernel.shape[1] - 1
    if state is None:
        y = ops.long_convolution(x, kernel, skip)
        missing = max(carried - length, 0)
        last = x[:, length - carried + missing :]
        return y, torch.cat([x.new_zeros(rows, missing, channels), last], 1)
    if state.shape != (rows, carried, channels) or state.dtype != x.dtype:
        raise ThreefoldError(
            f"long_convolution: state is {tuple(state.shape)} {state.dtype}, expected "
            f"{(rows, carried, channels)} {x.dtype}, the inputs before x"
        )
    context = torch.cat([state, x], 1)
    return ops.long_convolution(context, kernel, skip, first=carried), context[:, length:].clone()


class Taps:
    """A filter kernel [D, K] with skip [D]; without gradients, also ready for streaming."""

    def __init__(self, kernel: Tensor, skip: Tensor | None = None) -> None:
        self.kernel, self.skip = kernel, skip
        self.online = ops.online_filter(kernel, skip)


class Pending:
    """What the inputs so far do to later outputs, for each convolution of one stream.

    `at` says for which element of each row it is ready.  Place t is element t, and is written only
    before that element is read.
    """

    def __init__(self, at: list[int]) -> None:
        self.at = at
        self.steps: dict[int, OnlineStep] = {}

    def claim(self, places: Places) -> bool:
        """Whether it is ready for these elements; from now on it is for those after them."""
        with _CLAIM:
            if self.at != places.starts:
                return False
            self.at = places.ends
            return True

    def step(
        self, group: int, filter: OnlineFilter, inputs: Tensor, last: int
    ) -> tuple[OnlineStep, bool]:
        """One convolution with sums up to element `last` at least, and whether they are new."""
        made = self.steps.get(group)
        known = made is not None and made.filter is filter
        if made is not None and known and made.capacity > last:
            if made.inputs is inputs:
                return made, False
            sums = made.pending
        else:
            sums = inputs.new_zeros(len(inputs), next_power_of_two(last + 1), inputs.shape[2])
            if made is not None and known:
                sums[:, : made.capacity] = made.pending
        step = self.steps[group] = OnlineStep(filter, inputs, sums)
        return step, not known


class StreamedConvolution:
    """One call of a mixer that convolves with long filters: G convolutions, one after another.

    The state has `values` [B, T, G, D], the inputs of each, beside the `position` of each row.
    """

    def __init__(self, state: State, length: int, form: str, lengths: Tensor | None) -> None:
        self.past: Tensor = state["values"]
        self.position: Tensor = state["position"]
        self.places = places_of(self.position, length, lengths)
        self.form, self.length = form, length
        self.inputs: list[Tensor] = []
        self.pending: Pending | None = None
        self.room: Room | None = None

    @staticmethod
    def shapes(length: int, convolutions: int, width: int) -> Mapping[str, Any]:
        """The leaves of a row's state after `length` elements."""
        return {"values": (length, convolutions, width), "position": ()}

    @property
    def longest(self) -> int:
        """The taps that this call needs: elements of its longest row, those of padding included."""
        return max(self.places.starts) + self.length

    def check(self, max_length: int, owner: str) -> None:
        """Refuse more elements than the filters have taps."""
        if self.places.end > max_length:
            before = max(self.places.starts)
            raise ThreefoldError(
                f"{owner}: a row would have {self.places.end} elements ({before} carried), but its "
                f"filters have max_length={max_length} taps; build it with a larger max_length"
            )

    def convolve(self, x: Tensor, taps: Taps, gate: Tensor | None = None) -> Tensor:
        """x [B, L, D] with the next filter; its first taps are enough for the longest row.

        The outputs are multiplied with the gate [B, L, D], if there is one.
        """
        group = len(self.inputs)
        self.inputs.append(x)
        streams = taps.online is not None and x.dtype == taps.kernel.dtype == self.past.dtype
        if streams and self.form == "step" and not needs_gradient(x, self.past):
            return _gated(self._online(x, taps, group), gate)
        context, first = self._context(x, group)
        kernel = taps.kernel[:, : context.shape[1]]
        if self.form == "step":
            return _gated(_sum(context, kernel, taps.skip), gate)
        wide = memory_dtype(x.dtype)
        skip = None if taps.skip is None else taps.skip.to(wide)
        gate = None if gate is None else gate.to(wide)
        whole = self.form == "parallel"
        given = context.to(wide), kernel.to(wide), skip, gate
        return ops.long_convolution(*given, first=first, whole=whole).to(x.dtype)

    def after(self) -> State:
        """The state after this call."""
        if self.room is not None:
            values = leaf(self.room, 0, self.places.end)
            setattr(values, _PENDING, self.pending)
        else:
            values = grow(self.past, torch.stack(self.inputs, 2), self.places)
        lengths = self.places.lengths
        ends = self.position + (self.length if lengths is None else lengths)
        return {"values": values, "position": ends}

    def _online(self, x: Tensor, taps: Taps, group: int) -> Tensor:
        places = self.places
        if self.pending is None or self.room is None:
            known: Pending | None = getattr(self.past, _PENDING, None)
            ready = known is not None and known.claim(places)
            self.pending = known if known is not None and ready else Pending(places.ends)
            self.room = claimed(self.past, places)
        assert taps.online is not None
        last = max(places.starts)
        step, again = self.pending.step(group, taps.online, self.room.heads[group], last)
        going = self.position
        if places.lengths is not None:
            going = torch.where(places.lengths > 0, going, -1 - going)
        return step.advance(x, going, largest_tile(places.starts, rebuild=again), rebuild=again)

    def _context(self, x: Tensor, group: int) -> tuple[Tensor, int]:
        """The inputs before and in this call, those of the call side by side in all rows."""
        past, first = self.past[:, :, group], self.past.shape[1]
        if first and self.places.start is None:
            places = torch.arange(first, device=x.device) - (first - self.position.unsqueeze(1))
            moved = past[torch.arange(len(x), device=x.device).unsqueeze(1), places.clamp(min=0)]
            past = torch.where((places >= 0).unsqueeze(-1), moved, 0)
        elif first:
            past = past[:, : self.places.start]
            first = past.shape[1]
        return torch.cat([past, x], 1) if first else x, first


def _gated(y: Tensor, gate: Tensor | None) -> Tensor:
    return y if gate is None else gate * y


def _sum(context: Tensor, kernel: Tensor, skip: Tensor | None) -> Tensor:
    """The output at the last element of context [B, S, D], as it is defined."""
    wide = memory_dtype(context.dtype)
    y = (context.to(wide).flip(1) * kernel.to(wide).T[: context.shape[1]]).sum(1, keepdim=True)
    if skip is not None:
        y = y + skip.to(wide) * context[:, -1:].to(wide)
    return y.to(context.dtype)
