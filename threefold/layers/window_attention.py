"""Attention inside windows of a grid:  a_ij = softmax_j(q_iᵀ k_j/√K + b[i − j]),  j in i's window.

Windows are M × M elements of a grid of rows and columns; b depends on the distance in both
directions.  Shifted windows wrap around the border, and elements that were not neighbours there do
not read each other.  A grid that windows do not divide is padded with zeros below and to the right.
Liu et al. 2021, "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.kernels.parameter_cache import ParameterCache
from threefold.layers.attention_parts.heads import Heads
from threefold.layers.mixer import Mixer
from threefold.memory.attention import attend
from threefold.memory.state import State


class WindowAttention(Mixer):
    """Attention of a grid [B, rows · columns, width] in windows, each shifted by `shift`."""

    causal = False
    forms = ("parallel",)
    no_decay = ("bias",)

    def __init__(
        self, width: int, *, grid: tuple[int, int], window: int, shift: int = 0, heads: int
    ) -> None:
        super().__init__(width)
        if min(*grid, window) < 1 or not 0 <= shift < window:
            raise ThreefoldError(
                f"{self.name}: a grid of {grid[0]} × {grid[1]}, windows of {window}, shift "
                f"{shift}; expected sides of 1 or more, and a shift smaller than the window"
            )
        self.grid, self.window, self.shift = grid, window, shift
        down, across = (-(-side // window) * window for side in grid)
        self.padded = (down, across)  # sides that windows divide
        self.heads = Heads(width, heads=heads, bias=True)
        self.bias = nn.Parameter(torch.empty((2 * window - 1) ** 2, heads))
        nn.init.trunc_normal_(self.bias, std=0.02)
        self.derived: ParameterCache[tuple[Tensor, Tensor]] = ParameterCache()

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        down, across = self.grid
        grid = torch.unflatten(x, 1, self.grid)
        if self.padded != self.grid:
            missing = self.padded[0] - down, self.padded[1] - across
            grid = F.pad(grid, (0, 0, 0, missing[1], 0, missing[0]))
        if self.shift:
            grid = grid.roll((-self.shift, -self.shift), (1, 2))
        windows = self._cut(grid)
        count, size = windows.shape[1:3]
        # The windows become heads, so that all images of a batch share one mask.
        query, key, value = (
            torch.unflatten(part, 1, (count, size)).transpose(1, 2).flatten(2, 3)
            for part in self.heads(windows.flatten(1, 2))
        )
        out = attend(query, key, value, mask=self._mask(query.dtype))
        out = torch.unflatten(out, 2, (count, -1)).transpose(1, 2).flatten(1, 2)
        y = self._join(self.heads.join(out))
        if self.shift:
            y = y.roll((self.shift, self.shift), (1, 2))
        return y[:, :down, :across].flatten(1, 2), {}

    def _cut(self, grid: Tensor) -> Tensor:
        """[B, rows, columns, width] to windows [B, windows, M², width]."""
        rows, columns = (side // self.window for side in self.padded)
        cut = grid.reshape(len(grid), rows, self.window, columns, self.window, -1)
        return cut.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def _join(self, windows: Tensor) -> Tensor:
        """The inverse of `_cut`, from [B, windows · M², width]."""
        rows, columns = (side // self.window for side in self.padded)
        cut = torch.unflatten(windows, 1, (rows, columns, self.window, self.window))
        return cut.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def _mask(self, dtype: torch.dtype) -> Tensor:
        """What is added to the scores, [windows · heads, M², M²]."""
        index, blocked = self.derived.of([], self._layout, self.device)
        bias = self.bias.to(dtype)[index].permute(2, 0, 1)
        return bias.masked_fill(blocked.unsqueeze(1), float("-inf")).flatten(0, 1)

    def _layout(self) -> tuple[Tensor, Tensor]:
        """Rows of the bias table [M², M²], and the pairs that `_blocked` names."""
        with self.device:
            return _bias_index(self.window), self._blocked()

    def _blocked(self) -> Tensor:
        """[windows, M², M²]: pairs of elements that the shift put into one window."""
        down, across = (_wrapped(side, self.shift) for side in self.padded)
        regions = 2 * down.unsqueeze(1) + across
        of_window = self._cut(regions.view(1, *self.padded, 1))[0, ..., 0]
        return of_window.unsqueeze(1) != of_window.unsqueeze(2)


def _wrapped(side: int, shift: int) -> Tensor:
    """[side]: 1 for the places to which a shift moves elements around the border."""
    return (torch.arange(side) >= side - shift).long()


def _bias_index(window: int) -> Tensor:
    """[M², M²]: the row of the table for each pair, by the distance in both directions."""
    places = torch.arange(window)
    distance = places.unsqueeze(1) - places + window - 1
    down, across = distance.view(window, 1, window, 1), distance.view(1, window, 1, window)
    return (down * (2 * window - 1) + across).reshape(window**2, window**2)
