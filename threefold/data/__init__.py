"""Corpora, readers, tokenizers and loaders; knows nothing of models.

Names are imported when first used: what needs no torch does not wait for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threefold.data.documents import Documents, Packed
    from threefold.data.order import Buckets, Shuffle
    from threefold.data.stream import IGNORE, Batch, Batches, Examples, Stream, Windows
    from threefold.data.text import python_reference, split
    from threefold.data.token_files import TokenFile, tokenize, write_tokens
    from threefold.data.tokenizers import (
        ByteTokenizer,
        CharacterTokenizer,
        PairTokenizer,
        WordTokenizer,
    )

_HOMES = {
    "documents": ("Documents", "Packed"),
    "order": ("Buckets", "Shuffle"),
    "stream": ("IGNORE", "Batch", "Batches", "Examples", "Stream", "Windows"),
    "text": ("python_reference", "split"),
    "token_files": ("TokenFile", "tokenize", "write_tokens"),
    "tokenizers": ("ByteTokenizer", "CharacterTokenizer", "PairTokenizer", "WordTokenizer"),
}

__all__ = [
    "IGNORE",
    "Batch",
    "Batches",
    "Buckets",
    "ByteTokenizer",
    "CharacterTokenizer",
    "Documents",
    "Examples",
    "Packed",
    "PairTokenizer",
    "Shuffle",
    "Stream",
    "TokenFile",
    "Windows",
    "WordTokenizer",
    "python_reference",
    "split",
    "tokenize",
    "write_tokens",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"threefold.data.{home}"), name)
    raise AttributeError(f"module 'threefold.data' has no attribute {name!r}")
