"""Loaders: shuffles and rows by address alone, token files, documents, buckets."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from threefold import ThreefoldError
from threefold.data import IGNORE, ByteTokenizer, Examples, TokenStream, Windows
from threefold.data.documents import DocumentChunks, Documents
from threefold.data.shuffling import Buckets, Shuffle, shuffled
from threefold.data.token_files import TokenFile, tokenize, write_tokens
from threefold.data.tokenizers import WordTokenizer
from threefold.tasks.parity import parity

TOKENS = np.arange(5000) % 251
STARTS = np.unique(np.append(0, np.random.default_rng(0).integers(0, 5000, 120)))
LENGTHS = np.random.default_rng(1).integers(1, 100, 500)
PINNED_SHUFFLE = [183, 431, 310, 384, 444, 480, 412]  # step 40 of 500 in batches of 7, seed 3
PINNED_BUCKET = [370, 430, 344, 205, 214, 362, 314]

MAKERS: dict[str, Callable[[], Callable[[int], Any]]] = {
    "stream": lambda: TokenStream(TOKENS, 4, 16, seed=3),
    "windows": lambda: Windows(TOKENS, 4, 16, seed=3),
    "documents": lambda: Documents(TOKENS, STARTS, 4, 16, seed=3),
    "shuffle": lambda: Shuffle(500, 7, seed=3),
    "buckets": lambda: Buckets(LENGTHS, 7, seed=3, window=8),
}


def content(given: Any) -> bytes:
    if isinstance(given, np.ndarray):
        return given.tobytes()
    return b"".join(part.numpy().tobytes() for part in given if part is not None)


# -------------------------------------------------------------------------------- orders


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 5))
def test_an_order_has_every_number_once(count: int, seed: int) -> None:
    order = shuffled((seed, 1), count, range(count))
    assert sorted(order.tolist()) == list(range(count))
    some = np.arange(0, count, 7)
    assert np.array_equal(shuffled((seed, 1), count, some), order[some])


def test_an_order_is_random_and_pinned() -> None:
    count = 20_000
    order = shuffled((1,), count, range(count))
    assert abs(np.corrcoef(np.arange(count), order)[0, 1]) < 0.03
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.03
    rest = np.bincount(order[: count // 2] // 2000, minlength=10)
    assert np.abs(rest - 1000).max() < 150  # the first half comes from everywhere
    assert not np.array_equal(order, shuffled((2,), count, range(count)))
    assert hashlib.sha256(order.tobytes()).hexdigest()[:16] == "531a81ee37f2b78b"
    huge = shuffled((1,), 10**12, [0, 1, 10**12 - 1])
    assert len(set(huge.tolist())) == 3 and (huge >= 0).all() and (huge < 10**12).all()
    for places in ([-1], [5]):
        with pytest.raises(ThreefoldError, match="expected 0 to 4"):
            shuffled((1,), 5, places)


@pytest.mark.parametrize("name", MAKERS)
def test_resuming_at_any_step_gives_the_same_stream(name: str) -> None:
    whole = MAKERS[name]()
    stream = [content(whole(step)) for step in range(300)]
    assert len(set(stream)) > 290
    for step in np.random.default_rng(2).integers(0, 300, 100).tolist():
        assert content(MAKERS[name]()(step)) == stream[step]


@pytest.mark.parametrize("name", ["shuffle", "buckets"])
def test_a_pass_has_every_example_once(name: str) -> None:
    loader = Shuffle(500, 50, 5) if name == "shuffle" else Buckets(LENGTHS, 50, 5, window=3)
    assert loader.steps_per_epoch == 10
    for epoch in range(2):
        numbers = [loader(epoch * 10 + step) for step in range(10)]
        assert sorted(np.concatenate(numbers).tolist()) == list(range(500))


def test_every_shuffle_is_the_same_one() -> None:
    """The orders of earlier runs, pinned; tensors and tasks are shuffled as numbers are."""
    numbers, pinned = torch.arange(500), Shuffle(500, 7, 3)(40)
    assert pinned.tolist() == PINNED_SHUFFLE
    assert Buckets(LENGTHS, 7, 3, window=8)(40).tolist() == PINNED_BUCKET
    assert Examples(numbers, numbers, 7, 3)(40).inputs.tolist() == PINNED_SHUFFLE
    rows = parity().rows("train", Shuffle(50_000, 4, 3)(5))
    batch = parity().batches(4, 3)(5).inputs
    assert torch.equal(batch, rows.inputs)
    assert hashlib.sha256(batch.numpy().tobytes()).hexdigest()[:12] == "7e99cc5aab1a"


def test_buckets_waste_little() -> None:
    def wasted(loader: Shuffle | Buckets) -> float:
        taken = [LENGTHS[loader(step)] for step in range(loader.steps_per_epoch)]
        return 1 - sum(map(np.sum, taken)) / sum(len(one) * one.max() for one in taken)

    assert wasted(Buckets(LENGTHS, 10)) < 0.1 < 0.4 < wasted(Shuffle(500, 10))
    with pytest.raises(ThreefoldError, match="a window of 0"):
        Buckets(LENGTHS, 10, window=0)


# --------------------------------------------------------------------------- token files


def pieces(*documents: Iterable[int]) -> Iterator[tuple[Any, bool]]:
    for document in documents:
        yield np.array(list(document)), True


@pytest.mark.parametrize(("vocabulary", "width"), [(256, 1), (257, 2), (70_000, 4)])
def test_token_files(vocabulary: int, width: int, tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    made = write_tokens(path, pieces(range(5), [vocabulary - 1], []), vocabulary)
    assert made.tokens.tolist() == [0, 1, 2, 3, 4, vocabulary - 1]
    assert made.starts.tolist() == [0, 5, 6] and made.vocabulary == vocabulary
    assert len(made) == 6 and made.tokens.itemsize == width
    assert isinstance(made.tokens, np.memmap) and not made.tokens.flags.writeable
    assert os.listdir(tmp_path) == ["x.tokens"]


def test_files_become_tokens(tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_bytes(b"one two\n\xff\x00")
    second.write_bytes(b"three " * 200_000)
    made = write_tokens(tmp_path / "x", tokenize([first, second], ByteTokenizer()), 256)
    assert bytes(made.tokens) == first.read_bytes() + second.read_bytes()
    assert made.starts.tolist() == [0, 10]
    words = WordTokenizer.learn(["three three"])
    made = write_tokens(tmp_path / "y", tokenize([second], words), words.vocabulary)
    assert words.decode(made.tokens) == second.read_text()
    assert len(made) == 200_001  # a word each, and the last space


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    write_tokens(path, pieces(range(5)), 256)
    before = path.read_bytes()
    (tmp_path / "bad.txt").write_bytes(b"good\nb\xffad")
    words = WordTokenizer.learn(["good"])
    with pytest.raises(ThreefoldError, match=r"bad\.txt:2: byte 2"):
        write_tokens(path, tokenize([tmp_path / "bad.txt"], words), words.vocabulary)
    with pytest.raises(ThreefoldError, match="token 6 is outside of 0 to 9"):
        write_tokens(path, pieces(range(5), [1, 10]), 10)
    with pytest.raises(ThreefoldError, match="no tokens to write"):
        write_tokens(path, pieces(), 10)
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["bad.txt", "x.tokens"]


def test_damaged_token_files(tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"
    write_tokens(path, pieces(range(5)), 256)
    good = path.read_bytes()
    for bad, message in (
        (b"", "not a token file"),
        (b"text", "not a token file"),
        (good[:-1], "truncated: 79 bytes, expected 80"),
        (good[:8] + b"\x02" + good[9:], "version 2"),
    ):
        path.write_bytes(bad)
        with pytest.raises(ThreefoldError, match=f"x.tokens: {message}"):
            TokenFile(path)
    with pytest.raises(ThreefoldError, match="No such file"):
        TokenFile(tmp_path / "y")


def test_a_mapped_file_streams_like_an_array(tmp_path: Path) -> None:
    made = write_tokens(tmp_path / "x", [(TOKENS, True)], 251)
    for loader in (TokenStream, Windows):
        for step in (0, 7, 200):
            given, expected = loader(made.tokens, 4, 16)(step), loader(TOKENS, 4, 16)(step)
            assert content(given) == content(expected)
    part = Windows(made.tokens[4000:], 4, 16)(3)
    assert content(part) == content(Windows(TOKENS[4000:], 4, 16)(3))


# ----------------------------------------------------------------------------- documents


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 6), st.integers(4, 40), st.integers(0, 2))
def test_pieces_of_a_lane_make_up_documents(batch: int, length: int, epoch: int) -> None:
    loader = Documents(np.arange(5000), STARTS, batch, length, seed=1)
    inputs: list[int] = []
    for lane in range(batch):
        before: int | None = None
        for place in range(loader.steps_per_epoch):
            piece = loader(epoch * loader.steps_per_epoch + place)
            assert piece.lengths is not None
            size = int(piece.lengths[lane])
            row, targets = piece.inputs[lane, :size].tolist(), piece.targets[lane].tolist()
            assert targets[:size] == [token + 1 for token in row]  # tokens count up
            assert set(targets[size:]) <= {IGNORE}
            assert bool(piece.starts[lane]) == (place == 0 or row[0] in STARTS)
            assert piece.starts[lane] or row[0] == before
            before = targets[size - 1]
            inputs += row
    assert len(set(inputs)) == len(inputs)
    assert len(inputs) > 0.8 * (5000 - len(STARTS)) - batch * length
    assert not set(inputs) & {int(start) - 1 for start in STARTS}


def test_chunks_by_number_are_those_of_the_lanes() -> None:
    chunks, loader = DocumentChunks(TOKENS, STARTS, 16), Documents(TOKENS, STARTS, 1, 16)
    by_number = {content(chunks.rows(np.array([n]))[:2]) for n in range(len(chunks))}
    in_lanes = {content(loader(step)[:2]) for step in range(loader.steps_per_epoch)}
    assert by_number == in_lanes and loader.steps_per_epoch == len(chunks)


def test_bad_starts_are_refused() -> None:
    assert len(DocumentChunks(np.arange(100), np.zeros(0, np.int64), 30)) == 4
    for starts in ([3, 5], [0, 9, 4], [0, 101]):
        with pytest.raises(ThreefoldError, match="documents begin at"):
            Documents(np.arange(100), np.array(starts), 1, 10)
    for make in (
        lambda: Documents(np.arange(10), np.arange(10), 1, 4),
        lambda: Documents(TOKENS, STARTS, 0, 4),
        lambda: Shuffle(5, 6),
    ):
        with pytest.raises(ThreefoldError, match="expected at least"):
            make()
