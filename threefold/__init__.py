"""Threefold: sequence models that give the same answer step by step, in chunks and in parallel.

Names are imported when first used, so that `import threefold` and `threefold --help` cost nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Classifier": "threefold.models.classifier",
    "EchoStateNetwork": "threefold.estimators.echo_state_network",
    "ExtremeLearningMachine": "threefold.estimators.extreme_learning",
    "Forecaster": "threefold.models.forecaster",
    "LanguageModel": "threefold.models.language",
    "MaskedLanguageModel": "threefold.models.masked",
    "MIXERS": "threefold.layers.table",
    "Seq2Seq": "threefold.models.seq2seq",
    "Session": "threefold.runtime.session",
    "Spec": "threefold.models.spec",
    "Tagger": "threefold.models.tagger",
    "ThreefoldError": "threefold.errors",
    "Transformer": "threefold.models.transformer",
    "VisionTransformer": "threefold.models.vision",
    "attention": "threefold.memory.attention",
    "build": "threefold.models.table",
    "compare": "threefold.lab.race.race",
    "generate": "threefold.runtime.generation",
    "linear_recurrence": "threefold.memory.linear.recurrence",
    "load": "threefold.models.saving",
    "load_state": "threefold.runtime.state_files",
    "long_convolution": "threefold.memory.convolution",
    "mixer": "threefold.layers.table",
    "save_state": "threefold.runtime.state_files",
    "selective_scan": "threefold.memory.linear.selective",
    "stream": "threefold.runtime.streaming",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from threefold._version import __version__

        return __version__
    if name not in _HOMES:
        raise AttributeError(f"module 'threefold' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
