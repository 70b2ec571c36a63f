"""Loaders: shuffles and rows by address alone, token files, ranks, packing, buckets."""

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
from threefold.data import IGNORE, ByteTokenizer, TokenStream, Windows
from threefold.data.documents import Documents, Packed, pack
from threefold.data.shuffling import Buckets, Shuffle, shuffled
from threefold.data.token_files import TokenFile, tokenize, write_tokens
from threefold.data.tokenizers import WordTokenizer
from threefold.training.truncated_bptt import cut_segments

TOKENS = np.arange(5000) % 251
STARTS = np.unique(np.append(0, np.random.default_rng(0).integers(0, 5000, 120)))
LENGTHS = np.random.default_rng(1).integers(1, 100, 500)

MAKERS: dict[str, Callable[[], Callable[[int], Any]]] = {
    "stream": lambda: TokenStream(TOKENS, 4, 16, seed=3),
    "windows": lambda: Windows(TOKENS, 4, 16, seed=3),
    "documents": lambda: Documents(TOKENS, STARTS, 4, 16, seed=3),
    "packed": lambda: Packed(TOKENS, STARTS, 4, 64, seed=3),
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
def test_a_pass_has_every_example_once_over_all_ranks(name: str) -> None:
    made: list[Shuffle | Buckets] = [
        Shuffle(500, 10, 5, rank=rank, ranks=5)
        if name == "shuffle"
        else Buckets(LENGTHS, 10, 5, window=3, rank=rank, ranks=5)
        for rank in range(5)
    ]
    assert {loader.steps_per_epoch for loader in made} == {10}
    for epoch in range(2):
        numbers = [one(epoch * 10 + step) for one in made for step in range(10)]
        assert sorted(np.concatenate(numbers).tolist()) == list(range(500))


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


def by_document(tokens: Any, starts: Any) -> list[list[int]]:
    return [part.tolist() for part in np.split(tokens, starts[1:])]


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


def test_ranks_share_the_lanes() -> None:
    for cls in (TokenStream, Windows):
        whole = cls(TOKENS, 6, 16, 3)
        parts = [cls(TOKENS, 2, 16, 3, rank=rank, ranks=3) for rank in range(3)]
        for step in (0, 1, 60):
            together = torch.cat([part(step).inputs for part in parts])
            assert torch.equal(together, whole(step).inputs)
        with pytest.raises(ThreefoldError, match="rank 3 of 3; expected 0 to 2"):
            cls(TOKENS, 2, 16, rank=3, ranks=3)
    everything = Documents(TOKENS, STARTS, 6, 16, 3)
    shared = [Documents(TOKENS, STARTS, 2, 16, 3, rank=rank, ranks=3) for rank in range(3)]
    packs = [Packed(TOKENS, STARTS, 2, 64, 3, rank=rank, ranks=3) for rank in range(3)]
    all_packs = Packed(TOKENS, STARTS, 6, 64, 3)
    for step in (0, 9):
        joined = torch.cat([one(step).inputs for one in shared])
        assert torch.equal(joined, everything(step).inputs)
        joined = torch.cat([one(step).inputs for one in packs])
        assert torch.equal(joined, all_packs(step).inputs)


def test_packed_rows_hold_whole_documents() -> None:
    loader = Packed(TOKENS, STARTS, 1, 260, seed=1)
    seen: list[list[int]] = []
    for step in range(loader.steps_per_epoch):
        row = loader(step)
        assert torch.equal(row.mask[0], torch.arange(260) < row.lengths[0])
        marks = row.starts[0].nonzero().flatten().tolist()
        ends = [*marks[1:], int(row.lengths[0])]
        for begin, end in zip(marks, ends, strict=True):
            text = row.inputs[0, begin:end].tolist()
            assert row.targets[0, begin:end].tolist() == [*text[1:], IGNORE]
            seen.append(text)
        assert (row.targets[0, row.lengths[0] :] == IGNORE).all()
    assert max(map(len, by_document(TOKENS, STARTS))) <= 260
    assert sorted(seen) == sorted(by_document(TOKENS, STARTS))
    assert len(loader.rows) <= 1.1 * 5000 / 260 + 1
    # What training does with it: pieces that end before every start.
    batch = loader(0)
    made = list(cut_segments(batch.inputs, batch.targets, 64, batch.starts))
    assert sum(int(piece.starts[0]) for piece in made) == int(batch.starts.sum())


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60))
def test_packing_loses_nothing(sizes: list[int]) -> None:
    rows = pack(np.array(sizes), 30)
    assert sorted(number for row in rows for number in row) == list(range(len(sizes)))
    assert max(sum(sizes[number] for number in row) for row in rows) <= 30
    assert len(rows) <= 11 / 9 * max(1, -(-sum(sizes) // 30)) * 1.5 + 1


def test_long_documents_are_cut_and_bad_marks_refused() -> None:
    loader = Packed(np.arange(100), np.zeros(0, np.int64), 1, 30)
    assert sorted(int(loader(step).lengths[0]) for step in range(loader.steps_per_epoch)) == [
        10,
        30,
        30,
        30,
    ]
    for starts in ([3, 5], [0, 9, 4], [0, 101]):
        with pytest.raises(ThreefoldError, match="documents begin at"):
            Documents(np.arange(100), np.array(starts), 1, 10)
    for make in (
        lambda: Documents(np.arange(10), np.arange(10), 1, 4),
        lambda: Documents(TOKENS, STARTS, 0, 4),
        lambda: Packed(TOKENS, STARTS, 5000, 64),
        lambda: Packed(TOKENS, STARTS, 1, 0),
        lambda: Shuffle(5, 6),
    ):
        with pytest.raises(ThreefoldError, match="expected at least"):
            make()
