"""Series as people hold them, numpy or torch, one or several, read as float64 piece by piece.

A piece is converted and checked when it is read, so that a long series (a memory map, say) is never
copied whole.
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

    what: str  # how messages call it
    given: Array  # [length] or [length, size]

    @property
    def length(self) -> int:
        return int(self.given.shape[0])

    @property
    def size(self) -> int:
        return 1 if self.given.ndim == 1 else int(self.given.shape[1])

    def piece(self, first: int, last: int) -> Tensor:
        """Elements first … last − 1 as float64 [last − first, size], all finite."""
        part = self.given[first:last]
        if not isinstance(part, Tensor):
            part = torch.from_numpy(np.array(part, dtype=np.float64, ndmin=1))
        part = part.detach().to("cpu", torch.float64).reshape(-1, self.size)
        if not bool(torch.isfinite(part).all()):
            place = first + int((~torch.isfinite(part)).any(1).int().argmax())
            raise ThreefoldError(
                f"{self.what}: element {place} is not finite; fill it or cut the series there"
            )
        return part

    def whole(self) -> Tensor:
        return self.piece(0, self.length)


def has_several_series(given: ArrayLike) -> bool:
    """Whether these are several series: a list of arrays, or one array of three dimensions."""
    if isinstance(given, Tensor | np.ndarray):
        return given.ndim == 3
    return len(given) > 0 and np.ndim(given[0]) > 0


def read_series(what: str, given: ArrayLike) -> list[Series]:
    """One series [L] or [L, size], or several; all of one size, none empty."""
    several = has_several_series(given)
    arrays = list(given) if several else [given]
    made = [Series(_name(what, i, several), _array(what, each)) for i, each in enumerate(arrays)]
    for series in made:
        if series.given.ndim not in (1, 2) or 0 in series.given.shape:
            raise ThreefoldError(
                f"{series.what}: {tuple(series.given.shape)}, expected [length] or [length, size], "
                "none of them 0"
            )
    sizes = {series.size for series in made}
    if len(sizes) > 1:
        raise ThreefoldError(f"{what}: series of {sorted(sizes)} numbers an element, expected one")
    return made


def pair_series(
    inputs: ArrayLike | None, targets: ArrayLike
) -> Iterator[tuple[Series | None, Series]]:
    """Each series of inputs (None where there are none) with its targets, of the same length."""
    wanted = read_series("targets", targets)
    if inputs is None:
        yield from ((None, each) for each in wanted)
        return
    given = read_series("inputs", inputs)
    lengths = [[series.length for series in each] for each in (given, wanted)]
    if lengths[0] != lengths[1]:
        raise ThreefoldError(
            f"inputs of lengths {_short(lengths[0])} and targets of lengths {_short(lengths[1])}, "
            "expected a target for each element (one label for each series: classify=True)"
        )
    yield from zip(given, wanted, strict=True)


def one_hot_labels(labels: ArrayLike, count: int) -> tuple[list[Any], Tensor]:
    """The classes in order, and the labels as float64 [N, classes] of 0 and 1."""
    array = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.shape != (count,) or array.dtype.kind not in "biuUS":
        raise ThreefoldError(
            f"labels are {array.shape} of {array.dtype}, expected {count} whole numbers or strings"
        )
    classes, places = np.unique(array, return_inverse=True)
    if len(classes) < 2:
        raise ThreefoldError(f"labels are all {classes[0]!r}, expected at least two classes")
    one = torch.eye(len(classes), dtype=torch.float64)
    return classes.tolist(), one[torch.from_numpy(places.reshape(-1))]


def match_array_type(given: ArrayLike | None, answer: Tensor) -> Any:
    """The answer as a tensor if tensors were given, else as a numpy array."""
    first = given[0] if isinstance(given, list | tuple) and given else given
    return answer if isinstance(first, Tensor) else answer.numpy()


def _array(what: str, given: Any) -> Array:
    if isinstance(given, Tensor | np.ndarray):
        return given
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ThreefoldError(
            f"{what}: {type(given).__name__}, expected an array, a tensor or a list of them"
        ) from error


def _name(what: str, place: int, several: bool) -> str:
    return f"{what}, series {place}" if several else what


def _short(lengths: list[int]) -> str:
    return ", ".join(map(str, lengths[:5])) + (", …" if len(lengths) > 5 else "")
