"""Memory that is freed stays with the process, to be used again at once.

Large tensors come from the system page by page, each of which is cleared when it is first touched,
and go back when they are freed: a training step of long sequences spends a third of its time on
that.  For a process that does the same again and again it is better to keep them.
"""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of glibc's mallopt
LARGEST = 2**31 - 1


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
