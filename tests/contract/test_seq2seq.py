"""Encoder–decoder models: a target in steps is the target at once, from any cut, in any padding."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import threefold
from tests.tolerances import assert_close
from threefold import Spec, ThreefoldError
from threefold.memory import state as states
from threefold.memory.state import State
from threefold.training import scheduled_sampling


def spec(mixers: Any = "gru", depth: int = 1, block: str = "plain", **options: Any) -> Spec:
    options = {"source_vocabulary": 19, **options}
    return Spec("seq2seq", 16, depth, mixers, 23, channel="none", block=block, options=options)


def transformer(mixers: Any = "gla", block: Any = "post_norm", **options: Any) -> Spec:
    channel = ("mlp", {"hidden": 24, "activation": "relu"})
    options = {"source_vocabulary": 19, "share_embeddings": False, **options}
    return Spec("transformer", 16, 2, mixers, 23, channel=channel, block=block, options=options)


LOOK = ("attention", {"heads": 2, "positions": "none"})
SPECS = {
    "transformer": transformer((LOOK,)),
    "transformer, hybrid": transformer(
        (LOOK, "gla"),
        "deep_norm",
        encoder_mixers=("mamba", "fnet"),
        encoder_depth=3,
        positions="learned",
        max_length=20,
        tie=False,
        cross_attention={"heads": 4, "groups": 2},
    ),
    "transformer, no positions": transformer(
        "gla", "pre_norm", positions="none", scale_embedding=False
    ),
    "handed over": spec("lstm", 2, attention="none", bidirectional=False),
    "bridged": spec("rnn", attention="none"),
    "bahdanau": spec("gru", attention="bahdanau"),
    "bahdanau, one direction": spec("lstm", 2, attention="bahdanau", bidirectional=False),
    "luong": spec("gru", attention="luong"),
    "input feeding": spec("coupled_lstm", attention="luong", input_feeding=True),
    "residual hybrid": spec(("gla", "mamba"), 2, "pre_norm", attention="luong", score="dot"),
    "location": spec("min_gru", 1, "pre_norm", score="location", max_source_length=9),
}
LENGTH, SOURCE = 7, 9
every_spec = pytest.mark.parametrize("name", SPECS)


@cache
def made(name: str) -> Any:
    torch.manual_seed(0)
    model = threefold.build(SPECS[name])
    return model.double().eval()


def tokens(rows: int, length: int, below: int, seed: int = 1) -> Tensor:
    return torch.randint(0, below, (rows, length), generator=torch.Generator().manual_seed(seed))


def pair(rows: int = 3) -> tuple[Tensor, Tensor]:
    return tokens(rows, SOURCE, 19), tokens(rows, LENGTH, 23, seed=2)


def assert_states_close(actual: State, expected: State) -> None:
    assert [n for n, _ in states.leaves(actual)] == [n for n, _ in states.leaves(expected)]
    for (name, a), (_, b) in zip(states.leaves(actual), states.leaves(expected), strict=True):
        if a.dtype == torch.int64:
            assert torch.equal(a, b), name
        else:
            assert_close(a, b, "state", name)


@every_spec
def test_every_form_and_every_cut_is_the_steps(name: str) -> None:
    model, (source, target) = made(name), pair()
    begin = state = model.encode(source)
    stepped = []
    for t in range(LENGTH):
        logits, state = model.step(target[:, t], state)
        stepped.append(logits)
    expected = torch.stack(stepped, 1)
    for form in ("auto", *model.forms):
        logits, after = model(target, begin, form=form)
        assert_close(logits, expected, what=form)
        assert_states_close(after, state)
    first, middle = model(target[:, :3], begin)
    second, after = model(target[:, 3:], middle)
    assert_close(torch.cat([first, second], 1), expected)
    assert_states_close(after, state)
    assert_close(model(target, begin, last=True)[0], expected[:, -1])
    model.check_state(after, 3)
    size = sum(leaf[0].nbytes for _, leaf in states.leaves(after))
    assert size == model.state_size(LENGTH, SOURCE)


@every_spec
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_exist(name: str, side: str) -> None:
    model, (source, target) = made(name), pair(4)
    lengths = {"source": (4, 9, 1, 0), "target": (7, 2, 0, 3)}
    masks = {}
    for (what, counts), given in zip(lengths.items(), (source, target), strict=True):
        places = torch.arange(given.shape[1])
        places = places.flip(0) if side == "left" else places
        masks[what] = places < torch.tensor(counts)[:, None]
        given[~masks[what]] = 10**6
    logits, state = model(target, model.encode(source, mask=masks["source"]), mask=masks["target"])
    newest, _ = model(
        target, model.encode(source, mask=masks["source"]), mask=masks["target"], last=True
    )
    assert (logits[~masks["target"]] == 0).all()
    for row in range(4):
        read, written = source[row][masks["source"][row]], target[row][masks["target"][row]]
        begin = model.encode(read[None]) if len(read) else model.empty_state(1)
        if not len(written):
            assert (newest[row] == 0).all()
            mine = states.select(state["decoder"], [row])
            assert_states_close(mine, begin["decoder"])
            continue
        alone, after = model(written[None], begin)
        assert_close(logits[row][masks["target"][row]], alone[0])
        assert_close(newest[row], alone[0, -1])
        assert_states_close(states.select(state["decoder"], [row]), after["decoder"])


@every_spec
def test_rows_and_later_tokens_change_nothing(name: str) -> None:
    model, (source, target) = made(name), pair()
    expected, _ = model(target, model.encode(source))
    source[1:], target[1:] = (source[1:] + 1) % 19, (target[1:] + 1) % 23
    target[0, 4:] = (target[0, 4:] + 1) % 23
    logits, _ = model(target, model.encode(source))
    assert torch.equal(logits[0, :4], expected[0, :4])
    assert not torch.equal(logits[0, 4:], expected[0, 4:])


@every_spec
def test_gradients_reach_every_parameter(name: str) -> None:
    model, (source, target) = made(name), pair()
    model.zero_grad()
    model(target, model.encode(source))[0].square().sum().backward()
    for where, parameter in model.named_parameters():
        assert parameter.grad is not None, where
        assert parameter.grad.isfinite().all() and parameter.grad.abs().sum() > 0, where
    whole = {where: p.grad.clone() for where, p in model.named_parameters()}
    model.zero_grad()
    state, logits = model.encode(source), []
    for t in range(LENGTH):
        out, state = model.step(target[:, t], state)
        logits.append(out)
    torch.stack(logits, 1).square().sum().backward()
    for where, parameter in model.named_parameters():
        assert_close(parameter.grad, whole[where], "gradient", where)


@every_spec
def test_saved_and_loaded_it_is_the_same(name: str, tmp_path: Path) -> None:
    model, (source, target) = made(name), pair()
    model.save(tmp_path / "model")
    again = threefold.load(tmp_path / "model")
    assert type(again) is type(model) and again.spec == model.spec
    with torch.no_grad():
        state = model.encode(source)
        assert torch.equal(again(target, again.encode(source))[0], model(target, state)[0])
        threefold.save_state(tmp_path / "state", state, model)
        back = threefold.load_state(tmp_path / "state", again)
        assert torch.equal(again(target, back)[0], model(target, state)[0])


def test_the_paper_is_what_runs() -> None:
    """Bahdanau's decoder, one element, written out."""
    model, (source, target) = made("bahdanau"), pair()
    decoder: Any = model.decoder
    state = model.encode(source)
    logits, after = model.step(target[:, 0], state)
    e, s, h = model.embedding(target[:, 0]), state["shift"], state["values"]
    energy = decoder.attention.score(s.unsqueeze(1), decoder.attention.score.prepare(h))
    context = (energy.softmax(-1) @ h).squeeze(1)
    mixed = decoder.of_token(e) + decoder.of_context(context)
    cell = decoder.stack.blocks[0].mixer
    new, _ = cell.step(mixed, state["decoder"]["0"]["mixer"])
    pairs = decoder.maxout(torch.cat([e, new, context], -1)).unflatten(-1, (-1, 2))
    assert_close(logits, model.head(pairs.amax(-1)))
    assert_close(after["shift"], new)


@pytest.mark.parametrize("name", ["bahdanau", "luong", "input feeding"])
def test_alignment_and_its_picture(name: str, tmp_path: Path) -> None:
    model, (source, target) = made(name), pair()
    mask = torch.arange(SOURCE) >= torch.tensor([[0], [4], [8]])
    weights = model.align(source, target, source_mask=mask)
    assert weights.shape == (3, LENGTH, SOURCE)
    assert (weights[~mask[:, None].expand_as(weights)] == 0).all()
    assert_close(weights.sum(-1), torch.ones(3, LENGTH, dtype=torch.float64))
    assert_close(weights[1:2, :, 4:], model.align(source[1:2, 4:], target[1:2]))
    for ending in ("png", "svg"):
        path = tmp_path / f"picture.{ending}"
        drawn = model.draw_alignment(source[0], target[0].tolist(), path)
        assert_close(drawn, weights[0, :-1])
        assert path.stat().st_size > 1000
    with pytest.raises(ThreefoldError, match=r"labels for .* queries; expected one for each"):
        model.draw_alignment(source[0], target[0], path, labels=(["a"], ["b"]))
    with pytest.raises(ThreefoldError, match="has no attention"):
        made("bridged").draw_alignment(source[0], target[0], path)


def test_scheduled_sampling() -> None:
    model, (source, target) = made("bahdanau"), pair()
    begin = model.encode(source)
    truth, _ = scheduled_sampling(model, target, begin, 0.0)
    assert_close(truth, model(target, begin)[0])
    mask = torch.arange(LENGTH) < torch.tensor([[7], [3], [1]])
    random = torch.Generator().manual_seed(0)
    own, _ = scheduled_sampling(model, target, begin, 1.0, mask=mask, generator=random)
    assert_close(own[:, 0], truth[:, 0])  # nothing was drawn yet
    assert not torch.equal(own[0, 2:], truth[0, 2:])
    assert (own[~mask] == 0).all()
    assert own.requires_grad
    for wrong in (-0.1, 1.5):
        with pytest.raises(ThreefoldError, match="share is"):
            scheduled_sampling(model, target, begin, wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "bahdanu"}, "unknown attention 'bahdanu'; did you mean 'bahdanau'"),
        ({"input_feeding": True}, "input_feeding needs attention='luong'"),
        ({"attention": "none", "score": "dot"}, "score 'dot' without attention"),
        ({"score": "location"}, "max_length is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"source_vocabulary": -1}, "source_vocabulary is -1"),
        ({"mixers": "bidirectional", "bidirectional": False}, "choose causal mixers"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ThreefoldError, match=message):
        threefold.build(spec(**options))


def test_bad_calls_are_refused() -> None:
    model, (source, target) = made("bahdanau"), pair()
    state = model.encode(source)
    for call, message in (
        (lambda: model(target), r"no source was given; pass the state returned by model.encode"),
        (lambda: model(target, {}), "not a state of this model"),
        (lambda: model(target[:2], state), "another batch size"),
        (lambda: model(target, made("luong").encode(source)), "state of another model"),
        (lambda: model(target, state, form="parallel"), "needs the attention context"),
        (lambda: model(target + 20, state), "expected 0 to 22"),
        (lambda: model.encode(target + 10), "source: token .* expected 0 to 18"),
        (lambda: model.encode(source[0]), r"the source's tokens is \(9,\)"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            call()
