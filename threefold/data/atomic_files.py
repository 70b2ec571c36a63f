"""Files and folders that are written whole or not at all.

A new file or folder is written beside the old one, synced to the disk, and then takes its name.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from threefold.errors import ThreefoldError


class Disk:
    """What a save does to the disk, one operation after another; tests have one that fails."""

    def make_folder(self, path: Path) -> None:
        """A new, empty folder."""
        path.mkdir()

    def write(self, path: Path, content: bytes) -> None:
        """A new file; what it holds may be lost until it is synced."""
        path.write_bytes(content)

    def sync(self, path: Path) -> None:
        """Have the disk hold what was written to a file, or which names a folder has."""
        sync(path)

    def rename(self, old: Path, new: Path) -> None:
        """Another name in the same folder; nothing may have it yet."""
        os.rename(old, new)

    def remove(self, folder: Path) -> None:
        """A folder and all that is in it."""
        shutil.rmtree(folder)


def write_file(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a new file, which then takes the place of `path` at once."""
    check_writable(path)
    new = temporary_path(path)
    with report_write_errors(path):
        try:
            write(new)
            sync(new)
            os.replace(new, path)
            sync(path.parent)
        finally:
            new.unlink(missing_ok=True)


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a new folder, which then takes the place of `folder`, if there was one."""
    new = temporary_path(folder)
    with report_write_errors(folder):
        try:
            new.mkdir()
            write(new)
            for file in new.iterdir():
                sync(file)
            sync(new)
            _take_place(new, folder)
            sync(folder.parent)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def check_writable(path: Path) -> None:
    """Refuse a name that no file can take, best before work is put into what it will hold."""
    if not path.parent.is_dir():
        raise ThreefoldError(f"{path}: cannot be written (there is no folder {path.parent})")
    if path.exists() and not path.is_file():  # /dev/null would be replaced, too
        raise ThreefoldError(f"{path}: cannot be written (it is no plain file); choose another")


def temporary_path(path: Path) -> Path:
    """A hidden name in the same folder that nobody else uses."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def sync(path: Path) -> None:
    """Have the disk hold what was written."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """What the file system refuses, as one message."""
    try:
        yield
    except OSError as error:
        raise ThreefoldError(f"{path}: cannot be written ({error.strerror or error})") from error
    except SafetensorError as error:
        raise ThreefoldError(f"{path}: cannot be written ({error})") from error


def _take_place(new: Path, folder: Path) -> None:
    """Rename `new` to `folder`; what was there before is under `new` afterwards, or gone."""
    if not folder.exists():
        os.rename(new, folder)
    elif not _exchange(new, folder):
        # Two renames: a crash between them leaves the old folder under its hidden name.
        old = temporary_path(folder)
        os.rename(folder, old)
        os.rename(new, folder)
        shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step, where Linux and the file system can."""
    at_working_folder, exchange = -100, 2
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    paths = (at_working_folder, os.fsencode(one), at_working_folder, os.fsencode(other))
    return bool(rename(*paths, exchange) == 0)
