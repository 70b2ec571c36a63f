"""Atomic writes: a file or folder is written completely or not at all.

A new file or folder is written next to the old one, synced to disk, and then renamed over it.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from threefold.errors import ThreefoldError


class Disk:
    """The operations of a save on the disk; tests replace it by one that fails."""

    def make_folder(self, path: Path) -> None:
        """Create an empty folder."""
        path.mkdir()

    def write(self, path: Path, content: bytes) -> None:
        """Create a file; its content may be lost until it is synced."""
        path.write_bytes(content)

    def sync(self, path: Path) -> None:
        """Flush the content of a file, or the names in a folder, to disk."""
        sync(path)

    def rename(self, old: Path, new: Path) -> None:
        """Rename within a folder; the new name must be free."""
        os.rename(old, new)

    def remove(self, folder: Path) -> None:
        """Delete a folder and its content."""
        shutil.rmtree(folder)


def write_file(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a new file, which then replaces `path` atomically."""
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


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    write_file(path, lambda new: _write_text(new, text))


def write_json(path: Path, values: Any) -> None:
    """Write JSON atomically, indented."""
    write_text(path, json_text(values))


def json_text(values: Any) -> str:
    """Indented JSON, for a file in a folder that is itself written atomically."""
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a new folder, which then replaces `folder`, if there was one."""
    new = temporary_path(folder)
    with report_write_errors(folder):
        try:
            new.mkdir()
            write(new)
            for file in new.iterdir():
                sync(file)
            sync(new)
            _replace_folder(new, folder)
            sync(folder.parent)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def check_writable(path: Path) -> None:
    """Refuse a path that cannot be written; call it before the work of producing the content."""
    if not path.parent.is_dir():
        raise ThreefoldError(f"{path}: cannot be written (no such folder: {path.parent})")
    if path.exists() and not path.is_file():  # else /dev/null would be replaced
        raise ThreefoldError(f"{path}: cannot be written (not a regular file); choose another path")


def temporary_path(path: Path) -> Path:
    """An unused hidden name in the same folder."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}")


def sync(path: Path) -> None:
    """Flush what was written to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """Turn errors of the file system into one message."""
    try:
        yield
    except OSError as error:
        raise ThreefoldError(f"{path}: cannot be written ({error.strerror or error})") from error
    except SafetensorError as error:
        raise ThreefoldError(f"{path}: cannot be written ({error})") from error


def _replace_folder(new: Path, folder: Path) -> None:
    """Rename `new` to `folder`; the old folder is called `new` afterwards, or deleted."""
    if not folder.exists():
        os.rename(new, folder)
    elif not _exchange(new, folder):
        # Two renames: a crash between them leaves the old folder under a hidden name.
        old = temporary_path(folder)
        os.rename(folder, old)
        os.rename(new, folder)
        shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step, if Linux and the file system support it."""
    at_working_folder, exchange = -100, 2
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    paths = (at_working_folder, os.fsencode(one), at_working_folder, os.fsencode(other))
    return bool(rename(*paths, exchange) == 0)
