"""A state as a file: safetensors, with the spec of its model and the position in the header.

Saved in one process and loaded in another, it gives the same next logits bit for bit.  Besides the
model's state, a file may contain what a session or a stream needs to resume: tensors, and notes
(JSON).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

import threefold
from threefold.data.atomic_files import write_file
from threefold.data.readers import checked_path
from threefold.errors import ThreefoldError
from threefold.memory import state as states
from threefold.memory.state import POSITION, State
from threefold.models.files import read_tensors, write_tensors
from threefold.models.model import Model
from threefold.models.saving import unique_tensors
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.runtime.sampling import is_integer

FORMAT = "threefold state"
VERSION = 3
EXTRA = "extra/"  # prefix of the names of tensors that are not part of the model's state


@dataclass(frozen=True)
class StateFile:
    """The contents of a state file."""

    state: State
    spec: Spec
    position: list[int] | None  # elements seen by each row, where known
    weights: str  # fingerprint of the model's weights
    threefold_version: str
    notes: dict[str, Any]
    extra_tensors: dict[str, Tensor]


def save_state(
    path: str | PathLike[str],
    state: State,
    model: Model,
    *,
    position: int | list[int] | None = None,
    notes: Mapping[str, Any] | None = None,
    extra_tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a state of `model` to a file; the file is written completely or not at all.

    position: number of elements seen, if the state does not contain it.  notes (JSON) and
    extra_tensors are stored with the state; `read_state` returns them.
    """
    batch_size = (states.batch_size(state) if isinstance(state, dict) else None) or 1
    _check_state(model, state, batch_size)
    positions = _positions(dict(states.leaves(state)), position, batch_size)
    contents = StateFile(
        state,
        model.spec,
        positions,
        fingerprint(model),
        threefold.__version__,
        dict(notes or {}),
        dict(extra_tensors or {}),
    )
    write_state(path, contents)


def write_state(path: str | PathLike[str], contents: StateFile) -> None:
    """Write the contents of a state file; the file is written completely or not at all."""
    leaves = dict(states.leaves(contents.state))
    extra = {f"{EXTRA}{name}": tensor for name, tensor in contents.extra_tensors.items()}
    tensors = {**leaves, **extra}
    notes_json, position_json = json.dumps(contents.notes), json.dumps(contents.position)
    metadata = {
        "format": FORMAT,
        "format_version": str(VERSION),
        "threefold_version": contents.threefold_version,
        "spec": contents.spec.to_json(),
        "digest": contents.spec.digest,
        "weights": contents.weights,
        "position": position_json,
        "leaves": json.dumps(list(leaves)),  # in order, which safetensors does not preserve
        "notes": notes_json,
        "sha256": _checksum(tensors, notes_json + position_json + contents.weights),
    }
    write_file(checked_path("path", path), lambda new: write_tensors(new, tensors, metadata))


def refuse_other_file(path: Path) -> None:
    """Refuse a path at which another file than a state would be overwritten."""
    if not path.exists():
        return
    try:
        with safe_open(path, framework="pt") as file:
            is_state = (file.metadata() or {}).get("format") == FORMAT
    except (SafetensorError, OSError):
        is_state = False
    if not is_state:
        raise ThreefoldError(
            f"{path}: exists already, and is not a saved state, which alone would be replaced; "
            "choose another name, or delete it"
        )


def fingerprint(model: Model) -> str:
    """SHA-256 of the model's weights: names, dtypes, shapes and values."""
    return _checksum(unique_tensors(model), "")


def _check_state(model: Model, state: State, batch_size: int) -> None:
    model.check_state(state, batch_size)


def load_state(path: str | PathLike[str], model: Model, *, check_weights: bool = True) -> State:
    """Load a state from a file for `model`; a state of another model is refused.

    check_weights=False accepts a state that was computed with other weights of the same spec.
    """
    return state_for_model(path, read_state(path), model, check_weights)


def state_for_model(
    path: str | PathLike[str], state_file: StateFile, model: Model, check_weights: bool = True
) -> State:
    """Check that a state that was read from a file fits `model`, and move it to its device."""
    if state_file.spec != model.spec:
        fields = "; ".join(state_file.spec.differences(model.spec))
        raise ThreefoldError(
            f"{path}: this is the state of another model (in the file and in the model: {fields})"
        )
    state = states.transform(lambda leaf: leaf.to(model.device), state_file.state)
    try:
        _check_state(model, state, states.batch_size(state) or 1)
    except ThreefoldError as error:
        raise ThreefoldError(f"{path}: {error}") from error
    if check_weights:
        _refuse_other_weights(path, state_file, model)
    return state


def _refuse_other_weights(path: str | PathLike[str], state_file: StateFile, model: Model) -> None:
    weights = fingerprint(model)
    if state_file.weights != weights:
        raise ThreefoldError(
            f"{path}: this state was computed with other weights (SHA-256 "
            f"{state_file.weights[:12]}; the model's weights have {weights[:12]}); use the model "
            "that the state was saved with, or in Python load it with check_weights=False"
        )


def read_state(path: str | PathLike[str]) -> StateFile:
    """Read a state file and its header without a model."""
    tensors, header = read_tensors(checked_path("path", path))
    _check_format(path, header)
    notes_json = header.get("notes", "{}")
    try:
        spec = Spec.from_json(header["spec"])
        position, notes = json.loads(header["position"]), json.loads(notes_json)
        leaves = {name: tensors[name] for name in json.loads(header["leaves"])}
        weights = header["weights"]
        checksum = _checksum(tensors, notes_json + header["position"] + weights)
        intact = header["digest"] == spec.digest and header["sha256"] == checksum
    except (KeyError, ValueError) as error:
        raise ThreefoldError(f"{path}: the header is not valid ({error})") from error
    extra = {n.removeprefix(EXTRA): leaf for n, leaf in tensors.items() if n.startswith(EXTRA)}
    if not intact or len(leaves) + len(extra) != len(tensors):
        raise ThreefoldError(
            f"{path}: damaged (the SHA-256 checksum does not match); copy or save it again"
        )
    version = header.get("threefold_version", "")
    return StateFile(states.tree(leaves), spec, position, weights, version, notes, extra)


def _check_format(path: str | PathLike[str], header: Mapping[str, str]) -> None:
    if header.get("format") != FORMAT:
        raise ThreefoldError(
            f"{path}: a safetensors file, but not a state; expected a file written by save_state"
        )
    version = header.get("format_version", "")
    if version == str(VERSION):
        return
    writer = f"Threefold {header.get('threefold_version')}, state format {version}"
    if version.isdecimal() and int(version) < VERSION:
        raise ThreefoldError(
            f"{path}: written by an older version of Threefold ({writer}); this version reads "
            f"format {VERSION}: create the state again, or use the version that wrote it"
        )
    raise ThreefoldError(
        f"{path}: written by a newer version of Threefold ({writer}); this version reads format "
        f"{VERSION}: install a newer version"
    )


def fork_state(
    path: str | PathLike[str], new: str | PathLike[str], *, rows: list[int] | None = None
) -> None:
    """Copy a state file, so that both copies can continue independently.

    rows: copy only these rows of the batch, in this order; notes and extra tensors, which belong
    to the whole batch, are then left out.  An existing file is not overwritten.
    """
    state_file = read_state(path)
    if Path(new).exists():
        raise ThreefoldError(f"{new}: already exists; choose another name for the copy")
    copy = state_file if rows is None else _select_rows(state_file, rows, path)
    shapes = states.transform(lambda leaf: leaf.to("meta"), copy.state)
    _check_state(build_on_meta(copy.spec, shapes), shapes, states.batch_size(shapes) or 1)
    write_state(new, replace(copy, threefold_version=threefold.__version__))


def _select_rows(state_file: StateFile, rows: list[int], path: str | PathLike[str]) -> StateFile:
    """Only these rows of the batch, without what belongs to the whole batch."""
    count = states.batch_size(state_file.state) or 0
    if not rows or not all(is_integer(row) and 0 <= row < count for row in rows):
        raise ThreefoldError(f"{path}: rows is {rows}, expected row numbers 0 to {count - 1}")
    state = states.select(state_file.state, rows)
    position = state_file.position
    if position is not None:
        position = [position[row] for row in rows]
    return replace(state_file, state=state, position=position, notes={}, extra_tensors={})


def build_on_meta(spec: Spec, state: State) -> Any:
    """Build the model of a spec without memory for its weights, to check states with."""
    dtypes = {leaf.dtype for _, leaf in states.leaves(state) if leaf.is_floating_point()}
    with torch.device("meta"):
        model: Any = build(spec)
    # Memories stay float32 beside narrower weights: the narrowest leaf has the weights' dtype.
    narrowest = min(dtypes, key=lambda dtype: dtype.itemsize, default=torch.float32)
    return model.to(narrowest)


def describe_state(path: str | PathLike[str]) -> dict[str, Any]:
    """Describe a state file with plain values: spec, rows, positions, leaves, bytes and notes."""
    state_file = read_state(path)
    leaves = dict(states.leaves(state_file.state))
    return {
        "type": "state",
        "path": str(path),
        "spec": state_file.spec.to_dict(),
        "rows": states.batch_size(state_file.state),
        "position": state_file.position,
        "leaves": {
            name: {"shape": list(leaf.shape), "dtype": str(leaf.dtype).removeprefix("torch.")}
            for name, leaf in leaves.items()
        },
        "bytes": sum(leaf.nbytes for leaf in leaves.values()),
        "bytes_on_disk": Path(path).stat().st_size,
        "digest": state_file.spec.digest,
        "weights": state_file.weights,
        "threefold_version": state_file.threefold_version,
        "notes": state_file.notes,
    }


def _positions(leaves: Mapping[str, Tensor], position: Any, rows: int) -> list[int] | None:
    """Elements seen by each row: from the argument, or from a leaf of the state."""
    if position is None:
        counters = [leaf for name, leaf in leaves.items() if name.rpartition(".")[2] == POSITION]
        return [int(value) for value in counters[0]] if counters else None
    positions = list(position) if isinstance(position, list | tuple) else [position] * rows
    if len(positions) != rows or not all(is_integer(n) and n >= 0 for n in positions):
        raise ThreefoldError(
            f"save_state: position is {position!r}, expected an integer of at least 0, or a list "
            f"of {rows}"
        )
    return positions


def _checksum(tensors: Mapping[str, Tensor], header: str) -> str:
    """SHA-256 of texts of the header, and of the tensors' names, dtypes, shapes and bytes."""
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        leaf = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode())
        digest.update(leaf.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
