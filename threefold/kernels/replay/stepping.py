"""y, state = one native call: the step of a mixer that is nothing but native calls underneath.

Whether a mixer's is, is found out once, by recording it; whether that still holds, at every step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from threefold.kernels import ops
from threefold.kernels.replay.program import CannotRecordError, Program
from threefold.kernels.replay.recording import record, recording

State = dict[str, Any]


class Recordable(nn.Module):
    """A module whose step can be recorded and replayed: what `replay_step` asks of a mixer."""

    causal: bool
    programs: dict[tuple[int, torch.dtype, int], Program | None]

    def state_size(self, length: int) -> int:
        """Bytes of one row's state after `length` elements."""
        raise NotImplementedError

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        """The computation itself."""
        raise NotImplementedError


def replay_step(mixer: Recordable, x: Tensor, state: State) -> tuple[Tensor, State] | None:
    """One element x [B, 1, width] of each row; None where the ordinary way must be taken."""
    if mixer.training or not ops.runs_programs(x) or recording():
        return None
    programs = mixer.programs
    key = len(x), x.dtype, torch.get_num_threads()
    program = programs.get(key)
    if key not in programs or (program is not None and not program.validity.holds()):
        program = programs[key] = _record(mixer, x, state)
    return None if program is None or program.validity.has_hooks() else program.run(x, state)


def _record(mixer: Recordable, x: Tensor, state: State) -> Program | None:
    # What grows keeps buffers of its own, and marks of how far they are filled.
    if not mixer.causal or mixer.state_size(1) != mixer.state_size(2):
        return None
    try:
        return record(mixer, lambda x, state: mixer.mix(x, state, "step", None), x, state)
    except CannotRecordError:
        return None
