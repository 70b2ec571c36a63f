"""S = exp(Δ A) ⊙ S₋ + Δ B x,  y = C·S + D x: a small memory for each channel, decayed elementwise.

Mamba's selective scan (Gu & Dao 2023); with `hold`, zero-order hold, B̄ = (exp(Δ A) − 1)/A · B.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.kernels import ops
from threefold.kernels.autocast import full_precision
from threefold.memory.associative_scan import Element, associative_scan, compose_affine
from threefold.memory.forms import FORMS, plan_chunk, plan_form
from threefold.memory.state import memory_dtype

NAME = "selective_scan"  # in error messages


def selective_scan(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    delta_bias: Tensor | None = None,
    softplus: bool = False,
    state: Tensor | None = None,
    form: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Mamba's selective scan; returns (y [B, L, D], state [B, D, N]).

    x, delta, gate [B, L, D]; A [D, N], negative (pass −exp(A_log)); B, C [B, L, N]; D [D].
    Δ is delta + delta_bias, then its softplus if `softplus`.  y is multiplied by silu(gate).
    """
    check(x, delta, A, B, C, D, gate, delta_bias)
    if not torch.compiler.is_compiling() and bool((A > 0).any()):
        raise ThreefoldError(
            f"{NAME}: A must be ≤ 0 (pass −exp(A_log)); its largest value is {A.max().item():.6g}"
        )
    return selective_recurrence(
        x, delta, A, B, C, D, gate, delta_bias=delta_bias, softplus=softplus, state=state, form=form
    )


@full_precision
def selective_recurrence(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    delta_bias: Tensor | None = None,
    softplus: bool = False,
    state: Tensor | None = None,
    form: str = "auto",
    lengths: Tensor | None = None,
    hold: bool = False,
) -> tuple[Tensor, Tensor]:
    """`selective_scan` for mixers: without checks of values; rows end after `lengths` elements."""
    form = plan_form(form, x.shape[1], FORMS, NAME)
    dtype = memory_dtype(x.dtype)
    check_state(state, (x.shape[0], *A.shape), dtype)
    wide = SelectiveInputs(x, delta, A, B, C, D, gate, delta_bias).to(dtype)
    by_kernel = ops.selective_scan(
        **wide._asdict(), softplus=softplus, hold=hold, state=state, lengths=lengths, form=form
    )
    out, memory = by_kernel or plain_selective(wide, softplus, hold, state, lengths, form)
    return out.to(x.dtype), memory


class SelectiveInputs(NamedTuple):
    """The inputs of a selective recurrence, all of the memory's dtype."""

    x: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    gate: Tensor | None
    delta_bias: Tensor | None

    def to(self, dtype: torch.dtype) -> SelectiveInputs:
        if all(field is None or field.dtype == dtype for field in self):
            return self
        return SelectiveInputs(*(None if field is None else field.to(dtype) for field in self))  # type: ignore[arg-type]


def plain_selective(
    fields: SelectiveInputs,
    softplus: bool,
    hold: bool,
    state: Tensor | None,
    lengths: Tensor | None,
    form: str,
) -> tuple[Tensor, Tensor]:
    """The selective recurrence in plain torch, one chunk after another."""
    x, delta, A, B, C, D, gate, delta_bias = fields
    length = x.shape[1]
    if delta_bias is not None:
        delta = delta + delta_bias
    if softplus:
        delta = F.softplus(delta)
    if lengths is not None:
        past_end = torch.arange(length, device=x.device) >= lengths[:, None]
        delta = delta.masked_fill(past_end.unsqueeze(-1), 0)
    memory = x.new_zeros(x.shape[0], *A.shape) if state is None else state
    size = 1 if form == "step" else plan_chunk(None, length, form)
    outputs = []
    for begin in range(0, length, size):
        piece = slice(begin, begin + size)
        elements = decay_and_write(x[:, piece], delta[:, piece], A, B[:, piece], hold)
        memories = advance(elements, memory)
        outputs.append((memories @ C[:, piece].unsqueeze(-1)).squeeze(-1))
        memory = memories[:, -1]
    out = torch.cat(outputs, 1)
    if D is not None:
        out = out + D * x
    if gate is not None:
        out = out * F.silu(gate)
    return out, memory


def decay_and_write(x: Tensor, delta: Tensor, A: Tensor, B: Tensor, hold: bool) -> Element:
    """The factor by which each element multiplies the memory and what it adds, [B, C, D, N]."""
    log_decay = delta.unsqueeze(-1) * A
    if not hold:
        return log_decay.exp(), (delta * x).unsqueeze(-1) * B.unsqueeze(2)
    # (e^{ΔA} − 1)/A is Δ where A = 0; the inner `where` keeps its gradient finite there.
    growth = torch.where(A == 0, delta.unsqueeze(-1), log_decay.expm1() / A.where(A != 0, 1.0))
    return log_decay.exp(), growth * x.unsqueeze(-1) * B.unsqueeze(2)


def advance(elements: Element, memory: Tensor) -> Tensor:
    """The memories [B, C, D, N] after each of C elements, from the memory before them."""
    decay, write = elements
    if decay.shape[1] == 1:
        return decay * memory.unsqueeze(1) + write
    decays, memories = associative_scan(compose_affine, (decay, write))
    return memories + decays * memory.unsqueeze(1)


def check_state(state: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise if the state has another shape or dtype."""
    if state is not None and (tuple(state.shape) != shape or state.dtype != dtype):
        raise ThreefoldError(
            f"{NAME}: state is {tuple(state.shape)} {state.dtype}, expected {shape} {dtype} "
            "(batch, channels, state size)"
        )


def check(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    gate: Tensor | None,
    delta_bias: Tensor | None,
) -> None:
    """Raise if shapes do not fit."""
    if x.dim() != 3 or A.dim() != 2:
        raise ThreefoldError(
            f"{NAME}: x is {tuple(x.shape)} and A {tuple(A.shape)}, expected "
            "[batch, length, channels] and [channels, state size]"
        )
    batch, length, channels = x.shape
    if length == 0:
        raise ThreefoldError(f"{NAME}: the sequence is empty; give at least one element")
    size = A.shape[1]
    for name, field, shape in (
        ("delta", delta, (batch, length, channels)),
        ("A", A, (channels, size)),
        ("B", B, (batch, length, size)),
        ("C", C, (batch, length, size)),
        ("D", D, (channels,)),
        ("gate", gate, (batch, length, channels)),
        ("delta_bias", delta_bias, (channels,)),
    ):
        if field is not None and tuple(field.shape) != shape:
            raise ThreefoldError(
                f"{NAME}: {name} is {tuple(field.shape)}, expected {shape} to go with x "
                f"{tuple(x.shape)} and A {tuple(A.shape)}"
            )
