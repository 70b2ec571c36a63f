"""Random convolutions and a ridge: strong, fast classifiers and regressors of series.

Dempster, Schmidt & Webb 2021, "MiniRocket: A Very Fast (Almost) Deterministic Transform for Time
Series Classification".
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from threefold.classical.leave_one_out import LeaveOneOutFit, choose_temperature, fit_leave_one_out
from threefold.classical.random_convolutions import FEATURES, RandomConvolutions
from threefold.errors import ThreefoldError
from threefold.estimators.fitting import softmax
from threefold.estimators.neural import checked_weights, seed_of
from threefold.estimators.sequences import (
    SequenceBatch,
    check_numbers,
    checked_labels,
    read_sequences,
)
from threefold.kernels.classical import ConvolutionPlan

Array = NDArray[Any]


class _Rocket(BaseEstimator):  # type: ignore[misc]
    """Fitting and answering, whatever the targets are."""

    def __init__(self, n_features: int = FEATURES, *, random_state: int | None = 0) -> None:
        self.n_features = n_features
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _fit(self, batch: SequenceBatch, targets: Tensor, weights: Tensor) -> LeaveOneOutFit:
        if self.n_features < 84:
            raise ThreefoldError(
                f"n_features is {self.n_features}, expected at least 84, one for each kernel"
            )
        distinct, counts = _distinct(batch, weights)
        transform = RandomConvolutions.fit(
            distinct.values.float(),
            distinct.lengths,
            weights=counts,
            features=self.n_features,
            seed=seed_of(self.random_state),
        )
        self.length_ = batch.values.shape[1]
        self.plan_ = {name: part.numpy() for name, part in transform.plan._asdict().items()}
        features = self._features(batch)
        share = weights / weights.sum()
        spread = (share @ (features - share @ features).square()).sqrt()
        self.scale_ = torch.where(spread > 1e-12, spread, 1.0).numpy()
        fit = fit_leave_one_out(features / torch.from_numpy(self.scale_), targets, weights=weights)
        self.coef_, self.intercept_ = fit.weight.T.numpy(), fit.offset.numpy()
        self.strength_ = fit.strength
        return fit

    def _features(self, batch: SequenceBatch) -> Tensor:
        plan = ConvolutionPlan(**{name: torch.from_numpy(a) for name, a in self.plan_.items()})
        transform = RandomConvolutions(plan, batch.values.shape[1], batch.values.shape[2])
        return transform.transform(batch.values.float(), batch.lengths).double()

    def _answer(self, data: Any) -> Array:
        check_is_fitted(self, "coef_")
        features = self._features(read_sequences(self, data, reset=False)).numpy() / self.scale_
        answers: Array = features @ self.coef_.T + self.intercept_
        return answers


class RocketClassifier(ClassifierMixin, _Rocket):  # type: ignore[misc]
    """MiniRocket's features and a ridge on ±1 for each class, as in the paper.

    X: [sequences, length], [sequences, length, channels], or a list of arrays of any lengths.
    n_features: about how many features.  Probabilities are a softmax of the ridge's answers, its
    temperature chosen by the likelihood of the training examples left out one at a time.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the features, then the ridge."""
        batch = read_sequences(self, X, reset=True)
        labels = checked_labels(y, len(batch))
        _check_count(batch)
        found, numbers = np.unique(labels, return_inverse=True)
        if len(found) < 2:
            raise ThreefoldError(
                f"y contains one class only, {found.tolist()[0]!r}; expected at least two"
            )
        self.classes_ = found
        signs = np.where(np.arange(len(self.classes_)) == numbers[:, None], 1.0, -1.0)
        batch, weights, kept = _counted(batch, sample_weight)
        fit = self._fit(batch, torch.from_numpy(signs[kept]), weights)
        self.temperature_ = choose_temperature(
            fit.left_out, torch.from_numpy(numbers[kept]), weights
        )
        return self

    def decision_function(self, X: Any) -> Array:
        """The ridge's answers [N, classes]; for two classes [N], that of the second."""
        answers = self._answer(X)
        return answers[:, 1] if len(self.classes_) == 2 else answers

    def predict_proba(self, X: Any) -> Array:
        """Probabilities [N, classes]."""
        return softmax(self._answer(X) / self.temperature_)

    def predict(self, X: Any) -> Array:
        """The likeliest class of each sequence."""
        answers = self._answer(X)
        predicted: Array = self.classes_[answers.argmax(1)]
        return predicted


class RocketRegressor(RegressorMixin, _Rocket):  # type: ignore[misc]
    """MiniRocket's features and a ridge: a number, or several, for each sequence."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the features, then the ridge."""
        batch = read_sequences(self, X, reset=True)
        targets = check_numbers(y, len(batch))
        _check_count(batch)
        self.n_outputs_ = 1 if targets.ndim == 1 else targets.shape[1]
        self._single = targets.ndim == 1
        batch, weights, kept = _counted(batch, sample_weight)
        self._fit(batch, torch.from_numpy(targets.reshape(len(targets), -1)[kept]), weights)
        return self

    def predict(self, X: Any) -> Array:
        """Numbers [N], or [N, outputs]."""
        answers = self._answer(X)
        return answers[:, 0] if self._single else answers


def _check_count(batch: SequenceBatch) -> None:
    if len(batch) < 2:
        raise ThreefoldError("one sequence (n_samples=1) cannot be fitted; expected at least two")


def _counted(batch: SequenceBatch, sample_weight: Any) -> tuple[SequenceBatch, Tensor, Array]:
    """The sequences of a weight above 0, their weights, and their numbers."""
    weights = checked_weights(sample_weight, len(batch))
    weights = np.ones(len(batch)) if weights is None else weights
    kept = np.flatnonzero(weights > 0)
    if len(kept) < 2:
        raise ThreefoldError(
            f"{len(kept)} sequences have a sample_weight above 0; expected at least two"
        )
    lengths = None if batch.lengths is None else batch.lengths[kept]
    return SequenceBatch(batch.values[kept], lengths), torch.from_numpy(weights[kept]), kept


def _distinct(batch: SequenceBatch, weights: Tensor) -> tuple[SequenceBatch, Tensor]:
    """The different sequences in an order of their own, and the sum of the weights of each.

    What is drawn among them depends neither on the order of the examples nor on whether one has a
    weight of two or is there twice.
    """
    lengths = torch.full((len(batch),), batch.values.shape[1])
    lengths = lengths if batch.lengths is None else batch.lengths
    keys = torch.cat([batch.values.flatten(1), lengths.unsqueeze(1)], 1).numpy()
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    counts = np.bincount(inverse.reshape(-1), weights.numpy())
    part = None if batch.lengths is None else batch.lengths[first]
    return SequenceBatch(batch.values[first], part), torch.from_numpy(counts)
