"""Read text and parallel text; every error names the file and the line.

verses.tsv:17: 3 columns; expected two texts with a tab between
"""

from __future__ import annotations

import gzip
import stat
import zlib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import IO, Any

from threefold.errors import ThreefoldError

LONGEST_LINE = 1 << 26  # bytes, in a table; the lines of a text may have any length
CHUNK_BYTES = 1 << 20  # read at a time
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def checked_path(name: str, value: Any, otherwise: str = "") -> Path:
    """The path that a user gave as the argument `name`; anything else is refused."""
    if value == "":  # Path("") would be the current folder
        raise ThreefoldError(f"{name} is empty; expected a path{otherwise}")
    if isinstance(value, str | PathLike):
        path = Path(value)
        if "\0" not in str(path):
            return path
    raise ThreefoldError(f"{name} is {value!r}; expected a path{otherwise}")


def file_error(path: Path, line: int | None, what: str) -> ThreefoldError:
    """An error that begins with the file and the line."""
    name = str(path).encode(errors="backslashreplace").decode()  # names may have any bytes
    position = name if line is None else f"{name}:{line}"
    return ThreefoldError(f"{position}: {what}")


def refuse_irregular(path: Path) -> None:
    """Refuse pipes, devices and folders: a pipe without a writer and /dev/zero never end."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise file_error(path, None, "a folder; expected a file")
    if not stat.S_ISREG(mode):
        what = "not a regular file; a pipe or a device can be read with `threefold stream`"
        raise file_error(path, None, what)


def read_bytes(path: Path) -> bytes:
    """The content of a file, which must not be empty."""
    try:
        refuse_irregular(path)
        content = path.read_bytes()
    except OSError as error:
        raise file_error(path, None, f"cannot be read ({error.strerror})") from error
    if not content:
        raise file_error(path, None, "the file is empty")
    return content


# ---------------------------------------------------------------------------------- text


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of a file."""
    return decode_text(read_bytes(path), path, encoding)


def decode_text(content: bytes, name: Path | str, encoding: str = "utf-8") -> str:
    """Decode the content of a file, or say at which line it cannot be decoded."""
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise file_error(
            Path(name), line, _undecodable(content[error.start], column, encoding)
        ) from error


def text_files(folder: Path, patterns: Sequence[str] = ("*.txt",)) -> list[Path]:
    """All files below a folder that match a pattern, in the order of their paths."""
    if not folder.is_dir():
        raise file_error(folder, None, "no such folder")
    files = [path for path in folder.rglob("*") if path.is_file()]
    matching = [path for path in files if any(fnmatchcase(path.name, p) for p in patterns)]
    if not matching:
        raise file_error(folder, None, f"contains no file {' or '.join(patterns)}")
    return sorted(matching, key=lambda path: path.relative_to(folder).as_posix())


def read_byte_chunks(path: Path, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The bytes of a file of any size, in chunks; .gz is unpacked."""
    try:
        refuse_irregular(path)
        packed = path.suffix.lower() == ".gz"
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            empty = True
            while chunk := file.read(size):
                empty = False
                yield chunk
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise file_error(path, None, f"cannot be unpacked ({error})") from error
    except OSError as error:
        raise file_error(path, None, f"cannot be read ({error.strerror})") from error
    if empty:
        raise file_error(path, None, "the file is empty")


def read_line_chunks(path: Path, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """A text of any size in chunks that end after a line, else before a space, else anywhere.

    So no word is separated from the space before it, and lines may have any length.
    """
    rest = b""
    for chunk in read_byte_chunks(path, size):
        rest += chunk
        cut = rest.rfind(b"\n") + 1 or max(rest.rfind(b" "), 0)
        if cut == 0 and len(rest) >= size:
            cut = _whole_characters(rest)
        if cut:
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest


def read_text_chunks(path: Path, size: int = CHUNK_BYTES) -> Iterator[str]:
    """The chunks of `read_line_chunks` as text."""
    line = 1
    for chunk in read_line_chunks(path, size):
        yield _decoded(path, chunk, line)
        line += chunk.count(b"\n")


def _decoded(path: Path, content: bytes, line: int) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        before = content.count(b"\n", 0, error.start)
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise file_error(
            path, line + before, _undecodable(content[error.start], column, "utf-8")
        ) from error


def _whole_characters(content: bytes) -> int:
    """Where an incomplete last character begins; the length if there is none."""
    end = len(content)
    while end > max(0, len(content) - 4) and content[end - 1] & 0xC0 == 0x80:
        end -= 1
    return end - 1 if end and content[end - 1] >= 0xC0 else len(content)


def _undecodable(byte: int, column: int, encoding: str) -> str:
    return (
        f"byte {column} of the line, 0x{byte:02x}, is not valid {encoding.upper()}; if this is a "
        "text in another encoding, save it as UTF-8, e.g. iconv -f LATIN1 -t UTF-8 FILE > NEW"
    )


def not_found(path: Path) -> ThreefoldError:
    """The error for a file or folder that does not exist."""
    if path.is_symlink():
        target = path.readlink()
        return file_error(path, None, f"a link to {target}, which does not exist or leads back")
    return file_error(path, None, "file or folder not found")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its end); an empty file is refused."""
    try:
        refuse_irregular(path)
        with path.open("rb") as file:
            yield from lines_of(path, file)
    except OSError as error:
        raise file_error(path, None, f"cannot be read ({error.strerror})") from error


def lines_of(path: Path, file: IO[bytes]) -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its end) of an open file."""
    file, number = _plain_lines(path, file), 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            what = f"line longer than {LONGEST_LINE >> 20} MiB; is this a table?"
            raise file_error(path, number, what)
        text = _decoded(path, line, number)
        yield number, (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")
    if number == 0:
        raise file_error(path, None, "the file is empty")


def _plain_lines(path: Path, file: IO[bytes]) -> IO[bytes]:
    """The file in UTF-8, its lines ended by a line feed: UTF-16 begins with a mark of its own."""
    start = file.read(CHUNK_BYTES)
    file.seek(0)
    if start.startswith(UTF_16_MARKS):
        try:
            return BytesIO(file.read().decode("utf-16").encode())
        except UnicodeError as error:
            what = "begins as UTF-16 text, but is damaged; save it as UTF-8"
            raise file_error(path, None, what) from error
    if b"\r" in start and b"\n" not in start:  # as old Macs wrote
        return BytesIO(file.read().replace(b"\r", b"\n"))
    return file


# --------------------------------------------------------------------------------- pairs


def read_pairs(source: Path, target: Path | None = None) -> list[tuple[str, str]]:
    """Read parallel text: two files line by line, or one file with source, tab and target."""
    if target is None:
        pairs = []
        for number, text in read_lines(source):
            parts = text.split("\t")
            if len(parts) != 2 or not all(part.strip() for part in parts):
                raise file_error(
                    source, number, f"{len(parts)} columns; expected two texts with a tab between"
                )
            pairs.append((parts[0].strip(), parts[1].strip()))
        return pairs
    sides = []
    for path in (source, target):
        texts = [(number, text.strip()) for number, text in read_lines(path)]
        empty = next((number for number, text in texts if not text), None)
        if empty is not None:
            raise file_error(path, empty, "the line is empty; expected a text on every line")
        sides.append([text for _, text in texts])
    if len(sides[0]) != len(sides[1]):
        raise ThreefoldError(
            f"{source} has {len(sides[0])} lines, {target} has {len(sides[1])}; expected the same "
            f"number: from line {min(map(len, sides)) + 1} on the other file has none"
        )
    return list(zip(*sides, strict=True))
