"""scikit-learn's protocol for estimators that do not need it: duck typing, no base class of it."""

from __future__ import annotations

import sys
from types import MethodType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from threefold.errors import ThreefoldError, nearest


class WhenClassifying:
    """A method that exists only with `classify`, as scikit-learn expects of decision_function."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __get__(self, estimator: Any, owner: Any = None) -> Any:
        if estimator is None:
            return self
        if not estimator.classify:
            raise AttributeError(
                f"{owner.__name__} has no {self.function.__name__}: it predicts numbers "
                "(classify=False)"
            )
        return MethodType(self.function, estimator)


class ScikitProtocol:
    """Parameters, cloning, tags and pickling; settings are the constructor's keywords."""

    settings: Any
    classify: bool
    classes: list[Any] | None
    tensors: dict[str, Tensor]
    drawn: ClassVar[tuple[str, ...]]
    _fixed: bool

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings; `deep` has no meaning, because no setting is an estimator."""
        return dict(self.settings)

    def set_params(self, **params: Any) -> Self:
        """Change settings; what was fitted remains until the next fit."""
        for name in params:
            if name not in self.settings:
                raise ThreefoldError(
                    f"set_params: {type(self).__name__} has no setting {name!r}; "
                    f"{nearest(name, self.settings)}"
                )
        type(self)(**{**self.settings, **params})  # checks them
        for name, value in params.items():
            setattr(self, name, value)
        return self

    @property
    def n_features_in_(self) -> int:
        """Numbers per element of the inputs that it was fitted on."""
        return int(self._fitted("weight_in").shape[1])

    @property
    def classes_(self) -> NDArray[Any]:
        """The sorted classes."""
        if self.classes is None:
            raise AttributeError(f"{type(self).__name__} has no classes_: it has learned no labels")
        return np.asarray(self.classes)

    def _fitted(self, name: str) -> Tensor:
        if "readout" not in self.tensors:
            raise AttributeError(f"{type(self).__name__} is not fitted yet; call fit first")
        return self.tensors[name]

    def __sklearn_is_fitted__(self) -> bool:
        return "readout" in self.tensors

    def __sklearn_clone__(self) -> Self:
        """A copy that is not fitted; weights that were set or loaded are kept."""
        copy = type(self)(**self.settings)
        if self._fixed:
            copy.tensors = {n: t.clone() for n, t in self.tensors.items() if n in self.drawn}
            copy._fixed = True
        return copy

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier" if self.classify else "regressor",
            target_tags=TargetTags(required=True, multi_output=not self.classify),
            transformer_tags=None,
            classifier_tags=ClassifierTags() if self.classify else None,
            regressor_tags=None if self.classify else RegressorTags(),
        )

    def __getstate__(self) -> dict[str, Any]:
        """Settings and arrays; as in a folder, the statistics of the samples are left out."""
        state = {name: value for name, value in vars(self).items() if name != "_statistics"}
        return {**state, "tensors": {name: t.numpy() for name, t in self.tensors.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tensors = {name: from_numpy(array) for name, array in state["tensors"].items()}
        vars(self).update({**state, "tensors": tensors, "_statistics": None})


def not_fitted(message: str) -> ThreefoldError:
    """The error of a call before fit; where scikit-learn is imported, also its NotFittedError."""
    base = getattr(sys.modules.get("sklearn.exceptions"), "NotFittedError", None)
    if base is None:
        return ThreefoldError(message)
    error: ThreefoldError = type("NotFittedError", (ThreefoldError, base), {})(message)
    return error
