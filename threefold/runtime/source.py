"""Elements of an input of any length: a file, a pipe, or chunks of bytes, read a few at a time.

The position is (bytes before the current block, elements taken from that block): from there the
same elements follow again, wherever the block borders lie.  The same file is read again from there,
after the SHA-256 of its beginning has been compared.  An input that holds only what is new (another
file, a pipe) follows the bytes that were read before but not used, which are saved as well: they
are counted by negative offsets, so that messages name the lines of the new input.
"""

from __future__ import annotations

import copy
import hashlib
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from threefold.data.stream_encoders import Elements, Encoder, UnreadableError
from threefold.errors import ThreefoldError, option

READ_BYTES = 1 << 16  # read at a time
HASH_BYTES = 1 << 20  # hashed at a time
CONTINUATIONS = ("same", "new")

# Or lists, arrays and tensors of elements, which `array_source.py` turns into bytes.
Input: TypeAlias = "str | os.PathLike[str] | bytes | IO[bytes] | Iterable[Any]"
Wait: TypeAlias = Callable[[int], bool]


class WaitInterruptedError(Exception):
    """A signal came while waiting for input."""


@dataclass(frozen=True)
class SourcePosition:
    """Where a source is; together with the encoder's settings it is enough to continue."""

    offset: int  # bytes of the input before the current block; negative in saved bytes
    line: int  # lines before it
    taken: int  # elements taken from the block
    read: int  # bytes of the input on which answers depend
    sha256: str | None  # of these bytes; None for an input that cannot be read again
    ended: bool  # whether the input was read to its end
    encoder: dict[str, Any]  # settings of the encoder before the block
    unread: bytes  # the block and the bytes read ahead


@dataclass
class InputBlock:
    """Bytes that were encoded together."""

    data: bytes
    elements: Elements
    encoder: dict[str, Any] = field(default_factory=dict)  # its settings before these bytes
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
            self._encode_block()
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

    def position(self, all_used: bool = False) -> SourcePosition:
        """Return the position after the last element taken.

        all_used: the answers so far depend on everything that was read, so all of it is hashed;
        else a file may change behind the position.
        """
        first = self._blocks[0] if self._blocks else InputBlock(b"", np.zeros(0), {})
        settings = first.encoder if self._blocks else self.encoder.settings()
        unread = b"".join(block.data for block in self._blocks) + self._data
        used = unread if all_used else first.data if first.taken else b""
        digest = None
        if self._hash is not None:
            hashed = self._hash.copy()
            hashed.update(used[max(0, -self.offset) :])
            digest = hashed.hexdigest()
        return SourcePosition(
            self.offset,
            self.line,
            first.taken,
            max(0, self.offset + len(used)),
            digest,
            self._ended,
            copy.deepcopy(settings),
            unread,
        )

    def restore(self, position: SourcePosition, continue_with: str | None = None) -> bool:
        """Continue where another source stopped; returns whether this is a new input.

        continue_with: "same" for the same file, perhaps grown, "new" for an input that holds only
        what follows; None is the same file, or for a pipe that was read before what follows.
        """
        self.encoder.restore(position.encoder)
        is_new = self._choose(position, continue_with) == "new"
        if not is_new:
            assert self._file is not None  # `_choose` has checked it
            self.offset, self.line = position.offset, position.line
            self._skip(self._file, position)
            self._restore_unread(position.unread[: max(0, -position.offset)], whole=True)
        else:
            unread = position.unread
            whole = position.ended or continue_with == "new"
            if self.encoder.line_by_line and whole and unread and not unread.endswith(b"\n"):
                # A pipe that was interrupted may have ended in the middle of a line.
                unread = unread + b"\n" if position.ended else unread[: unread.rfind(b"\n") + 1]
            self.offset, self.line = -len(unread), -unread.count(b"\n")
            self._restore_unread(unread, whole)
        if self.load(position.taken) < position.taken:
            raise ThreefoldError(
                f"{self.name}: the input ends before the position at which the state was saved"
            )
        if position.taken:
            self.take(position.taken)
        return is_new

    def _choose(self, position: SourcePosition, continue_with: str | None) -> str:
        """Whether this is the same input or a new one, as told; what is unclear is refused."""
        if continue_with not in (None, *CONTINUATIONS):
            raise ThreefoldError(
                f"continue_with is {continue_with!r}; expected {' or '.join(CONTINUATIONS)}"
            )
        is_file, was_file = self._file is not None, position.sha256 is not None
        if continue_with == "new":
            if was_file and not position.ended:
                raise ThreefoldError(
                    f"{self.name}: the state was saved before the end of its file; first continue "
                    "with the same file, then with new ones"
                )
            return "new"
        if is_file and was_file:
            return "same"
        before, now = (("a pipe", "a file")[kind] for kind in (was_file, is_file))
        if continue_with == "same":
            raise ThreefoldError(
                f"{self.name}: {now}, but the state was saved while reading {before}; only a file "
                f"can be the same: use {option('continue_with', 'new')} for an input that holds "
                "what follows"
            )
        if is_file != was_file:
            raise ThreefoldError(
                f"{self.name}: the state was saved while reading {before}, but this is {now}; "
                f"continue with the same kind of input, or say {option('continue_with', 'new')} if "
                "it holds only what follows"
            )
        return "new"

    def _restore_unread(self, unread: bytes, whole: bool) -> None:
        """Begin with bytes that were read before, but not yet used; whole: up to a line's end."""
        self._blocks.clear()
        if self.encoder.line_by_line and whole:
            if unread:
                self._data = unread
                self._encode_block()
            if self.offset <= 0:
                self.encoder.restart()
        elif unread:
            self._data = unread
            self._encode_block()

    def _encode_block(self) -> None:
        settings = copy.deepcopy(self.encoder.settings())
        elements, used = self._encode()
        if used:
            self._blocks.append(InputBlock(self._data[:used], elements, settings))
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
            data, offset = self._blocks.popleft().data, self.offset
            self.offset += len(data)
            self.line += data.count(b"\n")
            if self._hash is not None:
                self._hash.update(data[max(0, -offset) :])

    def _skip(self, file: IO[bytes], position: SourcePosition) -> None:
        """Move to a position in a file, after checking that the bytes before it are the same."""
        size = self.size or 0
        if size < position.read:
            raise ThreefoldError(
                f"{self.name}: has {size:,} bytes, but the state was saved after "
                f"{position.read:,}, so the file was truncated or replaced; use the same file, or "
                f"start again without the state ({option('continue_with', 'new')} if this file "
                "holds only what follows)"
            )
        offset = max(0, position.offset)
        self._hash = hashlib.sha256()
        _hash_bytes(self._hash, file, offset)
        with_block = self._hash.copy()
        _hash_bytes(with_block, file, position.read - offset)
        sha256 = with_block.hexdigest()
        if sha256 != position.sha256:
            raise ThreefoldError(
                f"{self.name}: the first {position.read:,} bytes have changed since the state was "
                f"saved (SHA-256 {sha256[:12]}, in the state {str(position.sha256)[:12]}); use the "
                f"same file, or start again without the state ({option('continue_with', 'new')} if "
                "this file holds only what follows)"
            )
        file.seek(self._start + offset)


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
        name = os.fspath(data).encode(errors="backslashreplace").decode()  # may have any bytes
        data = _open(Path(data), name, wait is not None)
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


def _open(path: Path, name: str, waits: bool) -> IO[bytes]:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ThreefoldError(
                f"{name}: this is a folder; expected a file, or - for standard input"
            )
        # Opening a pipe without a writer would block, and no signal could end it.
        flags = os.O_NONBLOCK if waits and stat.S_ISFIFO(mode) else 0
        return open(os.open(path, os.O_RDONLY | flags), "rb", buffering=0)
    except FileNotFoundError as error:
        raise ThreefoldError(f"{name}: file not found") from error
    except OSError as error:
        raise ThreefoldError(f"{name}: cannot be read ({error.strerror})") from error


def _descriptor(data: Any) -> int | None:
    """Return the file descriptor; None for a file object without one."""
    try:
        return int(data.fileno())
    except (AttributeError, OSError):
        return None


def _read_pipe(pipe: IO[bytes], size: int, wait: Wait | None) -> bytes:
    descriptor = pipe.fileno()
    while True:
        if wait is not None and not wait(descriptor):
            raise WaitInterruptedError
        try:
            return os.read(descriptor, size)
        except BlockingIOError:  # another reader was faster
            continue


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
