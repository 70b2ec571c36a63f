"""Two requests to the operating system, for speed: keep freed memory, and use large pages.

Large tensors come from the system page by page, each cleared when it is first touched, and go back
when they are freed: a training step on long sequences spends a third of its time on that. A process
that does the same work again and again had better keep its memory (`keep_memory`), and fresh memory
costs less on pages of 2 MB than on pages of 4 KB (`on_large_pages`).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of glibc's mallopt
LARGEST = 2**31 - 1
# madvise on Linux; elsewhere the system decides by itself.
PAGE = 2**21
ADVICE = 14


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
        if tensor.nbytes < 2 * PAGE:
            continue
        advise, start = _advise(), tensor.data_ptr()
        first, last = -(-start // PAGE), (start + tensor.nbytes) // PAGE
        if advise is not None:
            advise(first * PAGE, (last - first) * PAGE, ADVICE)


def keep_memory() -> bool:
    """Have the allocator keep what is freed (glibc only); whether it does."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # Both are needed: what is above the first would be mapped by itself and unmapped when freed.
    return bool(mallopt(MMAP_THRESHOLD, LARGEST)) and bool(mallopt(TRIM_THRESHOLD, LARGEST))
