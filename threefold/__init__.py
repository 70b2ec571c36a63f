"""Threefold: sequence models from the RNN to Mamba that give the same answer in every form.

Names are imported when they are first used, so that `import threefold` and `threefold --help` do
not import torch. Type checkers and editors see the imports below.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threefold import classical as classical
    from threefold import data as data
    from threefold import estimators as estimators
    from threefold import runtime as runtime
    from threefold import testing as testing
    from threefold import training as training
    from threefold._version import __version__ as __version__
    from threefold.classical.word_vectors import WordVectors as WordVectors
    from threefold.errors import ThreefoldError as ThreefoldError
    from threefold.estimators.echo_state_network import EchoStateNetwork as EchoStateNetwork
    from threefold.estimators.extreme_learning import (
        ExtremeLearningMachine as ExtremeLearningMachine,
    )
    from threefold.lab.race.race import compare as compare
    from threefold.layers.table import MIXERS as MIXERS
    from threefold.layers.table import mixer as mixer
    from threefold.layers.table import register_mixer as register_mixer
    from threefold.memory.attention import attention as attention
    from threefold.memory.convolution import long_convolution as long_convolution
    from threefold.memory.linear.recurrence import linear_recurrence as linear_recurrence
    from threefold.memory.linear.selective import selective_scan as selective_scan
    from threefold.models.captioner import Captioner as Captioner
    from threefold.models.classifier import Classifier as Classifier
    from threefold.models.forecaster import Forecaster as Forecaster
    from threefold.models.language import LanguageModel as LanguageModel
    from threefold.models.masked import MaskedLanguageModel as MaskedLanguageModel
    from threefold.models.regressor import Regressor as Regressor
    from threefold.models.saving import load as load
    from threefold.models.seq2seq import Seq2Seq as Seq2Seq
    from threefold.models.spec import Spec as Spec
    from threefold.models.table import build as build
    from threefold.models.tagger import Tagger as Tagger
    from threefold.models.transformer import Transformer as Transformer
    from threefold.models.vision import VisionTransformer as VisionTransformer
    from threefold.models.xlnet import XLNet as XLNet
    from threefold.runtime.attention_weights import attention_weights as attention_weights
    from threefold.runtime.generation import generate as generate
    from threefold.runtime.prediction import predict as predict
    from threefold.runtime.quantisation import quantize as quantize
    from threefold.runtime.session import Session as Session
    from threefold.runtime.state_files import load_state as load_state
    from threefold.runtime.state_files import save_state as save_state
    from threefold.runtime.streaming import stream as stream
    from threefold.tasks.table import register_task as register_task
    from threefold.tasks.task import Task as Task
    from threefold.training.api import train as train
    from threefold.training.evaluations import evaluate as evaluate

_HOMES = {
    "Captioner": "threefold.models.captioner",
    "Classifier": "threefold.models.classifier",
    "EchoStateNetwork": "threefold.estimators.echo_state_network",
    "ExtremeLearningMachine": "threefold.estimators.extreme_learning",
    "Forecaster": "threefold.models.forecaster",
    "LanguageModel": "threefold.models.language",
    "MaskedLanguageModel": "threefold.models.masked",
    "MIXERS": "threefold.layers.table",
    "Regressor": "threefold.models.regressor",
    "Seq2Seq": "threefold.models.seq2seq",
    "Session": "threefold.runtime.session",
    "Spec": "threefold.models.spec",
    "Tagger": "threefold.models.tagger",
    "Task": "threefold.tasks.task",
    "ThreefoldError": "threefold.errors",
    "Transformer": "threefold.models.transformer",
    "VisionTransformer": "threefold.models.vision",
    "WordVectors": "threefold.classical.word_vectors",
    "XLNet": "threefold.models.xlnet",
    "attention": "threefold.memory.attention",
    "build": "threefold.models.table",
    "compare": "threefold.lab.race.race",
    "evaluate": "threefold.training.evaluations",
    "generate": "threefold.runtime.generation",
    "linear_recurrence": "threefold.memory.linear.recurrence",
    "load": "threefold.models.saving",
    "load_state": "threefold.runtime.state_files",
    "long_convolution": "threefold.memory.convolution",
    "mixer": "threefold.layers.table",
    "attention_weights": "threefold.runtime.attention_weights",
    "predict": "threefold.runtime.prediction",
    "quantize": "threefold.runtime.quantisation",
    "register_mixer": "threefold.layers.table",
    "register_task": "threefold.tasks.table",
    "save_state": "threefold.runtime.state_files",
    "selective_scan": "threefold.memory.linear.selective",
    "stream": "threefold.runtime.streaming",
    "train": "threefold.training.api",
    "__version__": "threefold._version",
}

# Packages that need no import of their own: `threefold.estimators.SequenceClassifier`.
_PACKAGES = ("classical", "data", "estimators", "runtime", "testing", "training")

__all__ = [
    "MIXERS",
    "Captioner",
    "Classifier",
    "EchoStateNetwork",
    "ExtremeLearningMachine",
    "Forecaster",
    "LanguageModel",
    "MaskedLanguageModel",
    "Regressor",
    "Seq2Seq",
    "Session",
    "Spec",
    "Tagger",
    "Task",
    "ThreefoldError",
    "Transformer",
    "VisionTransformer",
    "WordVectors",
    "XLNet",
    "__version__",
    "attention",
    "attention_weights",
    "build",
    "compare",
    "evaluate",
    "generate",
    "linear_recurrence",
    "load",
    "load_state",
    "long_convolution",
    "mixer",
    "predict",
    "quantize",
    "register_mixer",
    "register_task",
    "save_state",
    "selective_scan",
    "stream",
    "testing",
    "train",
]


if not TYPE_CHECKING:  # so that type checkers report names that do not exist

    def __getattr__(name: str) -> object:
        if name in _PACKAGES:
            return import_module(f"threefold.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'threefold' has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
