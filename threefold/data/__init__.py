"""Readers, tokenizers and loaders; knows nothing of models.

Names are imported when they are first used, so that what needs no torch does not import it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threefold.data.documents import Documents
    from threefold.data.loaders import IGNORE, Batch, Batches, Examples, TokenStream, Windows
    from threefold.data.python_manual import python_reference, split
    from threefold.data.shuffling import Buckets, Shuffle
    from threefold.data.token_files import TokenFile, tokenize, write_tokens
    from threefold.data.tokenizers import (
        BPETokenizer,
        ByteTokenizer,
        CharacterTokenizer,
        WordTokenizer,
    )

_HOMES = {
    "documents": ("Documents",),
    "shuffling": ("Buckets", "Shuffle"),
    "loaders": ("IGNORE", "Batch", "Batches", "Examples", "TokenStream", "Windows"),
    "python_manual": ("python_reference", "split"),
    "token_files": ("TokenFile", "tokenize", "write_tokens"),
    "tokenizers": ("ByteTokenizer", "CharacterTokenizer", "BPETokenizer", "WordTokenizer"),
}

__all__ = [
    "IGNORE",
    "BPETokenizer",
    "Batch",
    "Batches",
    "Buckets",
    "ByteTokenizer",
    "CharacterTokenizer",
    "Documents",
    "Examples",
    "Shuffle",
    "TokenFile",
    "TokenStream",
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
