"""A disk that fails at any operation, and then loses or truncates what was not synced."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from threefold.data.atomic_files import Disk


class CrashError(Exception):
    """The machine has crashed."""


class FailingDisk(Disk):
    """Works for a number of operations, then crashes; `settle` leaves what a real disk might."""

    def __init__(self, operations: int, seed: int) -> None:
        self.left = operations
        self.done = 0
        self.random = random.Random(seed)
        self._unsynced: dict[Path, bytes] = {}
        # How to undo the changes of names in a folder, until the folder is synced.
        self._names: dict[Path, list[Callable[[], None]]] = {}

    def _operation(self) -> None:
        self.done += 1
        self.left -= 1
        if self.left < 0:
            raise CrashError

    def make_folder(self, path: Path) -> None:
        self._operation()
        super().make_folder(path)
        self._record(path.parent, lambda: shutil.rmtree(path, ignore_errors=True))

    def write(self, path: Path, content: bytes) -> None:
        try:
            self._operation()
        except CrashError:
            super().write(path, content[: self.random.randrange(len(content) + 1)])
            raise
        super().write(path, content)
        self._unsynced[path] = content
        self._record(path.parent, lambda: path.unlink(missing_ok=True))

    def sync(self, path: Path) -> None:
        self._operation()
        super().sync(path)
        self._unsynced.pop(path, None)
        self._names.pop(path, None)

    def rename(self, old: Path, new: Path) -> None:
        self._operation()
        super().rename(old, new)
        self._record(old.parent, lambda: old.exists() or new.rename(old))

    def remove(self, folder: Path) -> None:
        try:
            self._operation()
        except CrashError:
            for file in folder.iterdir():
                if self.random.random() < 0.5:
                    file.unlink()
            raise
        super().remove(folder)

    def _record(self, folder: Path, undo: Callable[[], object]) -> None:
        self._names.setdefault(folder, []).append(lambda: undo() and None)

    def settle(self) -> None:
        """Lose or truncate contents that were not synced, and undo the last changes of names."""
        for path, content in self._unsynced.items():
            if path.exists():
                path.write_bytes(self._truncated(content))
        for undos in self._names.values():
            for undo in reversed(undos[self.random.randrange(len(undos) + 1) :]):
                undo()

    def _truncated(self, content: bytes) -> bytes:
        cut = self.random.randrange(len(content) + 1)
        zeros = bytes(len(content) - cut)
        return self.random.choice([b"", content, content[:cut], content[:cut] + zeros])
