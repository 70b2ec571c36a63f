"""Estimators: what has `fit` and `predict`.

Those that follow scikit-learn's protocol need it (`pip install "threefold[sklearn]"`), and are
imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from threefold.errors import ThreefoldError

if TYPE_CHECKING:
    from threefold.estimators.echo_state_network import EchoStateNetwork as EchoStateNetwork
    from threefold.estimators.extreme_learning import (
        ExtremeLearningMachine as ExtremeLearningMachine,
    )
    from threefold.estimators.liquid_state_machine import LiquidStateMachine as LiquidStateMachine
    from threefold.estimators.rocket import RocketClassifier as RocketClassifier
    from threefold.estimators.rocket import RocketRegressor as RocketRegressor
    from threefold.estimators.sequence_estimators import SequenceClassifier as SequenceClassifier
    from threefold.estimators.sequence_estimators import SequenceRegressor as SequenceRegressor
    from threefold.estimators.sequence_forecaster import SequenceForecaster as SequenceForecaster
    from threefold.estimators.text_classifier import TextClassifier as TextClassifier

_HOMES = {
    "EchoStateNetwork": "echo_state_network",
    "ExtremeLearningMachine": "extreme_learning",
    "LiquidStateMachine": "liquid_state_machine",
    "RocketClassifier": "rocket",
    "RocketRegressor": "rocket",
    "SequenceClassifier": "sequence_estimators",
    "SequenceForecaster": "sequence_forecaster",
    "SequenceRegressor": "sequence_estimators",
    "TextClassifier": "text_classifier",
}

__all__ = [
    "EchoStateNetwork",
    "ExtremeLearningMachine",
    "LiquidStateMachine",
    "RocketClassifier",
    "RocketRegressor",
    "SequenceClassifier",
    "SequenceForecaster",
    "SequenceRegressor",
    "TextClassifier",
]


if not TYPE_CHECKING:  # so that type checkers report names that do not exist

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'threefold.estimators' has no attribute {name!r}")
        try:
            module = import_module(f"threefold.estimators.{_HOMES[name]}")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "sklearn":
                raise
            raise ThreefoldError(
                f'{name} needs scikit-learn: pip install "threefold[sklearn]"'
            ) from error
        globals()[name] = value = getattr(module, name)
        return value


def __dir__() -> list[str]:
    return __all__
