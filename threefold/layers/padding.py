"""Padding: rows of different lengths in one batch, aligned to start at 0 and zero after their end.

A mask is bool [B, L], True for real elements, which are contiguous in a row.  A mixer sees aligned
rows and their `lengths` only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from threefold.data.padding import pad_rows
from threefold.errors import ThreefoldError
from threefold.memory.padding import real_elements
from threefold.memory.state import describe


class PaddedRows:
    """Where the real elements of each row are, from a mask with padding on either side."""

    def __init__(self, mask: Tensor, shape: tuple[int, ...] | torch.Size, owner: str) -> None:
        if not isinstance(mask, Tensor):
            raise ThreefoldError(
                f"{owner}: mask is {describe(mask)}, expected a bool tensor {tuple(shape)}, True "
                "for real elements"
            )
        if mask.dtype != torch.bool or mask.shape != torch.Size(shape):
            raise ThreefoldError(
                f"{owner}: mask is {tuple(mask.shape)} {mask.dtype}, expected {tuple(shape)} bool, "
                "True for real elements"
            )
        self.mask = mask
        self.lengths = mask.sum(1)
        self.positions = torch.arange(mask.shape[1], device=mask.device)
        self.starts = mask.int().argmax(1)
        if not torch.equal(mask, self._contiguous()):
            row = int((mask != self._contiguous()).any(1).int().argmax())
            raise ThreefoldError(
                f"{owner}: the mask of row {row} has a hole; real elements must be contiguous"
            )
        self.shifted = bool((self.starts > 0).any())

    def _contiguous(self) -> Tensor:
        """The mask with `lengths` real elements in a row from `starts` on."""
        offset = self.positions - self.starts[:, None]
        return (offset >= 0) & (offset < self.lengths[:, None])

    def align(self, x: Tensor) -> Tensor:
        """Move rows to start at 0, with zeros after their end."""
        if self.shifted:
            x = _take(x, self.positions + self.starts[:, None])
        return _zero_where_not(self.positions < self.lengths[:, None], x)

    def restore(self, y: Tensor) -> Tensor:
        """Move rows back to where they were, with zeros at padding."""
        if self.shifted:
            y = _take(y, self.positions - self.starts[:, None])
        return _zero_where_not(self.mask, y)


def zero_padding(y: Tensor, lengths: Tensor | None) -> Tensor:
    """Write zeros after the end of each row, where a mixer may leave anything, NaN included."""
    if lengths is None:
        return y
    return _zero_where_not(real_elements(lengths, y.shape[1]), y)


def pad_tokens(rows: Sequence[Sequence[int]], fill: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of tokens as one table [B, longest], `fill` after their end, and the mask."""
    padded, lengths = pad_rows([np.asarray(row, dtype=np.int64) for row in rows], fill)
    return torch.from_numpy(padded), real_elements(torch.from_numpy(lengths), padded.shape[1])


def _zero_where_not(mask: Tensor, x: Tensor) -> Tensor:
    # `where`, not a product: 0 · NaN is not 0.
    mask = mask.view(*mask.shape, *[1] * (x.dim() - 2))
    return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


def _take(x: Tensor, index: Tensor) -> Tensor:
    index = index.clamp(0, x.shape[1] - 1)
    return x[torch.arange(len(x), device=x.device)[:, None], index]
