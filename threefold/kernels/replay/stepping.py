"""y, state = one native call: runs the recorded step of a module, recording it first if needed.

Whether a step can be recorded is found out once; whether its program is still valid, at every call.
`THREEFOLD_REPLAY=0` switches this off: every step then runs the ordinary way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.kernels import library
from threefold.kernels.autocast import under_autocast
from threefold.kernels.dispatch import kernels_loaded, may_call_directly
from threefold.kernels.replay.activity import recording
from threefold.kernels.replay.growth import StaleProgramError
from threefold.kernels.replay.listing import CannotRecordError, CannotRecordYetError, State
from threefold.kernels.replay.program import (
    Loop,
    Program,
    few_enough_rows,
)
from threefold.kernels.replay.recording import record
from threefold.kernels.replay.validity import is_watched

REPLAY_VARIABLE = "THREEFOLD_REPLAY"

Step = Callable[[Tensor, State], tuple[Tensor, State]]
ProgramKey = tuple[int, torch.dtype, int]  # rows, dtype of x, threads


@dataclass(frozen=True)
class Refusal:
    """Why a step runs the ordinary way."""

    reason: str


Programs = dict[ProgramKey, Program | Refusal]


class Recordable(nn.Module):
    """A module whose step can be recorded and replayed: what `replay_step` asks of a mixer."""

    causal: bool
    programs: Programs

    def check_state(self, state: Any, rows: int) -> None:
        """Raise an error unless `state` is a state of this module for a batch of `rows`."""
        raise NotImplementedError

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        """The computation itself."""
        raise NotImplementedError


def enabled() -> bool:
    """Whether steps may be recorded; THREEFOLD_REPLAY says so, checked."""
    choice = os.environ.get(REPLAY_VARIABLE) or "1"
    if choice not in ("0", "1"):
        raise ThreefoldError(f"{REPLAY_VARIABLE}={choice!r}: expected 0 or 1")
    return choice == "1"


def replay_step(mixer: Recordable, x: Tensor, state: State) -> tuple[Tensor, State] | None:
    """Step on one element x [B, 1, width] of each row; None if the step must run as usual."""
    if not mixer.causal or not may_replay(mixer, x, x.dtype):
        return None
    found = replay(mixer, x, state, lambda x, state: mixer.mix(x, state, "step", None))
    return None if found is None else found[:2]


def may_replay(owner: nn.Module, x: Tensor, dtype: torch.dtype) -> bool:
    """Whether a step on x may run as a program, as far as this call goes; `dtype`: the weights'."""
    return (
        not owner.training
        and few_enough_rows(len(x))
        and x.is_cpu
        and dtype in library.SUFFIXES
        and not recording()
        and kernels_loaded()
        and may_call_directly(x)
        and not under_autocast(x)
        and enabled()
    )


def replay(
    owner: Any,
    x: Tensor,
    state: Any,
    step: Step,
    loop: Loop | None = None,
    limit: int | None = None,
) -> tuple[Tensor, State, int] | None:
    """Run the program of `owner` on x, once or in a loop, as `Program.run_loop`; None: as usual.

    A program runs on a state of its own leaves only, so what it runs on needs no other check.
    """
    loop = loop or Loop(1)
    key = len(x), x.dtype, torch.get_num_threads()
    for _ in range(2):
        program: Program | Refusal | None = owner.programs.get(key)
        if program is None:
            if is_watched(owner):  # recording would call the hooks once more
                return None
            owner.check_state(state, len(x))  # a state that is refused says nothing about the step
            program = _record(owner, step, x, state, limit)
            if program is None:
                return None
            owner.programs[key] = program
        if isinstance(program, Refusal) or (loop.steps > 1 and not program.loops):
            return None
        try:
            return program.run_loop(x, state, loop)
        except StaleProgramError:
            if is_watched(owner):  # it may be valid again when the hook is gone
                return None
            owner.programs.pop(key, None)  # another thread may have been first
    return None


def _record(
    owner: nn.Module, step: Step, x: Tensor, state: State, limit: int | None
) -> Program | Refusal | None:
    try:
        return record(owner, step, x, state, limit=limit)
    except (CannotRecordYetError, IndexError, ThreefoldError):
        return None  # at the end of a table of positions; the ordinary step says what is wrong
    except CannotRecordError as error:
        return Refusal(str(error))


def refusals(owner: nn.Module) -> list[str]:
    """Why steps of a module run the ordinary way, for every batch that was tried."""
    found: Programs = getattr(owner, "programs", {})
    return [one.reason for one in found.values() if isinstance(one, Refusal)]
