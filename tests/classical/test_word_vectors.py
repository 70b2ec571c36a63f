"""Word vectors against their definition, written out, and as they are used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tolerances import assert_close
from threefold.classical.word_vectors import (
    WordCorpus,
    WordVectorOptions,
    WordVectors,
    sentences_of,
)
from threefold.cli.app import main
from threefold.errors import ThreefoldError
from threefold.kernels import library, ops
from threefold.kernels.word_vectors import WordPass, _descend, noise_table, plain_word_vectors
from threefold.training.config import RunConfig
from threefold.training.preparation import prepare

WORLDS = {"king queen prince": "wore signed ruled won", "dog cat fox": "chased ate smelled bit"}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("cbow", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_native_pass_equals_the_plain_one(cbow: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    tables = [torch.randn(50, 32, generator=generator, dtype=dtype) * 0.3 for _ in range(2)]
    words = torch.randint(0, 50, (200,), generator=generator)
    sentences = torch.tensor([0, 1, 40, 40, 199, 200])  # of one word, and empty ones, too
    noise = noise_table(np.random.default_rng(0).random(50) ** 3)
    what = WordPass(4, 5, cbow, 0x123456789ABCDEF, 0.5, 0.1)
    expected = [table.clone() for table in tables]
    plain_word_vectors(*expected, words, sentences, noise, what)
    for variant in library.runnable():
        found = [table.clone() for table in tables]
        with library.using(variant):
            ops.word_vectors(*found, words, sentences, noise, what)
        for one, other, before in zip(found, expected, tables, strict=True):
            assert_close(one, other)
            assert (one - before).abs().max() > 0.1


@pytest.mark.parametrize("group", [[0], [0, 2, 5]])
def test_a_step_is_that_of_the_gradient(group: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs, outputs = (torch.randn(6, 16, generator=generator).double() for _ in range(2))
    a, b = inputs.clone().requires_grad_(), outputs.clone().requires_grad_()
    products = b[[1, 3, 4]] @ a[group].mean(0)
    signs = torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64)
    (-torch.nn.functional.logsigmoid(signs * products).sum()).backward()
    _descend(inputs, outputs, group, [1, 3, 4], 0.5)
    for found, start in ((inputs, a), (outputs, b)):
        assert start.grad is not None
        assert_close(found, (start - 0.5 * start.grad).detach())


def test_aliases_draw_the_shares() -> None:
    shares = np.array([5.0, 1.0, 0.0, 2.0, 2.0])
    table = noise_table(shares)
    drawn = np.zeros(5)
    own = table.thresholds.numpy() / 2**32
    for cell in range(5):
        drawn[cell] += own[cell] / 5
        drawn[int(table.aliases[cell])] += (1 - own[cell]) / 5
    np.testing.assert_allclose(drawn, shares / 10, atol=1e-9)


def test_rare_words_and_thinned_ones_are_left_out() -> None:
    corpus = WordCorpus.read([["a", "b", "a"], ["c"], ["a", "b", "d"]], minimum_count=2)
    assert corpus.words == ("a", "b")
    assert corpus.text.tolist() == [0, 1, 0, 0, 1]
    assert corpus.lengths.tolist() == [3, 2]
    long = WordCorpus.read([["x"] * 40_000 + ["y"] * 400] * 2, minimum_count=1)
    text, lengths = long.subsampled(0.01, (0,))
    kept = np.bincount(text, minlength=2)
    share = 0.01 * 80_800 / 80_000
    assert kept[0] == pytest.approx(80_000 * (share**0.5 + share), rel=0.03)
    assert kept[1] == 800  # not above the share: all stay
    assert lengths.sum() == len(text)


def made_up_sentences(count: int) -> list[list[str]]:
    generator = np.random.default_rng(0)
    worlds = [(who.split(), does.split()) for who, does in WORLDS.items()]
    chosen = [worlds[number] for number in generator.integers(0, 2, count)]
    return [[str(generator.choice(part)) for part in (who, does, who)] for who, does in chosen]


@pytest.mark.parametrize("method", ["skip_gram", "cbow"])
def test_words_of_one_world_become_neighbours(method: str) -> None:
    options = {"method": method, "width": 10, "subsample": 0, "passes": 20}
    vectors = WordVectors.fit(made_up_sentences(1000), **options)
    for who in WORLDS:
        names = who.split()
        assert {word for word, _ in vectors.nearest(names[0], 2)} == set(names[1:])
    assert vectors.similarity("king", "queen") > 0.8 > 0.5 > vectors.similarity("king", "dog")
    again = WordVectors.fit([" ".join(words) + "." for words in made_up_sentences(1000)], **options)
    assert np.array_equal(vectors.vectors, again.vectors)


def test_analogies_leave_out_the_question() -> None:
    vectors = WordVectors(
        ["man", "woman", "king", "queen", "fish"],
        np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1], [-1, 0, 0.2]]),
    )
    assert vectors.analogy("man", "king", "woman", 1)[0][0] == "queen"
    questions = [("man", "king", "woman", "queen"), ("man", "king", "woman", "nobody")]
    assert vectors.analogies_solved(questions) == (1, 1)


def test_files_are_word2vec_s(tmp_path: Path) -> None:
    vectors = WordVectors.fit(made_up_sentences(50), width=5, minimum_count=1)
    path = tmp_path / "vectors.txt"
    vectors.save(path)
    lines = path.read_text().splitlines()
    assert lines[0] == "14 5"
    assert lines[1].split(" ")[0] == vectors.words[0] and len(lines[1].split(" ")) == 6
    assert np.array_equal(WordVectors.load(path).vectors, vectors.vectors)
    path.write_text("\n".join(lines[1:]) + "\n")  # as GloVe's files
    assert WordVectors.load(path).words == vectors.words
    for text, message in (
        ("\n".join(lines[:5]), "announces 14 words"),
        ("king 0.1 high\n", "expected a word and 2 numbers"),
        ("king 0.1 0.2\ncat 0.1\n", "vectors.txt:2: expected a word and 2 numbers"),
        ("king nan 1\n", "expected a word"),
    ):
        path.write_text(text)
        with pytest.raises(ThreefoldError, match=message):
            WordVectors.load(path)


def test_what_cannot_be_trained_or_asked_is_refused(tmp_path: Path) -> None:
    for options, message in (
        ({"method": "glove"}, "unknown method 'glove'"),
        ({"window": 0}, "window is 0; expected 1 to 256"),
        ({"subsample": -1.0}, "subsample is -1.0"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            WordVectorOptions(**options)  # type: ignore[arg-type]
    with pytest.raises(ThreefoldError, match="of which 0 occur 5 times or more"):
        WordVectors.fit([["one", "two"]])
    with pytest.raises(ThreefoldError, match="expected a text, or a list of its words"):
        WordVectors.fit([[1, 2]])  # type: ignore[list-item]
    with pytest.raises(ThreefoldError, match="no setting 'widht'; did you mean 'width'"):
        WordVectors.fit("one two", widht=3)
    vectors = WordVectors.fit(made_up_sentences(50), width=5, minimum_count=1)
    with pytest.raises(ThreefoldError, match=r"no vector for 'quen'.*did you mean 'queen'"):
        vectors.nearest("quen")
    with pytest.raises(ThreefoldError, match="count is 0, expected at least 1 word"):
        vectors.nearest("queen", 0)
    with pytest.raises(ThreefoldError, match="expected a text, or a list of its words"):
        WordVectors.fit([1, 2])  # type: ignore[list-item]
    (tmp_path / "twice.txt").write_text("2 2\na 1 2\na 3 4\n")
    with pytest.raises(ThreefoldError, match=r"twice\.txt:3: a second vector of 'a'"):
        WordVectors.load(tmp_path / "twice.txt")


@pytest.mark.parametrize("method", ["skip_gram", "cbow"])
def test_vectors_that_diverge_are_refused(method: str) -> None:
    with pytest.raises(ThreefoldError, match="train again with a smaller learning_rate"):
        WordVectors.fit([list("abcd")] * 200, method=method, width=8, learning_rate=900.0)


def test_sentences_end_at_punctuation_or_lines() -> None:
    text = "Mr. Fox's den.\nIt was\nwarm! 3.5 metres\n\nThe end"
    found = [["mr"], ["fox's", "den"], ["it", "was", "warm"], ["3", "5", "metres"], ["the", "end"]]
    assert list(sentences_of(text)) == found
    assert len(list(sentences_of(text, by_line=True))) == 4


def test_a_model_starts_from_word_vectors(tmp_path: Path) -> None:
    path, text = tmp_path / "vectors.txt", tmp_path / "book.txt"
    text.write_text("The king wore a crown. The Queen signed a law.\n" * 300)
    (tmp_path / "table.csv").write_text("label,size\n" + "a,1\nb,2\n" * 30)
    vectors = WordVectors(["king", "queen", "crown"], np.eye(3, 32) + 1)
    vectors.save(path)
    values = {"data": {"name": str(text), "length": 16}, "training": {"steps": 1}}
    model = {"mixers": "gru", "depth": 1, "embedding": str(path)}
    prepared = prepare(RunConfig.read({**values, "model": model}))
    tokenizer, table = prepared.model.tokenizer, prepared.model.get_submodule("embedding").weight
    assert prepared.known_words == 3  # " king", " Queen", " crown": found by its lower case, too
    assert isinstance(table, torch.Tensor) and table.shape[1] == 32
    row = table[int(tokenizer.encode(" Queen")[0])].detach()
    expected = torch.from_numpy(vectors.vector("queen"))
    assert_close(row / row.norm(), expected / expected.norm())
    assert 0.9 < float(row.norm()) < 1.1  # √width · row has a deviation of 1
    assert prepared.model.spec.options["scale_embedding"]
    table_data = {"name": str(tmp_path / "table.csv"), "kind": "classifier", "target": "label"}
    for change, message in (
        ({"model": {**model, "width": 64}}, "model.width is 64, but the vectors"),
        ({"data": {**values["data"], "tokenizer": "byte"}}, "set data.tokenizer to word"),
        ({"data": table_data}, "embedding= sets it, too"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            prepare(RunConfig.read({**values, "model": model, **change}))


def test_words_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, path = tmp_path / "text.txt", tmp_path / "vectors.txt"
    text.write_text("\n".join(" ".join(words) for words in made_up_sentences(400)))

    def threefold(*arguments: object) -> str:
        with pytest.raises(SystemExit) as left:
            main(["words", *map(str, arguments)])
        printed = capsys.readouterr()
        return printed.out if left.value.code in (0, None) else printed.err

    options = ["--by-line", "--width", 8, "--passes", 20, "--subsample", 0, "--threads", 1]
    assert "14 different" in threefold("train", text, "--output", path, *options)
    assert "exists; choose another" in threefold("train", text, "--output", path)
    assert threefold("nearest", path, "King", "--count", 1).split()[0] in ("queen", "prince")
    assert float(threefold("similarity", path, "dog", "cat")) > 0.5
    assert json.loads(threefold("analogy", path, "king", "queen", "dog", "--json"))[0]["word"]
