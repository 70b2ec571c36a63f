"""y_t = Σ_{m < K} kernel_m x_{t−m} + skip x_t: a long filter, known by its taps.

The state is the past inputs themselves.  One element is the sum itself where gradients are needed;
without gradients it is the online convolution (native/online_convolution.cpp), which also stores
the contributions of past inputs to later outputs.  They belong to the newest state of a stream; a
fork or a loaded state computes its own again from the inputs, with the same bits.
step    the sum, or one tile of the online convolution
chunk   Fourier transforms of blocks, after the carried inputs
parallel  one Fourier transform
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.kernels import ops
from threefold.kernels.autocast import full_precision
from threefold.kernels.dispatch import runs_on_kernels
from threefold.kernels.fourier import next_power_of_two
from threefold.kernels.growing_buffer import GrowingBuffer, claim_buffer, state_view
from threefold.kernels.online_convolution import (
    PENDING,
    PendingSums,
    StreamGrowth,
    largest_tile,
    record_online_step,
)
from threefold.kernels.replay.activity import active_recorder, unwatched
from threefold.kernels.replay.listing import CannotRecordError
from threefold.memory.buffer import grow, spans_of
from threefold.memory.state import State, memory_dtype


def long_convolution(
    x: Tensor, kernel: Tensor, *, skip: Tensor | None = None, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Convolve x [B, L, D] causally with the taps of each channel, kernel [D, M].

    `y_t = Σ_m kernel_m x_{t−m} + skip x_t`, skip [D]; `state` [B, M−1, D] is the inputs before x,
    zeros if None.  Returns y [B, L, D] and the last M−1 inputs.  All have one floating-point dtype.
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


def short_convolution(
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    gate: Tensor | None = None,
    *,
    form: str,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """gate ⊙ Σ_k weight_k x_{t−K+1+k} for x and gate [B, L, D], weight [D, K], after state.

    In the parallel form by Fourier transforms, for many taps.  Returns it and the new state, the
    last K−1 inputs of each row.
    """
    if form != "parallel":
        y, after = ops.short_convolution(x, weight, None, state, lengths)
        return y if gate is None else y * gate, after
    known, length = state.shape[1], x.shape[1]
    inputs, wide = torch.cat([state, x], 1), memory_dtype(x.dtype)
    taps = weight.to(wide).flip(1)
    gate = None if gate is None else gate.to(wide)
    y = ops.long_convolution(inputs.to(wide), taps, None, gate, first=known).to(x.dtype)
    if lengths is None:
        return y, inputs[:, length:]
    last = lengths.unsqueeze(1) + torch.arange(known, device=x.device)
    return y, inputs[torch.arange(len(x), device=x.device).unsqueeze(1), last]


class PreparedFilter:
    """A filter kernel [D, K] with skip [D]; without gradients, also prepared for streaming."""

    def __init__(self, kernel: Tensor, skip: Tensor | None = None) -> None:
        self.kernel, self.skip = kernel, skip
        self.online = ops.online_filter(kernel, skip)


class MixingFilter:
    """A kernel between all channels, of few shapes in time: kernel_m = Σ_r basis_{m,r} mixing_r.

    basis [K, R], mixing [R, D, D'].  Only the basis is Fourier-transformed: the spectrum of the
    kernel is a product with it.
    """

    def __init__(self, basis: Tensor, mixing: Tensor) -> None:
        self.basis, self.mixing = basis, mixing

    @cached_property
    def kernel(self) -> Tensor:
        """[K, D, D']."""
        return torch.einsum("kr,rio->kio", self.basis, self.mixing)

    def run(self, context: Tensor, first: int, form: str) -> Tensor:
        """Outputs [B, S − first, D'] of context [B, S, D] from `first` on; S ≤ K."""
        length, wide = context.shape[1], memory_dtype(context.dtype)
        x = context.to(wide)
        if form == "step":
            if active_recorder() is not None:
                raise CannotRecordError(
                    "a filter between all channels: its product with all elements so far takes "
                    "longer than the calls"
                )
            y = (x.flip(1).flatten(1) @ self.kernel[:length].flatten(0, 1).to(wide)).unsqueeze(1)
        else:
            y = self._transformed(x)[:, first:]
        return y.to(context.dtype)

    def _transformed(self, x: Tensor) -> Tensor:
        """All outputs [B, S, D'] of x [B, S, D], by products of real and imaginary parts."""
        rows, length, _ = x.shape
        size = next_power_of_two(2 * length - 1)
        basis = torch.view_as_real(torch.fft.rfft(self.basis[:length].to(x.dtype), size, 0))
        mixing = self.mixing.to(x.dtype)
        real, imaginary = (torch.einsum("fr,rio->fio", part, mixing) for part in basis.unbind(-1))
        both = torch.view_as_real(torch.fft.rfft(x, size, 1)).permute(1, 3, 0, 2).flatten(1, 2)
        a, b = torch.split(both @ real, rows, 1), torch.split(both @ imaginary, rows, 1)
        spectrum = torch.complex(a[0] - b[1], a[1] + b[0])
        y: Tensor = torch.fft.irfft(spectrum, size, 0)
        return y[:length].transpose(0, 1)


class StreamedConvolution:
    """One call of a mixer that convolves with long filters: G convolutions, one after another.

    The state has `values` [B, T, G, D], the inputs of each, and the `position` [B] of each row.
    """

    def __init__(self, state: State, length: int, form: str, lengths: Tensor | None) -> None:
        self.past: Tensor = state["values"]
        self.position: Tensor = state["position"]
        with unwatched():  # a recorded step checks and reads positions at each run
            self.spans = spans_of(self.position, self.past.shape[1], length, lengths)
        self.form, self.length = form, length
        self.inputs: list[Tensor] = []
        self.pending: PendingSums | None = None
        self.buffer: GrowingBuffer | None = None

    @staticmethod
    def shapes(length: int, convolutions: int, width: int) -> Mapping[str, Any]:
        """The leaves of a row's state after `length` elements."""
        return {"values": (length, convolutions, width), "position": ()}

    @property
    def longest(self) -> int:
        """The number of taps this call needs: elements of its longest row, padding included."""
        return max(self.spans.starts) + self.length

    def check(self, max_length: int, owner: str) -> None:
        """Raise if a row would have more elements than the filters have taps."""
        if self.spans.end > max_length:
            before = max(self.spans.starts)
            raise ThreefoldError(
                f"{owner}: a row would have {self.spans.end} elements ({before} carried), but its "
                f"filters have max_length={max_length} taps; build it with a larger max_length"
            )

    @full_precision
    def convolve(
        self, x: Tensor, taps: PreparedFilter | MixingFilter, gate: Tensor | None = None
    ) -> Tensor:
        """Convolve x [B, L, D] with the next filter, which has taps for the longest row at least.

        The outputs are multiplied by the gate [B, L, D], if given.
        """
        group = len(self.inputs)
        self.inputs.append(x)
        if isinstance(taps, MixingFilter):
            return _gated(taps.run(*self._context(x, group), self.form), gate)
        streams = taps.online is not None and x.dtype == taps.kernel.dtype == self.past.dtype
        if streams and self.form == "step" and runs_on_kernels(self.form, self.length):
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
        if self.buffer is not None:
            values = self._grown(self.buffer)
        else:
            values = grow(self.past, torch.stack(self.inputs, 2), self.spans)
        lengths = self.spans.lengths
        ends = self.position + (self.length if lengths is None else lengths)
        return {"values": values, "position": ends}

    def _grown(self, buffer: GrowingBuffer) -> Tensor:
        """The inputs after this call, with the sums that the next one needs."""
        with unwatched():
            values = state_view(buffer, 0, self.spans.end)
        setattr(values, PENDING, self.pending)
        recorder = active_recorder()
        if recorder is not None:
            assert self.pending is not None
            filters = tuple(self.pending.steps[g].filter for g in range(len(self.inputs)))
            growth = StreamGrowth(recorder.leaf_of(self.position), filters)
            recorder.grow(self.past, values, growth)
        return values

    def _online(self, x: Tensor, taps: PreparedFilter, group: int) -> Tensor:
        x = x.contiguous()
        with unwatched():
            y = self._advance(x, taps, group)
        recorder = active_recorder()
        if recorder is not None:
            assert self.pending is not None
            record_online_step(recorder, self.past, group, self.pending.steps[group], x, y)
        return y

    def _advance(self, x: Tensor, taps: PreparedFilter, group: int) -> Tensor:
        spans = self.spans
        if self.pending is None or self.buffer is None:
            known: PendingSums | None = getattr(self.past, PENDING, None)
            ready = known is not None and known.claim(spans.starts, spans.ends)
            self.pending = known if known is not None and ready else PendingSums(spans.ends)
            self.buffer = claim_buffer(self.past, spans.starts, spans.ends)
        assert taps.online is not None
        last = max(spans.starts)
        step, rebuild = self.pending.step(group, taps.online, self.buffer.heads[group], last)
        positions = self.position
        if spans.lengths is not None:
            positions = torch.where(spans.lengths > 0, positions, -1 - positions)
        return step.advance(
            x, positions, largest_tile(spans.starts, rebuild=rebuild), rebuild=rebuild
        )

    def _context(self, x: Tensor, group: int) -> tuple[Tensor, int]:
        """Past inputs and x, aligned so that x begins at the same index in all rows; that index."""
        past, first = self.past[:, :, group], self.past.shape[1]
        if first and self.spans.start is None:
            positions = torch.arange(first, device=x.device) - (first - self.position.unsqueeze(1))
            moved = past[torch.arange(len(x), device=x.device).unsqueeze(1), positions.clamp(min=0)]
            past = torch.where((positions >= 0).unsqueeze(-1), moved, 0)
        elif first:
            past = past[:, : self.spans.start]
            first = past.shape[1]
        return torch.cat([past, x], 1) if first else x, first


def _gated(y: Tensor, gate: Tensor | None) -> Tensor:
    return y if gate is None else gate * y


def _sum(context: Tensor, kernel: Tensor, skip: Tensor | None) -> Tensor:
    """The output at the last element of context [B, S, D], by definition."""
    wide = memory_dtype(context.dtype)
    y = (context.to(wide).flip(1) * kernel.to(wide).T[: context.shape[1]]).sum(1, keepdim=True)
    if skip is not None:
        y = y + skip.to(wide) * context[:, -1:].to(wide)
    return y.to(context.dtype)
