"""A state as a file: safetensors, with the spec it belongs to and the position in its header.

Saved in one process and loaded in another, it gives the same next logits bit for bit.
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
from threefold.data.files import write_file
from threefold.errors import ThreefoldError
from threefold.memory import state as states
from threefold.memory.state import POSITION, State
from threefold.models.body import Body
from threefold.models.files import read_tensors, write_tensors
from threefold.models.model import Predictor
from threefold.models.spec import Spec
from threefold.runtime.sampling import whole

FORMAT = "threefold state"
VERSION = 1


@dataclass(frozen=True)
class StateFile:
    """What a state file holds."""

    state: State
    spec: Spec
    position: list[int] | None  # elements that each row has seen, where known
    threefold_version: str


def save_state(
    path: str | PathLike[str],
    state: State,
    model: Predictor | Body,
    *,
    position: int | list[int] | None = None,
) -> None:
    """Write a state of `model` to a file; `position`: elements seen, if the state does not say."""
    rows = (states.batch_size(state) if isinstance(state, dict) else None) or 1
    model.check_state(state, rows)
    tensors = dict(states.leaves(state))
    metadata = {
        "format": FORMAT,
        "format_version": str(VERSION),
        "threefold_version": threefold.__version__,
        "spec": model.spec.to_json(),
        "digest": model.spec.digest,
        "position": json.dumps(_position(tensors, position, rows)),
        "leaves": json.dumps(list(tensors)),  # in their order, which safetensors does not keep
        "sha256": _checksum(tensors),
    }
    write_file(Path(path), lambda new: write_tensors(new, tensors, metadata))


def load_state(path: str | PathLike[str], model: Predictor | Body) -> State:
    """The state in a file, for `model`; a state of another model is refused."""
    found = read_state(path)
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
        position = json.loads(header["position"])
        ordered = {name: tensors[name] for name in json.loads(header["leaves"])}
        intact = header["digest"] == spec.digest and header["sha256"] == _checksum(tensors)
    except (KeyError, ValueError) as error:
        raise ThreefoldError(f"{path}: its header cannot be used ({error})") from error
    if not intact or len(ordered) != len(tensors):
        raise ThreefoldError(f"{path}: damaged (another SHA-256); copy or save it again")
    return StateFile(states.tree(ordered), spec, position, header.get("threefold_version", ""))


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


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        leaf = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode())
        digest.update(leaf.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
