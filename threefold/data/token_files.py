"""Token files: memory-mapped, so that a corpus larger than memory can be used for training.

    magic · version · bytes per token · tokens · vocabulary · documents   64 bytes
    tokens                                                                uint8, uint16 or uint32
    start positions of documents                                          int64, after padding to 8

A file is written chunk by chunk under a temporary name, and renamed when it is complete.  A token
folder has the tokens and their tokenizer.
"""

from __future__ import annotations

import json
import re
import struct
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threefold.data.atomic_files import json_text, write_file, write_folder
from threefold.data.readers import file_error, read_line_chunks, read_text, read_text_chunks
from threefold.data.tokenizers import (
    ByteTokenizer,
    Tokenizer,
    Tokens,
    describe_tokenizer,
    make_tokenizer,
    smallest_dtype,
)
from threefold.errors import ThreefoldError

TOKENS_FILE, TOKENIZER_FILE = "data.tokens", "tokenizer.json"  # of a token folder
MAGIC = b"3FTOKENS"
VERSION = 1
HEADER = struct.Struct("<8sIIQQQ24x")
TOKEN_DTYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32}

TokenChunk = tuple[Tokens, bool]  # tokens, and whether a document begins with them


class TokenFile:
    """A memory-mapped file of tokens: only the parts that are read are in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                head = file.read(HEADER.size)
        except OSError as error:
            raise file_error(path, None, f"cannot be read ({error.strerror})") from error
        if len(head) < HEADER.size or head[:8] != MAGIC:
            raise file_error(
                path, None, "not a token file; write one with `threefold data tokenize`"
            )
        _, version, width, count, self.vocabulary, documents = HEADER.unpack(head)
        if version != VERSION or width not in TOKEN_DTYPES:
            what = f"version {version} with {width} bytes per token"
            raise file_error(
                path, None, f"{what}; this version of Threefold reads version {VERSION}"
            )
        behind = _padded(HEADER.size + count * width)
        if size != behind + 8 * documents:
            raise file_error(
                path, None, f"truncated: {size} bytes, expected {behind + 8 * documents}"
            )
        kind = TOKEN_DTYPES[width]
        self.tokens: Tokens = _mapped(path, kind, HEADER.size, count)
        self.starts: NDArray[np.int64] = _mapped(path, np.int64, behind, documents)

    def __len__(self) -> int:
        return len(self.tokens)


def _mapped(path: Path, kind: Any, offset: int, count: int) -> NDArray[Any]:
    if count == 0:
        return np.zeros(0, kind)
    return np.memmap(path, kind, "r", offset, (count,))


def write_tokens(path: Path, chunks: Iterable[TokenChunk], vocabulary: int) -> TokenFile:
    """Write chunks of tokens one after another; if that fails, an existing file stays as it is."""
    kind = np.dtype(smallest_dtype(vocabulary))

    def write(new: Path) -> None:
        count, starts = 0, array("q")
        with new.open("wb") as file:
            file.write(bytes(HEADER.size))
            for tokens, begins in chunks:
                if begins:
                    starts.append(count)
                _check_tokens(tokens, vocabulary, count)
                file.write(tokens.astype(kind).tobytes())
                count += len(tokens)
            if count == 0:
                raise ThreefoldError(f"{path}: no tokens to write")
            end = HEADER.size + count * kind.itemsize
            file.write(bytes(_padded(end) - end))
            file.write(np.asarray(starts, dtype=np.int64).tobytes())
            file.seek(0)
            head = (MAGIC, VERSION, kind.itemsize, count, vocabulary, len(starts))
            file.write(HEADER.pack(*head))

    write_file(path, write)
    return TokenFile(path)


def _check_tokens(tokens: Tokens, vocabulary: int, position: int) -> None:
    """Refuse tokens outside of the vocabulary; position: tokens before these."""
    if len(tokens) and (tokens.min() < 0 or tokens.max() >= vocabulary):
        index = int(np.argmax((tokens < 0) | (tokens >= vocabulary)))
        raise ThreefoldError(f"token {position + index} is outside of 0 to {vocabulary - 1}")


def tokenize(
    paths: Iterable[Path], tokenizer: Tokenizer, separator: str | None = None
) -> Iterator[TokenChunk]:
    """The tokens of files in chunks.  Byte tokens need no valid UTF-8.

    Each file is a document, or several with lines between them that have only the `separator`; ""
    stands for empty lines.
    """
    for path in paths:
        as_bytes = isinstance(tokenizer, ByteTokenizer)
        chunks: Iterator[Any] = read_line_chunks(path) if as_bytes else read_text_chunks(path)
        begins = True
        try:
            for part, is_new in cut_documents(chunks, separator, as_bytes):
                tokens = tokenizer.encode(part)
                begins = begins or is_new
                if len(tokens):
                    yield tokens, begins
                    begins = False
        except ThreefoldError as error:
            has_path = str(error).startswith(str(path))
            raise error if has_path else file_error(path, None, str(error)) from error


def cut_documents(
    chunks: Iterable[Any], separator: str | None, as_bytes: bool = False
) -> Iterator[tuple[Any, bool]]:
    """Parts of chunks, and whether a separator stood before each; chunks end after a line."""
    if separator is None:
        yield from ((chunk, False) for chunk in chunks)
        return
    line = rf"(?m)^{re.escape(separator)}[ \t]*\r?(?:\n|\Z)"
    pattern: Any = re.compile(line.encode() if as_bytes else line)
    for chunk in chunks:
        first, *others = pattern.split(chunk)
        yield first, False
        yield from ((part, True) for part in others)


def write_token_folder(
    folder: Path, paths: Iterable[Path], tokenizer: Tokenizer, separator: str | None = None
) -> TokenFile:
    """Tokenize files into a new folder, complete or not at all."""
    if folder.exists():
        raise ThreefoldError(f"{folder}: exists already; delete it, or choose another name")
    if not folder.parent.is_dir():
        raise ThreefoldError(f"{folder}: cannot be written (no such folder: {folder.parent})")

    def write(new: Path) -> None:
        chunks = tokenize(paths, tokenizer, separator)
        write_tokens(new / TOKENS_FILE, chunks, tokenizer.vocabulary)
        description = json_text(describe_tokenizer(tokenizer))
        (new / TOKENIZER_FILE).write_text(description, encoding="utf-8")

    write_folder(folder, write)
    return TokenFile(folder / TOKENS_FILE)


def find_token_folder(path: Path) -> Path | None:
    """The token folder that a path is, or in which it is the file of tokens; None: neither."""
    if (path / TOKENS_FILE).is_file():
        return path
    return path.parent if path.name == TOKENS_FILE and path.is_file() else None


def read_token_folder(folder: Path) -> tuple[TokenFile, Tokenizer]:
    """The tokens of a folder, memory-mapped, and their tokenizer."""
    file, path = TokenFile(folder / TOKENS_FILE), folder / TOKENIZER_FILE
    try:
        tokenizer = make_tokenizer(json.loads(read_text(path)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise file_error(path, None, f"not the description of a tokenizer ({error})") from error
    if tokenizer.vocabulary != file.vocabulary:
        raise file_error(
            path, None, f"has {tokenizer.vocabulary} tokens, but {TOKENS_FILE} {file.vocabulary}"
        )
    return file, tokenizer


def _padded(position: int) -> int:
    return -(-position // 8) * 8
