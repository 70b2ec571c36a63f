"""What the neural estimators share: parameters, fitting, races, answers, pickling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from threefold.data.preprocessing import Preprocessing
from threefold.errors import ThreefoldError
from threefold.estimators import packing
from threefold.estimators.fitting import (
    FitSettings,
    TrainingExamples,
    encode_rows,
    fit_preprocessing,
    model_answers,
    train_model,
)
from threefold.estimators.racing import (
    HELD_OUT,
    RaceModel,
    neural_contender,
    race_names,
    run_race,
    unit_of,
    verdict,
)
from threefold.estimators.saved_forms import as_model
from threefold.models.model import Model
from threefold.tasks.user_data.settings import ReadSettings

Array = NDArray[Any]
PACKED = ("model_", "preprocessing_")  # attributes that are pickled as arrays and JSON


def seed_of(random_state: Any) -> int:
    """A seed: a whole number as it is, drawn from a generator, or another each time for None."""
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def checked_weights(weights: Any, count: int) -> Array | None:
    """Sample weights [count] that are not negative, in float64."""
    if weights is None:
        return None
    checked: Array = _check_sample_weight(
        weights, np.empty((count, 1)), dtype=np.float64, ensure_non_negative=True
    )
    return checked


class NeuralEstimator(BaseEstimator):  # type: ignore[misc]
    """A sequence model under scikit-learn's protocol."""

    kind: str  # of the model
    form: str  # of one input

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
        random_state: Any = 0,
        verbose: int = 0,
    ) -> None:
        self.mixers = mixers
        self.width = width
        self.layers = layers
        self.steps = steps
        self.time = time
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.dropout = dropout
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.verbose = verbose

    def _read_settings(self) -> ReadSettings:
        """How the inputs are read."""
        return ReadSettings()

    def _contenders(self, seed: int) -> list[RaceModel]:
        """The simple models of a race."""
        raise NotImplementedError

    def _settings(self) -> FitSettings:
        names = ("mixers", "width", "layers", "steps", "time", "learning_rate", "batch_size")
        values = {name: getattr(self, name) for name in (*names, "dropout", "verbose")}
        return FitSettings(**values, seed=seed_of(self.random_state))

    def _fit_examples(self, examples: TrainingExamples, names: Sequence[str] = ()) -> None:
        """Train one model, or the winner of a race, on all examples."""
        examples, settings = examples.counted(), self._settings()
        self._forget()
        mixers = race_names(self.mixers)
        if mixers:
            self._race(examples, names, settings, mixers)
            return
        self.best_ = _title(self.mixers)
        train, valid = examples, None
        if self.validation_fraction:
            train, valid = self._hold_out(examples, self.validation_fraction, settings.seed)
        self._fit_model(train, names, settings, valid)

    def _forget(self) -> None:
        for name in ("race_", "verdict_", "history_"):
            if hasattr(self, name):
                delattr(self, name)

    def _fit_model(
        self,
        examples: TrainingExamples,
        names: Sequence[str],
        settings: FitSettings,
        valid: TrainingExamples | None = None,
    ) -> None:
        preprocessing = self._preprocessing(examples, names)
        trained = train_model(examples, preprocessing, settings, valid=valid)
        self.model_, self.preprocessing_ = trained.model, preprocessing
        self.history_ = trained.history

    def _preprocessing(self, examples: TrainingExamples, names: Sequence[str]) -> Preprocessing:
        return fit_preprocessing(self.kind, self.form, examples, self._read_settings(), names)

    def _fit_further(self, examples: TrainingExamples, names: Sequence[str]) -> Self:
        """Once through more examples, with a constant learning rate."""
        if race_names(self.mixers):
            raise ThreefoldError(
                f"mixers is {self.mixers!r}, but partial_fit trains one model; name its mixers"
            )
        examples, settings = examples.counted(), self._settings()
        model = self.model_.float() if hasattr(self, "model_") else None
        if model is None:
            self.preprocessing_ = self._preprocessing(examples, names)
            self.best_ = _title(self.mixers)
        trained = train_model(examples, self.preprocessing_, settings, once=True, model=model)
        self.model_ = trained.model
        self.history_ = [*getattr(self, "history_", []), *trained.history]
        return self

    def _race(
        self,
        examples: TrainingExamples,
        names: Sequence[str],
        settings: FitSettings,
        mixers: Sequence[str],
    ) -> None:
        """Compare on held-out examples, then fit the winner to all."""
        share = self.validation_fraction or HELD_OUT
        train, held = self._hold_out(examples, share, settings.seed)
        simple = self._contenders(settings.seed)
        neural = [neural_contender(m, settings, len(mixers), model_answers) for m in mixers]
        preprocessing = self._preprocessing(train, names)
        entries = run_race([*simple, *neural], train, held, preprocessing, self._say)
        self.best_, self.race_ = entries[0].name, [asdict(entry) for entry in entries]
        self.verdict_ = verdict(entries, len(held), self.kind, unit_of(preprocessing))
        self._say(self.verdict_)
        winner = next((c for c in simple if c.name == self.best_), None)
        if winner is None:
            limits = settings.limits()
            left = {"time": 0.4 * limits["time"]} if limits.get("time") else {}
            chosen = {**asdict(settings), "mixers": self.best_, **left}
            self._fit_model(examples, names, FitSettings(**chosen))
            return
        self.preprocessing_ = self._preprocessing(examples, names)
        fitted = winner.fit(examples, self.preprocessing_)
        self.model_ = self._saved_form(fitted, examples)

    def _saved_form(self, fitted: Any, examples: TrainingExamples) -> Model:
        """A simple winner as a model, which `save` writes as a folder."""
        names = self.preprocessing_.labels
        outputs = len(names) if self.kind == "classifier" else examples.targets.shape[1]
        row = encode_rows(self.preprocessing_, examples.rows[:1])[0]
        channels = row.shape[1] if row.ndim == 2 else 0
        return as_model(self.best_, fitted, self.preprocessing_, outputs, channels)

    def _hold_out(
        self, examples: TrainingExamples, share: float, seed: int
    ) -> tuple[TrainingExamples, TrainingExamples]:
        """Training examples, and a share of every class, or of all, that is held out."""
        if not 0 < share < 1:
            raise ThreefoldError(
                f"validation_fraction is {share}, expected more than 0 and less than 1"
            )
        random = np.random.default_rng((seed, 24))
        groups = [np.arange(len(examples))]
        if self.kind == "classifier":
            classes = np.unique(examples.targets)
            groups = [np.flatnonzero(examples.targets == number) for number in classes]
        parts = [random.permutation(group) for group in groups]
        counts = _shares([len(part) for part in parts], share)
        held = np.concatenate([p[:count] for p, count in zip(parts, counts, strict=True)])
        kept = np.concatenate([p[count:] for p, count in zip(parts, counts, strict=True)])
        if not len(held):
            raise ThreefoldError(
                f"{len(examples)} examples are too few to hold out {share:.0%}; give more, or "
                "one model (mixers) without validation_fraction"
            )
        return examples.pick(np.sort(kept)), examples.pick(np.sort(held))

    def _say(self, text: str) -> None:
        if self.verbose:
            print(text)

    def _check_fitted(self) -> None:
        check_is_fitted(self, "model_")

    def _answers(self, rows: Sequence[Any]) -> Array:
        """Probabilities [N, classes], or numbers [N, outputs] in the units of y."""
        encoded = encode_rows(self.preprocessing_, rows)
        answers = model_answers(self.model_, encoded)
        if self.kind == "classifier":
            return answers
        numbers: Array = self.preprocessing_.outputs.invert(answers)
        return numbers

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        for name in PACKED:
            if name in state:
                state[name] = packing.pack(state[name])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = {
            name: packing.unpack(value) if name in PACKED else value
            for name, value in state.items()
        }
        super().__setstate__(state)
        model = getattr(self, "model_", None)
        if isinstance(model, Model):
            model.preprocessing = self.preprocessing_


def _title(mixers: Any) -> str:
    entries = [mixers] if isinstance(mixers, str) else list(mixers or ())
    return "+".join(entry if isinstance(entry, str) else str(entry[0]) for entry in entries)


def _shares(sizes: Sequence[int], share: float) -> list[int]:
    """How many of each group are held out: its share; at least one of each stays for training.

    What remains of the shares of small groups goes to those with the largest remainders.
    """
    wanted = [share * size for size in sizes]
    counts = [min(size - 1, int(want)) for size, want in zip(sizes, wanted, strict=True)]
    free = [n for n in range(len(sizes)) if counts[n] < sizes[n] - 1]
    free.sort(key=lambda n: counts[n] - wanted[n])
    total = max(1, round(sum(wanted)))
    for number in free[: max(0, total - sum(counts))]:
        counts[number] += 1
    return counts
