"""The dtype in which gates, decays and recurrences are computed."""

from __future__ import annotations

from torch import Tensor

from threefold.memory.state import memory_dtype


def upcast(x: Tensor) -> Tensor:
    """Convert narrower dtypes to float32, in which gates and decays are computed."""
    return x.to(memory_dtype(x.dtype))
