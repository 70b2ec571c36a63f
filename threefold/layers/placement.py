"""Where a module computes: the dtype and the device of its activations and states."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Placed(nn.Module):
    """A module whose activations have a dtype of their own, whatever its weights are stored in.

    `to`, `double`, `bfloat16` and the like change it along with the weights; a single weight that
    is stored narrower, in bfloat16 or int8, does not.
    """

    placement: Tensor  # without elements: torch converts and moves it like a weight

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("placement", torch.empty(0), persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations; recurrent memory is float32 at least."""
        return self.placement.dtype

    @property
    def device(self) -> torch.device:
        """The device of weights, activations and states."""
        return self.placement.device
