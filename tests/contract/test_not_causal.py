"""The contract of mixers that see the whole sequence, and the wrapper that makes any mixer one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import threefold
from tests.contract.test_mixers import NAMES as CAUSAL
from tests.contract.test_mixers import every_dtype, inputs, make
from tests.tolerances import assert_close
from threefold.layers.mixer import Mixer

NAMES = tuple(name for name in threefold.MIXERS if name not in CAUSAL)
every_mixer = pytest.mark.parametrize("name", NAMES)
# The wrapper around one of each kind of memory.
INNER = ("lstm", "gla", "mamba2", "lru", "slstm")


def padded(dtype: torch.dtype) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
    spans = [(0, 24), (5, 24), (0, 9), (7, 8), (3, 3)]  # whole, left, right, one element, nothing
    mask = torch.zeros(5, 24, dtype=torch.bool)
    for row, (begin, end) in enumerate(spans):
        mask[row, begin:end] = True
    return inputs(dtype, rows=5, length=24), mask, spans


def assert_ignores_padding(mixer: Mixer, dtype: torch.dtype) -> None:
    x, mask, spans = padded(dtype)
    y, _ = mixer(x.masked_fill(~mask.unsqueeze(-1), torch.nan), mask=mask)
    assert (y[~mask] == 0).all()
    for row, (begin, end) in enumerate(spans):
        if begin < end:
            alone, _ = mixer(x[row : row + 1, begin:end])
            assert_close(y[row : row + 1, begin:end], alone, "output", f"row {row}")


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
    assert_ignores_padding(make(name, dtype), dtype)


@every_mixer
def test_gradients_ignore_padding(name: str) -> None:
    mixer = make(name)
    x, mask, _ = padded(torch.float64)
    x = x.masked_fill(~mask.unsqueeze(-1), torch.nan).requires_grad_()
    mixer(x, mask=mask)[0].square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    assert (x.grad[~mask] == 0).all() and (x.grad[mask] != 0).any()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())


@every_mixer
def test_rows_do_not_see_each_other(name: str) -> None:
    mixer = make(name, torch.float32)
    x = inputs(torch.float32, rows=4)
    changed = x.clone()
    changed[[0, 1, 3]] = 2 * changed[[0, 1, 3]].flip(1) + 1
    y, other = mixer(x)[0], mixer(changed)[0]
    assert torch.equal(y[2], other[2]) and not torch.equal(y[1], other[1])


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
    assert_ignores_padding(mixer, torch.float64)


def test_bidirectional_takes_options_and_refuses_itself() -> None:
    mixer = threefold.mixer("bidirectional", width=32, mixer="gla", options={"heads": 4})
    assert mixer.ahead.heads == mixer.back.heads == 4
    with pytest.raises(threefold.ThreefoldError, match="already sees the whole sequence"):
        threefold.mixer("bidirectional", width=32, mixer="bidirectional")
    with pytest.raises(threefold.ThreefoldError, match=r"'lstn'.*'lstm'"):
        threefold.mixer("bidirectional", width=32, mixer="lstn")
