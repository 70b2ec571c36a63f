"""y = Wᵀφ + b: fixed random features φ, and a read-out that is solved for, not trained.

What the echo state network and the extreme learning machine share: the ridge, its regularisation
chosen on held-out folds, the recursion for samples that come one by one, labels, and the folder.
"""

from __future__ import annotations

import json
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
from threefold.data.atomic_files import sha256_of, write_folder
from threefold.errors import ThreefoldError
from threefold.estimators.inputs import Given, like
from threefold.models.config import CONFIG, FORMAT, VERSION, WEIGHTS, prepare, read_values
from threefold.models.files import read_tensors, write_tensors

# What the recursion keeps, if it was used.
ONLINE = ("online", "covariance")


@dataclass(kw_only=True, eq=False)
class RidgeEstimator:
    """Settings are the constructor's keywords; what is drawn or learned is in `tensors`.

    Of several numbers in `regularisation` the best on `folds` held-out parts is taken.  `precise`
    solves by QR instead of squares: four times the work, for regularisations that squares lose.
    """

    regularisation: float | Sequence[float] = 1e-6
    folds: int = 5
    precise: bool = False
    forgetting: float = 1.0
    classify: bool = False
    seed: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    classes: list[Any] | None = field(default=None, init=False, repr=False)
    # The regularisation that was taken, and the mean squared held-out error of each.
    chosen: float | None = field(default=None, init=False, repr=False)
    errors: dict[float, float] = field(default_factory=dict, init=False, repr=False)
    # Whether what is drawn was given or loaded, and stays when fit is called again.
    _fixed: bool = field(default=False, init=False, repr=False)
    _torch: bool = field(default=True, init=False, repr=False)  # fitted on tensors, not numpy
    _samples: ridge.SampleRows | None = field(default=None, init=False, repr=False)

    drawn: ClassVar[tuple[str, ...]] = ()  # names of the tensors that are drawn, not learned

    def __post_init__(self) -> None:
        if not all(beta >= 0 for beta in self._grid) or not self._grid:
            raise self._bad("regularisation", "0 or more, or several such numbers")
        if self.folds < 2:
            raise self._bad("folds", "at least 2")
        if not 0 < self.forgetting <= 1:
            raise self._bad("forgetting", "a number above 0, up to 1: 1 forgets nothing")

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
        """The constructor's keywords as they stand."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    @property
    def _grid(self) -> list[float]:
        given = self.regularisation
        return [float(given)] if isinstance(given, int | float) else [float(b) for b in given]

    @property
    def _folds(self) -> ridge.Folds:
        return ridge.Folds(self.folds if len(self._grid) > 1 else 1, self.precise)

    def _bad(self, setting: str, expected: str) -> ThreefoldError:
        return ThreefoldError(
            f"{self.name}: {setting}={getattr(self, setting)!r}, expected {expected}"
        )

    def _learned(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ThreefoldError(f"{self.name}: nothing is learned yet; call fit first")
        return self.tensors[name]

    def _solve(self, folds: ridge.Folds, classes: list[Any] | None = None) -> None:
        """Learn from sums; nothing changes when they cannot be solved."""
        found = ridge.fit(folds, self._grid)
        for name in ONLINE:
            self.tensors.pop(name, None)
        # As it will be loaded: another layout is another order of the same sums.
        self.tensors |= {"readout": plain(found.weight), "offset": found.offset}
        self.chosen, self.errors, self._samples = found.regularisation, found.errors, found.samples
        self.classes = classes

    def _recursion(self, features: int, outputs: int) -> ridge.Recursive:
        """The recursion as it stands: its own, or what it would be after `fit`."""
        if "online" in self.tensors:
            kept = ridge.Recursive(*(self.tensors[name] for name in ONLINE))
        elif self._samples is not None and self.chosen is not None:
            kept = ridge.Recursive.after(self._samples, self.chosen)
        elif "readout" in self.tensors:
            raise ThreefoldError(
                "partial_fit: loaded without the sums of its samples, which are not saved after "
                "fit; learn with partial_fit from the start, or fit again"
            )
        elif len(self._grid) > 1:
            raise self._bad("regularisation", "one number for partial_fit, which cannot choose")
        else:
            kept = ridge.Recursive.empty(features, outputs, self._grid[0])
        if kept.weights.shape != (features + 1, outputs):
            raise ThreefoldError(
                f"partial_fit: {outputs} outputs of {features} features, expected "
                f"{kept.weights.shape[1]} of {kept.weights.shape[0] - 1} as before"
            )
        return kept

    def _keep(self, recursion: ridge.Recursive) -> None:
        weights = recursion.weights
        self.tensors |= {"online": weights, "covariance": recursion.covariance}
        self.tensors |= {"readout": weights[:-1].clone(), "offset": weights[-1].clone()}

    def _read_out(self, features: Tensor) -> Tensor:
        return torch.addmm(self.offset, features, self.readout)

    def _labels(self, given: Given | None, scores: Tensor) -> Any:
        """The likeliest class of each row of scores, as the inputs are: torch or numpy."""
        if self.classes is None:
            raise ThreefoldError(f"{self.name}: no labels are learned; fit with classify=True")
        names = np.asarray(self.classes)
        picked = names[scores.argmax(1).numpy()]
        numbers = names.dtype.kind in "biu"
        return like(given, torch.from_numpy(picked)) if numbers else picked

    def _accuracy(self, labels: Given, scores: Tensor) -> float:
        """The part of the labels that the scores agree with."""
        wanted = labels.tolist() if isinstance(labels, Tensor | np.ndarray) else list(labels)
        if len(wanted) != len(scores):
            raise ThreefoldError(f"score: {len(wanted)} labels for {len(scores)} answers")
        made = np.asarray(self._labels(None, scores)).tolist()
        right = [a == b for a, b in zip(made, wanted, strict=True)]
        return right.count(True) / len(right)

    # ------------------------------------------------------------------------- the folder

    def save(self, folder: str | PathLike[str]) -> None:
        """Write a folder that `load` of this class reads: all of it, or nothing."""
        self._learned("readout")
        write_folder(prepare(folder), self._write)

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Self:
        """What was saved in `folder`."""
        place = Path(folder)
        values = read_values(place)
        if values.get("estimator") != cls.__name__:
            found = values.get("estimator") or "a model, which threefold.load reads"
            raise ThreefoldError(f"{place}: holds {found}, expected a saved {cls.__name__}")
        tensors, _ = read_tensors(place / WEIGHTS)
        if sha256_of(place / WEIGHTS) != values.get("sha256"):
            raise ThreefoldError(f"{place / WEIGHTS}: damaged (another SHA-256); save it again")
        missing = {*cls.drawn, "readout", "offset"} - tensors.keys()
        try:
            made = cls(**values["settings"])
            made.classes, made.chosen = values["classes"], values["chosen"]
        except (KeyError, TypeError) as error:
            raise ThreefoldError(f"{place / CONFIG}: changed or damaged ({error})") from error
        if missing:
            raise ThreefoldError(f"{place / WEIGHTS}: lacks {', '.join(sorted(missing))}")
        made.tensors, made._fixed = tensors, True
        return made

    def _write(self, folder: Path) -> None:
        write_tensors(folder / WEIGHTS, self.tensors, {"format": "pt"})
        values = {
            "format": FORMAT,
            "format_version": VERSION,
            "estimator": self.name,
            "settings": self.settings,
            "classes": self.classes,
            "chosen": self.chosen,
            "threefold_version": threefold.__version__,
            "files": [WEIGHTS],
            "sha256": sha256_of(folder / WEIGHTS),
        }
        (folder / CONFIG).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def plain(tensor: Tensor) -> Tensor:
    """A copy row by row; `contiguous` would leave the strides of a single column as they are."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)


def r_squared(made: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """1 − Σ(y − ŷ)² / Σ(y − ȳ)², the mean over outputs; a constant output counts 1 or 0."""
    actual, expected = torch.cat(list(made)), torch.cat(list(wanted))
    rest = (actual - expected).square().sum(0)
    spread = (expected - expected.mean(0)).square().sum(0)
    parts = torch.where(spread > 0, 1 - rest / spread, (rest == 0).double())
    return math.nan if len(expected) == 0 else float(parts.mean())
