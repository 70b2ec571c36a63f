"""A classifier of texts: a neural sequence model on tokens, under scikit-learn's protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin

from threefold.classical.hashed_ngrams import TextLogistic
from threefold.data.preprocessing import Preprocessing
from threefold.data.preprocessing.text import Tokenize
from threefold.errors import ThreefoldError
from threefold.estimators.baselines import class_shares
from threefold.estimators.fitting import TrainingExamples, encode_rows, softmax
from threefold.estimators.neural import NeuralEstimator, checked_weights
from threefold.estimators.racing import RaceModel
from threefold.estimators.sequence_estimators import class_names, refuse_one_class
from threefold.estimators.sequences import checked_labels
from threefold.tasks.user_data.settings import ReadSettings

Array = NDArray[Any]


class TextClassifier(ClassifierMixin, NeuralEstimator):  # type: ignore[misc]
    """A neural sequence model that gives each text a class.

    X: a list, array, or column of a data frame, of texts.  tokenizer: "word", "bpe", "character" or
    "byte"; vocabulary: the largest number of words or pieces.  max_length: tokens that are read of
    a text.  The other parameters and fitted attributes are those of `SequenceClassifier`; the
    simple model of a race is logistic regression on n-grams.

    >>> texts = [f"{word} item {n}" for n in range(20) for word in ("good", "bad")]
    >>> model = TextClassifier(width=16, layers=1, steps=60).fit(texts, ["+", "-"] * 20)
    >>> model.predict(["good item 3", "bad item 5"]).tolist()
    ['+', '-']
    """

    kind = "classifier"
    form = "text"

    def __init__(
        self,
        mixers: Any = "gru",
        *,
        width: int = 64,
        layers: int = 1,
        steps: int | None = None,
        time: str | float | None = None,
        learning_rate: float = 3e-3,
        batch_size: int = 32,
        dropout: float = 0.3,
        validation_fraction: float | None = None,
        tokenizer: str = "word",
        vocabulary: int = 4096,
        max_length: int = 256,
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
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.max_length = max_length

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on texts and their classes."""
        texts = read_texts(X)
        labels = checked_labels(y, len(texts))
        found, numbers = np.unique(labels, return_inverse=True)
        weights = checked_weights(sample_weight, len(texts))
        refuse_one_class(found, numbers, weights)
        self.classes_ = found
        self._fit_examples(TrainingExamples(texts, numbers, weights), class_names(self.classes_))
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probabilities [N, classes]."""
        self._check_fitted()
        return self._answers(read_texts(X))

    def predict(self, X: Any) -> Array:
        """The likeliest class of each text."""
        numbers = self.predict_proba(X).argmax(1)
        predicted: Array = self.classes_[numbers]
        return predicted

    def _read_settings(self) -> ReadSettings:
        return ReadSettings(
            tokenizer=self.tokenizer, vocabulary=self.vocabulary, length=self.max_length
        )

    def _contenders(self, seed: int) -> list[RaceModel]:
        count = len(self.classes_)
        return [
            RaceModel("majority", lambda e, p: class_shares(e.targets, e.weights, count), _call),
            RaceModel(
                "logistic regression",
                lambda e, p: _fit_logistic(e, p, count, seed),
                lambda fitted, rows: softmax(fitted.scores(rows).numpy()),
            ),
        ]


def read_texts(data: Any) -> list[str]:
    """Texts of a list, an array, or a column; everything else is refused."""
    if isinstance(data, str):
        raise ThreefoldError("X is one text; expected a list of texts, e.g. [text]")
    if hasattr(data, "columns"):
        if len(data.columns) != 1:
            raise ThreefoldError(
                f"X has the columns {list(data.columns)}; expected texts: choose one column, e.g. "
                f"X[{data.columns[0]!r}]"
            )
        data = data[data.columns[0]]
    if getattr(data, "ndim", 1) == 2 and data.shape[1] == 1:
        data = data[:, 0]
    texts = list(data)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ThreefoldError(
                f"X[{number}] is {text!r}, a {type(text).__name__}; expected a text"
            )
    if not texts:
        raise ThreefoldError("X has 0 texts; expected at least one")
    return [str(text) or " " for text in texts]  # an empty text has no token


def _call(fitted: Any, rows: Sequence[Array]) -> Array:
    answers: Array = fitted(rows)
    return answers


def _fit_logistic(
    examples: TrainingExamples, preprocessing: Preprocessing, classes: int, seed: int
) -> TextLogistic:
    if examples.weights is not None and np.ptp(examples.weights):
        raise ThreefoldError("logistic regression on n-grams takes no sample weights")
    order = 4 if preprocessing.inputs.find(Tokenize).vocabulary <= 512 else 2
    rows = encode_rows(preprocessing, examples.rows)
    return TextLogistic.fit(rows, examples.targets, classes, order=order, seed=seed)
