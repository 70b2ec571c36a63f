"""y, state = one native call: runs the recorded step of a mixer, recording it first if needed.

Whether a step can be recorded is found out once; whether its program is still valid, at every step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from threefold.kernels import ops
from threefold.kernels.replay.program import CannotRecordError, Program
from threefold.kernels.replay.recording import record, recording
from threefold.kernels.replay.validity import is_watched

State = dict[str, Any]


class Recordable(nn.Module):
    """A module whose step can be recorded and replayed: what `replay_step` asks of a mixer."""

    causal: bool
    programs: dict[tuple[int, torch.dtype, int], Program | None]

    def state_size(self, length: int) -> int:
        """Bytes of one row's state after `length` elements."""
        raise NotImplementedError

    def check_state(self, state: Any, rows: int) -> None:
        """Raise an error unless `state` is a state of this module for a batch of `rows`."""
        raise NotImplementedError

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        """The computation itself."""
        raise NotImplementedError


def replay_step(mixer: Recordable, x: Tensor, state: State) -> tuple[Tensor, State] | None:
    """Step on one element x [B, 1, width] of each row; None if the step must run as usual.

    A program runs on a state of its own leaves only, so what it runs on needs no other check.
    """
    if mixer.training or not ops.runs_programs(x) or recording():
        return None
    programs = mixer.programs
    key = len(x), x.dtype, torch.get_num_threads()
    program = programs.get(key)
    if key not in programs or (program is not None and not program.validity.holds()):
        if is_watched(mixer):  # recording would call the hooks once more
            return None
        mixer.check_state(state, len(x))  # a state that is refused says nothing about the step
        program = programs[key] = _record(mixer, x, state)
    return None if program is None or program.validity.is_watched() else program.run(x, state)


def _record(mixer: Recordable, x: Tensor, state: State) -> Program | None:
    # A growing state has its own buffers and fill marks, which a program cannot update.
    if not mixer.causal or mixer.state_size(1) != mixer.state_size(2):
        return None
    try:
        return record(mixer, lambda x, state: mixer.mix(x, state, "step", None), x, state)
    except CannotRecordError:
        return None
