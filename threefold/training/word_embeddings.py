"""E[token] = c · vector(word),  x = √width · E[token]: an embedding that starts from word vectors.

A token of a word tokenizer starts from the vector of its word, without the space before it and in
lower case if only that is known; in pretraining every token has a vector of its own, learnt from
its neighbours.  The deviation of E is width^(−½), so that of x and of tied logits is 1: blocks with
random weights then add to what the vectors say, and do not drown it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from threefold.classical.document_vectors import document_vectors
from threefold.classical.word_vectors import WordVectors
from threefold.data.tokenizers import WordTokenizer
from threefold.errors import ThreefoldError
from threefold.models.model import Model
from threefold.training.config import ModelSettings

Array = NDArray[Any]
MINIMUM_COUNT = 3  # of a token that has a vector


def with_scale(model: ModelSettings) -> ModelSettings:
    """The settings of a model whose embedding is multiplied by √width, if they do not say."""
    return model.model_copy(update={"options": {"scale_embedding": True, **model.options}})


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
    tokens, rows = [], []
    for token, part in enumerate(tokenizer.parts):
        word = part.decode("utf-8", "replace").strip()
        word = word if word in vectors else word.lower()
        if word in vectors:
            tokens.append(token)
            rows.append(vectors.vector(word))
    if not tokens:
        raise ThreefoldError(f"none of the {len(tokenizer.parts):,} tokens has a vector in {path}")
    _write(model, tokens, rows)
    return len(tokens)


def start_from_neighbours(model: Model, inputs: Sequence[Array], passes: int, seed: int) -> int:
    """Start the embedding from vectors of the tokens of inputs; returns how many have one."""
    sentences = [list(map(str, row.tolist())) for row in inputs]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # only then is the result the same every time
    try:
        vectors = WordVectors.fit(
            sentences, width=model.spec.width, passes=passes, minimum_count=MINIMUM_COUNT, seed=seed
        )
    finally:
        torch.set_num_threads(threads)
    _write(model, [int(word) for word in vectors.words], [vectors.vector(w) for w in vectors.words])
    return len(vectors)


def start_from_documents(model: Model, documents: Sequence[Array], seed: int) -> int:
    """Start the embedding from the documents that tokens share; returns how many have a vector."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # only then is the result the same every time
    try:
        found = document_vectors(
            documents, model.spec.width, minimum_count=MINIMUM_COUNT, seed=seed
        )
    finally:
        torch.set_num_threads(threads)
    if len(found.words):
        _write(model, found.words.tolist(), list(found.vectors))
    return len(found.words)


def _write(model: Model, tokens: Sequence[int], rows: Sequence[Array]) -> None:
    """Write the vectors of tokens to the embedding, in its own size."""
    weight = model.get_submodule("embedding").weight
    assert isinstance(weight, torch.Tensor)
    started = torch.from_numpy(np.stack(rows)).to(weight)
    size = model.spec.width**-0.5 / started.square().mean().sqrt()
    with torch.no_grad():
        weight[torch.tensor(tokens, device=weight.device)] = started * size
