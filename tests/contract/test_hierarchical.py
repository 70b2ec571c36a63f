"""Hierarchical classifiers: words, sentences, documents; whole, in pieces, and part by part."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import threefold
from tests.contract.test_seq2seq import assert_states_close
from tests.tolerances import assert_close
from threefold import Spec, ThreefoldError
from threefold.data.preprocessing.text import TokenizeSentences, split_sentences
from threefold.data.tokenizers import WordTokenizer
from threefold.memory import state as states

END = 16
DOCUMENTS = torch.tensor(
    [
        [1, 2, 3, END, 4, END, 5, 6, 7, END, 8, 9, 1, END],
        [3, END, 4, 5, 6, 7, 8, 9, 1, END, 2, 2, 2, END],
        [9, 8, 7, 6, 5, 4, END, 3, 2, END, 1, 1, 5, END],
    ]
)
LENGTH = DOCUMENTS.shape[1]


def spec(mixers: Any, depth: int = 1, **options: Any) -> Spec:
    options = {"classes": 3, **options}
    return Spec("hierarchical", 16, depth, mixers, END + 1, options=options)


SPECS = {
    "gla": spec("gla"),
    "hybrid": spec(("mamba", "attention"), 2, positions="sinusoidal", pooling="mean"),
    "two mixers": spec(
        "gru", document_mixers=("attention",), document_depth=2, sentence_pooling="last"
    ),
    "first words": spec("min_gru", sentence_pooling="first", pooling="last"),
}
BOTH = spec("gru", bidirectional=True)
every_spec = pytest.mark.parametrize("name", SPECS)


@cache
def made(name: str) -> Any:
    torch.manual_seed(0)
    return threefold.build(SPECS[name]).double().eval()


@every_spec
def test_every_form_and_every_cut_is_the_steps(name: str) -> None:
    model, state = made(name), None
    outputs = []
    for t in range(LENGTH):
        logits, state = model.step(DOCUMENTS[:, t], state)
        outputs.append(logits)
    for form in ("auto", *model.forms):
        logits, after = model(DOCUMENTS, form=form)
        assert_close(logits, outputs[-1], what=form)
        assert_states_close(after, state)
    for cut in range(1, LENGTH):
        first, middle = model(DOCUMENTS[:, :cut])
        assert_close(first, outputs[cut - 1], what=f"before {cut}")
        second, after = model(DOCUMENTS[:, cut:], middle)
        assert_close(second, outputs[-1], what=f"after {cut}")
        assert_states_close(after, state)
    assert bool((outputs[0] == 0).all()) and bool((outputs[1][1] != 0).all())
    size = sum(leaf[0].nbytes for _, leaf in states.leaves(state))
    assert size == model.state_size(0, 4)  # every sentence has ended, so no word is carried


@pytest.mark.parametrize("name", [*SPECS, "both"])
def test_equals_its_parts_by_hand(name: str) -> None:
    """Each sentence alone through the words' parts, then its vectors through the document's."""
    torch.manual_seed(0)
    model: Any = threefold.build({**SPECS, "both": BOTH}[name]).double().eval()

    def run(level: Any, x: Tensor) -> Tensor:
        h = level.norm(level.stack(x)[0])
        empty = states.empty(level.pooling.shapes, 1, torch.float64, None)
        vector: Tensor = level.pooling(h, empty, None)["memory"]
        return vector

    expected = []
    for document in DOCUMENTS.tolist():
        vectors, sentence = [], []
        for token in document:
            sentence.append(token)
            if token == END:
                vectors.append(run(model.words, model.embedding(torch.tensor([sentence]))))
                sentence = []
        expected.append(model.head(run(model.document, torch.stack(vectors, 1)))[0])
    assert_close(model(DOCUMENTS)[0], torch.stack(expected))


@every_spec
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_exist(name: str, side: str) -> None:
    model, lengths = made(name), torch.tensor([[10], [2], [0]])
    places = torch.arange(LENGTH)
    mask = (places.flip(0) if side == "left" else places) < lengths
    tokens = torch.full_like(DOCUMENTS, 10**6)
    for row, count in enumerate(lengths[:, 0].tolist()):
        tokens[row][mask[row]] = DOCUMENTS[row, :count]
    logits, state = model(tokens, mask=mask)
    for row, count in ((0, 10), (1, 2)):
        alone, _ = model(DOCUMENTS[row : row + 1, :count])
        assert_close(logits[row : row + 1], alone)
        rest = DOCUMENTS[row : row + 1, count:]
        continued = model(rest, states.select(state, [row]))[0]
        assert_close(continued, model(DOCUMENTS)[0][row : row + 1])
    assert bool((logits[2] == 0).all())


def test_gradients_pass_through_the_state() -> None:
    model = made("gla")
    parameters = [p for p in model.parameters() if p.requires_grad]
    whole = torch.autograd.grad(model(DOCUMENTS)[0].square().sum(), parameters, allow_unused=True)
    _, state = model(DOCUMENTS[:, :5])
    cut = model(DOCUMENTS[:, 5:], state)[0].square().sum()
    found = torch.autograd.grad(cut, parameters, allow_unused=True)
    for a, b in zip(found, whole, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert_close(a, b, "gradient")


def test_sentences_can_be_read_one_by_one_if_only_the_document_is_causal() -> None:
    torch.manual_seed(0)
    model: Any = threefold.build(spec("fnet", document_mixers=("gla",))).double().eval()
    whole = model(DOCUMENTS[:1])[0]
    _, state = model(DOCUMENTS[:1, :4])
    assert sorted(state) == ["document"]
    assert_close(model(DOCUMENTS[:1, 4:], state)[0], whole)
    with pytest.raises(ThreefoldError, match="row 0 stops within a sentence"):
        model(DOCUMENTS[:1, :3])


def test_sentences_of_a_text() -> None:
    text = 'He said "no!" Then he left. \n\n Was it 3.5 km? Yes…  And (so.) Done'
    expected = ['He said "no!"', "Then he left.", "Was it 3.5 km?", "Yes…", "And (so.)", "Done"]
    assert split_sentences(text) == expected
    words = WordTokenizer.learn(["one two three four"], 300)
    step = TokenizeSentences.by(words)
    again = TokenizeSentences.from_dict({k: v for k, v in step.to_dict().items() if k != "step"})
    tokens = step.apply("one two. three")
    assert (tokens == step.end).sum() == 2 and tokens[-1] == step.end == step.vocabulary - 1
    assert step.invert(tokens) == "one two. three"
    assert again == step and (again.apply("one two. three") == tokens).all()
    for length in range(2, 8):
        cut = TokenizeSentences.by(words, length).apply("one two. three")
        assert cut[-1] == step.end and len(cut) <= length
        assert not ((cut[1:] == step.end) & (cut[:-1] == step.end)).any()
    unseen = step.apply("zebras! Çà et là")  # words never seen are read byte by byte
    assert unseen.max() == step.end and step.invert(unseen) == "zebras! Çà et là"
    for empty in ("", " \n "):
        with pytest.raises(ThreefoldError, match="expected at least one sentence"):
            step.apply(empty)


def test_bad_input_is_refused(tmp_path: Path) -> None:
    model = made("gla")
    for row, message in (
        ([1, END, END, 2], "row 0 has an empty sentence.*at element 2"),
        ([END, 1, 2, END], "row 0 has an empty sentence.*at element 0"),
        ([1, 17, 2, END], "17"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            model(torch.tensor([row]))
    open_state = model(torch.tensor([[1, END, 2]]))[1]
    model(torch.tensor([[END, 3]]), open_state)  # ends the sentence that is open
    with pytest.raises(ThreefoldError, match="state of another model"):
        model(DOCUMENTS, {"words": {}})
    with pytest.raises(ThreefoldError):
        model(DOCUMENTS, open_state)  # of one row
    both: Any = threefold.build(BOTH)
    for call in (lambda: both.empty_state(1), lambda: both(DOCUMENTS, {"document": {}})):
        with pytest.raises(ThreefoldError, match="reads whole documents"):
            call()
    for options in ({"classes": 0}, {"document_depth": -1}):
        with pytest.raises(ThreefoldError, match="expected 1 or more classes"):
            threefold.build(spec("gla", **options))
