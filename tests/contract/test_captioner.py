"""Captioners: images and vectors to texts, by attention to positions or by a vector alone."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import threefold
from tests.contract.test_seq2seq import assert_states_close, tokens
from tests.tolerances import assert_close
from threefold import Captioner, Spec, ThreefoldError
from threefold.data.preprocessing.media import ReadPicture
from threefold.memory import state as states
from threefold.tasks.captions import caption_steps
from threefold.tasks.shapes import WORDS, describe, draw_scene

LENGTH = 6
IMAGES = {"image": (8, 12), "channels": 3}
VECTORS = {"encoder": "vector", "input_size": 5}


def spec(mixers: Any = "gru", depth: int = 1, **options: Any) -> Spec:
    options = {**({} if options.get("encoder") == "vector" else IMAGES), **options}
    return Spec("captioner", 16, depth, mixers, 23, options=options)


SPECS = {
    "bahdanau": spec(),
    "luong": spec(("mamba", "attention"), 2, attention="luong", score="dot", encoder="patches"),
    "input feeding": spec("lstm", attention="luong", input_feeding=True),
    "location": spec("gla", score="location"),
    "vector of an image": spec(
        "gla", attention="none", encoder="patches", encoder_mixers=("fnet",), encoder_depth=2
    ),
    "inception": spec("gru", network="inception", encoder_depth=1, encoder_width=32),
    "one vector": spec("gru", attention="none", **VECTORS),
    "several vectors": spec("min_gru", attention="luong", **VECTORS),
}
every_spec = pytest.mark.parametrize("name", SPECS)


@cache
def made(name: str) -> Any:
    torch.manual_seed(0)
    return threefold.build(SPECS[name]).double().eval()


def source(name: str, rows: int = 3) -> Tensor:
    shape = {"one vector": (5,), "several vectors": (4, 5)}.get(name, (3, 8, 12))
    return torch.randn(rows, *shape, generator=torch.Generator().manual_seed(0)).double()


@every_spec
def test_a_text_in_steps_is_the_text_at_once(name: str) -> None:
    model, text = made(name), tokens(3, LENGTH, 23)
    begin = state = model.encode(source(name))
    stepped = []
    for t in range(LENGTH):
        logits, state = model.step(text[:, t], state)
        stepped.append(logits)
    expected = torch.stack(stepped, 1)
    for form in ("auto", *model.forms):
        logits, after = model(text, begin, form=form)
        assert_close(logits, expected, what=form)
        assert_states_close(after, state)
    middle = model(text[:, :2], begin)[1]
    assert_close(model(text[:, 2:], middle)[0], expected[:, 2:])
    positions = model.encoder(source(name)).shape[1]
    size = sum(leaf[0].nbytes for _, leaf in states.leaves(state))
    assert size == model.state_size(LENGTH, positions)
    one = model(text[1:2], model.encode(source(name)[1:2]))[0]
    assert_close(one, expected[1:2], what="alone")


def test_one_position_is_the_vector() -> None:
    """Attention to one position reads that position, whatever the query: by hand from the parts."""
    torch.manual_seed(0)
    by_vector: Any = threefold.build(spec(attention="none", **VECTORS)).double().eval()
    text, x = tokens(3, LENGTH, 23), source("one vector")
    vector = by_vector.encoder.project(x)
    s = by_vector.decode(text, by_vector.encode(x), "auto", None)[0]
    for attention in ("luong", "bahdanau"):
        model: Any = threefold.build(spec(attention=attention, **VECTORS)).double().eval()
        model.load_state_dict(by_vector.state_dict(), strict=False)
        decoder = model.decoder
        assert bool((model.align(x, text) == 1).all())
        context = vector.unsqueeze(1).expand(-1, LENGTH, -1)
        if attention == "luong":
            outputs = torch.tanh(decoder.combine(torch.cat([context, s], -1)))
        else:
            embedded = model.embedding(text)
            fed = decoder.of_token(embedded) + decoder.of_context(context)
            carried = by_vector.encode(x)["decoder"]
            h = decoder.norm(decoder.stack(fed, carried)[0])
            pairs = decoder.maxout(torch.cat([embedded, h, context], -1))
            outputs = pairs.unflatten(-1, (-1, 2)).amax(-1)
        assert_close(model(text, model.encode(x))[0], model.head(outputs), what=attention)


def test_positions_are_those_of_the_image_network() -> None:
    """The last stage of the network, projected, with what is learnt of each place."""
    model, x = made("bahdanau"), source("bahdanau")
    encoder = model.encoder
    assert encoder.grid == (2, 3) and encoder.project.in_features == 64
    features = encoder.network.stages(encoder.network.stem(x)).flatten(2).transpose(1, 2)
    expected = features @ encoder.project.weight.T + encoder.project.bias + encoder.places
    assert_close(encoder(x), expected)


def test_the_image_is_read_once_and_whole() -> None:
    model, x = made("bahdanau"), source("bahdanau")
    text = tokens(3, LENGTH, 23)
    expected, weights = model(text, model.encode(x))[0], model.align(x, text)
    assert weights.shape == (3, LENGTH, 6)
    assert_close(weights.sum(-1), torch.ones(3, LENGTH).double())
    for row, column in ((0, 0), (7, 11)):
        other = x.clone()
        other[0, 1, row, column] += 1
        changed = model(text, model.encode(other))[0]
        assert not torch.allclose(changed[0], expected[0])
        assert torch.equal(changed[1:], expected[1:])


@every_spec
def test_beams_of_one_are_greedy_and_seeds_repeat(name: str) -> None:
    model, begin = made(name), torch.zeros(3, 1, dtype=torch.int64)
    state = model.encode(source(name))
    greedy = threefold.generate(model, begin, state, max_tokens=5, temperature=0.0, stop=1)
    beam = threefold.generate(model, begin, state, max_tokens=5, beams=1, stop=1)
    assert beam.rows() == greedy.rows()
    wide = threefold.generate(model, begin, state, max_tokens=5, beams=4, stop=1)
    for row, best in enumerate(wide.hypotheses):
        assert best[0].score >= beam.hypotheses[row][0].score - 1e-9
    drawn = [threefold.generate(model, begin, state, max_tokens=5, seed=3) for _ in range(2)]
    assert drawn[0].rows() == drawn[1].rows()


def test_raw_images_from_another_process(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    torch.manual_seed(0)
    options = {"image": (16, 16)}
    model = threefold.build(Spec("captioner", 16, 1, "gru", 272, options=options)).eval()
    model.preprocessing = caption_steps(WORDS, ReadPicture(16, 16))
    scenes = [draw_scene(scene, np.arange(4)) for scene in ([0, 3, 9], [1, 20, 2])]
    answers = model.predict(np.stack(scenes))
    assert [answer["text"] for answer in model.predict(scenes)] == [a["text"] for a in answers]
    model.save(tmp_path / "model")
    image.fromarray(scenes[1]).save(tmp_path / "scene.png")
    code = (
        "import sys, threefold; "
        "print(threefold.load(sys.argv[1]).predict(sys.argv[2])[0]['text'], end='')"
    )
    arguments = [sys.executable, "-c", code, tmp_path / "model", tmp_path / "scene.png"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout == answers[1]["text"]
    pytest.importorskip("matplotlib")
    weights = threefold.attention_weights(model, scenes[0])
    assert weights.layers["decoder"].shape == (1, len(weights.queries), 16)
    weights.draw(tmp_path / "words.png")
    drawn = model.draw_alignment(torch.zeros(3, 16, 16), [0, 5, 6], tmp_path / "two.svg")
    assert drawn.shape == (2, 16)
    for name in ("words.png", "two.svg"):
        assert (tmp_path / name).stat().st_size > 1000
    for raw, message in (
        (np.zeros((16, 16)), r"shape \(16, 16\); expected \[height, width, 3\]"),
        (np.zeros((8, 16, 3)), "16 × 8 pixels, but the model was trained on 16 × 16"),
        (np.full((16, 16, 3), 256), "levels are not numbers from 0 to 255"),
        (np.full((16, 16, 3), np.nan), "levels are not numbers from 0 to 255"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            model.predict(raw)


def test_what_a_sentence_says_is_in_the_image() -> None:
    scene = [0, 0, 1 * 12 + 2 * 3 + 1]  # small red circle above large blue square
    assert describe(scene) == "a small red circle above a large blue square"
    image = draw_scene(scene, np.array([0, 1, 0, 1]))
    assert (image[..., 0] > 0).sum() == 12 and (image[..., 2] > 0).sum() == 49
    assert (image[:4, 6:10, 0] > 0).sum() == 12 and (image[8:15, 4:11, 2] > 0).all()
    turned = draw_scene([1, *scene[1:]], np.array([0, 1, 0, 1]))
    assert np.array_equal(turned[..., 2], image[..., 2].T)
    sentences = {describe([r, a, b]) for r in range(2) for a in range(24) for b in range(24)}
    assert len(sentences) == 2 * 24 * 24


def test_bad_input_is_refused() -> None:
    for options, message in (
        ({"encoder": "resent"}, "unknown encoder 'resent'"),
        ({"encoder": "vector"}, "input_size 0; expected 1 or more"),
        ({"patch": 3, "encoder": "patches"}, "multiples of the patch"),
        ({"encoder_mixers": ("gla",)}, "'convolutional' has none"),
        ({"network": "resnet19"}, "unknown network 'resnet19'"),
        ({"encoder_depth": 5}, "resnet18 has 4 stages"),
        ({"encoder_depth": -1}, "encoder_depth is -1"),
        ({"attention": "soft"}, "unknown attention 'soft'"),
        ({"attention": "none", "score": "dot"}, "without attention"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            threefold.build(spec(**options))
    with pytest.raises(ThreefoldError, match=r"see later tokens.*encoder_mixers"):
        threefold.build(spec("fnet"))
    model: Any = made("bahdanau")
    assert isinstance(model, Captioner)
    for given, message in (
        (torch.zeros(2, 1, 8, 12).double(), r"\(2, 1, 8, 12\), expected \[batch, 3, 8, 12\]"),
        (torch.zeros(0, 3, 8, 12).double(), "at least one image"),
        (torch.zeros(2, 3, 8, 12), "torch.float32, the weights are torch.float64"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            model.encode(given)
    with pytest.raises(ThreefoldError, match="leave out mask"):
        model.encode(source("bahdanau"), mask=torch.ones(3, 3, dtype=torch.bool))
    with pytest.raises(ThreefoldError, match=r"vectors are \(2, 4\), expected \[batch, 5\]"):
        made("one vector").encode(torch.zeros(2, 4).double())
    with pytest.raises(ThreefoldError, match="has no attention"):
        made("one vector").align(source("one vector"), tokens(3, 2, 23))
    with pytest.raises(ThreefoldError, match="expected an encoder of images"):
        made("several vectors").draw_alignment(torch.zeros(3, 8, 12), [0, 1], "x.png")
