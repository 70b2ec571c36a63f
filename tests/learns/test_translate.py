"""Pairs of sequences, and small translators that learn them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from threefold import ThreefoldError
from threefold.data.loaders import IGNORE
from threefold.lab.studies.translate import (
    TranslationStudy,
    by_length,
    hide,
    picture,
    share_correct,
    study,
)
from threefold.tasks.number_to_words import DIGITS, WORDS, number_to_words, words
from threefold.tasks.pairs import BEGIN, END, pairs
from threefold.tasks.reversal import reversal


def test_reversal_is_what_the_docstring_draws() -> None:
    rows = reversal((1, 6), symbols=5, seed=3).batch("train", 0, 300)
    assert set(rows.source_lengths.tolist()) == set(range(3, 9))
    for source, target, n in zip(rows.source, rows.target, rows.source_lengths, strict=True):
        inner = source[1 : n - 1]
        assert source[:n].tolist() == [BEGIN, *inner.tolist(), END]
        assert target[:n].tolist() == [BEGIN, *inner.flip(0).tolist(), END]
        assert (inner >= 2).all() and (inner < rows.source_vocabulary).all()
        assert (source[n:] == 0).all() and (target[n:] == 0).all()


def test_numbers_are_read_aloud() -> None:
    for number, spoken in (
        (7, "seven"),
        (10, "ten"),
        (40, "forty"),
        (113, "one hundred thirteen"),
        (900, "nine hundred"),
        (4_007_213, "four million seven thousand two hundred thirteen"),
        (1_000_000_020, "one billion twenty"),
        (10**33 + 1, "one decillion one"),
    ):
        assert " ".join(words(number)) == spoken
    rows = number_to_words((1, 36), seed=1).batch("train", 0, 200)
    for source, n, text in zip(rows.source, rows.source_lengths, rows.texts(), strict=True):
        digits = "".join(DIGITS[i] for i in source[1 : n - 1].tolist())
        assert digits[0] != "0"
        assert [WORDS[i] for i in text] == [*words(int(digits)), WORDS[END]]


def test_what_is_read_and_what_is_answered() -> None:
    rows = pairs("two", [[2, 3], [4]], [[5, 6, 7], [8]], 9, 9)
    assert rows.inputs.tolist() == [[BEGIN, 5, 6, 7], [BEGIN, 8, END, 0]]
    assert rows.answers.tolist() == [[5, 6, 7, END], [8, END, IGNORE, IGNORE]]
    assert rows.inputs_mask is not None and rows.inputs_mask.sum(1).tolist() == [4, 2]
    assert rows.source_mask is not None and rows.source_mask.sum(1).tolist() == [4, 3]
    assert reversal((3, 3)).batch("train", 0, 2).source_mask is None


def test_bad_sizes_are_refused() -> None:
    for call, message in (
        (lambda: reversal((0, 3)), "lengths from 0 to 3"),
        (lambda: reversal((3, 2)), "the smaller first"),
        (lambda: reversal(symbols=1), "1 symbols"),
        (lambda: number_to_words((1, 37)), "lengths from 1 to 36"),
        (lambda: pairs("none", [], [], 3, 3), "0 sources and 0 targets"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            call()


def test_no_source_of_one_split_is_in_another() -> None:
    for made in (reversal((2, 3), symbols=6), number_to_words((2, 4))):
        found = {
            split: {tuple(row) for row in made.batch(split, 0, 1000).source.tolist()}
            for split in ("train", "valid", "test")
        }
        assert not found["train"] & found["test"] and not found["train"] & found["valid"]
        assert all(len(sources) > 10 for sources in found.values())
    with pytest.raises(ThreefoldError, match="too few different sources"):
        reversal((1, 1), symbols=2).batch("test", 0, 1)


@pytest.mark.parametrize("name", ["bahdanau", "luong"])
def test_attention_learns_to_reverse(name: str, tmp_path: Path) -> None:
    plan = TranslationStudy(
        length=6, width=64, batch_size=32, steps=400, learning_rate=5e-3, hide=0.3
    )
    model = study(name, plan)
    scores = by_length(model, plan, count=100)
    assert scores[6] > 0.9, scores
    rows = reversal((6, 6)).batch("test", 0, 50)
    assert share_correct(model, rows, beams=3) >= share_correct(model, rows) - 0.05
    weights = picture(model, plan, tmp_path / "diagonal.png")
    # Symbol i is answered while looking at its place from the end, END at the beginning.
    expected = torch.arange(weights.shape[1] - 1).flip(0)
    assert (weights.argmax(-1) - expected).abs().float().mean() < 1
    assert (tmp_path / "diagonal.png").stat().st_size > 1000


def test_hidden_targets_are_a_share_and_the_same_on_every_run() -> None:
    tokens = torch.full((100, 50), 7)
    hidden = hide(tokens, 0.3, (1, 2))
    assert (hidden == BEGIN).float().mean().item() == pytest.approx(0.3, abs=0.03)
    assert torch.equal(hide(tokens, 0.3, (1, 2)), hidden) and torch.equal(
        hide(tokens, 0, (1,)), tokens
    )


def test_a_transformer_learns_to_read_numbers() -> None:
    plan = TranslationStudy(
        "number_to_words", length=3, width=64, depth=1, batch_size=64, steps=500, learning_rate=4e-3
    )
    model = study("transformer", plan)
    rows = number_to_words((3, 3)).batch("test", 0, 200)
    assert share_correct(model, rows) > 0.95
    assert share_correct(model, rows, beams=3) >= share_correct(model, rows) - 0.02
