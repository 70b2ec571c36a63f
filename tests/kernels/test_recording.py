"""Torch's operations as native calls: each rule gives what torch gives, on views and odd sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.tolerances import assert_close
from threefold.kernels.replay.activity import recording
from threefold.kernels.replay.listing import CannotRecordError
from threefold.kernels.replay.recording import record

Function = Callable[[Tensor, Tensor], Tensor]

FUNCTIONS: dict[str, Function] = {
    "add": lambda x, s: x + 2 * s,
    "add a number": lambda x, s: x + 3.5,
    "add with a factor": lambda x, s: torch.add(x, s, alpha=-0.5),
    "subtract": lambda x, s: x - s,
    "subtract from a number": lambda x, s: 1 - x,
    "multiply": lambda x, s: x * s * 0.5,
    "divide": lambda x, s: x / (s.abs() + 1) / 3,
    "in place": lambda x, s: x.clone().mul_(s).add_(1).exp_(),
    "square": lambda x, s: x.square() + x**2,
    "clamp": lambda x, s: x.clamp(-0.5, 0.7) + s.clamp(min=0.1) + s.clamp(max=0.2) + x.relu(),
    "exponentials": lambda x, s: x.exp() + torch.expm1(s),
    "logarithm": lambda x, s: x.abs().log(),
    "circle": lambda x, s: x.sin() * s.cos(),
    "gates": lambda x, s: x.sigmoid() * F.silu(s) + F.logsigmoid(x) + F.softplus(s) + x.tanh(),
    "gelu": lambda x, s: F.gelu(x) + F.gelu(s, approximate="tanh"),
    "roots": lambda x, s: x.abs().sqrt() + (s.abs() + 0.1).rsqrt() + (x.abs() + 1).reciprocal(),
    "largest": lambda x, s: torch.maximum(x, s) - torch.minimum(x, s * 2),
    "compare": lambda x, s: torch.where(x >= 0.2, x, s) + torch.where(s < 0, x, 2 * s),
    "masked": lambda x, s: x.masked_fill(s == 0, 4).masked_fill(x > 1, -math.inf).clamp(-9),
    "logaddexp": lambda x, s: torch.logaddexp(x, s),
    "broadcast": lambda x, s: x * s[:, :, :1] + s.mean(-1, keepdim=True),
    "turned": lambda x, s: (x.mT * s.mT).contiguous().mT,
    "pieces": lambda x, s: torch.cat([x[..., 3:], s[..., :3]], -1) + torch.stack([x, s])[1],
    "padded": lambda x, s: F.pad(x, (2, 1), value=3.0)[..., 2:-1] * 2,
    "filled": lambda x, s: x * torch.ones_like(s) + torch.zeros(x.shape[-1], dtype=x.dtype),
    "sums": lambda x, s: x + s.sum(-1, keepdim=True) + s.sum(0) + s.amax(-1, keepdim=True),
    "softmax": lambda x, s: x.softmax(-1) + s.softmax(-1),
    "layer norm": lambda x, s: F.layer_norm(x, x.shape[-1:], s[0, 0], s[1, 0]),
    "glu": lambda x, s: torch.cat([F.glu(torch.cat([x, s], -1))], -1),
    "sorted": lambda x, s: torch.cat(
        [x[..., :5].sort(-1)[0], s[..., 5:9].sort(-1, True)[0], x[..., 9:]], -1
    ),
    "product": lambda x, s: (x @ (s.mT @ s)) + x,
    "rows": lambda x, s: torch.addmm(s[:, 0], x[:, 0], s[:, 0].mT @ s[:, 0])[:, None],
    "other precision": lambda x, s: (x.double() * s.double().exp()).to(x.dtype) + x.float().to(x),
    "whole numbers": lambda x, s: x + torch.arange(21) * 2 + (s > 0).long(),
    "whole numbers that are fixed": lambda x, s: x * 2.0 ** -torch.arange(21, dtype=x.dtype),
    "a table": lambda x, s: x * torch.linspace(0, 1, 21, dtype=torch.float64).cos().to(x.dtype),
    "numbers chosen": lambda x, s: torch.where(x > 0, 1.5, s) + torch.where(s > 0.1, x, 0.0),
    "truths that are fixed": lambda x, s: torch.where(torch.arange(21) > 7, x, s),
    "mixed precision": lambda x, s: (x.double() * s).to(x.dtype),
}


def inputs(dtype: torch.dtype, size: int) -> tuple[Tensor, dict[str, Any]]:
    return torch.randn(3, 1, size, dtype=dtype), {"s": torch.randn(3, 1, size, dtype=dtype)}


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rules(variant: str, name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    x, state = inputs(dtype, 21)
    state["s"][0, 0, 4] = 0
    program = record(
        nn.Module(), lambda x, state: (function(x, state["s"]), {"s": 2 * state["s"]}), x, state
    )
    x, state = inputs(dtype, 21)
    state["s"][1, 0, 2] = 0
    run = program.run(x, state)
    assert run is not None
    assert_close(run[0], function(x, state["s"]))
    assert_close(run[1]["s"], 2 * state["s"])


@torch.no_grad()
@pytest.mark.parametrize("name", ["gates", "gelu", "clamp", "largest", "softmax", "sums"])
def test_not_a_number_stays(variant: str, name: str) -> None:
    function = FUNCTIONS[name]
    x, state = inputs(torch.float32, 21)
    program = record(
        nn.Module(), lambda x, state: (function(x, state["s"]), {"s": state["s"]}), x, state
    )
    x[1, 0, 5] = torch.nan
    run = program.run(x, state)
    assert run is not None
    assert torch.equal(run[0].isnan(), function(x, state["s"]).isnan())


@torch.no_grad()
def test_an_output_may_be_an_input_a_view_or_another_output(variant: str) -> None:
    x, state = torch.randn(2, 1, 8), {"a": torch.randn(2, 8), "b": torch.randn(2, 8)}

    def step(x: Tensor, state: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        both = torch.cat([x[:, 0] + 1, state["b"]], -1)
        return both[:, None, :8], {"a": both[:, 8:], "b": state["b"]}

    program = record(nn.Module(), step, x, state)
    y, after = program.run(x, state) or pytest.fail("refused")
    assert torch.equal(y, x + 1)
    assert torch.equal(after["a"], state["b"])
    assert torch.equal(after["b"], state["b"])
    assert after["b"].data_ptr() != state["b"].data_ptr()


def _unknown(x: Tensor, s: Tensor) -> Tensor:
    return x * OUTSIDE


OUTSIDE = torch.randn(21)

REFUSED: dict[str, Function] = {
    "no rule": lambda x, s: x.cumsum(-1),
    "a number read": lambda x, s: x * float(s.sum()),
    "a branch": lambda x, s: x if bool((s > 0).any()) else s,
    "neither weight nor state": _unknown,
    "numbers cut off": lambda x, s: x + s.long(),
    "what is fixed changed": lambda x, s: x + torch.arange(21).add_(1),
    "chance": lambda x, s: x * torch.bernoulli(torch.linspace(0, 1, 21)),
    "a number that is a tensor": lambda x, s: x.clamp(min=s[0, 0, 0]),
}


@torch.no_grad()
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_recorded_is_refused(variant: str, name: str) -> None:
    x, state = inputs(torch.float32, 21)
    with pytest.raises(CannotRecordError):
        record(
            nn.Module(),
            lambda x, state: (REFUSED[name](x, state["s"]), {"s": state["s"]}),
            x,
            state,
        )
    assert not recording()


@torch.no_grad()
def test_whole_numbers_that_a_layer_holds_stay_as_they_are(variant: str) -> None:
    layer = nn.Module()
    layer.register_buffer("numbers", torch.arange(21))
    x, state = inputs(torch.float32, 21)
    with pytest.raises(CannotRecordError, match="holds"):
        record(layer, lambda x, state: (x + layer.numbers, state), x, state)


class Subclass(Tensor):
    """A tensor whose operations another library may define."""


@torch.no_grad()
def test_weights_of_another_class_are_refused(variant: str) -> None:
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.ones(21).as_subclass(Subclass))
    x, state = inputs(torch.float32, 21)
    with pytest.raises(CannotRecordError, match="weight is a Subclass"):
        record(layer, lambda x, state: (x * layer.weight, state), x, state)


@torch.no_grad()
def test_a_recording_that_gives_other_numbers_is_refused(variant: str) -> None:
    calls = iter((1.0, 2.0, 3.0, 4.0))
    x, state = inputs(torch.float32, 21)

    class Drifting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(21))

    layer = Drifting()

    def step(x: Tensor, state: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        y = x * layer.weight
        layer.weight.data.mul_(1 + next(calls))  # seen by the run after it
        return y, state

    with pytest.raises(CannotRecordError):
        record(layer, step, x, state)


@torch.no_grad()
@pytest.mark.parametrize(("wrong", "recorded"), [(1, True), (2, False)])
def test_one_sum_that_nearly_cancels_does_not_refuse_a_step(wrong: int, recorded: bool) -> None:
    calls = []

    def step(x: Tensor, state: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        calls.append(1)  # the first fills caches, the second is recorded
        differs = recording() and 2 < len(calls) <= 2 + wrong
        return x * (1 + 1e-4 if differs else 1), {"s": state["s"] + x}

    given = torch.randn(2, 1, 8), {"s": torch.zeros(2, 1, 8)}
    if recorded:
        record(nn.Module(), step, *given)
        assert len(calls) == 2 + 3 + 8
    else:
        with pytest.raises(CannotRecordError, match="other numbers"):
            record(nn.Module(), step, *given)
