"""Bytes as they come give the tokens of the whole, wherever they are cut, and refuse the rest."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Merger

from threefold import ThreefoldError
from threefold.data import (
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    WordTokenizer,
    stream_encoders,
)
from threefold.data.stream_encoders import UnreadableError, encoder_for
from threefold.data.stream_rows import RowEncoder, RowLayout
from threefold.data.tokenizers import Tokenizer
from threefold.runtime.source import Source

# Contractions, runs of white space, digits, letters of two to four bytes, an added token.
PARTS = [
    "we're",
    "'ll",
    "'",
    "'r",
    " ",
    "  ",
    "\n",
    "\t ",
    "the",
    " the",
    "12",
    "é",
    "€",
    "😀",
    ".",
]
PARTS += ["<|end|>", "<|", "|>", "e", "l", "thethe", "\u00a0"]
TEXT = " ".join(PARTS * 20) + "".join(PARTS * 20)


def with_added(made: BPETokenizer) -> BPETokenizer:
    merger = Merger.from_str(made.description)
    merger.add_tokens(["<|end|>"])
    return BPETokenizer(merger.to_str())


PAIRS = BPETokenizer.learn([TEXT], vocabulary=330)
TOKENIZERS: dict[str, Tokenizer] = {
    "bytes": ByteTokenizer(),
    "characters": CharacterTokenizer(TEXT),
    "words": WordTokenizer.learn([TEXT], vocabulary=280),
    "pairs": PAIRS,
    "pairs and an added token": with_added(PAIRS),
}


def pieces(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    place = 0
    for size in sizes:
        yield data[place : place + size]
        place += size
    yield data[place:]


def taken(source: Source, counts: list[int]) -> list[int]:
    """Everything, by different numbers of elements at a time."""
    found: list[int] = []
    place = 0
    while count := source.load(counts[place % len(counts)]):
        found += source.take(count).tolist()
        place += 1
    return found


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=40),
    sizes=st.lists(st.integers(1, 12), max_size=40),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=3),
)
def test_any_cut_gives_the_tokens_of_the_whole(
    name: str, parts: list[str], sizes: list[int], counts: list[int]
) -> None:
    tokenizer, text = TOKENIZERS[name], "".join(parts)
    source = Source(pieces(text.encode(), sizes), encoder_for(tokenizer))
    assert taken(source, counts) == tokenizer.encode(text).tolist()
    assert source.offset == len(text.encode())
    assert source.line == text.count("\n")


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.sampled_from(PARTS), min_size=4, max_size=40),
    sizes=st.lists(st.integers(1, 12), max_size=40),
    first=st.integers(0, 30),
)
def test_a_place_goes_on_with_the_same_tokens(
    parts: list[str], sizes: list[int], first: int
) -> None:
    tokenizer, text = TOKENIZERS["pairs and an added token"], "".join(parts)
    input_ = pieces(text.encode(), sizes)
    source = Source(input_, encoder_for(tokenizer))
    count = source.load(first) if first else 0
    found = source.take(count).tolist() if count else []
    again = Source(input_, encoder_for(tokenizer))
    again.restore(source.position())
    assert found + taken(again, [3]) == tokenizer.encode(text).tolist()


def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a look ahead, or cut anywhere, byte pairs differ."""
    text = "we're the the" * 3
    naive = [t for i in range(0, len(text), 3) for t in PAIRS.encode(text[i : i + 3]).tolist()]
    assert naive != PAIRS.encode(text).tolist()
    monkeypatch.setattr(stream_encoders, "BPE_LOOKAHEAD", 0)
    source = Source([bytes([byte]) for byte in b"we're"], encoder_for(PAIRS))
    assert taken(source, [1]) != PAIRS.encode("we're").tolist()


def test_words_without_an_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_encoders, "MOST_PENDING_BYTES", 1 << 10)
    for name in ("words", "pairs"):
        source = Source((b"a" * 600 for _ in range(9)), encoder_for(TOKENIZERS[name]))
        with pytest.raises(ThreefoldError, match=r"input:1: .* without the end of a word"):
            source.load(1)
    rows = Source((b"1" * 600 for _ in range(9)), RowEncoder(RowLayout(("x1",))))
    with pytest.raises(ThreefoldError, match=r"without the end of a line"):
        rows.load(1)


def test_what_is_no_text_is_refused_with_its_place() -> None:
    for name in ("characters", "words", "pairs"):
        source = Source([b"the\n", b"the \xff"], encoder_for(TOKENIZERS[name]))
        with pytest.raises(ThreefoldError, match=r"input:2: 0xff is not valid UTF-8.*\(byte 8\)"):
            taken(source, [1])
    source = Source([b"the\nth", "ö".encode()], encoder_for(TOKENIZERS["characters"]))
    with pytest.raises(ThreefoldError, match=r"input:2: unknown character 'ö': the model knows"):
        taken(source, [1])


def test_tokenizers_that_cannot_be_cut_are_refused() -> None:
    whole = json.loads(PAIRS.description)
    whole["pre_tokenizer"]["use_regex"] = False
    with pytest.raises(ThreefoldError, match="merges pairs across words"):
        encoder_for(BPETokenizer(json.dumps(whole)))
    added = json.loads(TOKENIZERS["pairs and an added token"].description)  # type: ignore[attr-defined]
    added["added_tokens"][0]["lstrip"] = True
    with pytest.raises(ThreefoldError, match="depends on the white space or words around it"):
        encoder_for(BPETokenizer(json.dumps(added)))
    with pytest.raises(ThreefoldError, match="object cannot encode a stream"):
        encoder_for(object())


class TestRows:
    @staticmethod
    def rows(*parts: bytes, size: int = 2, columns: list[str] | None = None) -> list[list[float]]:
        names = tuple(f"x{i}" for i in range(1, size + 1))
        layout = RowLayout(names, columns=None if columns is None else tuple(columns))
        source = Source(iter(parts), RowEncoder(layout))
        found = []
        while count := source.load(3):
            found += source.take(count)["numbers"].tolist()
        return found

    def test_numbers_come_line_by_line(self) -> None:
        wanted = [[1.0, 2.0], [3.0, -4.5], [5.0, 6e3]]
        assert self.rows(b"1,2\n3,", b"-4.5\n\n5", b",6e3") == wanted
        assert self.rows(b"a;b\r\n1;2\r\n3;-4.5\r\n5;6e3\r\n") == wanted
        for cut in range(1, 21):  # lines that end in a carriage return alone, or in both
            table = b"a;b\r1;2\r3;-4.5\r5;6e3\r"
            assert self.rows(table[:cut], table[cut:]) == wanted
            table = b"a;b\r\n1;2\r\n3;-4.5\r\n5;6e3"
            assert self.rows(table[:cut], table[cut:]) == wanted
        assert self.rows("\ufeff1\t2\n3\t-4.5\n5\t6e3\n".encode()) == wanted

    def test_columns_are_chosen_by_name_or_number(self) -> None:
        table = b'when,"a, b",c\n"Monday, 1",1,2\nx,3,4\n'
        for columns in (["c", "a, b"], ["3", "2"]):
            assert self.rows(table, columns=columns) == [[2.0, 1.0], [4.0, 3.0]]

    @pytest.mark.parametrize(
        ("table", "message"),
        [
            (b"1,2\n1,2,3\n", "input:2: 3 cells, expected 2"),
            (b"a,b\n1,2\n\n1,x\n", "input:4: column 2 is 'x'; expected a finite number"),
            (b"1,2\n1,nan\n", "input:2: column 2 is 'nan'; expected a finite number"),
            (b"1,2\n1,\n", "input:2: column 2 is ''; expected a finite number"),
            (b"a,b,c\n1,2,3\n", r"input:1: 3 columns \(a, b, c\); the model reads 2"),
            (b'1,2\n"1,2\n', "input:2: not a table row"),
            (b"1,2\n\x80\x81,2\n", "input:2: 0x80 is not valid UTF-8"),
            ("a,b\n1,2\n".encode("utf-16"), "input:1: begins as UTF-16 text; .* iconv -f UTF-16"),
            (bytes(range(128, 256)), "input:1: 0x80 is not valid UTF-8"),
        ],
    )
    def test_bad_rows_are_told_with_their_line(self, table: bytes, message: str) -> None:
        with pytest.raises(ThreefoldError, match=message):
            self.rows(table)

    def test_bad_columns(self) -> None:
        with pytest.raises(ThreefoldError, match="no column 'beta'; did you mean 'bet'"):
            self.rows(b"alpha,bet\n1,2\n", columns=["alpha", "beta"])
        with pytest.raises(ThreefoldError, match=r"1 columns .a.; the model reads 2 numbers"):
            RowLayout(("x1", "x2"), columns=("a",))

    def test_settings_go_on_in_the_middle(self) -> None:
        layout = RowLayout(("x1",), columns=("b",))
        first, second = RowEncoder(layout), RowEncoder(layout)
        assert first.encode(b"a,b\n1,2\n", False)[0]["numbers"].tolist() == [[2.0]]
        second.restore(json.loads(json.dumps(first.settings())))
        assert second.encode(b"3,4\n", False)[0]["numbers"].tolist() == [[4.0]]

    def test_names_times_and_series(self) -> None:
        limits = ((0.0, 10.0), (0.0, 1e6))
        layout = RowLayout(("b", "a"), True, "when", "site", limits, refuses=False)
        tables = (
            'site;a;when;c;b\nx;1,5;"1.2.2024";?;2\ny;7;;;11\n;1;;;1\n3\n',
            '{"site":"x","a":1.5,"when":"1.2.2024","b":2}\n{"b":11,"a":"7","site":"y"}\n'
            '{"b":1,"a":1}\n[3]\n',
        )
        for table in tables:
            encoder = RowEncoder(layout)
            x, y, *skipped = encoder.encode(table.encode(), True)[0]
            assert x["numbers"].tolist() == [2.0, 1.5] and x["time"] == "1.2.2024"
            assert math.isnan(y["numbers"][0]) and y["numbers"][1] == 7 and y["series"] == "y"
            assert [row["skipped"] for row in skipped] == [True, True]
            assert encoder.ignored == (["c"] if "c" in table.split("\n")[0] else [])

    def test_another_input_may_have_a_header(self) -> None:
        encoder = RowEncoder(RowLayout(("a", "b"), True))
        encoder.encode(b"a,b\n1,2\n", False)
        for table, expected in ((b"b,a\n1,2\n", [[2.0, 1.0]]), (b"3,4\n", [[4.0, 3.0]])):
            encoder.restart()
            assert encoder.encode(table, False)[0]["numbers"].tolist() == expected
        for table, message in ((b"b,c\n", "the column a is missing"), (b"1\n", "1 cells, but the")):
            encoder.restart()
            with pytest.raises(UnreadableError, match=message):
                encoder.encode(table, False)
