"""run/checkpoints/step-000000100/{model, optimizer, …}.safetensors, training.json, manifest.json

A checkpoint is written to a temporary folder and synced, with a manifest of file hashes last, and
then renamed: it is either complete or absent. A checkpoint that the disk has damaged is detected by
its hashes, and the one before it is used. Nothing is ever unpickled.
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

from threefold.data.atomic_files import Disk, report_write_errors, temporary_path
from threefold.errors import LockedError, ThreefoldError
from threefold.models.files import own_storage

MANIFEST, VALUES = "manifest.json", "training.json"
LOCK = "lock"
_SUFFIX = ".safetensors"
_STEP = "step-"
_DIGITS = 9


@dataclass(frozen=True)
class Snapshot:
    """A run after `step` steps: tensors by file and name, and values that JSON can represent."""

    step: int
    tensors: Mapping[str, Mapping[str, Tensor]]
    values: Mapping[str, Any] = field(default_factory=dict)


class DamagedCheckpointError(ThreefoldError):
    """A checkpoint whose files are not as they were written."""


class Checkpoints:
    """The checkpoints of one run: the newest `keep` and the best one."""

    def __init__(self, folder: Path, keep: int = 2, disk: Disk | None = None) -> None:
        if keep < 1:
            raise ThreefoldError(f"checkpoints: keep is {keep}, expected at least 1")
        self.folder, self.keep = folder, keep
        self._disk = disk or Disk()

    @property
    def steps(self) -> list[int]:
        """Steps that have a checkpoint, intact or damaged, oldest first."""
        if not self.folder.is_dir():
            return []
        names = (entry.name for entry in self.folder.iterdir() if entry.is_dir())
        numbers = (name.removeprefix(_STEP) for name in names if name.startswith(_STEP))
        return sorted(int(number) for number in numbers if number.isdecimal())

    def path(self, step: int) -> Path:
        """The folder of a step's checkpoint."""
        return self.folder / f"{_STEP}{step:0{_DIGITS}}"

    def save(self, snapshot: Snapshot, *, best: int | None = None) -> Path:
        """Write a checkpoint and remove old ones, except the one of step `best`."""
        path = self.path(snapshot.step)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._remove_temporary()
            if not self._is_intact(snapshot.step):
                self._write(snapshot, path)
            self._remove_old({snapshot.step, *([] if best is None else [best])})
        except OSError as error:
            left = "earlier checkpoints are unchanged: free disk space or fix the permissions, "
            left += "then resume from them"
            if not self.steps:
                left = f"there is no earlier checkpoint in {self.folder} to resume from"
            raise ThreefoldError(
                f"{path}: cannot be written ({error.strerror or error}); {left}"
            ) from error
        return path

    def load(self, step: int) -> Snapshot:
        """Load a checkpoint and verify its hashes; raises `DamagedCheckpointError`."""
        path = self.path(step)
        files = {name: _read_verified(path / name, digest) for name, digest in _manifest(path)}
        tensors = {}
        for name, content in files.items():
            if name.endswith(_SUFFIX):
                try:
                    tensors[name.removesuffix(_SUFFIX)] = read_safetensors(content)
                except SafetensorError as error:
                    raise DamagedCheckpointError(f"{path / name}: {error}") from error
        values = json.loads(files[VALUES])
        if values.pop("step") != step:
            raise DamagedCheckpointError(f"{path}: contains the checkpoint of another step")
        return Snapshot(step, tensors, values)

    def newest(self) -> tuple[Snapshot | None, list[str]]:
        """The newest intact checkpoint, and the problems of the damaged ones after it."""
        problems: list[str] = []
        for step in reversed(self.steps):
            try:
                return self.load(step), problems
            except ThreefoldError as error:
                problems.append(str(error))
        return None, problems

    def _write(self, snapshot: Snapshot, path: Path) -> None:
        temporary = temporary_path(path)
        disk = self._disk
        disk.make_folder(temporary)
        try:
            digests = {}
            for name, content in _contents(snapshot):
                disk.write(temporary / name, content)
                disk.sync(temporary / name)
                digests[name] = hashlib.sha256(content).hexdigest()
            disk.write(temporary / MANIFEST, _encode_manifest(digests))
            disk.sync(temporary / MANIFEST)
            disk.sync(temporary)
            disk.rename(temporary, path)
        except OSError:  # an incomplete checkpoint would only fill the disk
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        disk.sync(self.folder)

    def _is_intact(self, step: int) -> bool:
        """Whether the step is already saved; a damaged checkpoint is removed."""
        if not self.path(step).exists():
            return False
        try:
            self.load(step)
        except DamagedCheckpointError:
            self._remove(step)
            return False
        return True

    def _remove(self, step: int) -> None:
        """Rename first: a checkpoint that is half removed must not look like one."""
        temporary = temporary_path(self.path(step))
        self._disk.rename(self.path(step), temporary)
        self._disk.remove(temporary)

    def _remove_old(self, protected: set[int]) -> None:
        """Remove all checkpoints but the newest and the protected ones."""
        for step in self.steps[: -self.keep]:
            if step not in protected:
                self._remove(step)

    def _remove_temporary(self) -> None:
        """Remove the temporary folders of saves that were killed."""
        for entry in self.folder.iterdir():
            if entry.is_dir() and entry.name.startswith(f".{_STEP}"):
                self._disk.remove(entry)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes; the lock ends with the process that holds it."""
    path = folder / LOCK
    with report_write_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _lock(descriptor):
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise LockedError(
                f"{folder}: in use by another process (process ID {holder}); wait until it ends, "
                "or choose another folder"
            )
        with report_write_errors(path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:  # only Unix has locks that end with the process
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _contents(snapshot: Snapshot) -> Iterator[tuple[str, bytes]]:
    for name, tensors in snapshot.tensors.items():
        yield name + _SUFFIX, write_safetensors({key: own_storage(t) for key, t in tensors.items()})
    yield VALUES, _json({**snapshot.values, "step": snapshot.step})


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, sort_keys=True, indent=1, allow_nan=True) + "\n").encode()


def _encode_manifest(digests: Mapping[str, str]) -> bytes:
    """The hash of every file, and a last line with the hash of the lines before it."""
    body = _json(digests)
    return body + hashlib.sha256(body).hexdigest().encode() + b"\n"


def _manifest(folder: Path) -> list[tuple[str, str]]:
    content = _read(folder / MANIFEST)
    body = content[:-1].rpartition(b"\n")[0]
    if content != body + b"\n" + hashlib.sha256(body + b"\n").hexdigest().encode() + b"\n":
        raise DamagedCheckpointError(f"{folder / MANIFEST}: damaged or truncated")
    return list(json.loads(body).items())


def _read_verified(path: Path, digest: str) -> bytes:
    content = _read(path)
    if hashlib.sha256(content).hexdigest() != digest:
        raise DamagedCheckpointError(f"{path}: damaged (its SHA-256 differs from the manifest)")
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise DamagedCheckpointError(f"{path}: cannot be read ({reason})") from error
