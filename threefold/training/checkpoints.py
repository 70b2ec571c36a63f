"""run/checkpoints/step-000000100/{model, optimiser, …}.safetensors, training.json, manifest.json

A checkpoint is written to a new folder, synced, its manifest with the hash of every file last, and
then renamed: it is there whole, or it is not there. One that a disk has damaged is noticed by its
hashes, and the one before it serves. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as read_safetensors
from safetensors.torch import save as write_safetensors
from torch import Tensor

from threefold.data.atomic_files import Disk, beside, told
from threefold.errors import ThreefoldError
from threefold.models.files import own_storage

MANIFEST, NUMBERS = "manifest.json", "training.json"
_SUFFIX = ".safetensors"
_STEP = "step-"
_DIGITS = 9


@dataclass(frozen=True)
class Snapshot:
    """A run after `step` steps: tensors by file and name, and numbers that JSON can hold."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    numbers: Mapping[str, Any] = field(default_factory=dict)


class DamagedError(ThreefoldError):
    """A checkpoint that is not what was written."""


class Checkpoints:
    """The checkpoints of one run: the newest `keep`, and the best."""

    def __init__(self, folder: Path, keep: int = 2, disk: Disk | None = None) -> None:
        if keep < 1:
            raise ThreefoldError(f"checkpoints: keep is {keep}, expected at least 1")
        self.folder, self.keep = folder, keep
        self._disk = disk or Disk()

    @property
    def steps(self) -> list[int]:
        """Steps that have a checkpoint, whole or damaged, oldest first."""
        if not self.folder.is_dir():
            return []
        names = (entry.name for entry in self.folder.iterdir() if entry.is_dir())
        numbers = (name.removeprefix(_STEP) for name in names if name.startswith(_STEP))
        return sorted(int(number) for number in numbers if number.isdecimal())

    def path(self, step: int) -> Path:
        """The folder of a step's checkpoint."""
        return self.folder / f"{_STEP}{step:0{_DIGITS}}"

    def save(self, moment: Snapshot, *, best: int | None = None) -> Path:
        """Write a checkpoint and remove what need not be kept; `best` is a step that must be."""
        place = self.path(moment.step)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clean()
            if not self._is_whole(moment.step):
                self._write(moment, place)
            self._forget({moment.step, *([] if best is None else [best])})
        except OSError as error:
            raise ThreefoldError(
                f"{place}: cannot be written ({error.strerror or error}); the checkpoints before "
                "it are as they were: make room, or let it be written, and go on from them"
            ) from error
        return place

    def load(self, step: int) -> Snapshot:
        """A checkpoint, with every byte checked; `DamagedError` if one is not as written."""
        place = self.path(step)
        files = {name: _checked(place / name, digest) for name, digest in _read_manifest(place)}
        tensors = {}
        for name, content in files.items():
            if name.endswith(_SUFFIX):
                try:
                    tensors[name.removesuffix(_SUFFIX)] = read_safetensors(content)
                except SafetensorError as error:
                    raise DamagedError(f"{place / name}: {error}") from error
        numbers = json.loads(files[NUMBERS])
        if numbers.pop("step") != step:
            raise DamagedError(f"{place}: is the checkpoint of another step")
        return Snapshot(step, tensors, numbers)

    def newest(self) -> tuple[Snapshot | None, list[str]]:
        """The newest checkpoint that is whole, and what was wrong with those after it."""
        wrong: list[str] = []
        for step in reversed(self.steps):
            try:
                return self.load(step), wrong
            except ThreefoldError as error:
                wrong.append(str(error))
        return None, wrong

    def _write(self, moment: Snapshot, place: Path) -> None:
        new = beside(place)
        disk = self._disk
        disk.make_folder(new)
        try:
            digests = {}
            for name, content in _contents(moment):
                disk.write(new / name, content)
                disk.sync(new / name)
                digests[name] = hashlib.sha256(content).hexdigest()
            disk.write(new / MANIFEST, _manifest(digests))
            disk.sync(new / MANIFEST)
            disk.sync(new)
            disk.rename(new, place)
        except OSError:  # a half of it would only fill the disk
            shutil.rmtree(new, ignore_errors=True)
            raise
        disk.sync(self.folder)

    def _is_whole(self, step: int) -> bool:
        """Whether the step is saved already; a damaged checkpoint is removed."""
        if not self.path(step).exists():
            return False
        try:
            self.load(step)
        except DamagedError:
            self._remove(step)
            return False
        return True

    def _remove(self, step: int) -> None:
        """What is half removed has no name of ours."""
        hidden = beside(self.path(step))
        self._disk.rename(self.path(step), hidden)
        self._disk.remove(hidden)

    def _forget(self, wanted: set[int]) -> None:
        """Remove all but the newest and the wanted."""
        for step in self.steps[: -self.keep]:
            if step not in wanted:
                self._remove(step)

    def _clean(self) -> None:
        """Remove what a save that was killed has left behind."""
        for entry in self.folder.iterdir():
            if entry.is_dir() and entry.name.startswith(f".{_STEP}"):
                self._disk.remove(entry)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else may write to a run's folder; the lock goes with the process that holds it."""
    path = folder / "lock"
    with told(path):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _lock(descriptor):
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise ThreefoldError(
                f"{folder}: another process (number {holder}) is training there; wait for it, or "
                "choose another folder"
            )
        with told(path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:  # only Unix has locks that die with their holder
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _contents(moment: Snapshot) -> Iterator[tuple[str, bytes]]:
    for name, tensors in moment.tensors.items():
        yield (
            name + _SUFFIX,
            write_safetensors({key: own_storage(t) for key, t in tensors.items()}),
        )
    yield NUMBERS, _json({**moment.numbers, "step": moment.step})


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, sort_keys=True, indent=1, allow_nan=True) + "\n").encode()


def _manifest(digests: Mapping[str, str]) -> bytes:
    """The hash of every file, and a last line with the hash of all that."""
    body = _json(digests)
    return body + hashlib.sha256(body).hexdigest().encode() + b"\n"


def _read_manifest(place: Path) -> list[tuple[str, str]]:
    content = _read(place / MANIFEST)
    body = content[:-1].rpartition(b"\n")[0]
    if content != body + b"\n" + hashlib.sha256(body + b"\n").hexdigest().encode() + b"\n":
        raise DamagedError(f"{place / MANIFEST}: damaged, or cut short")
    return list(json.loads(body).items())


def _checked(path: Path, digest: str) -> bytes:
    content = _read(path)
    if hashlib.sha256(content).hexdigest() != digest:
        raise DamagedError(f"{path}: damaged (another SHA-256 than its manifest has)")
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DamagedError(f"{path}: cannot be read ({error.strerror or error})") from error
