"""p(class | text) = softmax(W x),  x = (1 + log n_g) · idf_g of hashed n-grams g, |x| = 1

Logistic regression on bags of n-grams of tokens: what a text says, without its order.  n-grams are
numbered by a hash, so no vocabulary is stored; the penalty is chosen on a tenth of the texts.
Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask Learning"; Wang & Manning 2012,
"Baselines and Bigrams: Simple, Good Sentiment and Topic Classification".
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.data.random_by_address import splitmix64
from threefold.errors import ThreefoldError

Array = NDArray[Any]
BUCKETS = 1 << 18
PENALTIES = (1e-3, 1e-4, 1e-5, 1e-6)  # of |W|²/2, relative to the mean loss
ITERATIONS = 25


def hashed_counts(tokens: Array, order: int) -> tuple[Array, Array]:
    """The buckets of all n-grams of up to `order` tokens, and how often each occurs."""
    text = np.asarray(tokens).astype(np.uint64) + np.uint64(1)
    keys, found = np.zeros(len(text), np.uint64), []
    for n in range(1, order + 1):
        if len(text) < n:
            break
        # The hash of the last n tokens, from that of the n − 1 before the newest.
        keys = splitmix64(keys[: len(text) - n + 1] ^ text[n - 1 :])
        found.append(keys % np.uint64(BUCKETS))
        keys = keys[:-1]
    grams = np.concatenate(found) if found else np.zeros(0, np.uint64)
    buckets, counts = np.unique(grams, return_counts=True)
    return buckets.astype(np.int64), counts


@dataclass(frozen=True)
class TextLogistic:
    """Fitted weights of the n-grams that occur in training."""

    order: int
    columns: Array  # [F]: the bucket of each feature, sorted
    rarity: Array  # [F]: idf
    weight: Tensor  # [F, classes]
    offset: Tensor  # [classes]
    penalty: float

    @classmethod
    def fit(
        cls, texts: Sequence[Array], labels: Array, classes: int, *, order: int = 4, seed: int = 0
    ) -> TextLogistic:
        """Fit texts of tokens and their classes, numbered from 0."""
        if len(texts) != len(labels) or len(texts) < 2:
            raise ThreefoldError(
                f"{len(texts)} texts and {len(labels)} labels; expected as many, at least two"
            )
        counted = [hashed_counts(text, order) for text in texts]
        frequency = np.bincount(np.concatenate([b for b, _ in counted]), minlength=BUCKETS)
        columns = np.flatnonzero(frequency)
        rarity = np.log((1 + len(texts)) / (1 + frequency[columns])) + 1
        numbered = np.zeros(BUCKETS, np.int64)
        numbered[columns] = np.arange(len(columns))
        rows = [(numbered[buckets], counts) for buckets, counts in counted]
        targets = torch.from_numpy(np.asarray(labels, np.int64))
        order_of_texts = np.random.default_rng((seed, 23)).permutation(len(texts))
        held = order_of_texts[: max(1, len(texts) // 10)]
        kept = order_of_texts[len(held) :]
        penalty = _choose_penalty(rows, rarity, targets, classes, kept, held)
        weight, offset = _solve(_matrix(rows, rarity), targets, classes, penalty)
        return cls(order, columns, rarity, weight, offset, penalty)

    def scores(self, texts: Sequence[Array]) -> Tensor:
        """Log-odds [N, classes]; n-grams that training has not seen are ignored."""
        rows = []
        for text in texts:
            buckets, counts = hashed_counts(text, self.order)
            places = np.minimum(np.searchsorted(self.columns, buckets), len(self.columns) - 1)
            known = self.columns[places] == buckets
            rows.append((places[known], counts[known]))
        return _matrix(rows, self.rarity) @ self.weight + self.offset


def _matrix(rows: Sequence[tuple[Array, Array]], rarity: Array) -> Tensor:
    """A sparse matrix [texts, features] whose rows have length 1."""
    values = [(1 + np.log(counts)) * rarity[places] for places, counts in rows]
    values = [value / (np.linalg.norm(value) or 1.0) for value in values]
    starts = np.concatenate([[0], np.cumsum([len(places) for places, _ in rows])])
    columns = torch.from_numpy(np.concatenate([places for places, _ in rows]))
    numbers = torch.from_numpy(np.concatenate(values)).float()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*beta state")
        return torch.sparse_csr_tensor(
            torch.from_numpy(starts),
            columns,
            numbers,
            (len(rows), len(rarity)),
            check_invariants=False,
        )


def _choose_penalty(
    rows: Sequence[tuple[Array, Array]],
    rarity: Array,
    targets: Tensor,
    classes: int,
    kept: Array,
    held: Array,
) -> float:
    """The penalty of least loss on texts that are held out."""
    train, test = (_matrix([rows[i] for i in part], rarity) for part in (kept, held))
    losses, start = {}, None
    for penalty in PENALTIES:  # from strong to weak, each from the last one's solution
        start = weight, offset = _solve(train, targets[kept], classes, penalty, start)
        loss = torch.nn.functional.cross_entropy(test @ weight + offset, targets[held])
        losses[penalty] = float(loss)
    return min(losses, key=losses.__getitem__)


def _solve(
    x: Tensor,
    targets: Tensor,
    classes: int,
    penalty: float,
    start: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Minimise the mean cross-entropy plus penalty · |W|²/2 by L-BFGS."""
    entries: Any = x
    transposed: Tensor = entries.to_sparse_coo().t().coalesce().to_sparse_csr()
    zeros = torch.zeros(x.shape[1], classes), torch.zeros(classes)
    weight, offset = (part.clone() for part in start or zeros)
    optimizer: Any = torch.optim.LBFGS(
        [weight, offset], max_iter=ITERATIONS, history_size=8, line_search_fn="strong_wolfe"
    )
    expected = torch.nn.functional.one_hot(targets, classes).float()

    def loss() -> float:
        logits = x @ weight + offset
        logarithms = logits.log_softmax(1)
        error = (logarithms.exp() - expected) / len(targets)
        weight.grad = transposed @ error + penalty * weight
        offset.grad = error.sum(0)
        cross_entropy = -(expected * logarithms).sum() / len(targets)
        return float(cross_entropy + penalty / 2 * weight.square().sum())

    optimizer.step(loss)
    return weight, offset
