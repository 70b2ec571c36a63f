"""y = Wᵀφ + b: fixed random features φ, and a read-out in closed form.

Shared by the reservoirs and the extreme learning machine: the ridge, its regularisation
chosen by cross-validation, recursive least squares for new samples, labels, saving and loading.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

import threefold
from threefold.classical import ridge
from threefold.data.atomic_files import json_text, sha256_of, write_folder
from threefold.errors import ThreefoldError
from threefold.estimators.inputs import ArrayLike, match_array_type
from threefold.estimators.protocol import ScikitProtocol, not_fitted
from threefold.models.config import (
    CONFIG,
    FORMAT,
    VERSION,
    WEIGHTS,
    prepare_folder,
    read_config_values,
)
from threefold.models.files import read_tensors, write_tensors

# The state of recursive least squares, if partial_fit was used.
RECURSION_TENSORS = ("online", "covariance")


@dataclass(kw_only=True, eq=False)
class RidgeEstimator(ScikitProtocol):
    """An estimator: settings are the constructor's keywords, weights are in `tensors`.

    Several values of `regularisation` are compared by cross-validation on `folds` folds.  `precise`
    solves by QR instead of the normal equations: four times the cost, for small regularisations.
    """

    regularisation: float | Sequence[float] = 1e-6
    folds: int = 5
    precise: bool = False
    forgetting: float = 1.0
    classify: bool = False
    seed: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    classes: list[Any] | None = field(default=None, init=False, repr=False)
    # The regularisation used, and the mean squared held-out error of each candidate.
    best_regularisation: float | None = field(default=None, init=False, repr=False)
    held_out_errors: dict[float, float] = field(default_factory=dict, init=False, repr=False)
    # Whether the random weights were set or loaded, so that fit does not draw them again.
    _fixed: bool = field(default=False, init=False, repr=False)
    _torch: bool = field(default=True, init=False, repr=False)  # fitted on tensors, not numpy
    _statistics: ridge.RidgeStatistics | None = field(default=None, init=False, repr=False)

    drawn: ClassVar[tuple[str, ...]] = ()  # names of the random tensors, which are not learned

    def __post_init__(self) -> None:
        if not all(beta >= 0 for beta in self._grid) or not self._grid:
            raise self._bad("regularisation", "a number of at least 0, or several")
        if self.folds < 2:
            raise self._bad("folds", "at least 2")
        if not 0 < self.forgetting <= 1:
            raise self._bad("forgetting", "a number above 0 and at most 1 (1 forgets nothing)")

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def readout(self) -> Tensor:
        """W [features, outputs]."""
        return self._learned("readout")

    @property
    def offset(self) -> Tensor:
        """b [outputs]."""
        return self._learned("offset")

    @property
    def settings(self) -> dict[str, Any]:
        """The current values of the constructor's keywords."""
        return {
            setting.name: getattr(self, setting.name) for setting in fields(self) if setting.init
        }

    @property
    def _grid(self) -> list[float]:
        values = self.regularisation
        return [float(values)] if isinstance(values, int | float) else [float(b) for b in values]

    @property
    def _folds(self) -> ridge.FoldStatistics:
        return ridge.FoldStatistics(self.folds if len(self._grid) > 1 else 1, self.precise)

    def _bad(self, setting: str, expected: str) -> ThreefoldError:
        return ThreefoldError(
            f"{self.name}: {setting}={getattr(self, setting)!r}, expected {expected}"
        )

    def _learned(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise not_fitted(f"{self.name}: not fitted yet; call fit first")
        return self.tensors[name]

    def _solve(self, folds: ridge.FoldStatistics, classes: list[Any] | None = None) -> None:
        """Solve for the read-out; if that fails, nothing changes."""
        solution = ridge.fit_ridge(folds, self._grid)
        for name in RECURSION_TENSORS:
            self.tensors.pop(name, None)
        # The layout that loading gives: another one would change the order of sums.
        self.tensors |= {"readout": row_major_copy(solution.weight), "offset": solution.offset}
        self.best_regularisation = solution.regularisation
        self.held_out_errors, self._statistics = solution.errors, solution.statistics
        self.classes = classes

    def _recursion(self, features: int, outputs: int) -> ridge.RecursiveLeastSquares:
        """The current recursion, or the one that continues from `fit`."""
        if "online" in self.tensors:
            recursion = ridge.RecursiveLeastSquares(
                *(self.tensors[name] for name in RECURSION_TENSORS)
            )
        elif self._statistics is not None and self.best_regularisation is not None:
            recursion = ridge.RecursiveLeastSquares.from_statistics(
                self._statistics, self.best_regularisation
            )
        elif "readout" in self.tensors:
            raise ThreefoldError(
                "partial_fit: a loaded fit cannot be continued, because the statistics of its "
                "samples are not saved; use partial_fit from the start, or fit again"
            )
        elif len(self._grid) > 1:
            raise self._bad("regularisation", "a single number for partial_fit")
        else:
            recursion = ridge.RecursiveLeastSquares.empty(features, outputs, self._grid[0])
        if recursion.weights.shape != (features + 1, outputs):
            raise ThreefoldError(
                f"partial_fit: {outputs} outputs and {features} features, expected "
                f"{recursion.weights.shape[1]} and {recursion.weights.shape[0] - 1} as before"
            )
        return recursion

    def _store(self, recursion: ridge.RecursiveLeastSquares) -> None:
        weights = recursion.weights
        self.tensors |= {"online": weights, "covariance": recursion.covariance}
        self.tensors |= {"readout": weights[:-1].clone(), "offset": weights[-1].clone()}

    def _read_out(self, features: Tensor) -> Tensor:
        return torch.addmm(self.offset, features, self.readout)

    def _labels(self, inputs: ArrayLike | None, scores: Tensor) -> Any:
        """The class with the highest score of each row, as torch or numpy like the inputs."""
        if self.classes is None:
            raise ThreefoldError(f"{self.name}: has not learned labels; fit it with classify=True")
        names = np.asarray(self.classes)
        picked = names[scores.argmax(1).numpy()]
        numbers = names.dtype.kind in "biu"
        return match_array_type(inputs, torch.from_numpy(picked)) if numbers else picked

    def _accuracy(self, labels: ArrayLike, scores: Tensor) -> float:
        """The fraction of labels that the scores predict."""
        expected = labels.tolist() if isinstance(labels, Tensor | np.ndarray) else list(labels)
        if len(expected) != len(scores):
            raise ThreefoldError(f"score: {len(expected)} labels for {len(scores)} predictions")
        predicted = np.asarray(self._labels(None, scores)).tolist()
        correct = [a == b for a, b in zip(predicted, expected, strict=True)]
        return correct.count(True) / len(correct)

    # ------------------------------------------------------------------- saving and loading

    def save(self, folder: str | PathLike[str]) -> None:
        """Write a folder that `load` of this class reads; a failed save changes nothing."""
        self._learned("readout")
        write_folder(prepare_folder(folder), self._write)

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Self:
        """Load the estimator saved in `folder`."""
        path = Path(folder)
        values, tensors = cls._read_files(path)
        missing = {*cls.drawn, "readout", "offset"} - tensors.keys()
        try:
            estimator = cls(**values["settings"])
            estimator.classes = values["classes"]
            estimator.best_regularisation = values["best_regularisation"]
        except (KeyError, TypeError) as error:
            raise ThreefoldError(f"{path / CONFIG}: changed or damaged ({error})") from error
        if missing:
            raise ThreefoldError(f"{path / WEIGHTS}: lacks {', '.join(sorted(missing))}")
        estimator.tensors, estimator._fixed = tensors, True
        return estimator

    @classmethod
    def _read_files(cls, path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The values of config.json and the tensors that belong to them."""
        values = read_config_values(path)
        if values.get("estimator") != cls.__name__:
            content = values.get("estimator") or "a model, which threefold.load reads"
            raise ThreefoldError(f"{path}: contains {content}, expected a saved {cls.__name__}")
        tensors, _ = read_tensors(path / WEIGHTS)
        if sha256_of(path / WEIGHTS) != values.get("sha256"):
            raise ThreefoldError(f"{path / WEIGHTS}: damaged (SHA-256 differs); save it again")
        return values, tensors

    def _write(self, folder: Path) -> None:
        write_tensors(folder / WEIGHTS, self.tensors, {"format": "pt"})
        values = {
            "format": FORMAT,
            "format_version": VERSION,
            "estimator": self.name,
            "settings": self.settings,
            "classes": self.classes,
            "best_regularisation": self.best_regularisation,
            "threefold_version": threefold.__version__,
            "files": [WEIGHTS],
            "sha256": sha256_of(folder / WEIGHTS),
        }
        (folder / CONFIG).write_text(json_text(values), encoding="utf-8")


def row_major_copy(tensor: Tensor) -> Tensor:
    """A row-major copy; `contiguous` would keep the strides of a single column."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)


def r_squared(predictions: Sequence[Tensor], targets: Sequence[Tensor]) -> float:
    """1 − Σ(y − ŷ)² / Σ(y − ȳ)², averaged over outputs; a constant output counts 1 or 0."""
    actual, expected = torch.cat(list(predictions)), torch.cat(list(targets))
    rest = (actual - expected).square().sum(0)
    spread = (expected - expected.mean(0)).square().sum(0)
    parts = torch.where(spread > 0, 1 - rest / spread, (rest == 0).double())
    return math.nan if len(expected) == 0 else float(parts.mean())
