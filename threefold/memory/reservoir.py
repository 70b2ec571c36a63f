"""h_t = (1−α) h_{t−1} + α φ(x_t + W h_{t−1}): a leaky reservoir and its loop, W fixed and sparse.

Nothing in it is learned; a trained read-out reads the states.  `spectrum.py` draws and scales W.
Jaeger 2001, "The echo state approach to analysing and training recurrent neural networks".
"""

from __future__ import annotations

import torch
from torch import Tensor

from threefold.kernels import ops
from threefold.kernels.autocast import full_precision
from threefold.kernels.reservoir import ACTIVATIONS, Sparse, sparse
from threefold.memory.cell import ACTIVATIONS as FUNCTIONS

__all__ = ["ACTIVATIONS", "Sparse", "run", "sparse", "step"]


def step(drive: Tensor, weight: Sparse, state: Tensor, activation: str, leak: float) -> Tensor:
    """One element: drive and state [B, H]."""
    product = torch.zeros_like(state).index_add(
        1, weight.rows, state[:, weight.columns.long()] * weight.values
    )
    function = FUNCTIONS[activation]
    after = drive + product
    return (1 - leak) * state + leak * (after if function is None else function(after))


@full_precision
def run(
    drive: Tensor,
    weight: Sparse,
    state: Tensor,
    *,
    form: str = "chunk",
    lengths: Tensor | None = None,
    activation: str = "tanh",
    leak: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Drive [B, L, H] after the state [B, H]: all states [B, L, H] and the last.

    The drive is the whole input: W_in u + b, feedback and noise.  After a row's end the returned
    states are 0.
    """
    by_kernel = ops.reservoir(
        drive, weight, state, lengths, activation=activation, leak=leak, form=form
    )
    if by_kernel is not None:
        return by_kernel
    hidden, outputs = state, []
    for t, element in enumerate(drive.unbind(1)):
        after = step(element, weight, hidden, activation, leak)
        real = None if lengths is None else (lengths > t).unsqueeze(-1)
        hidden = after if real is None else torch.where(real, after, hidden)
        outputs.append(after if real is None else torch.where(real, after, 0.0))
    return torch.stack(outputs, 1), hidden
