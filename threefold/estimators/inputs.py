"""Input series, numpy or torch, one or several, read as float64 in pieces.

A piece is converted and checked when it is read, so that a long series (a memory map, say) is never
copied as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.errors import ThreefoldError

Array: TypeAlias = Tensor | NDArray[Any]
ArrayLike: TypeAlias = Array | Sequence[Any]


@dataclass(frozen=True)
class Series:
    """One series of `length` elements of `size` numbers each."""

    name: str  # used in error messages
    values: Array  # [length] or [length, size]

    @property
    def length(self) -> int:
        return int(self.values.shape[0])

    @property
    def size(self) -> int:
        return 1 if self.values.ndim == 1 else int(self.values.shape[1])

    def read(self, first: int, last: int) -> Tensor:
        """Elements first … last − 1 as float64 [last − first, size], all finite."""
        part = self.values[first:last]
        if not isinstance(part, Tensor):
            part = torch.from_numpy(np.array(part, dtype=np.float64, ndmin=1))
        part = part.detach().to("cpu", torch.float64).reshape(-1, self.size)
        if not bool(torch.isfinite(part).all()):
            index = first + int((~torch.isfinite(part)).any(1).int().argmax())
            raise ThreefoldError(
                f"{self.name}: element {index} is not finite (NaN or inf); fill the gap or cut the "
                "series there"
            )
        return part

    def read_all(self) -> Tensor:
        return self.read(0, self.length)


def has_several_series(data: ArrayLike) -> bool:
    """Whether the data are several series: a list of arrays, or a three-dimensional array."""
    data = _frame_as_array(data)
    if isinstance(data, Tensor | np.ndarray):
        return data.ndim == 3
    return len(data) > 0 and np.ndim(data[0]) > 0


def _frame_as_array(data: Any) -> Any:
    """A data frame, or what else can be an array, as one; tensors, lists and arrays as they are."""
    known = isinstance(data, Tensor | np.ndarray | list | tuple)
    return np.asarray(data) if not known and hasattr(data, "__array__") else data


def read_series(name: str, data: ArrayLike) -> list[Series]:
    """Check one series [L] or [L, size], or several of the same size; none may be empty."""
    _refuse_none(data)
    data = _frame_as_array(data)
    several = has_several_series(data)
    arrays = list(data) if several else [data]
    result = [Series(_name(name, i, several), _array(name, a)) for i, a in enumerate(arrays)]
    for series in result:
        if series.values.ndim not in (1, 2) or 0 in series.values.shape:
            raise ThreefoldError(
                f"{series.name}: {tuple(series.values.shape)}, expected [length] or "
                "[length, size], not empty"
            )
    sizes = {series.size for series in result}
    if len(sizes) > 1:
        raise ThreefoldError(
            f"{name}: series with {sorted(sizes)} numbers per element, expected the same for all"
        )
    return result


def pair_series(
    inputs: ArrayLike | None, targets: ArrayLike
) -> Iterator[tuple[Series | None, Series]]:
    """Each input series (None without inputs) with its targets of the same length."""
    target_series = read_series("targets", targets)
    if inputs is None:
        yield from ((None, series) for series in target_series)
        return
    input_series = read_series("inputs", inputs)
    lengths = [[series.length for series in each] for each in (input_series, target_series)]
    if lengths[0] != lengths[1]:
        raise ThreefoldError(
            f"inputs of lengths {_short(lengths[0])} and targets of lengths {_short(lengths[1])}, "
            "expected one target per element (for one label per series: classify=True)"
        )
    yield from zip(input_series, target_series, strict=True)


def one_hot_labels(labels: ArrayLike, count: int) -> tuple[list[Any], Tensor]:
    """The sorted classes, and the labels in one-hot encoding, float64 [N, classes]."""
    _refuse_none(labels)
    array = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.dtype.kind == "O" and all(isinstance(label, str) for label in array.flat):
        array = array.astype(str)
    if array.dtype.kind == "f" and (array == np.round(array)).all():
        array = array.astype(np.int64)
    if array.shape != (count,) or array.dtype.kind not in "biuUS":
        raise ThreefoldError(
            f"Unknown label type: labels are {array.shape} of {array.dtype}, expected {count} "
            "integers or strings"
        )
    classes, indices = np.unique(array, return_inverse=True)
    if len(classes) < 2:
        raise ThreefoldError(
            f"labels are all {classes.tolist()[0]!r}: one class, expected at least two classes"
        )
    identity = torch.eye(len(classes), dtype=torch.float64)
    return classes.tolist(), identity[torch.from_numpy(indices.reshape(-1))]


def match_array_type(data: ArrayLike | None, result: Tensor) -> Any:
    """The result as a tensor if `data` are tensors, else as a numpy array."""
    first = data[0] if isinstance(data, list | tuple) and data else data
    return result if isinstance(first, Tensor) else result.numpy()


def _refuse_none(data: Any) -> None:
    if data is None:
        raise ThreefoldError("fit requires y to be passed, but the target y is None")
    if hasattr(data, "toarray"):
        raise ThreefoldError("sparse input is not supported; convert it with .toarray()")


def _array(name: str, data: Any) -> Array:
    if isinstance(data, Tensor | np.ndarray):
        if np.iscomplexobj(data) if isinstance(data, np.ndarray) else data.is_complex():
            raise ThreefoldError(
                f"Complex data not supported: {name} are complex numbers; give the real and "
                "imaginary parts as two columns"
            )
        return data
    try:
        return np.asarray(data, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ThreefoldError(
            f"{name}: {type(data).__name__}, expected an array, a tensor or a list of them"
        ) from error


def _name(name: str, index: int, several: bool) -> str:
    return f"{name}, series {index}" if several else name


def _short(lengths: list[int]) -> str:
    return ", ".join(map(str, lengths[:5])) + (", …" if len(lengths) > 5 else "")
