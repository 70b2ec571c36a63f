"""threads = all, or one for a while after a run that was far slower than the best.

A recorded step makes about a hundred products, and the threads wait for each other after each. If
another process occupies a core, every wait lasts a time slice: twenty times the work itself. The
result has the same bits for any number of threads.
"""

from __future__ import annotations

import math

import torch


class ThreadBackoff:
    """Chooses the number of threads: after a slow run, one thread for 16, 32, … 1024 runs."""

    FIRST_PAUSE, LONGEST_PAUSE = 16, 1024
    SLOW_FACTOR = 4

    def __init__(self) -> None:
        self.best_seconds = math.inf
        self.runs_left = 0  # that still use one thread
        self.next_pause = self.FIRST_PAUSE

    def take(self) -> int:
        """The number of threads for the next run."""
        if self.runs_left:
            self.runs_left -= 1
            return 1
        return torch.get_num_threads()

    def note(self, threads: int, seconds: float) -> None:
        """Record how long a run with this many threads took."""
        if threads == 1:
            return
        if seconds > self.SLOW_FACTOR * self.best_seconds:
            self.runs_left = self.next_pause
            self.next_pause = min(2 * self.next_pause, self.LONGEST_PAUSE)
            return
        self.best_seconds = min(self.best_seconds, seconds)
        self.next_pause = self.FIRST_PAUSE
