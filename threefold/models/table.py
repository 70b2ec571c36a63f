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
    options: Mapping[str, Any] = field(default_factory=dict)  # names and defaults of Spec.options
    element: str = "element"  # the word for one element of what it reads
    # Whether a Spec names its mixers, channel mixer and wiring; otherwise it may not.
    has_mixers: bool = True
    # Width and depth by name, where the usual ones do not suit it.
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def load(self) -> type[Model]:
        """Import and return the class."""
        loaded: type[Model] = getattr(import_module(f"threefold.models.{self.name}"), self.cls)
        return loaded


# Options that `models/embedding.py` reads.
EMBEDDING_OPTIONS: Mapping[str, Any] = {
    "positions": "none",  # added to the input: none, learned, sinusoidal or binary
    "max_length": 0,  # number of learned positions
    "scale_embedding": False,  # multiply by √width
    "embedding_norm": False,
    "embedding_dropout": 0.0,
}

# Options that `models/backbone.py` reads: for tokens only, and for tokens or vectors.
BACKBONE_OPTIONS: Mapping[str, Any] = {
    "dropout": 0.0,
    "init": "default",  # initial weights: default (each layer's own), gpt2 or bert
    "embedding_std": 0.02,  # standard deviation of a token's initial vector
    **EMBEDDING_OPTIONS,
}
ENCODER_OPTIONS: Mapping[str, Any] = {
    "input_size": 0,  # size of the input vectors; 0: tokens
    "segments": 0,  # number of segment embeddings, e.g. 2 for pairs of sentences
    "bidirectional": False,
    **BACKBONE_OPTIONS,
}

# Options of models with one output for a sequence, which `models/classifier.py` reads.
POOLED_OPTIONS: Mapping[str, Any] = {
    "pooling": "mean",  # last, first, mean or attention
    "hidden": 0,  # hidden layer of the head; 0: none (for pairs: 4 · width)
    "activation": "relu",  # in the head: relu, gelu or tanh
    "pair": False,  # read pairs of sequences
    **ENCODER_OPTIONS,
}

# Options that `models/image_model.py` reads.
IMAGE_OPTIONS: Mapping[str, Any] = {
    "image": (32, 32),  # height and width
    "channels": 3,
    "classes": 10,  # 0: no head
}

# Options of models with a decoder of `models/decoders.py`, which `models/decoder_model.py` reads.
DECODER_OPTIONS: Mapping[str, Any] = {
    "attention": "bahdanau",  # none, bahdanau or luong
    "score": "",  # "": additive with bahdanau, general with luong
    "input_feeding": False,
    "dropout": 0.0,
}

_KINDS = (
    Kind("language", "LanguageModel", {"tie": True, **BACKBONE_OPTIONS}, "token"),
    Kind("classifier", "Classifier", {"classes": 2, **POOLED_OPTIONS}),
    Kind("regressor", "Regressor", {"outputs": 1, **POOLED_OPTIONS}),
    Kind(
        "hierarchical",
        "HierarchicalClassifier",
        {
            "classes": 2,
            "document_mixers": (),  # of the sentences; (): the same as of the words
            "document_depth": 0,  # 0: the same as that of the words
            "sentence_pooling": "attention",  # of words: last, first, mean or attention
            "pooling": "attention",  # of sentences
            "bidirectional": False,  # both levels
            "dropout": 0.0,
            **EMBEDDING_OPTIONS,  # of words; positions count from the start of a sentence
        },
        "token",
    ),
    Kind("tagger", "Tagger", {"classes": 2, **ENCODER_OPTIONS}),
    Kind(
        "forecaster",
        "Forecaster",
        {
            "channels": 1,
            "exogenous": 0,  # inputs that are not forecast
            "horizon": 1,
            "head": "quantile",  # or gaussian
            "quantiles": (0.1, 0.5, 0.9),
            "scaling": "standard",  # none, mean or standard; without lags
            "lags": 0,  # elements that the linear filter reads which the network corrects
            **BACKBONE_OPTIONS,
        },
    ),
    Kind(
        "masked",
        "MaskedLanguageModel",
        {
            "segments": 0,
            "lm_head": True,  # with the head that predicts tokens
            "activation": "gelu",  # in that head
            "pooler": False,
            **BACKBONE_OPTIONS,
        },
        "token",
    ),
    Kind("xlnet", "XLNet", {"segments": False, "lm_head": True, "dropout": 0.0}, "token"),
    Kind(
        "vision",
        "VisionTransformer",
        {
            **IMAGE_OPTIONS,
            "patch": 4,
            "pooling": "class",  # or mean, without a class token
            **{**BACKBONE_OPTIONS, "positions": "learned"},  # max_length follows from the image
        },
    ),
    Kind(
        "convolutional",
        "ConvolutionalNetwork",
        {
            "network": "resnet18",  # of `image_networks.py`
            **IMAGE_OPTIONS,
            "stem": "auto",  # published, small, or auto: small for less than 64 pixels
            "dropout": 0.0,  # in the head
        },
        has_mixers=False,
        sizes={"tiny": (16, 2), "small": (32, 3), "medium": (64, 4), "large": (128, 4)},
    ),
    Kind(
        "swin",
        "SwinTransformer",
        {
            **IMAGE_OPTIONS,
            "patch": 4,
            "blocks": (),  # of each stage; (): two
            "window": 0,  # side of the windows in patches; 0: the largest up to 7 that fits
            "heads": 0,  # of the first stage; 0: of a size near 32
            "dropout": 0.0,
        },
        has_mixers=False,
        sizes={"tiny": (32, 2), "small": (64, 2), "medium": (96, 3), "large": (128, 4)},
    ),
    Kind(
        "seq2seq",
        "Seq2Seq",
        {
            **DECODER_OPTIONS,
            "bidirectional": True,  # the encoder
            "source_vocabulary": 0,  # 0: the same as the target
            "max_source_length": 0,  # for the score `location` only
        },
        "token",
    ),
    Kind(
        "captioner",
        "Captioner",
        {
            **DECODER_OPTIONS,
            "encoder": "convolutional",  # patches or vector: a name of models/source_encoders.py
            "image": (16, 16),  # height and width
            "channels": 3,
            "network": "resnet18",  # of the encoder `convolutional`: a name of image_networks.py
            "encoder_width": 0,  # of its first convolution; 0: the last has that of the decoder
            "patch": 4,  # of the encoder `patches`
            "encoder_mixers": (),  # of `patches`; (): the same as the decoder, but not causal
            "encoder_depth": 0,  # 0: the same as the decoder; of `convolutional`: three stages
            "input_size": 0,  # of the encoder `vector`: numbers of each vector
        },
        "token",
    ),
    Kind(
        "transformer",
        "Transformer",
        {
            **EMBEDDING_OPTIONS,
            "positions": "sinusoidal",
            "scale_embedding": True,
            "embedding_dropout": 0.1,
            "dropout": 0.1,
            "label_smoothing": 0.1,
            "share_embeddings": True,  # one table for source and target
            "tie": True,  # the head is the table of the target
            "source_vocabulary": 0,  # 0: the same as the target
            "encoder_depth": 0,  # 0: the same as the decoder
            "encoder_mixers": (),  # (): the same as the decoder, but not causal
            "cross_attention": {},  # its keywords; {}: those of the first attention
        },
        "token",
    ),
    Kind(
        "simple",
        "SimpleModel",
        {
            "method": "majority",
            "answers": "classifier",  # the kind of model that it stands for
            "classes": 0,  # 0: numbers
            "outputs": 1,
            "input_size": 0,  # 0: tokens
            "numbers": {},  # of the method
            "tensors": {},  # dtype and shape by name
        },
        has_mixers=False,
    ),
)

KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}


def build(spec: Spec) -> Model:
    """Make the model that a spec describes, with weights drawn from torch's global generator."""
    from threefold.models.spec import Spec

    if not isinstance(spec, Spec):
        raise ThreefoldError(
            f"build: given {type(spec).__name__}, expected a Spec, "
            'e.g. Spec("language", width=64, depth=2, mixers="mamba")'
        )
    return KINDS[spec.kind].load()(spec)
