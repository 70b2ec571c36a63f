"""s = Ā s₋ + B̄ u,  y = C s:  taps K̄ = (C B̄, C Ā B̄, C Ā² B̄, …),  y = K̄ ∗ u.

A fixed filter for each channel, given by its discretised state space.  A state is S real numbers
per channel; a complex state is its real parts, then its imaginary parts.
step      the recurrence
chunk     blocks that carry the state; if Ā is diagonal, long blocks by Fourier transforms
parallel  one Fourier transform
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.kernels import ops
from threefold.kernels.autocast import full_precision
from threefold.memory.buffer import needs_gradient
from threefold.memory.discretisation import (
    check_delta,
    check_rate,
    check_stable,
    discretise,
    discretise_diagonal,
)
from threefold.memory.forms import FORMS, plan_chunk, plan_form, plan_transform
from threefold.memory.transition import (
    DenseTransition,
    DiagonalTransition,
    MatrixTransition,
    Transition,
)

NAME = "filter"  # in error messages


@dataclass(frozen=True)
class Filter:
    """One discretised system per channel, stored in float64; outputs and states have `dtype`.

    write [H, S] is B̄, read [H, S] is C as a real row, skip [H] is D.  `impulse(length)`, if given,
    computes the taps [H, length] in a faster way.
    """

    transition: DiagonalTransition | MatrixTransition
    write: Tensor
    read: Tensor
    dtype: torch.dtype
    skip: Tensor | None = None
    impulse: Callable[[int], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.write.shape != self.read.shape or self.write.dim() != 2:
            raise ThreefoldError(
                f"{NAME}: write is {tuple(self.write.shape)} and read {tuple(self.read.shape)}, "
                "expected both to be [channels, state size]"
            )

    @full_precision
    def run(
        self,
        x: Tensor,
        state: Tensor | None = None,
        *,
        form: str = "auto",
        lengths: Tensor | None = None,
        gate: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """x [B, L, H] after state [B, H, S] (zeros if None): outputs [B, L, H] and the new state.

        A state may also be pairs [B, H, S/2, 2], real and imaginary parts side by side; the new one
        is then too.
        With lengths [B], elements past a row's end do not exist, and outputs there are unspecified.
        The outputs are multiplied by the gate [B, L, H], if given.
        """
        channels, size = self.write.shape
        if x.dim() != 3 or x.shape[2] != channels or x.shape[1] == 0:
            raise ThreefoldError(
                f"{NAME}: x is {tuple(x.shape)}, expected [batch, length ≥ 1, {channels}]"
            )
        if state is None:
            state = x.new_zeros(len(x), channels, size, dtype=self.dtype)
        pairs = state.dim() == 4
        shape = (len(x), channels, *((size // 2, 2) if pairs else (size,)))
        if state.shape != shape:
            raise ThreefoldError(f"{NAME}: state is {tuple(state.shape)}, expected {shape}")
        x, gate = x.to(self.dtype), None if gate is None else gate.to(self.dtype)
        if lengths is not None:
            real = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
            x = torch.where(real.unsqueeze(-1), x, torch.zeros_like(x))
        form = plan_form(form, x.shape[1], FORMS, NAME)
        if form == "step" and x.shape[1] == 1 and lengths is None:
            found = self._single_step(x, state)
            if found is not None:
                return _gated(found[0], gate), found[1]
        y, after = self._run(x, _planes(state), form, lengths, gate)
        return y, _pairs(after) if pairs else after

    def _run(
        self, x: Tensor, state: Tensor, form: str, lengths: Tensor | None, gate: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if isinstance(self.transition, DiagonalTransition) and form != "step":
            size = plan_transform(x.shape[1], form)
            return self._in_transforms(self.transition, x, state, lengths, size, gate)
        if form == "step":
            y, state = self._step_loop(x, state, lengths)
        else:
            assert isinstance(self.transition, MatrixTransition)
            y, state = self._in_blocks(self.transition, x, state, lengths, form)
        return _gated(y, gate), state

    def taps(self, length: int) -> Tensor:
        """The impulse response K̄ [H, length]."""
        if self.impulse is not None:
            return self.impulse(length).to(self.dtype)
        if isinstance(self.transition, DiagonalTransition):
            return self.transition.taps(self.write, self.read, length, self.dtype)
        # K̄ at block·q + j is (C Ā^{block·q})(Ā^j B̄): a product of two short tables.
        tables = self._tables(self.transition, min(64, length))
        ahead, rows = tables.powers[-1], self.read.unsqueeze(0)
        while len(rows) * tables.block < length:
            rows = torch.cat([rows, ahead.before(rows)])
            ahead = ahead.squared()
        starts = rows.transpose(0, 1).to(self.dtype)
        return torch.bmm(starts, tables.writes.flip(1).mT).flatten(1)[:, :length]

    @cached_property
    def rounded(self) -> tuple[Transition, Tensor, Tensor]:
        """Transition, write and read in `dtype`, for the step."""
        write, read = (part.to(self.dtype).contiguous() for part in (self.write, self.read))
        return self.transition.to(self.dtype), write, read

    def _single_step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor] | None:
        """One element by the kernel; None where none serves."""
        if not isinstance(self.transition, DiagonalTransition):
            return None
        turn, write, read = self.rounded
        assert isinstance(turn, DiagonalTransition)
        skip = None if self.skip is None else self.skip.to(self.dtype)
        found = ops.filter_step(x[:, 0], state, turn.factor, write, read, skip)
        return None if found is None else (found[0].unsqueeze(1), found[1])

    def _step_loop(self, x: Tensor, state: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """The recurrence, element by element: the definition of the other forms."""
        turn, write, read = self.rounded
        outputs = []
        for t, u in enumerate(x.unbind(1)):
            after = turn.after(state) + write * u.unsqueeze(-1)
            if lengths is not None:
                after = torch.where((lengths > t).view(-1, 1, 1), after, state)
            state = after
            outputs.append((read * state).sum(-1))
        return self._skipped(torch.stack(outputs, 1), x), state

    def _skipped(self, y: Tensor, x: Tensor) -> Tensor:
        return y if self.skip is None else y + self.skip.to(self.dtype) * x

    def _convolved(self, x: Tensor, taps: Tensor, gate: Tensor | None = None) -> Tensor:
        """gate ⊙ (K̄ ∗ x + D x), by one Fourier transform."""
        skip = None if self.skip is None else self.skip.to(self.dtype)
        return ops.long_convolution(x, taps, skip, gate, whole=True)

    def _in_transforms(
        self,
        turn: DiagonalTransition,
        x: Tensor,
        state: Tensor,
        lengths: Tensor | None,
        size: int,
        gate: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Convolutions of `size` elements; powers of a diagonal Ā carry the state between them."""
        taps, outputs = self.taps(min(size, x.shape[1])), []
        for begin, piece in zip(range(0, x.shape[1], size), torch.split(x, size, 1), strict=True):
            count = piece.shape[1]
            by = None if gate is None else gate[:, begin : begin + count]
            y = self._convolved(piece, taps[:, :count], by)
            if _may_contribute(state):
                y = y + _gated(turn.respond(self.read, state, count, self.dtype), by)
            outputs.append(y)
            left = None if lengths is None else (lengths - begin).clamp(0, count)
            state = turn.collect(self.write, piece, state, left)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1), state

    def _in_blocks(
        self, each: MatrixTransition, x: Tensor, state: Tensor, lengths: Tensor | None, form: str
    ) -> tuple[Tensor, Tensor]:
        """Blocks, each from the state before it; parallel convolves all inputs by one FFT."""
        batch, length, channels = x.shape
        tables = self._tables(each, plan_chunk(None, length, "chunk"))
        pieces = -(-length // tables.block)
        cut = torch.nn.functional.pad(x, (0, 0, 0, pieces * tables.block - length))
        # [H, B · pieces, block]: one product for all blocks of a channel.
        cut = cut.view(batch, pieces, tables.block, channels).permute(3, 0, 1, 2).flatten(1, 2)
        gains = torch.bmm(cut, tables.writes).view(channels, batch, pieces, -1).permute(1, 2, 0, 3)
        turn = tables.powers[-1].to(self.dtype)
        starts = turn.unroll(gains, state)
        last = _finish(tables, self.dtype, x, starts, lengths)
        if form == "chunk":
            y = torch.baddbmm(_by_channel(starts[:, :-1]) @ tables.reads, cut, tables.toeplitz())
            y = y.view(channels, batch, -1)[..., :length].permute(1, 2, 0)
            return self._skipped(y, x), last
        starts = turn.unroll(torch.zeros_like(gains), state)
        y = (_by_channel(starts[:, :-1]) @ tables.reads).view(channels, batch, -1)
        return self._convolved(x, self.taps(length)) + y[..., :length].permute(1, 2, 0), last

    def _tables(self, turn: MatrixTransition, most: int) -> BlockTables:
        """The tables of a block whose length is the largest power of two ≤ `most`, by doubling."""
        writes = self.write.unsqueeze(0)
        reads = turn.before(self.read.unsqueeze(0))
        powers = [turn]
        while 2 * len(writes) <= most:
            writes = torch.cat([turn.after(writes), writes])
            reads = torch.cat([reads, turn.before(reads)])
            turn = turn.squared()
            powers.append(turn)
        taps = (self.read * writes.flip(0)).sum(-1).mT.to(self.dtype)
        return BlockTables(
            powers,
            writes.transpose(0, 1).to(self.dtype).contiguous(),
            reads.permute(1, 2, 0).to(self.dtype).contiguous(),
            taps,
        )


@dataclass(frozen=True)
class BlockTables:
    """Tables of a block of 2^k elements: what it adds to the state and what it reads of it."""

    powers: list[MatrixTransition]  # Ā^1, Ā^2, Ā^4, …, Ā^block
    writes: Tensor  # [H, block, S]: the share of each element in the state after the block
    reads: Tensor  # [H, S, block]: the share of the state before the block in each output
    taps: Tensor  # [H, block]

    @property
    def block(self) -> int:
        return self.writes.shape[1]

    def toeplitz(self) -> Tensor:
        """[H, block, block]: output i reads element j ≤ i through tap i − j."""
        at = torch.arange(self.block, device=self.taps.device)
        distance = at - at[:, None]
        after = torch.nn.functional.pad(self.taps, (0, 1))
        return after[:, torch.where(distance >= 0, distance, self.block)]


def _finish(
    tables: BlockTables, dtype: torch.dtype, x: Tensor, starts: Tensor, lengths: Tensor | None
) -> Tensor:
    """The state after each row's last element: from its last full block on, by powers of two."""
    batch, length, _ = x.shape
    rows = torch.arange(batch, device=x.device)
    if lengths is None:
        lengths = torch.full((batch,), length, device=x.device)
        left = {length % tables.block}
    else:
        left = set(range(tables.block))
    whole = torch.div(lengths, tables.block, rounding_mode="floor")
    state, at = starts[rows, whole], whole * tables.block
    for k in reversed(range(len(tables.powers) - 1)):
        size = 2**k
        if not any(rest & size for rest in left):
            continue
        index = (at[:, None] + torch.arange(size, device=x.device)).clamp(max=length - 1)
        gain = torch.einsum("bjh,hjs->bhs", x[rows[:, None], index], tables.writes[:, -size:])
        moved = tables.powers[k].to(dtype).after(state) + gain
        here = (lengths - at) >= size
        state = torch.where(here.view(-1, 1, 1), moved, state)
        at = at + size * here
    return state


def _may_contribute(state: Tensor) -> bool:
    """Whether a state may add to the outputs; an empty one adds nothing."""
    unknown = torch.compiler.is_compiling() or state.is_meta or needs_gradient(state)
    return unknown or bool(state.any())


def _planes(state: Tensor) -> Tensor:
    """Pairs [B, H, N, 2] as [B, H, 2·N], real parts first; other states as they are."""
    return state.mT.flatten(-2) if state.dim() == 4 else state


def _pairs(state: Tensor) -> Tensor:
    """The reverse, for a state of complex numbers."""
    return torch.unflatten(state, -1, (2, -1)).mT.contiguous()


def _gated(y: Tensor, gate: Tensor | None) -> Tensor:
    return y if gate is None else y * gate


def _by_channel(states: Tensor) -> Tensor:
    """[B, pieces, H, S] to [H, B · pieces, S]."""
    return states.permute(2, 0, 1, 3).flatten(1, 2)


def diagonal_filter(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    delta: Tensor,
    *,
    method: str = "zero_order_hold",
    dtype: torch.dtype = torch.float64,
) -> Filter:
    """The filter y = 2 Re(c s); a, b, c complex128 [H, N], each standing for a conjugate pair."""
    factor, gain = discretise_diagonal(a, delta, method)
    write, read = b * gain, 2 * c.conj()
    planes = torch.stack([factor.real, factor.imag], -2)
    return Filter(
        DiagonalTransition(planes.expand(*c.shape[:-1], 2, -1)),
        torch.cat([write.real, write.imag], -1).expand(*c.shape[:-1], -1),
        torch.cat([read.real, read.imag], -1),
        dtype,
    )


def state_space(
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    delta: Tensor | float = 1.0,
    method: str = "bilinear",
    rate: float = 1.0,
) -> Filter:
    """The filter of h' = A h + B u, y = C h + D u, for elements delta / rate apart.

    A [N, N] for all channels or [H, N, N], stable; B [N] or [H, N]; C [H, N]; D [H]; delta a number
    or [H].  `rate=0.5` is for a signal of half the sampling rate.
    """
    if C.dim() != 2 or A.shape[-2:] != (C.shape[1], C.shape[1]) or B.shape[-1] != C.shape[1]:
        raise ThreefoldError(
            f"state_space: A is {tuple(A.shape)}, B {tuple(B.shape)}, C {tuple(C.shape)}; expected "
            "[N, N], [N] and [channels, N], A and B with or without channels"
        )
    check_stable(A, "state_space")
    delta = torch.as_tensor(delta, dtype=torch.float64) / check_rate(rate, "state_space")
    check_delta(delta, "state_space")
    dtype, delta = C.dtype, delta.expand(len(C))
    A_, B_ = discretise(A.double(), B.double(), delta, method)
    return Filter(
        DenseTransition(A_), B_.expand_as(C), C.double(), dtype, None if D is None else D.double()
    )
