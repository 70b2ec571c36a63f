"""Elements of an input of any length: a file, a pipe, or chunks of bytes, read a few at a time.

The position is (bytes before the current block, elements taken from that block): from there the
same elements follow again, wherever the block borders lie.  A file is read again from there, after
the SHA-256 of its beginning has been compared; for a pipe, the bytes read ahead are saved instead.
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

READ_BYTES = 1 << 16  # read at a time
HASH_BYTES = 1 << 20  # hashed at a time

# Or lists, arrays and tensors of elements, which `array_source.py` turns into bytes.
Input: TypeAlias = "str | os.PathLike[str] | bytes | IO[bytes] | Iterable[Any]"
Wait: TypeAlias = Callable[[int], bool]


class WaitInterruptedError(Exception):
    """A signal came while waiting for input."""


@dataclass(frozen=True)
class SourcePosition:
    """Where a source is; together with the encoder's settings it is enough to continue."""

    offset: int  # bytes of the input before the current block
    line: int  # lines before it
    taken: int  # elements taken from the block
    read: int  # bytes of the input up to the end of the block
    sha256: str | None  # of these bytes; None for an input that cannot be read again
    unread: bytes  # the block and the bytes read ahead, for an input that cannot be read again


@dataclass
class InputBlock:
    """Bytes that were encoded together."""

    data: bytes
    elements: Elements
    taken: int = 0


class Source:
    """The elements of an input in order; `load` some, then `take` them."""

    def __init__(self, data: Input, encoder: Encoder, wait: Wait | None = None) -> None:
        self.encoder = encoder
        self.name, self._read, self._file = _reader(data, wait)
        self._start = 0 if self._file is None else self._file.tell()
        self._owns_file = isinstance(data, str | os.PathLike)
        self.offset, self.line = 0, 0
        self._blocks: deque[InputBlock] = deque()
        self._data = b""  # read, not yet encoded
        self._ended = False
        self._hash = hashlib.sha256() if self._file is not None else None

    @property
    def size(self) -> int | None:
        """Size in bytes of a file from its first position; None if the size is unknown."""
        file = self._file
        return None if file is None else os.fstat(file.fileno()).st_size - self._start

    @property
    def bytes_read(self) -> int:
        """Bytes read and encoded so far, approximately, for a progress bar."""
        return self.offset + sum(len(block.data) for block in self._blocks)

    @property
    def loaded(self) -> int:
        """Number of elements that can be taken now."""
        return sum(len(block.elements) - block.taken for block in self._blocks)

    def load(self, count: int) -> int:
        """Load `count` elements, fewer only at the end of the input; return how many are loaded."""
        while self.loaded < count and not (self._ended and not self._data):
            if not self._ended:
                data = self._read_more()
                self._ended = not data
                self._data += data
            elements, used = self._encode()
            if used:
                self._blocks.append(InputBlock(self._data[:used], elements))
                self._data = self._data[used:]
        return min(self.loaded, count)

    def take(self, count: int) -> Elements:
        """Return the next `count` elements, which must be loaded."""
        parts = []
        while count:
            self._drop_blocks()
            block = self._blocks[0]
            part = block.elements[block.taken : block.taken + count]
            block.taken += len(part)
            count -= len(part)
            parts.append(part)
        self._drop_blocks()
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def position(self) -> SourcePosition:
        """Return the position after the last element taken."""
        taken = self._blocks[0].taken if self._blocks else 0
        data = self._blocks[0].data if taken else b""
        read = self.offset + len(data)
        if self._hash is not None:
            digest = self._hash.copy()
            digest.update(data)
            return SourcePosition(self.offset, self.line, taken, read, digest.hexdigest(), b"")
        unread = b"".join(block.data for block in self._blocks) + self._data
        return SourcePosition(self.offset, self.line, taken, read, None, unread)

    def restore(self, position: SourcePosition) -> None:
        """Continue at the position of another source of the same input."""
        self.offset, self.line = position.offset, position.line
        if self._file is not None and position.sha256 is not None:
            self._skip(self._file, position)
        elif self._file is None and position.sha256 is None:
            self._restore_unread(position.unread)
        else:
            before, now = ("a file", "a pipe") if position.sha256 else ("a pipe", "a file")
            raise ThreefoldError(
                f"{self.name}: the state was saved while reading {before}, but this is {now}; "
                "continue with the same kind of input"
            )
        if self.load(position.taken) < position.taken:
            raise ThreefoldError(
                f"{self.name}: the input ends before the position at which the state was saved"
            )
        if position.taken:
            self.take(position.taken)

    def _restore_unread(self, unread: bytes) -> None:
        """Begin with bytes that were read from a pipe before, but not yet used."""
        self._data = unread
        elements, used = self._encode()
        self._blocks = deque([InputBlock(self._data[:used], elements)] if used else [])
        self._data = self._data[used:]

    def close(self) -> None:
        """Close the file if it was opened here."""
        if self._file is not None and self._owns_file:
            self._file.close()

    def _read_more(self) -> bytes:
        try:
            return self._read(READ_BYTES)
        except OSError as error:
            raise ThreefoldError(
                f"{self.name}: reading failed ({error.strerror or error})"
            ) from error

    def _encode(self) -> tuple[Elements, int]:
        settings = self.encoder.settings()
        try:
            return self.encoder.encode(self._data, self._ended)
        except UnreadableError as error:
            if error.at:  # the elements before the error are valid
                self.encoder.restore(settings)
                elements, used = self.encoder.encode(self._data[: error.at], False)
                if used:
                    return elements, used
            loaded = b"".join(block.data for block in self._blocks)
            before = loaded + self._data[: error.at]
            line = self.line + before.count(b"\n") + 1
            byte = self.offset + len(before)
            raise ThreefoldError(f"{self.name}:{line}: {error} (byte {byte:,})") from error

    def _drop_blocks(self) -> None:
        """Drop the blocks from which all elements have been taken."""
        while self._blocks and self._blocks[0].taken == len(self._blocks[0].elements):
            data = self._blocks.popleft().data
            self.offset += len(data)
            self.line += data.count(b"\n")
            if self._hash is not None:
                self._hash.update(data)

    def _skip(self, file: IO[bytes], position: SourcePosition) -> None:
        """Move to a position in a file, after checking that the bytes before it are the same."""
        size = self.size or 0
        if size < position.read:
            raise ThreefoldError(
                f"{self.name}: has {size:,} bytes, but the state was saved after "
                f"{position.read:,}, so the file was truncated or replaced; use the same file, or "
                "start again without the state"
            )
        self._hash = hashlib.sha256()
        _hash_bytes(self._hash, file, position.offset)
        with_block = self._hash.copy()
        _hash_bytes(with_block, file, position.read - position.offset)
        sha256 = with_block.hexdigest()
        if sha256 != position.sha256:
            raise ThreefoldError(
                f"{self.name}: the first {position.read:,} bytes have changed since the state was "
                f"saved (SHA-256 {sha256[:12]}, in the state {str(position.sha256)[:12]}); use the "
                "same file, or start again without the state"
            )
        file.seek(self._start + position.offset)


def _hash_bytes(digest: Any, file: IO[bytes], size: int) -> None:
    """Add the next `size` bytes of a file to a hash."""
    while size:
        data = file.read(min(size, HASH_BYTES))
        size -= len(data)
        digest.update(data)


def _reader(data: Any, wait: Wait | None) -> tuple[str, Callable[[int], bytes], IO[bytes] | None]:
    """Return a name, a function that reads up to n bytes (none at the end), and the file."""
    name = str(getattr(data, "name", "input"))
    if isinstance(data, str | os.PathLike):
        name, data = os.fspath(data), _open(Path(data))
    if isinstance(data, bytes):
        chunks = (data[first : first + READ_BYTES] for first in range(0, len(data), READ_BYTES))
        return name, _chunk_reader(chunks), None
    descriptor = _descriptor(data)
    if descriptor is not None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return name, data.read, data
        return name, lambda size: _read_pipe(data, size, wait), None
    if hasattr(data, "read"):
        return name, data.read, None
    if isinstance(data, Iterable):
        return name, _chunk_reader(iter(data)), None
    raise ThreefoldError(
        f"stream: the source has type {type(data).__name__}, expected a path, a binary file, "
        "bytes, or an iterable of bytes or strings"
    )


def _open(path: Path) -> IO[bytes]:
    if not path.exists():
        raise ThreefoldError(f"{path}: file not found")
    if path.is_dir():
        raise ThreefoldError(f"{path}: this is a folder; expected a file, or - for standard input")
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise ThreefoldError(f"{path}: cannot be read ({error.strerror})") from error


def _descriptor(data: Any) -> int | None:
    """Return the file descriptor; None for a file object without one."""
    try:
        return int(data.fileno())
    except (AttributeError, OSError):
        return None


def _read_pipe(pipe: IO[bytes], size: int, wait: Wait | None) -> bytes:
    descriptor = pipe.fileno()
    if wait is not None and not wait(descriptor):
        raise WaitInterruptedError
    return os.read(descriptor, size)


def _chunk_reader(chunks: Iterator[bytes | str]) -> Callable[[int], bytes]:
    def read(size: int) -> bytes:
        for chunk in chunks:
            if not isinstance(chunk, str | bytes | bytearray | memoryview):
                raise ThreefoldError(
                    f"stream: the source yields {type(chunk).__name__}, expected bytes or strings; "
                    "give elements as a list, an array or a tensor"
                )
            data = chunk.encode() if isinstance(chunk, str) else bytes(chunk)
            if data:
                return data
        return b""

    return read
