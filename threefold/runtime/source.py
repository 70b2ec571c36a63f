"""Elements of an endless input: a file, a pipe, or pieces of bytes, taken a number at a time.

Where it stands is (bytes before the block that is being taken, elements taken of that block): from
there the same elements come again, however tokens lie across blocks.  A file is read again from
there, after its beginning was compared by SHA-256; of a pipe, what was read ahead is kept instead.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from threefold.data.stream_encoders import Elements, Encoder, UnreadableError
from threefold.errors import ThreefoldError

READ = 1 << 16  # bytes at a time
HASHED = 1 << 20

Given: TypeAlias = "str | os.PathLike[str] | bytes | IO[bytes] | Iterable[bytes | str]"
Wait: TypeAlias = Callable[[int], bool]


class WaitInterruptedError(Exception):
    """A signal came while the input had nothing."""


@dataclass(frozen=True)
class SourcePosition:
    """Where a source stands; with an encoder's settings it is enough to go on."""

    offset: int  # bytes of the input before the block
    line: int  # lines before it
    taken: int  # elements of the block
    read: int  # bytes of the input up to the end of the block
    sha256: str | None  # of these; None for what cannot be read again
    rest: bytes  # the block and what was read behind it, for what cannot be read again


@dataclass
class InputBlock:
    """Bytes that were encoded together."""

    data: bytes
    elements: Elements
    taken: int = 0


class Source:
    """Elements in their order; `load` some, then `take` them."""

    def __init__(self, given: Given, encoder: Encoder, wait: Wait | None = None) -> None:
        self.encoder = encoder
        self.name, self._read, self._file = _reader(given, wait)
        self._base = 0 if self._file is None else self._file.tell()
        self._mine = isinstance(given, str | os.PathLike)
        self.offset, self.line = 0, 0
        self._blocks: deque[InputBlock] = deque()
        self._data = b""  # read, not yet encoded
        self._ended = False
        self._hash = hashlib.sha256() if self._file is not None else None

    @property
    def size(self) -> int | None:
        """Bytes of a file, from where it stood; None for what has no end yet."""
        file = self._file
        return None if file is None else os.fstat(file.fileno()).st_size - self._base

    @property
    def position(self) -> int:
        """Bytes that were read and encoded, about: for a bar."""
        return self.offset + sum(len(block.data) for block in self._blocks)

    @property
    def loaded(self) -> int:
        """Elements that can be taken at once."""
        return sum(len(block.elements) - block.taken for block in self._blocks)

    def load(self, count: int) -> int:
        """Have `count` elements ready, fewer only at the end; returns how many there are."""
        while self.loaded < count and not (self._ended and not self._data):
            if not self._ended:
                piece = self._piece()
                self._ended = not piece
                self._data += piece
            elements, used = self._encode()
            if used:
                self._blocks.append(InputBlock(self._data[:used], elements))
                self._data = self._data[used:]
        return min(self.loaded, count)

    def take(self, count: int) -> Elements:
        """The next `count` elements, which must be loaded."""
        parts = []
        while count:
            self._leave()
            block = self._blocks[0]
            part = block.elements[block.taken : block.taken + count]
            block.taken += len(part)
            count -= len(part)
            parts.append(part)
        self._leave()
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def place(self) -> SourcePosition:
        """Where it stands."""
        taken = self._blocks[0].taken if self._blocks else 0
        data = self._blocks[0].data if taken else b""
        read = self.offset + len(data)
        if self._hash is not None:
            digest = self._hash.copy()
            digest.update(data)
            return SourcePosition(self.offset, self.line, taken, read, digest.hexdigest(), b"")
        rest = b"".join(block.data for block in self._blocks) + self._data
        return SourcePosition(self.offset, self.line, taken, read, None, rest)

    def go_on(self, place: SourcePosition) -> None:
        """Stand where another source of the same input stood."""
        self.offset, self.line = place.offset, place.line
        if self._file is not None and place.sha256 is not None:
            self._skip(self._file, place)
        elif self._file is None and place.sha256 is None:
            self._data = place.rest
            elements, used = self._encode()
            self._blocks = deque([InputBlock(self._data[:used], elements)] if used else [])
            self._data = self._data[used:]
        else:
            was, now = ("a file", "a pipe") if place.sha256 else ("a pipe", "a file")
            raise ThreefoldError(
                f"{self.name}: the state was written reading {was}, and this is {now}; go on with "
                "the same kind of input"
            )
        if self.load(place.taken) < place.taken:
            raise ThreefoldError(f"{self.name}: ends before the place where the state was written")
        if place.taken:
            self.take(place.taken)

    def close(self) -> None:
        """Leave the file, if it was opened here."""
        if self._file is not None and self._mine:
            self._file.close()

    def _piece(self) -> bytes:
        try:
            return self._read(READ)
        except OSError as error:
            raise ThreefoldError(
                f"{self.name}: cannot be read on ({error.strerror or error})"
            ) from error

    def _encode(self) -> tuple[Elements, int]:
        settings = self.encoder.settings()
        try:
            return self.encoder.encode(self._data, self._ended)
        except UnreadableError as error:
            if error.at:  # what comes before it is still good
                self.encoder.restore(settings)
                elements, used = self.encoder.encode(self._data[: error.at], False)
                if used:
                    return elements, used
            waiting = b"".join(block.data for block in self._blocks)
            before = waiting + self._data[: error.at]
            line = self.line + before.count(b"\n") + 1
            byte = self.offset + len(before)
            raise ThreefoldError(f"{self.name}:{line}: {error} (byte {byte:,})") from error

    def _leave(self) -> None:
        """Pass by the blocks of which all was taken."""
        while self._blocks and self._blocks[0].taken == len(self._blocks[0].elements):
            data = self._blocks.popleft().data
            self.offset += len(data)
            self.line += data.count(b"\n")
            if self._hash is not None:
                self._hash.update(data)

    def _skip(self, file: IO[bytes], place: SourcePosition) -> None:
        """Read a file up to a place, which must be as it was."""
        size = self.size or 0
        if size < place.read:
            raise ThreefoldError(
                f"{self.name}: has {size:,} bytes, and the state was written after "
                f"{place.read:,}; it was cut or replaced: give the same file, or begin anew "
                "without the state"
            )
        self._hash = hashlib.sha256()
        _feed(self._hash, file, place.offset)
        whole = self._hash.copy()
        _feed(whole, file, place.read - place.offset)
        if whole.hexdigest() != place.sha256:
            raise ThreefoldError(
                f"{self.name}: its first {place.read:,} bytes have changed since the state was "
                f"written (SHA-256 {whole.hexdigest()[:12]}, in the state "
                f"{str(place.sha256)[:12]}); give the same file, or begin anew without the state"
            )
        file.seek(self._base + place.offset)


def _feed(digest: Any, file: IO[bytes], size: int) -> None:
    """The next `size` bytes of a file into a hash."""
    while size:
        piece = file.read(min(size, HASHED))
        size -= len(piece)
        digest.update(piece)


def _reader(given: Any, wait: Wait | None) -> tuple[str, Callable[[int], bytes], IO[bytes] | None]:
    """A name, a function that reads up to so many bytes (none at the end), and the file."""
    name = str(getattr(given, "name", "input"))
    if isinstance(given, str | os.PathLike):
        name, given = os.fspath(given), _opened(Path(given))
    if isinstance(given, bytes):
        pieces = (given[first : first + READ] for first in range(0, len(given), READ))
        return name, _from_pieces(pieces), None
    number = _descriptor(given)
    if number is not None:
        if stat.S_ISREG(os.fstat(number).st_mode):
            return name, given.read, given
        return name, lambda size: _from_pipe(given, size, wait), None
    if hasattr(given, "read"):
        return name, given.read, None
    if isinstance(given, Iterable):
        return name, _from_pieces(iter(given)), None
    raise ThreefoldError(
        f"stream: given {type(given).__name__}, expected a path, a binary file, bytes, or an "
        "iterable of bytes or texts"
    )


def _opened(path: Path) -> IO[bytes]:
    if not path.exists():
        raise ThreefoldError(f"{path}: there is no such file")
    if path.is_dir():
        raise ThreefoldError(f"{path}: a folder; expected a file, or - for standard input")
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise ThreefoldError(f"{path}: cannot be read ({error.strerror})") from error


def _descriptor(given: Any) -> int | None:
    """The number of a file of the system; None for one that is only called so."""
    try:
        return int(given.fileno())
    except (AttributeError, OSError):
        return None


def _from_pipe(pipe: IO[bytes], size: int, wait: Wait | None) -> bytes:
    number = pipe.fileno()
    if wait is not None and not wait(number):
        raise WaitInterruptedError
    return os.read(number, size)


def _from_pieces(pieces: Iterator[bytes | str]) -> Callable[[int], bytes]:
    def read(size: int) -> bytes:
        for piece in pieces:
            data = piece.encode() if isinstance(piece, str) else bytes(piece)
            if data:
                return data
        return b""

    return read
