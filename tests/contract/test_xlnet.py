"""XLNet: two streams by loops, transformers' weights, who sees whom, memory, orders, bad input."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import threefold
from tests.contract.kinds import EXAMPLES, mean_loss
from tests.contract.test_masked import saved, shaken, tokens
from tests.contract.test_protocol import called, more_than_once
from tests.tolerances import assert_close
from threefold import Spec, ThreefoldError
from threefold.data.loaders import IGNORE, TokenStream, Windows
from threefold.data.permutation import PermutedBatches, cover_ranks, draw_ranks
from threefold.layers.two_stream import TwoStreamAttention
from threefold.memory import state as states
from threefold.models.xlnet import find_targets, visible

RANKS = torch.tensor([0, 0, 1, 0, 3, 0, 2, 0, 0, 4, 0, 0]).expand(3, 12)
SEGMENTS = (torch.arange(12) > 6).long().expand(3, 12)


def model(**options: Any) -> Any:
    torch.manual_seed(0)
    mixers = (("transformer_xl", {"heads": 4, "memory": 5}),)
    return shaken(threefold.build(Spec("xlnet", 32, 2, mixers, 61, options=options)))


def wave(distance: int, width: int) -> Tensor:
    angles = [distance / 10_000 ** (2 * (i // 2) / width) for i in range(width)]
    return torch.tensor(
        [math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(angles)], dtype=torch.float64
    )


def looped(layer: Any, h: Tensor, g: dict[int, Tensor], memory: list[Tensor], z: list[int]) -> Any:
    """Both streams of one row, written out; z are the ranks, segments change after the third."""
    heads, size = layer.heads.heads, layer.heads.size
    query, key, value, out, far = (
        module.weight.double()
        for module in (*(getattr(layer.heads, n) for n in ("query", "key", "value", "out")),
                       layer.distance)
    )  # fmt: skip
    sources = [*((j - len(memory), x) for j, x in enumerate(memory)), *enumerate(h)]

    def attend(i: int, x: Tensor, knows_itself: bool) -> Tensor:
        parts = []
        for head in range(heads):
            rows = slice(head * size, (head + 1) * size)
            q, scores, values = query[rows] @ x, [], []
            for j, y in sources:
                inside = j >= 0
                if (
                    inside
                    and not (z[j] < z[i] or (z[j] == 0 and i != j))
                    and not (knows_itself and i == j)
                ):
                    continue
                other = int((i > 2) != (j > 2 if inside else False))
                score = (q + layer.content_bias[head]) @ (key[rows] @ y)
                score = score + (q + layer.distance_bias[head]) @ (far[rows] @ wave(i - j, len(x)))
                score = score + (q + layer.segment_bias[head]) @ layer.segments[other, head]
                scores.append(score / math.sqrt(size))
                values.append(value[rows] @ y)
            weights = torch.stack(scores).softmax(0) if scores else torch.zeros(0).double()
            parts.append(sum((w * v for w, v in zip(weights, values, strict=True)), 0 * q))
        return out @ torch.cat(parts)

    content = [attend(i, x, True) for i, x in enumerate(h)]
    return content + [attend(i, x, False) for i, x in g.items()]


@pytest.mark.parametrize("filled", [None, 0, 2])
def test_two_streams_written_out(filled: int | None) -> None:
    """With memory: none, an empty one, and one of which two of three elements are filled."""
    torch.manual_seed(1)
    layer = shaken(TwoStreamAttention(8, heads=2, memory=3, segments=True))
    z = [2, 0, 1, 0, 3] if filled else [2, 1, 4, 3, 5]  # a first token that may read nothing
    ranks, segments = torch.tensor([z]), (torch.arange(5) > 2).long()[None]
    h, g = torch.randn(1, 5, 8).double(), torch.randn(1, 5, 8).double()
    targets = find_targets(ranks, None)
    places, chosen = {"ranks": ranks, "segments": segments}, targets.positions[0].tolist()
    size = 0 if filled is None else 3
    state: Any = visible(places, targets, None, torch.tensor([filled or 0]), size)
    window = torch.randn(1, 3, 1, 8).double()
    x = torch.cat([h, g[:, chosen]], 1)
    given = state if filled is None else {**state, "window": window}
    y, after = layer.mix(x, given, "parallel", None)
    memory = list(window[0, 3 - filled :, 0]) if filled else []
    expected = looped(layer, h[0], {i: g[0, i] for i in chosen}, memory, z)
    assert_close(y[0], torch.stack(expected))
    assert torch.equal(after["window"][:, :, 0], h[:, 2:])


def their_config(**more: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 61, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}
    return transformers.XLNetConfig(**sizes, mem_len=7, **more)


def test_equal_to_transformers_with_orders_segments_and_memory(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    theirs = shaken(transformers.XLNetLMHeadModel(their_config()), torch.float32)
    ours = saved(theirs, tmp_path).float()  # their waves are float32
    places = (RANKS[0] > 0).nonzero().flatten()
    hidden = torch.ones(12, 12)
    for i in range(12):
        for j in range(12):
            if RANKS[0, j] == 0 or RANKS[0, j] < RANKS[0, i]:
                hidden[i, j] = 0
    told = {
        "perm_mask": hidden.expand(3, 12, 12),
        "target_mapping": torch.eye(12)[places].expand(3, -1, -1),
        "token_type_ids": SEGMENTS,
    }
    state, mems = None, None
    with torch.no_grad():
        for piece in range(3):
            x = tokens(seed=piece)
            answer = theirs(x, **told, mems=mems, use_mems=True)
            logits, state = ours(x, state, segments=SEGMENTS, ranks=RANKS)
            mems = answer.mems
            assert_close(logits[:, places], answer.logits)
            for layer, memory in enumerate(mems):
                window = state[str(layer)]["mixer"]["window"].squeeze(2)
                assert_close(window, memory.transpose(0, 1))
            body = theirs.transformer(x, token_type_ids=SEGMENTS, mems=mems)
            content, _ = ours.encode(x, state, segments=SEGMENTS)
            assert_close(content, body.last_hidden_state)
        assert_close(ours.encode(x)[0], theirs.transformer(x).last_hidden_state)


def test_only_the_body_and_what_transformers_alone_has(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours = saved(transformers.XLNetModel(their_config()), tmp_path / "body")
    assert ours.encode(tokens())[0].shape == (3, 12, 32)
    with pytest.raises(ThreefoldError, match="has no head"):
        ours(tokens())
    for name, value, message in (
        ("attn_type", "uni", "attn_type is 'uni'; only 'bi' is supported"),
        ("reuse_len", 3, "reuse_len 3; only"),
    ):
        odd = transformers.XLNetModel(their_config(**{name: value}))
        with pytest.raises(ThreefoldError, match=message):
            saved(odd, tmp_path / name)


@pytest.mark.parametrize("with_memory", [False, True])
def test_no_token_sees_itself_or_what_is_later_in_the_order(with_memory: bool) -> None:
    xlnet = model(segments=True)
    state = xlnet.encode(tokens(seed=5))[1] if with_memory else None
    orders = torch.rand(3, 12, generator=torch.Generator().manual_seed(4)).argsort(1)
    # Tokens of one rank do not see each other.
    for ranks in (RANKS, orders + 1, orders.clamp(min=4) - 4, orders // 3):
        x = tokens()
        before, _ = xlnet(x, state, ranks=ranks, segments=SEGMENTS)
        assert bool((before[ranks == 0] == 0).all())
        for place in range(12):
            changed = x.clone()
            changed[:, place] = (changed[:, place] + 1) % 61
            after, _ = xlnet(changed, state, ranks=ranks, segments=SEGMENTS)
            rank = ranks[:, place : place + 1]
            blind = (rank > 0) & (ranks <= rank)
            assert torch.equal(after[blind], before[blind])
            sees = (ranks > rank) & (ranks > 0)
            assert bool((after[sees] != before[sees]).any(-1).all())


def test_padding_does_not_exist_and_left_to_right_is_an_order() -> None:
    xlnet = model(segments=True)
    x = tokens()
    _, state = xlnet(tokens(seed=7))
    for ranks in (None, RANKS):
        logits, after = xlnet(x, state, ranks=ranks, segments=SEGMENTS)
        for left in (0, 2, 4):
            mask = torch.zeros(3, 16, dtype=torch.bool)
            mask[:, left : left + 12] = True
            garbage, orders, parts = (torch.full((3, 16), fill) for fill in (-7, 9, 1))
            garbage[mask] = x.flatten()
            orders[mask], parts[mask] = RANKS.flatten(), SEGMENTS.flatten()
            orders = None if ranks is None else orders
            found, other = xlnet(garbage, state, mask=mask, ranks=orders, segments=parts)
            assert_close(found[mask], logits.flatten(0, 1))
            assert bool((found[~mask] == 0).all())
            for (_, one), (_, two) in zip(states.leaves(other), states.leaves(after), strict=True):
                assert_close(one.double(), two.double(), "state")
    ordered, _ = xlnet(x, ranks=torch.arange(1, 13).expand(3, 12))
    assert torch.equal(xlnet(x)[0], ordered)


def test_memory_fills_resets_and_has_gradients() -> None:
    xlnet = model()
    first, second = tokens(seed=1), tokens(seed=2)
    _, state = xlnet(first[:, :2])
    assert state["position"].tolist() == [2, 2, 2]
    # Two of five elements are filled: the rest of the window is not read.
    noisy = states.clone(state)
    noisy["0"]["mixer"]["window"][:, :3] = 1e3
    assert_close(xlnet(second, noisy)[0], xlnet(second, state)[0])
    reset = states.reset(state, torch.tensor([True, False, True]))
    found, _ = xlnet(second, reset)
    assert_close(found[[0, 2]], xlnet(second)[0][[0, 2]])
    assert not torch.allclose(found[1], xlnet(second)[0][1])
    empty, _ = xlnet(second, xlnet.empty_state(3))
    assert_close(empty, xlnet(second)[0])
    window = state["1"]["mixer"]["window"].detach().requires_grad_()
    carried = {**state, "1": {"mixer": {"window": window}}}
    xlnet(second, carried)[0].square().sum().backward()
    assert window.grad is not None and bool(window.grad[:, 3:].any())
    with pytest.raises(ThreefoldError, match="state"):
        xlnet(second[:2], state)


def test_hooks_checkpointing_and_files(tmp_path: Path) -> None:
    example = EXAMPLES["xlnet"]
    xlnet, rows = example.build(), example.rows()
    counts = called(xlnet, lambda: mean_loss(xlnet, rows).backward())
    # Dropout after the embedding and before the head, as published.
    expected = more_than_once(xlnet) | {"dropout": 2}
    assert counts == Counter(dict.fromkeys(counts, 1) | expected)
    plain, again = xlnet, example.build()
    again.stack.gradient_checkpointing = True
    mean_loss(again.train(), rows).backward()
    for one, two in zip(plain.parameters(), again.parameters(), strict=True):
        assert one.grad is not None and two.grad is not None
        assert_close(two.grad, one.grad, "gradient")
    plain.save(tmp_path / "model")
    loaded: Any = threefold.load(tmp_path / "model")
    assert isinstance(loaded, threefold.XLNet)
    assert torch.equal(loaded(rows.inputs)[0], plain.eval()(rows.inputs)[0])


def test_orders_are_drawn_by_address() -> None:
    text = torch.arange(1000).numpy() % 50
    one, two = (PermutedBatches(Windows(text, 4, 30), seed=3) for _ in range(2))
    one(0)
    batch, same = one(5), two(5)
    assert batch.ranks is not None and same.ranks is not None
    assert torch.equal(batch.ranks, same.ranks) and not torch.equal(batch.ranks, one(6).ranks)
    assert batch.ranks.sort(1).values[:, -6:].tolist() == [[0, 1, 2, 3, 4, 5]] * 4
    predicted = batch.ranks > 0
    assert torch.equal(batch.targets[predicted], batch.inputs[predicted])
    assert bool((batch.targets[~predicted] == IGNORE).all())
    drawn = torch.rand(4000, 13, generator=torch.Generator().manual_seed(0))
    ranks = draw_ranks(drawn, torch.tensor([13, 7, 2, 1]).repeat(1000))
    assert (ranks > 0).sum(1)[:4].tolist() == [2, 1, 1, 0]
    assert not bool(ranks[1::4, 7:].any() or ranks[2::4, 2:].any())
    # Every place is equally likely: 1000 · 2/13, three standard deviations are 34.
    assert bool(((ranks[::4] > 0).sum(0) - 1000 * 2 / 13).abs().max() < 40)
    covered = cover_ranks([13, 7, 1])
    assert (covered > 0).sum(0).tolist() == [[1] * 13, [1] * 7 + [0] * 6, [1] + [0] * 12]
    stream = PermutedBatches(TokenStream(text, 2, 30))
    assert stream(1).starts.tolist() == [False, False]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m(tokens(), ranks=RANKS[:, :5]), r"ranks is \(3, 5\), expected \(3, 12\)"),
        (lambda m: m(tokens(), ranks=RANKS - 1), "a rank is -1, expected 0 for given tokens"),
        (lambda m: m(tokens(), segments=SEGMENTS), "has no segments"),
        (lambda m: m(tokens() + 61), "out of range"),
        (lambda m: m(tokens()[:, :0]), "at least one token"),
        (lambda m: m(tokens(), form="step"), "has no step form"),
        (lambda m: draw_ranks(torch.rand(2, 1)), "a window of 1 tokens"),
        (lambda m: threefold.build(Spec("xlnet", 32, 1, "gla")), "mixers are gla; expected trans"),
        (
            lambda m: threefold.build(Spec("xlnet", 32, 1, (("transformer_xl", {"memory": 0}),))),
            "memory is 0",
        ),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(ThreefoldError, match=message):
        call(model())
