"""∂x_t = Σ_n g_n,t ⊙ (1 − share_n) + Σ_n g_n,t+1 ⊙ share_n,  ∂share_n = Σ_t g_n,t ⊙ (x_{t−1} − x_t)

The token shift as a torch operation on the native kernel. Shapes are checked in `ops`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from threefold.kernels import library
from threefold.kernels.checks import expected_kind
from threefold.kernels.dispatch import may_call_directly, register_kernel
from threefold.kernels.registration import define, differentiate, differentiate_once

_Optional = Tensor | None


def expected(x: Tensor, shares: Tensor, state: Tensor | None, lengths: Tensor | None) -> str | None:
    """The shape, dtype or device that was expected; None if all inputs fit."""
    if x.ndim != 3 or shares.ndim != 2 or 0 in x.shape[1:] or 0 in shares.shape:
        return "x [B, L, D] and shares [N, D], none empty"
    batch, _, channels = x.shape
    if not (
        shares.shape[1] == channels
        and (state is None or state.shape == (batch, channels))
        and (lengths is None or lengths.shape == (batch,))
    ):
        return f"shares [N, {channels}], state [{batch}, {channels}] and lengths [{batch}]"
    return expected_kind(x, (shares, state), lengths)


def forward(
    x: Tensor, shares: Tensor, state: _Optional, lengths: _Optional
) -> tuple[Tensor, Tensor]:
    """Call the kernel; a step without gradients calls this directly."""
    y, new_state = _forward_shapes(x, shares)
    sizes = [len(shares), *x.shape]
    library.call("token_shift_forward", [y, new_state], [x, shares, state, lengths], sizes)
    return y, new_state


def _forward_shapes(x: Tensor, shares: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    batch, _, channels = x.shape
    return x.new_empty((shares.shape[0], *x.shape)), x.new_empty((batch, channels))


def _backward(
    grad_y: Tensor,
    grad_new_state: Tensor,
    x: Tensor,
    shares: Tensor,
    state: _Optional,
    lengths: _Optional,
) -> tuple[Tensor, Tensor, Tensor]:
    grads = _backward_shapes(grad_y, grad_new_state, x, shares)
    workspace = x.new_empty((len(x), *shares.shape))
    library.call(
        "token_shift_backward",
        [*grads, workspace],
        [grad_y, grad_new_state, x, shares, state, lengths],
        [len(shares), *x.shape],
    )
    return grads


def _backward_shapes(
    grad_y: Tensor, grad_new_state: Tensor, x: Tensor, shares: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape),
        x.new_empty(shares.shape),
        x.new_empty((x.shape[0], x.shape[2])),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad_y: Tensor, grad_new_state: Tensor) -> tuple[_Optional, ...]:
    x, shares, state, lengths = ctx.saved_tensors
    grads = backward(grad_y, grad_new_state, x, shares, state, lengths)
    return grads[0], grads[1], None if state is None else grads[2], None


_INPUTS = "Tensor x, Tensor shares, Tensor? state, Tensor? lengths"

operation = define(
    f"token_shift({_INPUTS}) -> (Tensor, Tensor)", native=forward, shapes=_forward_shapes
)
backward = define(
    f"token_shift_backward(Tensor grad_y, Tensor grad_new_state, {_INPUTS})"
    " -> (Tensor, Tensor, Tensor)",
    native=_backward,
    shapes=_backward_shapes,
)
differentiate("token_shift", save=_save, backward=_differentiate)
differentiate_once("token_shift_backward", use="token_shift")


def run(x: Tensor, shares: Tensor, state: _Optional, lengths: _Optional) -> tuple[Tensor, Tensor]:
    """The mixtures and the last real element."""
    call = forward if may_call_directly(x) else operation
    return call(x, shares, state, lengths)


register_kernel("token_shift", "cpu", run)
