"""E[token] = c · vector(word): an embedding that starts from word vectors

A token of a word tokenizer starts from the vector of its word, without the space before it and in
lower case if only that is known.  c gives the vectors the size of the other initial weights.
"""

from __future__ import annotations

from pathlib import Path

import torch

from threefold.classical.word_vectors import WordVectors
from threefold.data.tokenizers import WordTokenizer
from threefold.errors import ThreefoldError
from threefold.models.model import Model
from threefold.training.config import ModelSettings


def with_width_of(vectors: WordVectors, model: ModelSettings) -> ModelSettings:
    """The settings of the model, with the vectors' width unless another is asked for."""
    if model.width is None:
        return model.model_copy(update={"width": vectors.width})
    if model.width != vectors.width:
        raise ThreefoldError(
            f"model.width is {model.width}, but the vectors of {model.embedding} have "
            f"{vectors.width} numbers; leave the width out, or train vectors of that width "
            f"(`threefold words train TEXT --width {model.width}`)"
        )
    return model


def start_embedding(model: Model, vectors: WordVectors, path: str | Path) -> int:
    """Start the embedding of a model from word vectors; returns how many tokens have one."""
    tokenizer = model.tokenizer
    if not isinstance(tokenizer, WordTokenizer):
        raise ThreefoldError(
            f"word vectors need a model that reads words; set data.tokenizer to word to use {path}"
        )
    weight = model.get_submodule("embedding").weight
    assert isinstance(weight, torch.Tensor)
    tokens, rows = [], []
    for token, part in enumerate(tokenizer.parts):
        word = part.decode("utf-8", "replace").strip()
        word = word if word in vectors else word.lower()
        if word in vectors:
            tokens.append(token)
            rows.append(vectors.vector(word))
    if not tokens:
        raise ThreefoldError(f"none of the {len(tokenizer.parts):,} tokens has a vector in {path}")
    started = torch.stack([torch.from_numpy(row) for row in rows]).to(weight)
    with torch.no_grad():
        size = weight.square().mean().sqrt() / started.square().mean().sqrt()
        weight[torch.tensor(tokens, device=weight.device)] = started * size
    return len(tokens)
