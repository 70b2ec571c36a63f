"""a tensor of n bytes = n / 4 KB pages, or n / 2 MB pages

Fresh memory is handed out page by page when it is first written, each at the cost of an interrupt:
for large tensors together as long as a kernel takes to fill them. Large pages make that nothing.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from functools import cache

from torch import Tensor

# Linux's; elsewhere the system decides by itself.
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
