"""address → what it is: the memory that the calls of a step may use, by storage.

A storage is a weight, a cached value or a constant, whose address never changes; or an input, a
leaf of the state or a buffer of the program, known by an operand. All are kept alive while a step
is recorded, so that no address has two meanings.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from threefold.kernels.replay.listing import CannotRecordError, Listing, Operand, Word
from threefold.kernels.replay.lowering import AXES

REAL = (torch.float32, torch.float64)
# An inner loop over fewer numbers than this takes less time than its setup.
_SHORT = 8


@dataclass(frozen=True)
class Region:
    """A storage that calls may use: bytes begin … end, known to the program as `operand`."""

    begin: int
    end: int
    operand: Operand | None  # None for memory whose address never changes
    base: int  # that address
    converted: bool  # int64 or bool, which are floating-point numbers in the program

    def at(self, offset: int) -> Word:
        if self.operand is None:
            return self.base + offset
        return Operand(self.operand.kind, self.operand.index, offset)


class Regions:
    """The memory that is known to a step."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self._alive: list[Any] = []
        self._begins: list[int] = []
        self._regions: dict[int, Region] = {}
        self._constants: set[int] = set()  # addresses of the storages of constants
        # A bool tensor is stored as numbers of the dtype that was compared.
        self._bool_dtypes: dict[int, torch.dtype] = {}
        # Integers that are given to each step, by their address, for calls that read them.
        self._integers: dict[int, Operand] = {}

    def _add_region(self, tensor: Tensor, operand: Operand | None, base: int | None = None) -> None:
        storage = tensor.untyped_storage()
        begin = storage.data_ptr()
        if begin and begin not in self._regions:
            insort(self._begins, begin)
            converted = tensor.dtype not in REAL and (operand is not None or base is not None)
            base = begin if base is None else base
            self._regions[begin] = Region(begin, begin + storage.nbytes(), operand, base, converted)

    def _add_input(self, tensor: Tensor, operand: Operand) -> None:
        """A tensor that is given to each step; integers become float64 first."""
        if tensor.dtype is not torch.int64 or not tensor.numel():
            self._add_region(tensor, operand)
            return
        self._integers[tensor.data_ptr()] = operand
        index = len(self.listing.buffers)
        self._add_region(tensor, Operand("buffer", index))
        self.listing.buffers[index] = tensor.nbytes
        pointers = [Operand("buffer", index), operand]
        self.listing.call("from_integers", torch.float64, pointers, [tensor.numel()])

    def _add_constant(self, tensor: Tensor) -> None:
        """Keep a tensor that is the same in every step; integers and bools as float64."""
        numbers = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(tensor.untyped_storage())
        begin = tensor.untyped_storage().data_ptr()
        if tensor.dtype not in REAL:
            numbers = numbers.double()
            self._bool_dtypes[begin] = torch.float64
        self.listing.pinned.append(numbers)
        self._add_region(tensor, None, numbers.data_ptr())
        self._constants.add(begin)

    def _is_constant(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._constants

    def is_fixed(self, tensor: Tensor) -> bool:
        """Whether a tensor is the same in every step: a weight, a cached value or a constant."""
        region = self._regions.get(tensor.untyped_storage().data_ptr())
        return region is not None and region.operand is None

    def _find(self, address: int) -> Region:
        index = bisect_right(self._begins, address) - 1
        region = self._regions[self._begins[index]] if index >= 0 else None
        if region is None or address >= region.end:
            raise CannotRecordError("a call reads memory that is not a weight, a state or computed")
        return region

    def _add_buffer(self, tensor: Tensor) -> None:
        """Give a tensor with new storage a buffer of the program; bools are stored as numbers."""
        begin, index = tensor.untyped_storage().data_ptr(), len(self.listing.buffers)
        if begin and begin not in self._regions:
            self._add_region(tensor, Operand("buffer", index))
            size = tensor.untyped_storage().nbytes()
            self.listing.buffers[index] = size * (8 if tensor.dtype is torch.bool else 1)

    def forget(self, tensor: Tensor) -> None:
        """Refuse what reads a tensor that no call writes."""
        begin = tensor.untyped_storage().data_ptr()
        if self._regions.pop(begin, None) is not None:
            self._begins.remove(begin)

    def dtype(self, tensor: Tensor) -> torch.dtype:
        """The dtype of a tensor's numbers in the program."""
        if tensor.dtype is torch.bool:
            return self._bool_dtypes.get(tensor.untyped_storage().data_ptr(), torch.bool)
        return torch.float64 if tensor.dtype is torch.int64 else tensor.dtype

    def address(self, tensor: Tensor, dtype: torch.dtype) -> Word:
        """The address of a tensor's first number, for a call of that dtype."""
        if self.dtype(tensor) is not dtype:
            raise CannotRecordError(f"a tensor of {tensor.dtype} in a call of {dtype}")
        region = self._find(tensor.untyped_storage().data_ptr())
        if tensor.dtype not in REAL and not region.converted:
            raise CannotRecordError(f"the layer holds a tensor of {tensor.dtype}")
        return region.at(int(tensor.storage_offset()) * dtype.itemsize)

    def constant(self, numbers: Sequence[int]) -> int:
        """The address of integers that a call reads."""
        integers = array("q", numbers)
        self.listing.pinned.append(integers)
        return integers.buffer_info()[0]


def layout_of(shape: Sequence[int], strides: Sequence[Sequence[int]], arrays: int) -> list[int]:
    """Sizes and strides with as few axes as possible, padded in front to four."""
    axes: list[tuple[int, list[int]]] = []
    for size, *steps in zip(shape, *strides, strict=True):
        if size == 1:
            continue
        if axes and all(a == b * size for a, b in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * size, steps)
        else:
            axes.append((size, steps))
    if len(axes) > AXES:
        raise CannotRecordError(f"more than {AXES} axes")
    if axes and axes[-1][0] < _SHORT:  # the longest axis last: it is the inner loop
        axes.sort(key=lambda axis: axis[0])
    axes = [(1, [0] * len(strides))] * (AXES - len(axes)) + axes
    columns = [[steps[i] for _, steps in axes] for i in range(len(strides))]
    columns += [[0] * AXES] * (arrays - len(strides))
    return [size for size, _ in axes] + [step for column in columns for step in column]
