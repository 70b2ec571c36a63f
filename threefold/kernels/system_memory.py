"""Two requests to the operating system, for speed: keep freed memory, and use large pages.

The memory of a large tensor comes from the system page by page, each cleared when it is first
touched, and is returned when the tensor is freed: a training step on long sequences spends a third
of its time on that. A process that repeats the same work should keep its memory (`keep_memory`),
and new memory costs less on pages of 2 MB than on pages of 4 KB (`on_large_pages`).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt
LARGEST_THRESHOLD = 2**31 - 1
# For madvise on Linux; elsewhere the system decides by itself.
LARGE_PAGE = 2**21
MADV_HUGEPAGE = 14


@cache
def _advise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def on_large_pages(tensors: Iterable[Tensor]) -> None:
    """Ask for large pages under new tensors that are large; only advice, which may be ignored."""
    for tensor in tensors:
        if tensor.nbytes < 2 * LARGE_PAGE:
            continue
        advise, start = _advise(), tensor.data_ptr()
        first, last = -(-start // LARGE_PAGE), (start + tensor.nbytes) // LARGE_PAGE
        if advise is not None:
            advise(first * LARGE_PAGE, (last - first) * LARGE_PAGE, MADV_HUGEPAGE)


def keep_memory() -> bool:
    """Make the allocator keep freed memory (glibc only); returns whether it does."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # Both are needed: a block above the first limit would be mapped alone and unmapped when freed.
    return bool(mallopt(MMAP_THRESHOLD, LARGEST_THRESHOLD)) and bool(
        mallopt(TRIM_THRESHOLD, LARGEST_THRESHOLD)
    )
