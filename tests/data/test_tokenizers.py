"""Tokenizers: exact round trips, streams, files with a model, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import threefold
from threefold import Spec, ThreefoldError
from threefold.data.python_manual import python_reference
from threefold.data.tokenizers import (
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    WordTokenizer,
    smallest_dtype,
)

TEXT = python_reference()[:60_000]
PAIRS = BPETokenizer.learn([TEXT], 600)
WORDS = WordTokenizer.learn([TEXT], 900)
TOKENIZERS: dict[str, Tokenizer] = {
    "bytes": ByteTokenizer(),
    "characters": CharacterTokenizer(TEXT),
    "words": WORDS,
    "pairs": PAIRS,
}
UNICODE = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_text_comes_back(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.encode(TEXT)
    assert tokens.dtype == tokenizer.dtype and tokens.max() < tokenizer.vocabulary
    assert tokenizer.decode(tokens) == TEXT
    assert tokenizer.decode_bytes(tokens) == TEXT.encode()
    assert "".join(tokenizer.stream(tokens[:500])) == tokenizer.decode(tokens[:500])
    assert len(tokenizer.encode("")) == 0 and tokenizer.decode([]) == ""
    with pytest.raises(ThreefoldError, match=f"{tokenizer.vocabulary}"):
        tokenizer.decode([tokenizer.vocabulary])
    with pytest.raises(ThreefoldError, match="-1"):
        tokenizer.decode([-1])


@settings(max_examples=300, deadline=None)
@given(UNICODE)
def test_any_text_comes_back(text: str) -> None:
    for tokenizer in (ByteTokenizer(), WORDS, PAIRS):
        assert tokenizer.decode_bytes(tokenizer.encode(text)) == text.encode()
    if text:
        tokenizer = CharacterTokenizer(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.binary())
def test_any_bytes_come_back(content: bytes) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode_bytes(tokenizer.encode(content)) == content
    assert tokenizer.decode_bytes(list(content)) == content


def test_words_and_pairs_make_texts_shorter() -> None:
    lengths = {name: len(one.encode(TEXT)) for name, one in TOKENIZERS.items()}
    assert lengths["pairs"] < 0.6 * lengths["bytes"]
    assert lengths["words"] < 0.7 * lengths["bytes"]
    assert WORDS.words[:2] == tuple(sorted(WORDS.words[:2], key=lambda w: -TEXT.count(w)))
    again = BPETokenizer.learn([TEXT], 600)
    assert again.parts == PAIRS.parts  # same text, same tokens


def test_unknown_characters_and_half_pairs_are_refused() -> None:
    known = CharacterTokenizer("abc")
    with pytest.raises(
        ThreefoldError,
        match=r"unknown character 'd' at position 2 of the text; the tokenizer has 3",
    ):
        known.encode("abd")
    with pytest.raises(ThreefoldError, match="'€'"):
        known.encode("€")
    with pytest.raises(ThreefoldError, match="no characters"):
        CharacterTokenizer("")
    for tokenizer in (WORDS, PAIRS):
        with pytest.raises(ThreefoldError, match="half of a surrogate pair"):
            tokenizer.encode("a\ud800")
    for learn in (BPETokenizer.learn, WordTokenizer.learn):
        with pytest.raises(ThreefoldError, match="at least the 256 bytes"):
            learn(["x"], 10)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_saved_with_a_model(name: str, tmp_path: Path) -> None:
    tokenizer = TOKENIZERS[name]
    model = threefold.build(Spec("language", 16, 1, "gru", tokenizer.vocabulary))
    model.tokenizer = tokenizer
    model.save(tmp_path / "model")
    loaded = threefold.load(tmp_path / "model").tokenizer
    assert type(loaded) is type(tokenizer)
    assert np.array_equal(loaded.encode(TEXT), tokenizer.encode(TEXT))
    assert loaded.parts == tokenizer.parts


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    for cls in (CharacterTokenizer, WordTokenizer, BPETokenizer):
        with pytest.raises(ThreefoldError, match=r"\.json: cannot be read"):
            cls.load(tmp_path)
        path = tmp_path / cls.FILE
        for content in ("[", "{}", '["a", "a"]', "[1]"):
            path.write_text(content)
            with pytest.raises(ThreefoldError, match=cls.FILE):
                cls.load(tmp_path)
    PAIRS.save(tmp_path)
    path = tmp_path / BPETokenizer.FILE
    good = json.loads(path.read_text())
    path.write_text(json.dumps({**good, "normalizer": {"type": "Lowercase"}}))
    with pytest.raises(ThreefoldError, match=r"tokenizer\.json: .*normalises text"):
        BPETokenizer.load(tmp_path)


def test_the_smallest_numbers() -> None:
    sizes = (256, 257, 65536, 65537)
    assert [smallest_dtype(n) for n in sizes] == [np.uint8, np.uint16, np.uint16, np.uint32]
    with pytest.raises(ThreefoldError, match="at most"):
        smallest_dtype(2**32 + 1)
