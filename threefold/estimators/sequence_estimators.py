"""Classifiers and regressors of sequences: neural sequence models under scikit-learn's protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin

from threefold.data.preprocessing import Preprocessing
from threefold.errors import ThreefoldError
from threefold.estimators.baselines import MeanAnswer, Neighbours, class_shares
from threefold.estimators.fitting import TrainingExamples, encode_rows
from threefold.estimators.neural import NeuralEstimator, checked_weights
from threefold.estimators.racing import RaceModel
from threefold.estimators.reservoir_readout import ReservoirReadout
from threefold.estimators.rocket import RocketClassifier, RocketRegressor
from threefold.estimators.sequences import check_numbers, checked_labels, read_sequences
from threefold.tasks.user_data.settings import ReadSettings

Array = NDArray[Any]


class _OfSequences(NeuralEstimator):
    """What reads sequences of numbers."""

    form = "series"

    def __init__(
        self,
        mixers: Any = "gru",
        *,
        width: int = 64,
        layers: int = 2,
        steps: int | None = None,
        time: str | float | None = None,
        learning_rate: float = 3e-3,
        batch_size: int = 32,
        dropout: float = 0.1,
        validation_fraction: float | None = None,
        missing: str = "refuse",
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            mixers,
            width=width,
            layers=layers,
            steps=steps,
            time=time,
            learning_rate=learning_rate,
            batch_size=batch_size,
            dropout=dropout,
            validation_fraction=validation_fraction,
            random_state=random_state,
            verbose=verbose,
        )
        self.missing = missing

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = self.missing != "refuse"
        return tags

    def _read_settings(self) -> ReadSettings:
        return ReadSettings(missing=self.missing)

    def _rows(self, data: Any, *, reset: bool) -> list[Array]:
        return read_sequences(self, data, reset=reset, missing=self.missing).rows()


class SequenceClassifier(ClassifierMixin, _OfSequences):  # type: ignore[misc]
    """A neural sequence model that gives each sequence a class.

    X: [sequences, length], [sequences, length, channels], a data frame with one sequence per row
    (numbers, or cells that contain lists), or a list of arrays of any lengths.
    mixers: as in `threefold.train`, e.g. "gru", a hybrid "gru+attention" or ["gru", "attention"];
    "auto" compares several and simple models on held-out examples and keeps the best, "a,b" does so
    with these.  steps, or time ("30s"): 400 steps by default; results depend on the seed alone if
    no time is given.  validation_fraction: of the examples, to keep the best weights of a run
    (default: none), or to choose in a race (default: a quarter).  missing: "refuse", "carry" or
    "mask" NaN.  random_state: None for another seed each time.

    Fitted: classes_, model_ (a model that `save` writes as a folder, also if a simple one has won),
    best_, history_; after a race race_, one row per model, and verdict_, the result in words.

    >>> import numpy as np
    >>> x = np.sin(np.arange(40) * np.linspace(0.2, 1.0, 60)[:, None])
    >>> y = np.repeat(["slow", "fast"], 30)
    >>> SequenceClassifier(width=16, layers=1, steps=60).fit(x, y).score(x, y) > 0.9
    True
    """

    kind = "classifier"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on sequences and their classes."""
        rows = self._rows(X, reset=True)
        labels = checked_labels(y, len(rows))
        found, numbers = np.unique(labels, return_inverse=True)
        weights = checked_weights(sample_weight, len(rows))
        refuse_one_class(found, numbers, weights)
        self.classes_ = found
        self._fit_examples(TrainingExamples(rows, numbers, weights), class_names(self.classes_))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train once through more examples; the first call names all `classes`.

        Inputs keep the scale of the first call.
        """
        first = not hasattr(self, "model_")
        rows = self._rows(X, reset=first)
        labels = checked_labels(y, len(rows))
        if first:
            self.classes_ = np.unique(labels if classes is None else classes)
        numbers = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        unknown = labels[self.classes_[numbers] != labels]
        if len(unknown):
            raise ThreefoldError(
                f"y contains {unknown.tolist()[0]!r}, but the classes are "
                f"{', '.join(map(repr, self.classes_.tolist()))}; name all "
                "of them in the first call of partial_fit: classes=…"
            )
        weights = checked_weights(sample_weight, len(rows))
        self._fit_further(TrainingExamples(rows, numbers, weights), class_names(self.classes_))
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probabilities [N, classes]."""
        self._check_fitted()
        return self._answers(self._rows(X, reset=False))

    def predict(self, X: Any) -> Array:
        """The likeliest class of each sequence."""
        numbers = self.predict_proba(X).argmax(1)
        predicted: Array = self.classes_[numbers]
        return predicted

    def _contenders(self, seed: int) -> list[RaceModel]:
        count = len(self.classes_)
        return [
            RaceModel("majority", lambda e, p: class_shares(e.targets, e.weights, count), _call),
            RaceModel("MiniRocket", lambda e, p: _fit_rocket(e, p, seed), _rocket_shares(count)),
            RaceModel("time warping", lambda e, p: _remember_classes(e, p, count), _call),
            RaceModel(
                "echo state network",
                lambda e, p: _fit_reservoir(e, p, seed),
                _reservoir_shares(count),
            ),
        ]


class SequenceRegressor(RegressorMixin, _OfSequences):  # type: ignore[misc]
    """A neural sequence model that gives each sequence a number, or several.

    Parameters, inputs and fitted attributes are those of `SequenceClassifier`; the numbers are
    standardised for training, and predicted in their own units.

    >>> import numpy as np
    >>> rate = np.linspace(0.2, 1.0, 60)
    >>> x = np.sin(np.arange(40) * rate[:, None])
    >>> SequenceRegressor(width=16, layers=1, steps=100).fit(x, rate).score(x, rate) > 0.8
    True
    """

    kind = "regressor"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on sequences and their numbers [N] or [N, outputs]."""
        rows = self._rows(X, reset=True)
        targets = check_numbers(y, len(rows))
        self._single = targets.ndim == 1
        weights = checked_weights(sample_weight, len(rows))
        self._fit_examples(TrainingExamples(rows, targets.reshape(len(rows), -1), weights))
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train once through more examples; inputs and targets keep the scale of the first call."""
        first = not hasattr(self, "model_")
        rows = self._rows(X, reset=first)
        targets = check_numbers(y, len(rows))
        self._single = targets.ndim == 1 if first else self._single
        weights = checked_weights(sample_weight, len(rows))
        self._fit_further(TrainingExamples(rows, targets.reshape(len(rows), -1), weights), ())
        return self

    def predict(self, X: Any) -> Array:
        """Numbers [N], or [N, outputs]."""
        self._check_fitted()
        answers = self._answers(self._rows(X, reset=False))
        return answers[:, 0] if self._single else answers

    def _contenders(self, seed: int) -> list[RaceModel]:
        return [
            RaceModel("mean", lambda e, p: MeanAnswer(_scaled(e, p).mean(0)), _call),
            RaceModel("MiniRocket", lambda e, p: _fit_rocket(e, p, seed), _rocket_numbers),
            RaceModel("time warping", lambda e, p: _remember(e, p, _scaled(e, p)), _call),
            RaceModel("echo state network", lambda e, p: _fit_reservoir(e, p, seed), _call),
        ]


def class_names(classes: Array) -> list[str]:
    """Names of the classes for the model's folder; different ones have different names."""
    names = [str(name) for name in classes.tolist()]
    return names if len(set(names)) == len(names) else [repr(name) for name in classes.tolist()]


def refuse_one_class(classes: Array, numbers: Array, weights: Array | None) -> None:
    """Refuse labels of which only one kind counts."""
    counted = numbers if weights is None else numbers[weights > 0]
    if len(np.unique(counted)) < 2:
        raise ThreefoldError(
            f"y contains one class only, {classes.tolist()[0]!r}; expected at least two"
        )


def _call(fitted: Any, rows: Sequence[Array]) -> Array:
    answers: Array = fitted(rows)
    return answers


def _scaled(examples: TrainingExamples, preprocessing: Preprocessing) -> Array:
    scaled: Array = preprocessing.outputs.apply(examples.targets)
    return scaled


def _remember_classes(
    examples: TrainingExamples, preprocessing: Preprocessing, classes: int
) -> Neighbours:
    """Neighbours as sure of their class as the training examples are right about each other."""
    same = np.eye(classes)[examples.targets]
    known = _remember(examples, preprocessing, same)
    right = (examples.targets[known.leave_one_out()] == examples.targets).sum()
    sure = (right + 1) / (len(examples) + 2)
    return replace(known, answers=sure * same + (1 - sure) / (classes - 1) * (1 - same))


def _remember(
    examples: TrainingExamples, preprocessing: Preprocessing, answers: Array
) -> Neighbours:
    return Neighbours.fit(encode_rows(preprocessing, examples.rows), answers)


def _fit_rocket(examples: TrainingExamples, preprocessing: Preprocessing, seed: int) -> Any:
    rows = encode_rows(preprocessing, examples.rows)
    if preprocessing.kind == "classifier":
        rocket = RocketClassifier(random_state=seed)
        return rocket.fit(rows, examples.targets, examples.weights)
    targets = _scaled(examples, preprocessing)
    targets = targets[:, 0] if targets.shape[1] == 1 else targets
    return RocketRegressor(random_state=seed).fit(rows, targets, examples.weights)


def _fit_reservoir(
    examples: TrainingExamples, preprocessing: Preprocessing, seed: int
) -> ReservoirReadout:
    rows = encode_rows(preprocessing, examples.rows)
    classify = preprocessing.kind == "classifier"
    targets = examples.targets if classify else _scaled(examples, preprocessing)
    return ReservoirReadout.fit(rows, targets, examples.weights, seed)


def _reservoir_shares(classes: int) -> Any:
    """Probabilities; a last class that training has not seen has none."""

    def answer(fitted: ReservoirReadout, rows: Sequence[Array]) -> Array:
        shares = fitted(rows)
        return np.pad(shares, ((0, 0), (0, classes - shares.shape[1])))

    return answer


def _rocket_shares(classes: int) -> Any:
    def answer(fitted: RocketClassifier, rows: Sequence[Array]) -> Array:
        shares = np.zeros((len(rows), classes))
        shares[:, fitted.classes_] = fitted.predict_proba(list(rows))
        return shares

    return answer


def _rocket_numbers(fitted: RocketRegressor, rows: Sequence[Array]) -> Array:
    return np.reshape(fitted.predict(list(rows)), (len(rows), -1))
