"""Corpora, tokenizers and the cutting of tokens into batches; knows nothing of models."""

from __future__ import annotations

from threefold.data.stream import IGNORE, Batch, Batches, Examples, Stream, Windows
from threefold.data.text import python_reference, split
from threefold.data.tokenizers import ByteTokenizer

__all__ = [
    "IGNORE",
    "Batch",
    "Batches",
    "ByteTokenizer",
    "Examples",
    "Stream",
    "Windows",
    "python_reference",
    "split",
]
