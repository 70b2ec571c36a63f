"""Spelling to phonemes: the weights of the package `g2p-en` 2.1.0 as a `Seq2Seq`.

A GRU of 256 units reads the letters and </s>; another continues from its state and writes ARPAbet
phonemes from <s> to </s>.  The package is read as data, never imported, and no pickle is read.
Park & Kim 2019, "g2pE: A Simple Python Module for English Grapheme To Phoneme Conversion".
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from threefold.data.arpabet import SOUNDS
from threefold.data.fetch import require_cached
from threefold.errors import ThreefoldError
from threefold.layers.padding import pad_tokens
from threefold.models.pretrained.torch_weights import load_torch_weights
from threefold.models.seq2seq import Seq2Seq
from threefold.models.spec import Spec

PACKAGE = "g2p-en"
CHECKPOINT = "g2p_en/checkpoint20.npz"
GRAPHEMES = ("<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz")
# UW also occurs without stress.
PHONEMES = ("<pad>", "<unk>", "<s>", "</s>", *sorted([*SOUNDS, "UW"]))
UNKNOWN, SOURCE_END = GRAPHEMES.index("<unk>"), GRAPHEMES.index("</s>")
BEGIN, END = PHONEMES.index("<s>"), PHONEMES.index("</s>")
_WIDTH = 256


def load_g2p(path: str | PathLike[str] | None = None) -> Seq2Seq:
    """Load the model, in eval mode, from checkpoint20.npz; None: the fetched package."""
    arrays = _read(require_cached(PACKAGE) / CHECKPOINT if path is None else Path(path))
    spec = Spec(
        "seq2seq",
        _WIDTH,
        1,
        (("gru", {"reset_after": True}),),
        len(PHONEMES),
        channel="none",
        block="plain",
        options={
            "attention": "none",
            "bidirectional": False,
            "source_vocabulary": len(GRAPHEMES),
        },
    )
    with torch.random.fork_rng(devices=[]):  # every weight is replaced
        model = Seq2Seq(spec)
    with torch.no_grad():
        for name, weight in (
            ("enc_emb", model.source_embedding.weight),
            ("dec_emb", model.embedding.weight),
            ("fc_w", model.head.weight),
            ("fc_b", model.head.bias),
        ):
            weight.copy_(_take(arrays, name, tuple(weight.shape)))
    for prefix, stack in (("enc", model.encoder), ("dec", model.decoder.stack)):
        block: Any = stack.parts["0"]
        load_torch_weights(block.parts["mixer"], _gru(arrays, prefix))
    return model.eval()


def encode_words(words: list[str]) -> tuple[Tensor, Tensor]:
    """Letters and </s> of each word [B, M], and the mask; other characters become <unk>."""
    rows = [
        [GRAPHEMES.index(c) if "a" <= c <= "z" else UNKNOWN for c in word.lower()] + [SOURCE_END]
        for word in words
    ]
    return pad_tokens(rows)


def _gru(arrays: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    """The weights of one GRU under the names that torch uses."""
    gates = 3 * _WIDTH
    shapes: dict[str, tuple[int, ...]] = {
        "w_ih": (gates, _WIDTH),
        "w_hh": (gates, _WIDTH),
        "b_ih": (gates,),
        "b_hh": (gates,),
    }
    kinds = {"w": "weight", "b": "bias"}
    return {
        f"{kinds[name[0]]}{name[1:]}_l0": _take(arrays, f"{prefix}_{name}", shape)
        for name, shape in shapes.items()
    }


def _take(arrays: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Tensor:
    array = arrays.get(name)
    if array is None or array.shape != shape:
        received = "missing" if array is None else f"{array.shape}"
        raise ThreefoldError(
            f"g2p-en: {name} is {received}, expected {shape}; is this another checkpoint?"
        )
    return torch.from_numpy(array)


def _read(path: Path) -> dict[str, Any]:
    """Read the arrays of an npz file."""
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ThreefoldError(
            f"{path}: not a checkpoint of g2p-en ({error}); expected checkpoint20.npz"
        ) from error
