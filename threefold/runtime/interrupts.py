"""Ctrl-C and SIGTERM as a flag to check at a safe point, instead of an exception anywhere."""

from __future__ import annotations

import os
import select
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptedByUser(KeyboardInterrupt):
    """Ctrl-C or SIGTERM ended what was under way, at a safe point."""


class Interrupts:
    """Context manager: the first signal sets `asked`; a second one has its usual effect.

    So has the first one, at the end, if nobody looked at `asked` after it.
    """

    def __init__(self) -> None:
        self._received: int | None = None
        self._is_seen = False
        self._handlers: dict[int, Any] = {}  # of before
        self._wake_pipe: tuple[int, int] | None = None
        self._wakeup_descriptor = -1  # of before

    @property
    def asked(self) -> bool:
        """Whether there was a signal; who reads it sees to it."""
        self._is_seen = self._received is not None
        return self._is_seen

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._wake_pipe = os.pipe()
            for end in self._wake_pipe:
                os.set_blocking(end, False)
            # A signal may reach another thread than the one that waits.
            self._wakeup_descriptor = signal.set_wakeup_fd(self._wake_pipe[1])
            for number in SIGNALS:
                self._handlers[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._wake_pipe is not None:
            signal.set_wakeup_fd(self._wakeup_descriptor)
        for end in self._wake_pipe or ():
            os.close(end)
        self._handlers, self._wake_pipe = {}, None
        if kind is None and self._received is not None and not self._is_seen:
            signal.raise_signal(self._received)

    def check(self, when: str) -> None:
        """Raise an error that says when, if there was a signal."""
        if self.asked:
            raise InterruptedByUser(f"stopped {when}")

    def wait(self, descriptor: int) -> bool:
        """Wait until a file descriptor can be read; False if a signal came first."""
        while self._wake_pipe is not None and not self.asked:
            try:
                ready, _, _ = select.select([descriptor, self._wake_pipe[0]], [], [])
            except (OSError, ValueError):  # select does not support it: read without waiting
                break
            if self._wake_pipe[0] not in ready:
                break
            os.read(self._wake_pipe[0], 64)
        return not self.asked

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._received = number
        signal.signal(number, self._handlers[number])
