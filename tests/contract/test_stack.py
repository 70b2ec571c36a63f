"""Blocks and stacks: mixers made of mixers, which keep what their parts leave undone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import threefold
from tests.contract.test_language_model import assert_states_close
from tests.tolerances import assert_close
from threefold import ThreefoldError
from threefold.blocks import CHANNEL_NAMES
from threefold.blocks.block import PreNorm
from threefold.blocks.channel import CHANNELS
from threefold.blocks.stack import Stack
from threefold.layers.mixer import Mixer
from threefold.memory import state as states
from threefold.memory.state import State


class Backwards(Mixer):
    """A mixer that looks ahead."""

    causal = False
    forms = ("parallel",)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, None]:
        return x.flip(1) + self.bias, None

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.bias = nn.Parameter(torch.zeros(width))


def test_a_block_can_do_what_both_its_parts_can() -> None:
    block = PreNorm(Backwards(32), threefold.mixer("gla", width=32))
    assert block.forms == ("parallel",)
    assert not block.causal
    y, state = block(torch.randn(2, 5, 32))
    assert y.shape == (2, 5, 32)
    assert state is None
    for refused in (lambda: block.empty_state(1), lambda: block.step(torch.zeros(2, 32))):
        with pytest.raises(ThreefoldError, match=r"has no state|has no step form"):
            refused()


def test_stack_is_a_mixer_too() -> None:
    stack = Stack(32, 2, [("gla", {}), ("mamba", {})], channel=("mlp", {})).double().eval()
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    expected, after = stack(x, form="step")
    first, state = stack(x[:, :4])
    second, state = stack(x[:, 4:], state)
    assert_close(torch.cat([first, second], 1), expected)
    assert_states_close(state, after)
    padded = torch.cat([torch.full_like(x[:, :3], torch.nan), x], 1)
    mask = torch.arange(12).expand(2, 12) >= 3
    y, state = stack(padded, mask=mask)
    assert_close(y[:, 3:], expected)
    assert_states_close(state, after)


class Untidy(Mixer):
    """A mixer that leaves NaN behind the end of a row, as it may."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.bias = nn.Parameter(torch.zeros(width))

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        if lengths is None:
            return x + self.bias, {}
        past_end = torch.arange(x.shape[1]) >= lengths[:, None]
        return x.masked_fill(past_end.unsqueeze(-1), torch.nan), {}


def test_what_a_layer_leaves_behind_a_row_reaches_no_other() -> None:
    block = PreNorm(Untidy(32), threefold.mixer("gla", width=32)).eval()
    x, mask = torch.randn(2, 6, 32), torch.arange(6) < torch.tensor([[4], [6]])
    y, state = block(x, mask=mask)
    alone, after = block(x[:1, :4])
    assert_close(y[:1, :4], alone)
    assert_states_close(states.select(state, [0]), after)


def test_mixers_are_told_their_place_unless_the_user_did() -> None:
    torch.manual_seed(3)
    deep = Stack(32, 4, [("mamba", {})], channel=("none", {}))
    torch.manual_seed(3)
    told = Stack(32, 4, [("mamba", {"depth": 1})], channel=("none", {}))
    deep_out, told_out = (s.get_parameter("blocks.0.mixer.out.weight") for s in (deep, told))
    assert_close(deep_out * 2, told_out)


def test_channel_names_are_those_of_the_channel_mixers() -> None:
    assert set(CHANNEL_NAMES) == {"none", *CHANNELS}
