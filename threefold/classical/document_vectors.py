"""Vectors of words from the documents in which they occur: latent semantic analysis.

    A_dw = log(N / N_w) if word w occurs in document d, else 0          N_w of N documents have w
    A ≈ U S Vᵀ of rank k,     v_w = log(N / N_w) · √S ⊙ V_w

Words of the same documents get similar vectors and words of many documents short ones, so that the
mean over the words of a document says what it is about.
Deerwester et al. 1990, "Indexing by Latent Semantic Analysis"; Halko, Martinsson and Tropp 2011,
"Finding Structure with Randomness" (subspace iteration).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
SPARE = 16  # directions beyond those that are wanted
ITERATIONS = 6


class DocumentVectors(NamedTuple):
    """The words that have a vector, and their vectors [words, width]."""

    words: Array
    vectors: Array


def document_vectors(
    documents: Sequence[Array], width: int, *, minimum_count: int = 3, seed: int = 0
) -> DocumentVectors:
    """Vectors of the words that occur in `minimum_count` documents or more; words are numbers."""
    lengths = [len(document) for document in documents]
    rows = np.repeat(np.arange(len(documents)), lengths)
    words, columns = np.unique(np.concatenate(documents), return_inverse=True)
    pairs = np.unique(rows.astype(np.int64) * len(words) + columns)
    rows, columns = pairs // len(words), pairs % len(words)
    counts = np.bincount(columns, minlength=len(words))
    kept = counts >= minimum_count
    if not kept.any():
        return DocumentVectors(words[:0], np.zeros((0, width), np.float32))
    rarity = np.log(len(documents) / np.maximum(counts, 1))
    inside = kept[columns]
    places = np.cumsum(kept) - 1
    indices = torch.from_numpy(np.stack([rows[inside], places[columns[inside]]]))
    values = torch.from_numpy(rarity[columns[inside]])
    size = (len(documents), int(kept.sum()))
    directions, sizes = _leading(indices, values, size, width, seed)
    vectors = torch.from_numpy(rarity[kept]).unsqueeze(1) * directions * sizes.sqrt()
    wide = torch.zeros(size[1], width, dtype=vectors.dtype)
    wide[:, : vectors.shape[1]] = vectors
    return DocumentVectors(words[kept], wide.numpy())


def _leading(
    indices: Tensor, values: Tensor, size: tuple[int, int], rank: int, seed: int
) -> tuple[Tensor, Tensor]:
    """The right singular vectors [columns, rank] of a sparse matrix, and its singular values."""
    matrix, transposed = (
        torch.sparse_coo_tensor(pairs, values, shape, check_invariants=True).coalesce()
        for pairs, shape in ((indices, size), (indices.flip(0), size[::-1]))
    )
    random = torch.Generator().manual_seed(seed)
    tried = min(rank + SPARE, *size)
    basis = torch.randn(size[1], tried, dtype=torch.float64, generator=random)
    for _ in range(ITERATIONS):
        basis, _ = torch.linalg.qr(torch.sparse.mm(transposed, torch.sparse.mm(matrix, basis)))
    _, sizes, rotation = torch.linalg.svd(torch.sparse.mm(matrix, basis), full_matrices=False)
    found = min(rank, tried)
    return (basis @ rotation.T)[:, :found], sizes[:found]
