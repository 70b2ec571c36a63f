"""s = w ⊙ s₋ + b u,  y = Re Σ_n conj(c_n) s_n + D u: one element of a diagonal filter.

`ops.filter_step` decides when the kernel is used; steps with gradients run the definition.
"""

from __future__ import annotations

from torch import Tensor

from threefold.kernels import library
from threefold.kernels.declarations import FILTER_STEP
from threefold.kernels.dispatch import register_kernel

expected = FILTER_STEP.expected


def run(
    x: Tensor, state: Tensor, factor: Tensor, write: Tensor, read: Tensor, skip: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The outputs and the new state."""
    y, new_state = x.new_empty(x.shape), x.new_empty(state.shape)
    sizes = [*x.shape, factor.shape[-1], state.dim() == 4]
    library.call("filter_step", [y, new_state], [x, state, factor, write, read, skip], sizes)
    return y, new_state


register_kernel("filter_step", "cpu", run)
