"""Data: exact round trips, the same bytes on every run, any batch from its address alone."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from threefold.data import (
    IGNORE,
    Batch,
    Batches,
    ByteTokenizer,
    Examples,
    TokenStream,
    Windows,
    python_reference,
    split,
)
from threefold.data.python_manual import join_topics
from threefold.data.random_by_address import choose, integers, permutation, uniform
from threefold.errors import ThreefoldError

TOKENS = np.arange(1000)
LOADERS: dict[str, Batches] = {
    "stream": TokenStream(TOKENS, batch_size=4, length=16, seed=3),
    "windows": Windows(TOKENS, batch_size=4, length=16, seed=3),
    "examples": Examples(
        torch.arange(60).reshape(30, 2), torch.arange(60).reshape(30, 2), batch_size=4, seed=3
    ),
}


def fingerprint(batch: Batch) -> str:
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in batch[:3])).hexdigest()[:16]


@given(st.text())
def test_bytes_round_trip(text: str) -> None:
    tokenizer = ByteTokenizer()
    if any("\ud800" <= character <= "\udfff" for character in text):
        with pytest.raises(ThreefoldError, match="surrogate"):
            tokenizer.encode(text)
        return
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert "".join(tokenizer.stream(tokens)) == text


def test_decoding_tolerates_cut_characters() -> None:
    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode("aé→")
    assert tokenizer.decode(tokens[:-1]) == "aé\ufffd"
    assert tokenizer.decode(tokens[2:]) == "\ufffd→"
    assert list(tokenizer.stream(tokens)) == ["a", "", "é", "", "", "→", ""]
    assert "".join(tokenizer.stream(tokens[:-1])) == "aé\ufffd"
    with pytest.raises(ThreefoldError, match="300"):
        tokenizer.decode([97, 300])


def test_reference_is_real_text_without_repeats() -> None:
    text = python_reference()
    paragraphs = text.rstrip("\n").split("\n\n")
    assert len(text) > 200_000
    assert 'The "assert" statement' in text
    assert len(set(paragraphs)) == len(paragraphs)
    train, validation = split(text)
    assert train + validation == text
    assert len(train) == int(0.9 * len(text))
    # Nothing long of the validation text stands in the training text.
    pieces = [validation[i : i + 200] for i in range(0, len(validation) - 200, 50)]
    assert not [piece for piece in pieces if piece in train]


def test_reference_is_the_same_in_every_process() -> None:
    program = (
        "import hashlib; from threefold.data import python_reference as f; "
        "print(hashlib.sha256(f().encode()).hexdigest())"
    )
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == hashlib.sha256(python_reference().encode()).hexdigest()


def test_topics_are_joined_in_order() -> None:
    topics = {"b": "two\n\nshared\n", "a": "\none\n\nshared"}
    assert join_topics(topics) == "one\n\nshared\n\ntwo\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("stream", "4b217a56a64f405c"),
        ("windows", "96d27160330c0ca6"),
        ("examples", "a580bd1fe0fe4ef9"),
    ],
)
def test_batches_have_pinned_bytes(name: str, expected: str) -> None:
    assert fingerprint(LOADERS[name](40)) == expected


@pytest.mark.parametrize("name", LOADERS)
def test_batches_are_addressed_by_step_alone(name: str) -> None:
    loader = LOADERS[name]
    in_order = [fingerprint(loader(step)) for step in range(50)]
    assert [fingerprint(loader(step)) for step in reversed(range(50))] == in_order[::-1]
    assert len(set(in_order)) == 50


def test_the_seed_changes_the_batches() -> None:
    assert not torch.equal(Windows(TOKENS, 4, 16, 1)(0).inputs, Windows(TOKENS, 4, 16, 2)(0).inputs)
    # The first pass of a stream is the text as it is written; the seed moves the later ones.
    first, second = (TokenStream(TOKENS, 4, 16, seed) for seed in (1, 2))
    assert torch.equal(first(0).inputs, second(0).inputs)
    assert not torch.equal(
        first(first.steps_per_epoch).inputs, second(first.steps_per_epoch).inputs
    )


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(1, 20), st.integers(0, 3))
def test_pieces_follow_one_another(batch: int, length: int, epoch: int) -> None:
    stream = TokenStream(TOKENS, batch, length, seed=7)
    pieces = [stream(epoch * stream.steps_per_epoch + i) for i in range(stream.steps_per_epoch)]
    inputs = torch.cat([piece.inputs for piece in pieces], 1)
    targets = torch.cat([piece.targets for piece in pieces], 1)
    assert torch.equal(targets, (inputs + 1) % len(TOKENS))
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert [bool(piece.starts.all()) for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert not any(piece.starts.any() for piece in pieces[1:])
    assert len(inputs.unique()) == inputs.numel()  # no token twice in one pass


def test_windows_reach_both_ends_and_no_further() -> None:
    tokens = np.arange(20)
    windows = Windows(tokens, batch_size=200, length=16)
    inputs, targets, starts, *_ = windows(0)
    assert torch.equal(targets, inputs + 1)
    assert sorted(set(inputs[:, 0].tolist())) == [0, 1, 2, 3]
    assert starts.all()


def test_a_pass_shows_every_example_once() -> None:
    rows = torch.arange(10)[:, None]
    loader = Examples(rows, rows + 1, batch_size=5, seed=0)
    for epoch in range(3):
        seen = torch.cat([loader(2 * epoch + i).inputs for i in range(2)]).flatten()
        assert sorted(seen.tolist()) == list(range(10))
    assert torch.equal(loader(1).targets, loader(1).inputs + 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TokenStream(TOKENS[:16], batch_size=1, length=16),
        lambda: TokenStream(TOKENS, batch_size=0, length=16),
        lambda: Windows(TOKENS[:16], batch_size=1, length=16),
        lambda: Windows(TOKENS, batch_size=1, length=0),
        lambda: Examples(torch.zeros(3, 2), torch.zeros(3, 2), batch_size=4),
        lambda: Examples(torch.zeros(3, 2), torch.zeros(2, 2), batch_size=1),
    ],
)
def test_what_cannot_be_cut_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ThreefoldError, match="at least one"):
        make()


def test_draws_are_fair() -> None:
    numbers = uniform((5,), 20_000)
    assert 0 <= numbers.min() < 0.001
    assert 0.999 < numbers.max() < 1
    assert np.bincount(integers((6,), 4, 20_000)).min() > 4_700
    assert sorted(permutation((7,), 100)) == list(range(100))
    drawn = choose(uniform((8,), 20_000, 3), np.array([1.0, 2.0, 4.0]), 2)
    assert (drawn[:, 0] != drawn[:, 1]).all()
    first = np.bincount(drawn[:, 0]) / len(drawn)
    assert np.abs(first - np.array([1, 2, 4]) / 7).max() < 0.015
    # The second draw is by the weights that are left: P(0 then 1) = 1/7 · 2/6.
    assert abs(((drawn == [0, 1]).all(1)).mean() - 1 / 21) < 0.01


def test_ignored_targets_are_what_torch_ignores() -> None:
    assert torch.nn.CrossEntropyLoss().ignore_index == IGNORE
