"""∂x_t = Σ_n g_n,t ⊙ (1 − share_n) + Σ_n g_n,t+1 ⊙ share_n,  ∂share_n = Σ_t g_n,t ⊙ (x_{t−1} − x_t)

The token shift as a torch operation on the native kernel.
"""

from __future__ import annotations

from torch import Tensor

from threefold.kernels.declarations import TOKEN_SHIFT, TOKEN_SHIFT_BACKWARD
from threefold.kernels.dispatch import may_call_directly, register_kernel
from threefold.kernels.registration import NativeOperation, derive

expected = TOKEN_SHIFT.expected
_forward = NativeOperation(TOKEN_SHIFT)
_backward = NativeOperation(TOKEN_SHIFT_BACKWARD)
operation, backward = _forward.dispatched, _backward.dispatched
derive(_forward, _backward, use="token_shift")


def run(
    x: Tensor, shares: Tensor, state: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The mixtures and the last real element."""
    call = _forward.call if may_call_directly(x) else operation
    y, last = call(x, shares, state, lengths)
    return y, last


register_kernel("token_shift", "cpu", run)
