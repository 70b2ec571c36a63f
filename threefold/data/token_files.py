"""Token files: memory-mapped, so that a corpus larger than memory can be used for training.

    magic · version · bytes per token · tokens · vocabulary · documents   64 bytes
    tokens                                                                uint8, uint16 or uint32
    start positions of documents                                          int64, after padding to 8

A file is written chunk by chunk under a temporary name, and renamed when it is complete.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threefold.data.atomic_files import write_file
from threefold.data.readers import file_error, read_byte_chunks, read_text_chunks
from threefold.data.tokenizers import ByteTokenizer, Tokenizer, Tokens, smallest_dtype
from threefold.errors import ThreefoldError

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
                path, None, "not a token file; write one with threefold.data.write_tokens"
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


def tokenize(paths: Iterable[Path], tokenizer: Tokenizer) -> Iterator[TokenChunk]:
    """The tokens of files in chunks; each file is a document.  Byte tokens need no valid UTF-8."""
    for path in paths:
        if isinstance(tokenizer, ByteTokenizer):
            encoded: Iterator[Tokens] = map(tokenizer.encode, read_byte_chunks(path))
        else:
            encoded = map(tokenizer.encode, read_text_chunks(path))
        begins = True
        try:
            for tokens in encoded:
                yield tokens, begins
                begins = False
        except ThreefoldError as error:
            has_path = str(error).startswith(str(path))
            raise error if has_path else file_error(path, None, str(error)) from error


def _padded(position: int) -> int:
    return -(-position // 8) * 8
