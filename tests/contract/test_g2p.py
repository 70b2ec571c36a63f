"""g2p-en's weights in our Seq2Seq: the real ones are skipped where they were not fetched."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from threefold import Seq2Seq, ThreefoldError
from threefold.data.fetch import cached
from threefold.lab.studies.g2p import measure, pronounce
from threefold.models.pretrained import g2p
from threefold.models.pretrained.g2p import BEGIN, GRAPHEMES, PHONEMES, encode_words, load_g2p
from threefold.tasks.phonemes import edit_distance, read_dictionary

needs_weights = pytest.mark.skipif(
    cached(g2p.PACKAGE) is None, reason="not fetched: threefold data fetch g2p-en"
)


def made_up(scale: float = 0.3) -> dict[str, Any]:
    """Arrays of the checkpoint's names and shapes, with other numbers."""
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "enc_emb": (29, 256), "dec_emb": (74, 256), "fc_w": (74, 256), "fc_b": (74,),
        **{f"{side}_w_{kind}": (768, 256) for side in ("enc", "dec") for kind in ("ih", "hh")},
        **{f"{side}_b_{kind}": (768,) for side in ("enc", "dec") for kind in ("ih", "hh")},
    }  # fmt: skip
    return {n: (scale * random.standard_normal(s)).astype("f4") for n, s in shapes.items()}


def by_hand(arrays: dict[str, Any], word: str, steps: int) -> Tensor:
    """The first logits, greedily, as the package's numpy code computes them."""

    def cell(x: Any, h: Any, side: str) -> Any:
        outer = arrays[f"{side}_w_ih"] @ x + arrays[f"{side}_b_ih"]
        inner = arrays[f"{side}_w_hh"] @ h + arrays[f"{side}_b_hh"]
        r, z = np.split(1 / (1 + np.exp(-(outer + inner)[:512])), 2)
        return (1 - z) * np.tanh(outer[512:] + r * inner[512:]) + z * h

    h = np.zeros(256)
    for letter in [*word, "</s>"]:
        h = cell(arrays["enc_emb"][GRAPHEMES.index(letter)], h, "enc")
    logits, token = [], BEGIN
    for _ in range(steps):
        h = cell(arrays["dec_emb"][token], h, "dec")
        logits.append(arrays["fc_w"] @ h + arrays["fc_b"])
        token = int(logits[-1].argmax())
    return torch.tensor(np.stack(logits))


def test_the_loader_computes_what_the_package_does(tmp_path: Path) -> None:
    arrays = made_up()
    np.savez(tmp_path / "checkpoint20.npz", **arrays)
    model = load_g2p(tmp_path / "checkpoint20.npz")
    source, mask = encode_words(["threefold", "a"])
    expected = by_hand(arrays, "threefold", 5)
    with torch.no_grad():
        state = model.encode(source, mask=mask)
        token = torch.tensor([BEGIN, BEGIN])
        for t in range(5):
            logits, state = model.step(token, state)
            # Ten products of 256 in float32, against numpy's mixture of float32 and float64.
            assert (logits[0] - expected[t]).abs().max() < 1e-4 * expected.abs().max()
            token = logits.argmax(-1)
    del arrays["dec_w_hh"]
    np.savez(tmp_path / "damaged.npz", **arrays)
    with pytest.raises(ThreefoldError, match="dec_w_hh is missing, expected"):
        load_g2p(tmp_path / "damaged.npz")
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(ThreefoldError, match="not a checkpoint of g2p-en"):
        load_g2p(tmp_path / "text.npz")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path))
    with pytest.raises(ThreefoldError, match="threefold data fetch g2p-en"):
        load_g2p()


def test_dictionaries_and_edits(tmp_path: Path) -> None:
    path = tmp_path / "dictionary"
    path.write_text(
        ";;; a remark\nABBEY  AE1 B IY0\nABE  EY1 B\nABE(1)  AH0 B IY0\n'TIS  T IH1 Z\n"
        "aalen AE1 L AH0 N # place, german\naalen(2) AA1 L AH0 N\n"
    )
    assert read_dictionary(path) == {
        "abbey": [["AE1", "B", "IY0"]],
        "abe": [["EY1", "B"], ["AH0", "B", "IY0"]],
        "aalen": [["AE1", "L", "AH0", "N"], ["AA1", "L", "AH0", "N"]],
    }
    path.write_text("nothing here 1 2 3\n")
    with pytest.raises(ThreefoldError, match="is this the text of CMUdict"):
        read_dictionary(path)
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance("", "abc") == 3
    assert len(PHONEMES) == 74 and len(GRAPHEMES) == 29


@cache
def model() -> Seq2Seq:
    return load_g2p()


# Words of CMUdict with their pronunciations there; the model makes mistakes in some.
WORDS = """
abandon AH0 B AE1 N D AH0 N
biscuit B IH1 S K AH0 T
computer K AH0 M P Y UW1 T ER0
daughter D AO1 T ER0
elephant EH1 L AH0 F AH0 N T
fragile F R AE1 JH AH0 L
garden G AA1 R D AH0 N
harmony HH AA1 R M AH0 N IY0
island AY1 L AH0 N D
journey JH ER1 N IY0
kitchen K IH1 CH AH0 N
language L AE1 NG G W AH0 JH
mountain M AW1 N T AH0 N
neighbor N EY1 B ER0
october AA0 K T OW1 B ER0
picture P IH1 K CH ER0
question K W EH1 S CH AH0 N
river R IH1 V ER0
science S AY1 AH0 N S
table T EY1 B AH0 L
"""


@needs_weights
def test_real_words_are_pronounced(tmp_path: Path) -> None:
    path = tmp_path / "dictionary"
    path.write_text(WORDS)
    words = read_dictionary(path)
    errors = measure(model(), words)
    assert errors.words == 20
    assert errors.phoneme_error < 0.15, errors
    together = pronounce(model(), ["river", "abandon"])
    assert together == [pronounce(model(), ["river"])[0], pronounce(model(), ["abandon"])[0]]
    assert measure(model(), words, beams=4).phoneme_error < 0.15
