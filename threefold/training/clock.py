"""The clock of time limits: that of the wall, or the processor time of this process.

Processor time does not pass while other processes run, so that several trainings on a busy machine
get equal shares of work.  It counts the threads of the process together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_read: Callable[[], float] = time.monotonic


def now() -> float:
    """Seconds since an unknown moment."""
    return _read()


@contextmanager
def use_clock(read: Callable[[], float]) -> Iterator[None]:
    """Let time limits be read from another clock, such as `time.process_time`."""
    global _read
    before, _read = _read, read
    try:
        yield
    finally:
        _read = before
