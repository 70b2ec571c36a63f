"""Spelling to phonemes: the weights of the package `g2p-en` 2.1.0 as a `Seq2Seq`.

A GRU of 256 units reads the letters and </s>, another goes on from its state and writes ARPAbet
phonemes from <s> to </s>.  The package is read as data, never imported, and nothing is unpickled.
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

from threefold.data.fetch import require_cached
from threefold.errors import ThreefoldError
from threefold.models.pretrained.torch_weights import load_torch_weights
from threefold.models.seq2seq import Seq2Seq
from threefold.models.spec import Spec

PACKAGE = "g2p-en"
CHECKPOINT = "g2p_en/checkpoint20.npz"
GRAPHEMES = ("<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz")
_VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW"
_CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH"
# In the order of their names; UW also without a stress.
_SOUNDS = sorted(
    [*(f"{v}{stress}" for v in _VOWELS.split() for stress in "012"), *_CONSONANTS.split(), "UW"]
)
PHONEMES = ("<pad>", "<unk>", "<s>", "</s>", *_SOUNDS)
UNKNOWN, SOURCE_END = GRAPHEMES.index("<unk>"), GRAPHEMES.index("</s>")
BEGIN, END = PHONEMES.index("<s>"), PHONEMES.index("</s>")
_WIDTH = 256


def load_g2p(path: str | PathLike[str] | None = None) -> Seq2Seq:
    """The model, in eval mode, from checkpoint20.npz; None: the fetched one."""
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
    with torch.random.fork_rng(devices=[]):  # every number is replaced
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


def spell(words: list[str]) -> tuple[Tensor, Tensor]:
    """Letters and </s> of each word [B, M], and the mask; what is no letter becomes <unk>."""
    rows = [
        [GRAPHEMES.index(c) if "a" <= c <= "z" else UNKNOWN for c in word.lower()] + [SOURCE_END]
        for word in words
    ]
    lengths = torch.tensor([len(row) for row in rows])
    source = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int64)
    for line, row in zip(source, rows, strict=True):
        line[: len(row)] = torch.tensor(row)
    return source, torch.arange(source.shape[1]) < lengths.unsqueeze(1)


def _gru(arrays: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    """One GRU under the names of torch's."""
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
    found = arrays.get(name)
    if found is None or found.shape != shape:
        given = "missing" if found is None else f"{found.shape}"
        raise ThreefoldError(f"g2p-en: {name} is {given}, expected {shape}; another checkpoint?")
    return torch.from_numpy(found)


def _read(path: Path) -> dict[str, Any]:
    """The arrays of an npz file."""
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ThreefoldError(
            f"{path}: cannot be read as g2p-en's checkpoint ({error}); expected checkpoint20.npz"
        ) from error
