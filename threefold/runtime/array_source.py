"""Elements in memory (lists, numpy arrays, tensors, data frames) as the input of a stream.

They are streamed as their bytes, 8 for each number, so that positions and saved states are the same
as for every other input.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from threefold.data.stream_encoders import Elements, Encoder
from threefold.data.stream_rows import row_type
from threefold.errors import ThreefoldError


class ArrayEncoder(Encoder):
    """Bytes of tokens (int64), or of `size` numbers (float64) per element, as rows of a table."""

    def __init__(self, size: int, rows: bool = False) -> None:
        self.size, self.rows, self.dtype = size, rows, np.dtype("<f8" if size else "<i8")

    def encode(self, data: bytes, final: bool) -> tuple[Elements, int]:
        """The elements whose bytes are complete."""
        element_bytes = self.dtype.itemsize * max(self.size, 1)
        used = len(data) // element_bytes * element_bytes
        elements = np.frombuffer(data[:used], dtype=self.dtype)
        elements = elements.reshape(-1, self.size) if self.size else elements
        if not self.rows:
            return elements, used
        records = np.zeros(len(elements), row_type(self.size))
        records["numbers"] = elements
        records["time"] = records["series"] = ""
        return records, used


def frame_bytes(source: Any) -> Any:
    """A pandas or polars DataFrame as CSV; anything else as it is."""
    if hasattr(source, "write_csv") and hasattr(source, "columns"):
        return source.write_csv().encode()
    if hasattr(source, "to_csv") and hasattr(source, "iloc") and hasattr(source, "columns"):
        times = type(source.index).__name__ == "DatetimeIndex"
        label = str(source.index.name or "time")
        return source.to_csv(index=times, index_label=label if times else None).encode()
    return source


def is_array(source: Any) -> bool:
    """Whether a source holds elements, not text: a tensor, an array, a list of numbers."""
    if isinstance(source, Tensor):
        return True
    if isinstance(source, np.ndarray):
        return source.dtype.kind not in "SU"
    if not isinstance(source, list | tuple) or not source:
        return False
    first = source[0]
    while isinstance(first, list | tuple) and first:
        first = first[0]
    return not isinstance(first, str | bytes | bytearray | memoryview)


def array_bytes(source: Any, size: int, token_count: int) -> bytes:
    """The bytes of tokens [length] below `token_count`, or of numbers [length, size]."""
    expected = f"numbers [length, {size}]" if size else f"tokens [length] below {token_count}"
    values = source.detach().cpu() if isinstance(source, Tensor) else source
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _refused(f"is a {type(source).__name__} that is no array", expected) from error
    if size == 1 and array.ndim == 1:
        array = array[:, None]
    if array.dtype.kind not in ("iuf" if size else "iu"):
        raise _refused(f"holds {array.dtype}", expected)
    if array.ndim != (2 if size else 1) or (size and array.shape[1] != size):
        raise _refused(f"has shape {array.shape}", expected)
    if not size and len(array) and (array.min() < 0 or array.max() >= token_count):
        raise _refused(f"has tokens from {array.min()} to {array.max()}", expected)
    return array.astype(ArrayEncoder(size).dtype).tobytes()


def _refused(problem: str, expected: str) -> ThreefoldError:
    return ThreefoldError(f"stream: the source {problem}; expected {expected}")
