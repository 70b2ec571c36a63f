"""The contract of mixers that see the whole sequence, and the wrapper that makes any mixer one."""

from __future__ import annotations

import copy

import pytest
import torch

import threefold
from tests.contract.test_mixers import NAMES as CAUSAL
from tests.contract.test_mixers import every_dtype, inputs, make
from tests.tolerances import assert_close
from threefold.testing import laws

NAMES = tuple(name for name in threefold.MIXERS if name not in CAUSAL)
every_mixer = pytest.mark.parametrize("name", NAMES)
# The wrapper around one of each kind of memory.
INNER = ("lstm", "gla", "mamba2", "lru", "slstm")


@every_mixer
def test_has_no_state_and_says_why(name: str) -> None:
    mixer = make(name, torch.float32)
    assert mixer.forms == ("parallel",)
    y, state = mixer(inputs(torch.float32))
    assert y.shape == (3, 40, 32) and state is None
    refused = pytest.raises(threefold.ThreefoldError, match=r"has no state|has no step form")
    for ask in (
        lambda: mixer.empty_state(1),
        lambda: mixer.state_size(1),
        lambda: mixer(inputs(torch.float32), {}),
        lambda: mixer.step(torch.zeros(3, 32)),
    ):
        with refused:
            ask()


@every_mixer
def test_every_output_sees_the_whole_sequence(name: str) -> None:
    mixer = make(name)
    x = inputs(torch.float64, rows=1, length=9).requires_grad_()
    y, _ = mixer(x)
    seen = []
    for t in (0, 4, 8):
        (gradient,) = torch.autograd.grad(y[0, t].square().sum(), x, retain_graph=True)
        seen.append(gradient[0].abs().amax(-1) > 0)
    # Reformer reads the elements of its own bucket, wherever they are.
    assert torch.stack(seen).triu(1).any() if name == "reformer" else torch.stack(seen).all()


@every_dtype
@every_mixer
def test_padding_does_not_exist(name: str, dtype: torch.dtype) -> None:
    laws.padding(make(name, dtype))


@every_mixer
def test_gradients_ignore_padding(name: str) -> None:
    laws.gradients_of_padding(make(name))


@every_mixer
def test_rows_do_not_see_each_other(name: str) -> None:
    laws.rows(make(name, torch.float32))


@every_mixer
def test_gradcheck_bfloat16_and_round_trip(name: str) -> None:
    mixer = make(name, width=16)
    x = torch.randn(1, 3, 16, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: mixer(x)[0], (x,), fast_mode=True)
    wide = make(name, torch.float32)
    expected, _ = wide(inputs(torch.float32))
    narrow, _ = copy.deepcopy(wide).bfloat16()(inputs(torch.float32).bfloat16())
    pairs = torch.stack([narrow.float().flatten(), expected.flatten()])
    assert narrow.dtype == torch.bfloat16 and torch.corrcoef(pairs)[0, 1] > 0.98
    torch.manual_seed(9)
    other = threefold.mixer(name, width=32).eval()
    # Only fnet has no weights.
    assert torch.equal(other(inputs(torch.float32))[0], expected) == (name == "fnet")
    other.load_state_dict(wide.state_dict())
    assert torch.equal(other(inputs(torch.float32))[0], expected)


@pytest.mark.parametrize("inner", INNER)
def test_bidirectional_is_two_mixers(inner: str) -> None:
    mixer = make("bidirectional", mixer=inner)
    x = inputs(torch.float64)
    ahead, back = mixer.ahead(x)[0], mixer.back(x.flip(1))[0].flip(1)
    assert_close(mixer(x)[0], mixer.out(torch.cat([ahead, back], -1)))
    laws.padding(mixer)


def test_bidirectional_takes_options_and_refuses_itself() -> None:
    mixer = threefold.mixer("bidirectional", width=32, mixer="gla", options={"heads": 4})
    assert mixer.ahead.heads == mixer.back.heads == 4
    with pytest.raises(threefold.ThreefoldError, match="already sees the whole sequence"):
        threefold.mixer("bidirectional", width=32, mixer="bidirectional")
    with pytest.raises(threefold.ThreefoldError, match=r"'lstn'.*'lstm'"):
        threefold.mixer("bidirectional", width=32, mixer="lstn")
