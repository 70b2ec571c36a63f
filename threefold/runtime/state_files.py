"""A state as a file: safetensors, with the spec it belongs to and the position in its header.

Saved in one process and loaded in another, it gives the same next logits bit for bit.  Beside the
model's state a file may hold what a session or a stream needs to go on: tensors, and notes (JSON).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import threefold
from threefold.data.atomic_files import write_file
from threefold.errors import ThreefoldError
from threefold.memory import state as states
from threefold.memory.state import POSITION, State
from threefold.models.backbone import Backbone
from threefold.models.files import read_tensors, write_tensors
from threefold.models.model import Predictor
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.runtime.sampling import whole

FORMAT = "threefold state"
VERSION = 1
BESIDE = "beside/"  # before the names of tensors that are no leaf of the model's state


@dataclass(frozen=True)
class StateFile:
    """What a state file holds."""

    state: State
    spec: Spec
    position: list[int] | None  # elements that each row has seen, where known
    threefold_version: str
    notes: dict[str, Any]
    beside: dict[str, Tensor]


def save_state(
    path: str | PathLike[str],
    state: State,
    model: Predictor | Backbone,
    *,
    position: int | list[int] | None = None,
    notes: Mapping[str, Any] | None = None,
    beside: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a state of `model` to a file, all of it or nothing.

    position: elements seen, if the state does not say.  notes (JSON) and tensors beside the state
    come back with `read_state`.
    """
    rows = (states.batch_size(state) if isinstance(state, dict) else None) or 1
    model.check_state(state, rows)
    leaves = dict(states.leaves(state))
    tensors = {**leaves, **{f"{BESIDE}{name}": leaf for name, leaf in (beside or {}).items()}}
    noted = json.dumps(dict(notes or {}))
    metadata = {
        "format": FORMAT,
        "format_version": str(VERSION),
        "threefold_version": threefold.__version__,
        "spec": model.spec.to_json(),
        "digest": model.spec.digest,
        "position": json.dumps(_position(leaves, position, rows)),
        "leaves": json.dumps(list(leaves)),  # in their order, which safetensors does not keep
        "notes": noted,
        "sha256": _checksum(tensors, noted),
    }
    write_file(Path(path), lambda new: write_tensors(new, tensors, metadata))


def load_state(path: str | PathLike[str], model: Predictor | Backbone) -> State:
    """The state in a file, for `model`; a state of another model is refused."""
    return fitted(path, read_state(path), model)


def fitted(path: str | PathLike[str], found: StateFile, model: Predictor | Backbone) -> State:
    """The state that was read from a file, for `model`, on its device."""
    if found.spec != model.spec:
        fields = "; ".join(found.spec.differences(model.spec))
        raise ThreefoldError(f"{path}: a state of another model (file and model: {fields})")
    try:
        model.check_state(found.state, states.batch_size(found.state) or 1)
    except ThreefoldError as error:
        raise ThreefoldError(f"{path}: {error}") from error
    return states.transform(lambda leaf: leaf.to(model.device), found.state)


def read_state(path: str | PathLike[str]) -> StateFile:
    """A state file with what its header says, for no model in particular."""
    tensors, header = read_tensors(Path(path))
    if header.get("format") != FORMAT:
        raise ThreefoldError(
            f"{path}: a safetensors file, but no state; expected one made by save_state"
        )
    version = header.get("format_version", "")
    if version != str(VERSION):
        raise ThreefoldError(
            f"{path}: format {version}, written by Threefold {header.get('threefold_version')}; "
            f"this one reads {VERSION}: install a newer Threefold"
        )
    try:
        spec = Spec.from_json(header["spec"])
        position, notes = json.loads(header["position"]), json.loads(header.get("notes", "{}"))
        ordered = {name: tensors[name] for name in json.loads(header["leaves"])}
        digest = _checksum(tensors, header.get("notes", "{}"))
        intact = header["digest"] == spec.digest and header["sha256"] == digest
    except (KeyError, ValueError) as error:
        raise ThreefoldError(f"{path}: its header cannot be used ({error})") from error
    beside = {n.removeprefix(BESIDE): leaf for n, leaf in tensors.items() if n.startswith(BESIDE)}
    if not intact or len(ordered) + len(beside) != len(tensors):
        raise ThreefoldError(f"{path}: damaged (another SHA-256); copy or save it again")
    version = header.get("threefold_version", "")
    return StateFile(states.tree(ordered), spec, position, version, notes, beside)


def fork_state(
    path: str | PathLike[str], new: str | PathLike[str], *, rows: list[int] | None = None
) -> None:
    """Write a second file that goes on by itself from where the first one stands.

    rows: only these, in this order; then notes and tensors beside the state, which belong to all
    rows, are left out.  A file that is there already is not replaced.
    """
    found = read_state(path)
    if Path(new).exists():
        raise ThreefoldError(f"{new}: is there already; choose another name for the fork")
    state, position, keep = found.state, found.position, rows is None
    if rows is not None:
        count = states.batch_size(state) or 0
        if not rows or not all(whole(row) and 0 <= row < count for row in rows):
            raise ThreefoldError(f"{path}: rows are {rows}, expected some of 0 to {count - 1}")
        state = states.select(state, rows)
        position = None if position is None else [position[row] for row in rows]
    model = build_empty(found.spec, state)
    notes, beside = (found.notes, found.beside) if keep else ({}, {})
    save_state(new, state, model, position=position, notes=notes, beside=beside)


def build_empty(spec: Spec, state: State) -> Any:
    """The model of a spec without numbers, which knows what its states look like."""
    dtypes = {leaf.dtype for _, leaf in states.leaves(state) if leaf.is_floating_point()}
    with torch.device("meta"):
        model: Any = build(spec)
    # Memories are float32 beside narrower weights: the narrowest leaf tells the weights' dtype.
    narrowest = min(dtypes, key=lambda dtype: dtype.itemsize, default=torch.float32)
    return model.to(narrowest)


def describe_state(path: str | PathLike[str]) -> dict[str, Any]:
    """What a state file is, as plain values: spec, rows, positions, leaves, bytes and notes."""
    found = read_state(path)
    leaves = dict(states.leaves(found.state))
    return {
        "what": "state",
        "path": str(path),
        "spec": found.spec.to_dict(),
        "rows": states.batch_size(found.state),
        "position": found.position,
        "leaves": {
            name: {"shape": list(leaf.shape), "dtype": str(leaf.dtype).removeprefix("torch.")}
            for name, leaf in leaves.items()
        },
        "bytes": sum(leaf.nbytes for leaf in leaves.values()),
        "bytes_on_disk": Path(path).stat().st_size,
        "digest": found.spec.digest,
        "threefold_version": found.threefold_version,
        "notes": found.notes,
    }


def _position(tensors: Mapping[str, Tensor], given: Any, rows: int) -> list[int] | None:
    """Elements seen by each row: as given, or as a leaf of the state says."""
    if given is None:
        found = [leaf for name, leaf in tensors.items() if name.rpartition(".")[2] == POSITION]
        return [int(value) for value in found[0]] if found else None
    listed = list(given) if isinstance(given, list | tuple) else [given] * rows
    if len(listed) != rows or not all(whole(value) and value >= 0 for value in listed):
        raise ThreefoldError(
            f"save_state: position is {given!r}, expected a whole number from 0, or {rows} of them"
        )
    return listed


def _checksum(tensors: Mapping[str, Tensor], notes: str) -> str:
    """SHA-256 over names, bytes and notes."""
    digest = hashlib.sha256(notes.encode())
    for name in sorted(tensors):
        leaf = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode())
        digest.update(leaf.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
