"""program = the native calls and torch operations of one step, recorded while it runs

A new program is compared with the ordinary step before it is used: on the input and state at hand,
and on random inputs after them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from threefold.kernels.replay.activity import ordinary_steps
from threefold.kernels.replay.comparison import NEAR, OTHER, SAME, likeness
from threefold.kernels.replay.growth import StaleProgramError
from threefold.kernels.replay.listing import (
    CannotRecordError,
    CannotRecordYetError,
    State,
    state_leaves,
)
from threefold.kernels.replay.program import Program
from threefold.kernels.replay.recorder import Recorder

Step = Callable[[Tensor, State], tuple[Tensor, State]]

# Random inputs on which a program is compared with the ordinary step, and how many more if one of
# them has numbers that are only near.
_COMPARISONS, _MORE_COMPARISONS = 2, 8


def record(
    owner: nn.Module, step: Step, x: Tensor, state: State, *, limit: int | None = None
) -> Program:
    """Record the step of `owner`; `CannotRecordError` if it cannot be expressed as native calls.

    limit: x holds integers below it.
    """
    # In inference mode torch decomposes operations before the recorder sees them.
    with torch.inference_mode(False), torch.no_grad(), ordinary_steps():
        state = _copied(state)
        x = x.clone(memory_format=torch.contiguous_format)
        step(x, _copied(state))  # fills all caches
        recorder = Recorder(owner, x, state)
        with recorder.watching():
            y, after = step(x, state)
        recorder.finish(y, after)
        program = Program(recorder.listing, owner)
        _verify(program, step, x, _copied(state), limit)
    return program


def _verify(program: Program, step: Step, x: Tensor, state: State, limit: int | None) -> None:
    """Compare program and step on x, then on random inputs after it, as far as the program runs."""
    generator = torch.Generator().manual_seed(1)
    left, is_first, may_be_near = 1 + _COMPARISONS, True, True
    while left:
        expected = step(x, _copied(state))
        try:
            found = program.run(x, state)
        except StaleProgramError:
            found = None
        if found is None and program.ends:
            if is_first:
                raise CannotRecordYetError("a stream whose filters must first get more taps")
            return
        alike = OTHER if found is None else likeness(expected, found)
        if alike == NEAR and may_be_near:
            may_be_near, left = False, left + _MORE_COMPARISONS
        elif alike != SAME:
            raise CannotRecordError("its program gives other numbers than the step")
        assert found is not None
        state = _continued(program, state, found[1])
        x, is_first, left = _random_like(x, limit, generator), False, left - 1


def _continued(program: Program, before: State, after: State) -> State:
    """The state for another step: what an earlier layer hands over stays as it was."""
    leaves, tree = {**dict(state_leaves(before)), **dict(state_leaves(after))}, State()
    for leaf in program.listing.leaves:
        node = tree
        for name in leaf.path[:-1]:
            node = node.setdefault(name, {})
        node[leaf.path[-1]] = leaves[leaf.path]
    return tree


def _random_like(x: Tensor, limit: int | None, generator: torch.Generator) -> Tensor:
    if x.is_floating_point():
        return torch.randn(x.shape, dtype=x.dtype, generator=generator, device=x.device)
    return torch.randint(limit or 2, x.shape, generator=generator, device=x.device)


def _copied(state: State) -> State:
    return {
        name: _copied(value)
        if isinstance(value, dict)
        else value.clone(memory_format=torch.contiguous_format)
        for name, value in state.items()
    }
