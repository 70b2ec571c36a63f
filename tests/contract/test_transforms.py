"""torch.func (grad, vmap, jvp) and forward-mode derivatives equal what backward passes compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, stack_module_state, vmap

import threefold
from tests.contract.kinds import EXAMPLES, mean_loss
from tests.tolerances import assert_close
from threefold.layers.mixer import Mixer
from threefold.layers.table import MIXERS

CAUSAL = [name for name, entry in MIXERS.items() if entry.load().causal]
X, DIRECTION, WEIGHTS = torch.randn(
    3, 2, 5, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64
)
Parameters = dict[str, Tensor]


def made(name: str, seed: int = 0) -> Mixer:
    torch.manual_seed(seed)
    return threefold.mixer(name, width=32).eval().double()


def weights_of(module: nn.Module) -> Parameters:
    return {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}


def gradients(module: nn.Module, value: Tensor) -> Parameters:
    """By a backward pass; zeros for what has no influence."""
    weights = {name: p for name, p in module.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(value, [*weights.values()], materialize_grads=True)
    return dict(zip(weights, found, strict=True))


def assert_same(actual: Parameters, expected: Parameters) -> None:
    """As close as gradients of one pass are, next to the largest of all weights."""
    for name in expected:
        scale = max(float(g.abs().max()) for g in expected.values())
        error = (actual[name] - expected[name]).abs().max() / scale
        assert_close(1 + error, torch.ones_like(error), "gradient", name)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", [name for name in MIXERS if name != "fnet"])  # it has no weights
def test_gradients_of_functions_of_the_weights(name: str) -> None:
    """Of a whole batch, and of each row alone."""
    mixer = made(name)

    def loss(weights: Parameters, x: Tensor) -> Tensor:
        y: Tensor = functional_call(mixer, weights, (x,))[0]
        return (y * WEIGHTS[0]).sum()

    weights = weights_of(mixer)
    expected = [gradients(mixer, (mixer(row)[0] * WEIGHTS[0]).sum()) for row in X.split(1)]
    for row, wanted in zip(X.split(1), expected, strict=True):
        assert_same(grad(loss)(weights, row), wanted)
    rows = vmap(grad(loss), (None, 0))(weights, X.unsqueeze(1))
    for i, wanted in enumerate(expected):
        assert_same({parameter: value[i] for parameter, value in rows.items()}, wanted)


@pytest.mark.parametrize("name", MIXERS)
def test_forward_mode_is_the_transpose_of_backward(name: str) -> None:
    mixer, x = made(name), X.clone().requires_grad_()
    y, _ = mixer(x)
    (backward,) = torch.autograd.grad((y * WEIGHTS).sum(), x)
    expected = (backward * DIRECTION).sum()
    value, tangent = jvp(lambda x: mixer(x)[0], (X,), (DIRECTION,))
    assert_close(value, y)
    assert_close((tangent * WEIGHTS).sum(), expected, "gradient")
    with torch.no_grad(), forward_ad.dual_level():
        dual = mixer(forward_ad.make_dual(X, DIRECTION))[0]
        assert_close((forward_ad.unpack_dual(dual).tangent * WEIGHTS).sum(), expected, "gradient")


@pytest.mark.parametrize("name", CAUSAL)
def test_forward_mode_goes_through_states_and_single_steps(name: str) -> None:
    """Also where steps have been recorded, and where a history has room for more."""
    mixer, x = made(name), X.clone().requires_grad_()
    with torch.no_grad():
        state: Any = None
        for i in range(3):
            _, state = mixer.step(X[:, i], state)
    one, after = mixer.step(x[:, 3], state)
    two, _ = mixer.step(x[:, 4], after)
    (backward,) = torch.autograd.grad((one * WEIGHTS[:, 3] + two * WEIGHTS[:, 4]).sum(), x)
    with torch.no_grad(), forward_ad.dual_level():
        first, after = mixer.step(forward_ad.make_dual(X[:, 3], DIRECTION[:, 3]), state)
        second, _ = mixer.step(forward_ad.make_dual(X[:, 4], DIRECTION[:, 4]), after)
        tangents = [forward_ad.unpack_dual(y).tangent for y in (first, second)]
    assert_close(first, one.detach())
    assert_close(second, two.detach())
    found = (tangents[0] * WEIGHTS[:, 3] + tangents[1] * WEIGHTS[:, 4]).sum()
    assert_close(found, (backward * DIRECTION).sum(), "gradient")


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", MIXERS)
@torch.no_grad()
def test_an_ensemble_is_mapped_over_its_weights(name: str) -> None:
    members = [made(name, seed) for seed in (1, 2)]
    members[0](X)  # what is computed from weights and cached is not the others'
    weights, buffers = stack_module_state(members)
    if weights or buffers:
        y = vmap(lambda *state: functional_call(members[0], state, (X,))[0])(weights, buffers)
        assert_close(y, torch.stack([member(X)[0] for member in members]))
    other = dict(members[1].named_parameters()) | dict(members[1].named_buffers())
    assert_close(functional_call(members[0], other, (X,))[0], members[1](X)[0])
    assert_close(members[0](X)[0], made(name, 1)(X)[0])


class Loss(nn.Module):
    """The loss of a model on one batch, as a module."""

    def __init__(self, model: nn.Module, rows: Any) -> None:
        super().__init__()
        self.model, self.rows = model, rows

    def forward(self) -> Tensor:
        return mean_loss(self.model, self.rows)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_gradients_of_models(kind: str) -> None:
    example = EXAMPLES[kind]
    loss = Loss(example.build(), example.rows()).eval()  # batch norms in training count batches
    expected = gradients(loss, loss())
    assert_same(
        grad(lambda weights: functional_call(loss, weights, ()))(weights_of(loss)), expected
    )
