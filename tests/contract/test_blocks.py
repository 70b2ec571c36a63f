"""Wirings and embeddings against their equations; the contract is kept by test_language_model."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import threefold
from tests.tolerances import assert_close
from threefold import LanguageModel, Spec, ThreefoldError
from threefold.blocks import BLOCKS
from threefold.blocks.block import make_block_norm
from threefold.blocks.channel import channel
from threefold.blocks.post_norm import deep_norm_gains
from threefold.blocks.stack import Stack
from threefold.layers.positions import sinusoids

WIDTH, DEPTH = 32, 3
ATTENTION = ("attention", {"heads": 4, "bias": True})


def stack(block: tuple[str, dict[str, Any]], mixer: Any = ATTENTION, seed: int = 0) -> Stack:
    torch.manual_seed(seed)
    made = Stack(WIDTH, DEPTH, [mixer], channel=("mlp", {}), block=block).double().eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "norm" in name:
                parameter += 0.3 * torch.randn_like(parameter)
    return made


def some(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("name", BLOCKS)
def test_wirings_are_their_equations(name: str, norm: str) -> None:
    options = {} if name == "plain" else {"norm": norm, "eps": 1e-3}
    made, x = stack((name, options)), some(2, 7, WIDTH)
    found, _ = made(x)
    for block in made.parts.values():
        parts: Any = block
        for f, n in ((parts.mixer, parts.mixer_norm), (parts.channel, parts.channel_norm)):

            def normed(z: Tensor, n: Any = n) -> Tensor:
                if norm == "rms":
                    return z / (z.square().mean(-1, keepdim=True) + 1e-3).sqrt() * n.weight
                return F.layer_norm(z, (WIDTH,), n.weight, n.bias, 1e-3)

            if name == "plain":
                x = f(x)[0]
            elif name == "pre_norm":
                x = x + f(normed(x))[0]
            else:
                alpha = (2 * DEPTH) ** 0.25 if name == "deep_norm" else 1
                x = normed(alpha * x + f(x)[0])
    assert_close(found, x)


def test_a_norm_follows_only_where_the_stream_has_none() -> None:
    followed = {name: stack((name, {})).final_norm() for name in BLOCKS}
    found = {name: type(norm).__name__ for name, norm in followed.items()}
    assert found == {
        "pre_norm": "RMSNorm",
        "post_norm": "Identity",
        "deep_norm": "Identity",
        "plain": "RMSNorm",
    }
    given = stack(("post_norm", {"final_norm": True})).final_norm()
    assert type(given).__name__ == "LayerNorm"
    assert type(stack(("pre_norm", {"final_norm": False})).final_norm()).__name__ == "Identity"
    without = make_block_norm(("pre_norm", {"norm": "layer", "bias": False}), WIDTH)
    assert [name for name, _ in without.named_parameters()] == ["weight"]


def test_deep_norms_numbers_are_the_papers() -> None:
    """Figure 2 of the paper, for an encoder of 18 and a decoder of 6 layers."""
    alone = deep_norm_gains(18)
    assert (alone["alpha"], alone["beta"]) == (36**0.25, 144**-0.25)
    encoder, decoder = deep_norm_gains(18, decoder=6), deep_norm_gains(6, encoder=18)
    assert encoder["alpha"] == pytest.approx(0.81 * (18**4 * 6) ** (1 / 16))
    assert encoder["beta"] == pytest.approx(0.87 * (18**4 * 6) ** (-1 / 16))
    assert (decoder["alpha"], decoder["beta"]) == pytest.approx((18**0.25, 72**-0.25))


def test_deep_norm_begins_small() -> None:
    torch.manual_seed(0)
    made: Any = Stack(128, 8, [("attention", {}), ("gla", {})], block=("deep_norm", {}))
    beta, block = 64**-0.25, made.blocks[0]
    heads, xavier = block.mixer.heads, 128**-0.5
    for layer, gain in (
        (heads.query, 1),
        (heads.key, 1),
        (heads.value, beta),
        (heads.out, beta),
        (block.channel.out, beta * (2 * 128 / (128 + block.channel.out.in_features)) ** 0.5),
    ):
        assert layer.weight.std().item() == pytest.approx(gain * xavier, rel=0.05)
    torch.manual_seed(5)
    plain, small = threefold.mixer("gla", width=128), made.blocks[1].mixer
    expected = beta**2 * plain.out.weight.std().item()
    assert small.out.weight.std().item() == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        ("gelu", lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2),
        (
            "gelu_tanh",
            lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
        ),
        ("relu", lambda x: x.clamp(min=0)),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_mlp(activation: str, expected: Any, bias: bool) -> None:
    made: Any = channel("mlp", width=WIDTH, hidden=40, activation=activation, bias=bias).double()
    assert (made.input.bias is not None) == bias
    x = some(2, 3, WIDTH)
    assert_close(made(x)[0], made.out(expected(made.input(x))))


def language(**options: Any) -> LanguageModel:
    torch.manual_seed(0)
    made = threefold.build(
        Spec(
            "language", WIDTH, 1, "gla", 11, block=("pre_norm", {"norm": "layer"}), options=options
        )
    )
    assert isinstance(made, LanguageModel)
    return made.double().eval()


def test_the_embedding_is_its_equation() -> None:
    tokens = torch.tensor([[3, 1, 4, 1]])
    for kind in ("learned", "sinusoidal"):
        more = {"max_length": 9} if kind == "learned" else {}
        model = language(positions=kind, scale_embedding=True, embedding_norm=True, **more)
        places = torch.arange(5, 9)
        positions: Any = model.embedding.positions
        added = positions.table[places] if more else sinusoids(places, WIDTH)
        norm: Any = model.embedding.norm
        x = math.sqrt(WIDTH) * model.embedding.weight[tokens] + added
        expected = F.layer_norm(x, (WIDTH,), norm.weight, norm.bias, 1e-5)
        assert_close(model.embedding(tokens, torch.tensor([5])), expected)
        assert model.empty_state(2)["position"].tolist() == [0, 0]
    with pytest.raises(ThreefoldError, match=r"element 10 is beyond the table of max_length=9"):
        language(positions="learned", max_length=9)(torch.zeros(1, 10, dtype=torch.int64))


def test_the_deviation_of_the_embedding_is_an_option() -> None:
    usual, larger = (
        language(**given).get_parameter("embedding.weight").float()
        for given in ({}, {"embedding_std": 0.3})
    )
    assert_close(larger, usual * (0.3 / 0.02))
    assert 0.015 < float(usual.detach().std()) < 0.025
    for bad in (0.0, -1.0):
        with pytest.raises(ThreefoldError, match=r"embedding_std is .*, expected a number above 0"):
            language(embedding_std=bad)
    options = {"input_size": 2, "classes": 3, "embedding_std": 0.3}
    with pytest.raises(ThreefoldError, match=r"embedding_std is 0\.3, but .* vectors"):
        threefold.build(Spec("classifier", WIDTH, 1, "gla", options=options))


def test_embedding_dropout_is_for_training_only() -> None:
    model, tokens = language(embedding_dropout=0.5), torch.zeros(1, 4, dtype=torch.int64)
    assert torch.equal(model(tokens)[0], model(tokens)[0])
    model.train()
    assert not torch.equal(model(tokens)[0], model(tokens)[0])


def test_gpt2s_beginnings() -> None:
    torch.manual_seed(0)
    mixer = ("attention", {"bias": True})
    made: Any = threefold.build(
        Spec("language", 128, 8, (mixer,), 50, channel="mlp", options={"init": "gpt2"})
    )
    block = made.stack.blocks[3]
    for layer, std in (
        (block.mixer.heads.query, 0.02),
        (block.channel.input, 0.02),
        (block.mixer.heads.out, 0.02 / 4),
        (block.channel.out, 0.02 / 4),
    ):
        assert layer.weight.std().item() == pytest.approx(std, rel=0.05)
        assert not layer.bias.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": ("pre_norm", {"norm": "batch"})}, "unknown norm 'batch'"),
        ({"block": ("pre_norm", {"eps": 0})}, "eps is 0, expected a number above 0"),
        ({"block": ("post_norm", {"dropout": 1})}, "dropout is 1, expected at least 0 and below 1"),
        ({"block": ("deep_norm", {"alpha": -1.0})}, r"alpha is -1.0, beta None; expected"),
        ({"channel": ("mlp", {"activation": "gulu"})}, "unknown activation 'gulu'; did you"),
        ({"options": {"positions": "rotary"}}, "rotary, alibi and relative .* of attention"),
        (
            {"options": {"positions": "learned"}},
            "max_length is None, expected the length of the longest",
        ),
        ({"options": {"max_length": 9}}, "needs positions='learned'"),
        ({"options": {"embedding_dropout": 1.0}}, "embedding_dropout is 1.0"),
        ({"block": "deep_norm", "options": {"init": "gpt2"}}, "leave out one of the two"),
        ({"options": {"init": "gpt"}}, "unknown init 'gpt'; did you mean 'gpt2'"),
    ],
)
def test_bad_values_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ThreefoldError, match=message):
        threefold.build(
            Spec(**{"kind": "language", "width": 32, "depth": 2, "mixers": "gla", **change})
        )


def test_a_state_without_its_position_is_refused() -> None:
    model, tokens = language(positions="sinusoidal"), torch.zeros(2, 4, dtype=torch.int64)
    _, state = model(tokens)
    assert state["position"].tolist() == [4, 4]
    with pytest.raises(ThreefoldError, match="state of another model"):
        model(tokens, {name: value for name, value in state.items() if name != "position"})
    with pytest.raises(ThreefoldError, match="another batch size"):
        model(tokens[:1], state)
