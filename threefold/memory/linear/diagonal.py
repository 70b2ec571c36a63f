"""h_t = a_t ⊙ h_{t−1} + b_t: a decay for each channel, real or complex.

The memory of LRU, RG-LRU, S5 and other diagonal recurrences whose write does not depend on the
decay; `blend` is the gated average of minGRU and minLSTM.
Complex numbers are two planes, real parts first: [..., 2, D].
"""

from __future__ import annotations

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.kernels import ops
from threefold.kernels.autocast import full_precision
from threefold.memory.associative_scan import Element, associative_scan, compose_affine
from threefold.memory.forms import FORMS, plan_chunk, plan_form
from threefold.memory.linear.selective import selective_recurrence

NAME = "diagonal_recurrence"  # in error messages


@full_precision
def diagonal_recurrence(
    decay: Tensor,
    write: Tensor,
    state: Tensor,
    *,
    form: str = "auto",
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All memories [B, L, D], or [B, L, 2, D] if complex, and the last one.

    write [B, L, D] or [B, L, 2, D]; decay the same, or without B and L if it is constant; state
    without L.  All have the memory's dtype.
    """
    if write.dim() not in (3, 4) or decay.shape not in (write.shape, write.shape[2:]):
        raise ThreefoldError(
            f"{NAME}: decay is {tuple(decay.shape)} and write {tuple(write.shape)}, expected "
            "[batch, length, channels], with an axis of 2 before the channels if complex, or a "
            "decay without batch and length"
        )
    form = plan_form(form, write.shape[1], FORMS, NAME)
    by_kernel = ops.diagonal_recurrence(decay, write, state, lengths, form=form)
    return by_kernel or plain_diagonal(decay, write, state, form, lengths)


def plain_diagonal(
    decay: Tensor, write: Tensor, state: Tensor, form: str, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The recurrence in plain torch, one chunk after another."""
    length, complex_ = write.shape[1], write.dim() == 4
    real = None
    if decay.dim() < write.dim():
        decay = decay.expand(write.shape)
    if lengths is not None:
        real = torch.arange(length, device=write.device) < lengths[:, None]
        real = real.view(*real.shape, *[1] * (write.dim() - 2))
        decay = torch.where(real, decay, _one(decay, complex_))
        write = torch.where(real, write, torch.zeros_like(write))
    size = 1 if form == "step" else plan_chunk(None, length, form)
    outputs = []
    for begin in range(0, length, size):
        piece = slice(begin, begin + size)
        outputs.append(_advance((decay[:, piece], write[:, piece]), state, complex_))
        state = outputs[-1][:, -1]
    out = torch.cat(outputs, 1)
    return (out if real is None else torch.where(real, out, torch.zeros_like(out))), state


def _advance(elements: Element, state: Tensor, complex_: bool) -> Tensor:
    decay, write = elements
    if decay.shape[1] > 1:
        decay, write = associative_scan(_compose_complex if complex_ else compose_affine, elements)
    state = state.unsqueeze(1)
    return write + (multiply_complex(decay, state) if complex_ else decay * state)


def _compose_complex(earlier: Element, later: Element) -> Element:
    return multiply_complex(later[0], earlier[0]), multiply_complex(later[0], earlier[1]) + later[1]


def multiply_complex(a: Tensor, b: Tensor) -> Tensor:
    """The product of complex numbers in two planes [..., 2, D]."""
    a_real, a_imaginary = a.unbind(-2)
    b_real, b_imaginary = b.unbind(-2)
    real = a_real * b_real - a_imaginary * b_imaginary
    return torch.stack([real, a_real * b_imaginary + a_imaginary * b_real], -2)


def _one(like: Tensor, complex_: bool) -> Tensor:
    if not complex_:
        return torch.ones_like(like)
    return torch.stack([torch.ones_like(like[..., 0, :]), torch.zeros_like(like[..., 1, :])], -2)


def blend(
    candidate: Tensor,
    logit: Tensor,
    state: Tensor,
    *,
    form: str,
    lengths: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """h = (1−z)⊙h₋ + z⊙h̃ with z = σ(logit), for candidates h̃.

    It is the selective recurrence with zero-order hold, A = −1 and Δ = softplus(logit).
    candidate and logit [B, L, D], state [B, D]; returns all h and the last.
    """
    ones = candidate.new_ones(*candidate.shape[:2], 1)
    rate = -candidate.new_ones(candidate.shape[-1], 1)
    out, memory = selective_recurrence(
        candidate,
        logit,
        rate,
        ones,
        ones,
        softplus=True,
        hold=True,
        state=state.unsqueeze(-1),
        form=form,
        lengths=lengths,
    )
    return out, memory.squeeze(-1)
