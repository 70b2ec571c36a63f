"""Where a module computes: the dtype and the device of its activations and states."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn


class Placed(nn.Module):
    """A module whose activations have a dtype of their own, whatever its weights are stored in.

    `to`, `double`, `bfloat16` and the like change it along with the weights; a single weight that
    is stored narrower, in bfloat16 or int8, does not.
    """

    placement: Tensor

    def __init__(self) -> None:
        super().__init__()
        register_placement(self)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations; recurrent memory is float32 at least."""
        return self.placement.dtype

    @property
    def device(self) -> torch.device:
        """The device of weights, activations and states."""
        return self.placement.device


def register_placement(module: nn.Module) -> None:
    """Give the module a buffer without elements, which torch converts and moves like a weight."""
    module.register_buffer("placement", torch.empty(0), persistent=False)
    module.register_load_state_dict_post_hook(_follow_weights)  # type: ignore[no-untyped-call]


def _follow_weights(module: Any, _: Any) -> None:
    """Leave the meta device with the weights; `load_state_dict(…, assign=True)` moves only them."""
    if not module.placement.is_meta:
        return
    tensors = chain(module.parameters(), module.buffers())
    device = next((tensor.device for tensor in tensors if not tensor.is_meta), None)
    if device is None:
        return
    for part in module.modules():  # a part without weights cannot know by itself
        placement = getattr(part, "placement", None)
        if isinstance(placement, Tensor) and placement.is_meta:
            part.placement = torch.empty(0, dtype=placement.dtype, device=device)
