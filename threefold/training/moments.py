"""What surrounds a run: signals that wait for the end of a step, and random numbers by address."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def undisturbed() -> Iterator[None]:
    """The caller's random numbers go on as if nothing had been drawn meanwhile."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Random numbers of a step depend on (seed, step, rank) only: none of them has to be kept."""
    drawn = np.random.SeedSequence((seed, step, rank)).generate_state(1, np.uint64)[0]
    number = int(drawn >> np.uint64(1))
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(number)


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Ctrl-C or SIGTERM sets an event, so that no step is cut in half; a second acts at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: Any) -> None:
        event.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, handle)
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
