"""The table of model kinds.  A new kind is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from threefold.errors import ThreefoldError

if TYPE_CHECKING:
    from threefold.models.model import Model
    from threefold.models.spec import Spec


@dataclass(frozen=True)
class Kind:
    """One kind of model: the file `models/<name>.py` holds the class `cls`."""

    name: str
    cls: str
    options: Mapping[str, Any] = field(default_factory=dict)  # what Spec.options may set: defaults

    def load(self) -> type[Model]:
        """The class, imported when first asked for."""
        loaded: type[Model] = getattr(import_module(f"threefold.models.{self.name}"), self.cls)
        return loaded


# What `models/embedding.py` reads.
EMBEDDING: Mapping[str, Any] = {
    "positions": "none",  # of the elements of the stream: none, learned, sinusoidal or binary
    "max_length": 0,  # of learned positions
    "scale": False,  # by √width
    "embedding_norm": False,
    "embedding_dropout": 0.0,
}

# What `models/backbone.py` reads: of tokens only, and of tokens or vectors.
BODY: Mapping[str, Any] = {
    "dropout": 0.0,
    "initial": "own",  # numbers before training: each layer's own, gpt2 or bert
    **EMBEDDING,
}
ENCODER: Mapping[str, Any] = {
    "input_size": 0,  # numbers of one element; 0: tokens
    "segments": 0,  # kinds of elements told apart by a vector of their own, such as sentences
    "bidirectional": False,
    **BODY,
}

_KINDS = (
    Kind("language", "LanguageModel", {"tie": True, "classes": 0, **BODY}),
    Kind(
        "classifier",
        "Classifier",
        {
            "classes": 2,
            "pooling": "mean",  # last, first, mean or attention
            "hidden": 0,  # of the head; 0: none (of pairs: 4 · width)
            "activation": "relu",  # of the head: relu, gelu or tanh
            "pair": False,
            **ENCODER,
        },
    ),
    Kind("tagger", "Tagger", {"classes": 2, **ENCODER}),
    Kind(
        "forecaster",
        "Forecaster",
        {
            "channels": 1,
            "exogenous": 0,  # inputs that are not forecast
            "horizon": 1,
            "head": "quantile",  # or gaussian
            "quantiles": (0.1, 0.5, 0.9),
            "scaling": "standard",  # none, mean or standard
            **BODY,
        },
    ),
    Kind(
        "masked",
        "MaskedLanguageModel",
        {
            "segments": 0,
            "predicts": True,  # with the head that guesses tokens
            "activation": "gelu",  # of that head
            "pooler": False,
            **BODY,
        },
    ),
    Kind(
        "vision",
        "VisionTransformer",
        {
            "image": (32, 32),  # height and width
            "channels": 3,
            "patch": 4,
            "classes": 10,
            "pooling": "class",  # or mean, without a class token
            **{**BODY, "positions": "learned"},  # max_length follows from the image
        },
    ),
    Kind(
        "seq2seq",
        "Seq2Seq",
        {
            "attention": "bahdanau",  # none, bahdanau or luong
            "score": "",  # "": additive for bahdanau, general for luong
            "input_feeding": False,
            "bidirectional": True,  # of the encoder
            "source_vocabulary": 0,  # 0: the same as the target's
            "max_source": 0,  # places, for the score `location` only
            "dropout": 0.0,
        },
    ),
    Kind(
        "transformer",
        "Transformer",
        {
            **EMBEDDING,
            "positions": "sinusoidal",
            "scale": True,
            "embedding_dropout": 0.1,
            "dropout": 0.1,
            "label_smoothing": 0.1,
            "shared": True,  # one table for source and target
            "tie": True,  # the head is the target's table
            "source_vocabulary": 0,  # 0: the same as the target's
            "encoder_depth": 0,  # 0: the decoder's
            "encoder_mixers": (),  # (): the decoder's, seen from both sides
            "cross": {},  # keywords of cross-attention; {}: those of the first attention
        },
    ),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}


def build(spec: Spec) -> Model:
    """Make the model that a spec describes, with fresh weights from torch's random numbers."""
    from threefold.models.spec import Spec

    if not isinstance(spec, Spec):
        raise ThreefoldError(
            f"build: given {type(spec).__name__}, expected a Spec, "
            'e.g. Spec("language", width=64, depth=2, mixers="mamba")'
        )
    return KINDS[spec.kind].load()(spec)
