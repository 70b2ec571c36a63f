"""State: what is carried between calls, as a nested dict of tensors.

Every leaf has the batch first, so rows can be selected, joined and reset.  The empty state of every
memory is zeros, so a row is reset by zeroing it.

A history (`keys`, `values` with their `position`) grows along its second axis to the longest row.
Element i of a row is at index i; values after a row's own end have no meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from threefold.errors import ThreefoldError

State: TypeAlias = dict[str, Any]  # dict[str, Tensor | State]
Shapes: TypeAlias = Mapping[str, Any]  # dict[str, tuple[int, ...] | Shapes], without the batch

# Leaves that hold activations keep the activations' dtype; positions are exact integers; all
# other leaves are recurrent memory, which is never narrower than float32.
ACTIVATIONS = frozenset({"conv", "shift", "keys", "values", "window"})
POSITION = "position"
# Next to a position, these leaves grow with it.
HISTORY = frozenset({"keys", "values"})


def leaf_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of the leaves below `name` in a module whose weights have `dtype`."""
    if name == POSITION:
        return torch.int64
    if name in ACTIVATIONS:
        return dtype
    return memory_dtype(dtype)


def memory_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for everything narrower."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def leaves(state: State, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """(path, tensor) of every leaf, in a fixed order."""
    for name, value in state.items():
        where = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            yield from leaves(value, where)
        else:
            yield where, value


def tree(tensors: Mapping[str, Tensor]) -> State:
    """The nested dict of (path, tensor) pairs: the inverse of `leaves`."""
    state: State = {}
    for name, tensor in tensors.items():
        *path, leaf = name.split(".")
        branch = state
        for part in path:
            branch = branch.setdefault(part, {})
        branch[leaf] = tensor
    return state


def transform(function: Callable[..., Tensor], *states: State) -> State:
    """`function` applied leaf by leaf to one state, or to several of the same structure."""
    first, *others = states
    return {
        name: transform(function, value, *(other[name] for other in others))
        if isinstance(value, dict)
        else function(value, *(other[name] for other in others))
        for name, value in first.items()
    }


def histories(state: State, path: str = "") -> Iterator[tuple[str, State]]:
    """(path, branch) of every branch that grows with the sequence."""
    if POSITION in state and state.keys() & HISTORY:
        yield path, state
    for name, value in state.items():
        if isinstance(value, dict):
            yield from histories(value, f"{path}.{name}" if path else name)


def history_length(branch: State) -> int:
    """The length of a history's second axis; 0 for any other state."""
    grown = [branch[name] for name in branch if name in HISTORY and POSITION in branch]
    # What is not a tensor of elements is reported by `check`.
    return grown[0].shape[1] if grown and _is_history(grown[0]) else 0


def _is_history(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 1


def resize(state: State, lengths: Mapping[str, int], path: str = "") -> State:
    """The state with the histories at these paths cut or zero-padded to these lengths."""
    result: State = {}
    for name, value in state.items():
        if isinstance(value, dict):
            result[name] = resize(value, lengths, f"{path}.{name}" if path else name)
        elif name in HISTORY and path in lengths:
            missing = lengths[path] - value.shape[1]
            padding = value.new_zeros(len(value), max(missing, 0), *value.shape[2:])
            result[name] = (
                torch.cat([value, padding], 1) if missing > 0 else value[:, : missing or None]
            )
        else:
            result[name] = value
    return result


def select(state: State, rows: Tensor | Sequence[int] | slice) -> State:
    """A copy of the given rows; histories are cut to the longest of them."""
    index = rows if isinstance(rows, slice) else torch.as_tensor(rows)
    lengths = {}
    for path, branch in histories(state):
        chosen = index if isinstance(index, slice) else index.to(branch[POSITION].device)
        lengths[path] = max(branch[POSITION][chosen].tolist(), default=0)
    state = resize(state, lengths) if lengths else state
    if isinstance(index, slice):
        return transform(lambda leaf: leaf[index].clone(), state)
    return transform(lambda leaf: leaf[index.to(leaf.device)], state)


def join(states: Sequence[State]) -> State:
    """The rows of several states, concatenated; histories are padded to the longest of them."""
    if not states:
        raise ThreefoldError("join: no states were given; give at least one")
    names = sorted(name for name, _ in leaves(states[0]))
    for other in states[1:]:
        others = sorted(name for name, _ in leaves(other))
        if others != names:
            raise ThreefoldError(
                f"join: the states are of different models, with leaves {names} and {others}"
            )
    longest: dict[str, int] = {}
    for state in states:
        for path, branch in histories(state):
            longest[path] = max(longest.get(path, 0), history_length(branch))
    if longest:
        states = [resize(state, longest) for state in states]
    return transform(lambda *parts: torch.cat(parts), *states)


def detach(state: State) -> State:
    """The same state, detached from the autograd graph (truncated backpropagation)."""
    return transform(lambda leaf: leaf.detach(), state)


def for_autograd(state: State) -> State:
    """The state itself; where autograd records, copies of leaves made in inference mode."""
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return state
    found = any(leaf.is_inference() for _, leaf in leaves(state))
    return clone(state) if found else state


def clone(state: State) -> State:
    """A copy that shares no storage: a fork."""
    return transform(lambda leaf: leaf.clone(), state)


def reset(state: State, rows: Tensor | Sequence[int] | None = None) -> State:
    """The state with the given rows (a bool mask, indices, or all if None) set to zero."""
    if rows is None:
        return transform(torch.zeros_like, state)
    index = torch.as_tensor(rows)

    def zero(leaf: Tensor) -> Tensor:
        chosen = index.to(leaf.device)
        if chosen.dtype != torch.bool:
            chosen = torch.zeros(len(leaf), dtype=torch.bool, device=leaf.device).index_fill(
                0, chosen, True
            )
        return leaf.masked_fill(chosen.view(-1, *[1] * (leaf.dim() - 1)), 0)

    return transform(zero, state)


def batch_size(state: State) -> int | None:
    """The batch size of a state; None if it has no leaves."""
    return next((len(leaf) for _, leaf in leaves(state)), None)


def empty(
    shapes: Shapes, rows: int, dtype: torch.dtype, device: torch.device | None, top: str = ""
) -> State:
    """Zeros of the declared shapes."""
    state: State = {}
    for name, shape in shapes.items():
        kind = top or name
        if isinstance(shape, Mapping):
            state[name] = empty(shape, rows, dtype, device, kind)
        else:
            state[name] = torch.zeros(rows, *shape, dtype=leaf_dtype(kind, dtype), device=device)
    return state


def count_bytes(shapes: Shapes, dtype: torch.dtype, top: str = "") -> int:
    """Bytes that one row of the declared shapes takes."""
    total = 0
    for name, shape in shapes.items():
        kind = top or name
        if isinstance(shape, Mapping):
            total += count_bytes(shape, dtype, kind)
        else:
            size = torch.Size(shape).numel()
            total += size * leaf_dtype(kind, dtype).itemsize
    return total


def check(
    state: Any, shapes: Shapes, rows: int, dtype: torch.dtype, owner: str, device: torch.device
) -> None:
    """Raise if the structure, shapes, dtypes or device of a state differ from those of `empty`."""
    if not isinstance(state, dict):
        raise ThreefoldError(
            f"{owner}: state must be a dict made by empty_state or returned by an earlier call; "
            f"given {type(state).__name__}"
        )
    given, wanted = dict(leaves(state)), dict(_expected(shapes, rows, dtype))
    if given.keys() != wanted.keys():
        raise ThreefoldError(
            f"{owner}: state of another model: given leaves {sorted(given)}, "
            f"expected {sorted(wanted)}"
        )
    for name, leaf in given.items():
        shape, kind = wanted[name]
        is_dense = isinstance(leaf, Tensor) and leaf.layout is torch.strided
        if not is_dense:
            raise ThreefoldError(
                f"{owner}: state leaf {name!r} is {describe(leaf)}, expected a dense tensor "
                f"{shape} {kind}"
            )
        if leaf.device != device:
            raise ThreefoldError(
                f"{owner}: state leaf {name!r} is on {leaf.device}, the weights are on {device}; "
                "move one of them"
            )
        if tuple(leaf.shape) != shape or leaf.dtype != kind:
            raise ThreefoldError(
                f"{owner}: state leaf {name!r} is {tuple(leaf.shape)} {leaf.dtype}, "
                f"expected {shape} {kind} ({_why(leaf, shape, kind)})"
            )


def describe(value: Any) -> str:
    """What was given in place of a dense tensor, for an error message."""
    if isinstance(value, Tensor):
        return f"a tensor with layout {value.layout}"
    return "None" if value is None else f"a {type(value).__name__}"


def _expected(
    shapes: Shapes, rows: int, dtype: torch.dtype, path: str = ""
) -> Iterator[tuple[str, tuple[tuple[int, ...], torch.dtype]]]:
    """(path, (shape with the batch, dtype)) of every leaf that `empty` would make."""
    for name, shape in shapes.items():
        where = f"{path}.{name}" if path else name
        if isinstance(shape, Mapping):
            yield from _expected(shape, rows, dtype, where)
        else:
            yield where, ((rows, *shape), leaf_dtype(where.partition(".")[0], dtype))


def _why(leaf: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> str:
    if leaf.dtype != dtype:
        return "a state of another dtype"
    if tuple(leaf.shape[1:]) == shape[1:]:
        return "a state of another batch size"
    return "a state of another model"
