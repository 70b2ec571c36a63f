"""A user's text: windows of its tokens, for a language model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.readers import read_bytes, read_text
from threefold.data.tokenizers import ByteTokenizer
from threefold.errors import ThreefoldError
from threefold.tasks.language_modelling import (
    check_tokenizer_name,
    count_windows,
    cut_windows,
    split_by_position,
    tokenize_splits,
    unigram_bits,
)
from threefold.tasks.task import Corpus, Numbers, Task, declare_user_task


def text_task(
    files: Sequence[Path],
    name: str,
    tokenizer: str | None,
    vocabulary: int,
    length: int | None,
) -> Task[Batch]:
    """Windows of a text; the files are joined in the given order."""
    tokenizer, length = tokenizer or "byte", length or 256
    check_tokenizer_name(name, tokenizer)
    corpus = _read_corpus(files, tokenizer, vocabulary)
    sizes = count_windows(corpus, length)
    if min(sizes) < 1:
        total = sum(map(len, corpus.tokens.values()))
        raise ThreefoldError(
            f"{name}: {total} tokens are too few: each split (90, 5 and 5 per cent) needs at least "
            f"{length + 1}; give more text, or a length below {length}"
        )

    def draw(split: str, numbers: Numbers) -> Batch:
        return cut_windows(corpus.tokens[split], numbers, length)

    return declare_user_task(
        name,
        draw,
        kind="language",
        domain="language",
        length=length,
        sizes=sizes,
        metric="bits",
        chance=unigram_bits(corpus),
        vocabulary=corpus.tokenizer.vocabulary,
        classes=corpus.tokenizer.vocabulary,
        corpus=lambda: corpus,
    )


def _read_corpus(files: Sequence[Path], tokenizer: str, vocabulary: int) -> Corpus:
    if tokenizer == "byte":
        content = np.frombuffer(b"\n".join(map(read_bytes, files)), np.uint8)
        return Corpus(split_by_position(content), ByteTokenizer())
    texts = split_by_position("\n".join(map(read_text, files)))
    return tokenize_splits(texts, tokenizer, vocabulary)
