"""What this thread is recording, if anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threefold.kernels.replay.recorder import Recorder

_active = local()


def recording() -> bool:
    """Whether this thread is recording a step; meanwhile no program may be recorded or run."""
    return getattr(_active, "busy", False)


def active_recorder() -> Recorder | None:
    """What records the step of this thread, if it is being recorded."""
    return getattr(_active, "recorder", None)


@contextmanager
def recording_with(recorder: Recorder) -> Iterator[None]:
    """Let this thread's step be recorded."""
    _active.recorder = recorder
    try:
        yield
    finally:
        _active.recorder = None


@contextmanager
def ordinary_steps() -> Iterator[None]:
    """Run steps the ordinary way in this thread."""
    before = recording()
    _active.busy = True
    try:
        yield
    finally:
        _active.busy = before


@contextmanager
def unwatched() -> Iterator[None]:
    """Run something without recording it, for what notes by itself what a program has to do."""
    recorder = active_recorder()
    if recorder is None:
        yield
        return
    with recorder.not_watching():
        yield
