"""Ctrl-C and SIGTERM as a question that is asked at a good moment, not an exception anywhere."""

from __future__ import annotations

import os
import select
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While this is entered, the first signal sets `asked`; a second one acts as it did before."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}
        self._wake: tuple[int, int] | None = None
        self._woken = -1  # by whom signals were noticed before

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._wake = os.pipe()
            for end in self._wake:
                os.set_blocking(end, False)
            # A signal may reach another thread than the one that waits.
            self._woken = signal.set_wakeup_fd(self._wake[1])
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._wake is not None:
            signal.set_wakeup_fd(self._woken)
        for end in self._wake or ():
            os.close(end)
        self._before, self._wake = {}, None

    def wait(self, descriptor: int) -> bool:
        """Wait until something can be read; False if a signal came first."""
        while self._wake is not None and not self.asked:
            try:
                ready, _, _ = select.select([descriptor, self._wake[0]], [], [])
            except (OSError, ValueError):  # what cannot be waited for is read as it is
                break
            if self._wake[0] not in ready:
                break
            os.read(self._wake[0], 64)
        return not self.asked

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(number, self._before[number])
