"""handover: what a layer passes to later layers of its stack, for the same elements of one call.

A mixer declares it by `hands_over(name=shape)`, tensors [B, L, *shape].  The stack gives each layer
what earlier layers handed over under the names that it declares, as the entry `handover` of its
state (empty before the first of them), and takes what the layer hands over itself from the same
entry of the state that comes back.  So it is an argument and a result like any other, but it is not
carried to the next call.  A layer that runs without a stack gets no such entry, and returns none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from threefold.memory.state import State

HANDOVER = "handover"
Handed: TypeAlias = Mapping[str, Tensor]


def give(names: Collection[str], carried: State, handed: Handed | None) -> State:
    """The state for a layer that declares `names`: what it carries, and what it is handed."""
    if not names or handed is None:
        return carried
    return {**carried, HANDOVER: {name: handed[name] for name in names if name in handed}}


def put(after: State, handed: Handed) -> State:
    """The state that a layer returns, with what it hands over, if it does."""
    return {**after, HANDOVER: dict(handed)} if handed else after


def take(after: Any) -> tuple[Any, Handed]:
    """What a layer carries on, and what it hands over."""
    if not after or HANDOVER not in after:
        return after, {}
    return without(after), after[HANDOVER]


def without(state: Any) -> Any:
    """The state itself, as it is carried between calls."""
    if not isinstance(state, dict) or HANDOVER not in state:
        return state
    return {name: value for name, value in state.items() if name != HANDOVER}


def alone(state: State) -> State | None:
    """Only what is handed over, of a layer that carries nothing."""
    return {HANDOVER: state[HANDOVER]} if state and state.get(HANDOVER) else None


def at_element(state: State, given: Handed | None, t: int) -> State:
    """The state for element t of a call that was given `given` for all its elements."""
    if given is None:
        return state
    return {**state, HANDOVER: {name: whole[:, t : t + 1] for name, whole in given.items()}}


def join_elements(state: State, handed: list[Any]) -> State:
    """The state after several steps, with what each of them handed over."""
    if not state.get(HANDOVER):
        return without(state)  # type: ignore[no-any-return]
    whole = {name: torch.cat([one[name] for one in handed], 1) for name in state[HANDOVER]}
    return {**state, HANDOVER: whole}
