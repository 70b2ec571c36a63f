"""Vectors of words from the documents that they share, beside a dense decomposition."""

from __future__ import annotations

import numpy as np

from threefold.classical.document_vectors import document_vectors


def test_vectors_are_the_leading_directions_of_the_documents() -> None:
    draw = np.random.default_rng(0)
    # Three subjects with ten words each, beside twenty words that occur anywhere.
    documents = [
        np.concatenate([draw.integers(0, 20, 10), 20 + 10 * (n % 3) + draw.integers(0, 10, 6)])
        for n in range(300)
    ]
    documents.append(np.array([70, 71]))  # too rare for a vector
    words, vectors = document_vectors(documents, 2)
    assert words.tolist() == list(range(50)) and vectors.shape == (50, 2)
    occurs = np.zeros((301, 50))
    for number, document in enumerate(documents[:-1]):
        occurs[number, document] = 1
    rarity = np.log(301 / occurs.sum(0))
    _, sizes, right = np.linalg.svd(occurs * rarity, full_matrices=False)
    wanted = rarity[:, None] * right[:2].T * np.sqrt(sizes[:2])
    assert np.allclose(np.abs(vectors @ vectors.T), np.abs(wanted @ wanted.T), atol=1e-4)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    subject = [units[20 + 10 * n : 30 + 10 * n] for n in range(3)]
    assert (subject[0] @ subject[0].T).min() > 0.9
    assert (subject[0] @ subject[1].T).max() < 0.5
    again = document_vectors(documents, 2)
    assert np.array_equal(again.vectors, vectors)


def test_few_documents_and_words_have_short_vectors() -> None:
    words, vectors = document_vectors([np.array([1, 2]), np.array([1, 3])], 4, minimum_count=2)
    assert words.tolist() == [1] and vectors.shape == (1, 4)
    assert np.isfinite(vectors).all()
    words, vectors = document_vectors([np.array([1, 2])], 4)
    assert len(words) == 0 and vectors.shape == (0, 4)
