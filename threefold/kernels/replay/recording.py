"""program = the native calls and torch operations of one step, recorded while it runs

A new program is compared with the ordinary step before it is used: on the input and state at hand,
and on random inputs after them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from threefold.kernels.replay.activity import ordinary_steps
from threefold.kernels.replay.comparison import same_results
from threefold.kernels.replay.listing import (
    CannotRecordError,
    CannotRecordYetError,
    State,
    state_leaves,
)
from threefold.kernels.replay.program import FEW_ROWS, MAX_WEIGHTS, Program, StaleProgramError
from threefold.kernels.replay.recorder import Recorder

Step = Callable[[Tensor, State], tuple[Tensor, State]]

# Random inputs on which a program is compared with the ordinary step.
_COMPARISONS = 2


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
        if len(x) > FEW_ROWS and recorder.listing.weights > MAX_WEIGHTS:
            raise CannotRecordError(
                f"{len(x)} rows of a large model run faster on torch's products"
            )
        program = Program(recorder.listing, owner)
        if program.runs_from_anywhere:
            after = _compare(program, step, x, _copied(state)) or after
        for number in range(_COMPARISONS):
            found = _compare(program, step, _random_like(x, limit), after)
            if found is None and number == 0 and not program.runs_from_anywhere:
                raise CannotRecordYetError("the state of a stream that must first be extended")
            if found is None:
                break
            after = found
    return program


def _compare(program: Program, step: Step, x: Tensor, state: State) -> State | None:
    """Compare program and step on x; returns the state after it, None if it does not run there."""
    expected = step(x, _copied(state))
    try:
        found = program.run(x, state)
    except StaleProgramError:
        found = None
    if found is None and not program.runs_from_anywhere:
        return None
    if found is None or not same_results(expected, found):
        raise CannotRecordError("its program gives other numbers than the step")
    return _continued(program, state, found[1])


def _continued(program: Program, before: State, after: State) -> State:
    """The state for another step: what an earlier layer hands over stays as it was."""
    leaves, tree = {**dict(state_leaves(before)), **dict(state_leaves(after))}, State()
    for leaf in program.listing.leaves:
        node = tree
        for name in leaf.path[:-1]:
            node = node.setdefault(name, {})
        node[leaf.path[-1]] = leaves[leaf.path]
    return tree


def _random_like(x: Tensor, limit: int | None) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if x.is_floating_point():
        return torch.randn(x.shape, dtype=x.dtype, generator=generator)
    return torch.randint(limit or 2, x.shape, generator=generator)


def _copied(state: State) -> State:
    return {
        name: _copied(value)
        if isinstance(value, dict)
        else value.clone(memory_format=torch.contiguous_format)
        for name, value in state.items()
    }
