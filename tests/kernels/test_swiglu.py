"""The gated product: native = reference, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.kernels import library, ops, reference
from threefold.kernels import swiglu as native

DTYPES = [torch.float32, torch.float64]


def results(function: object, gate: Tensor, x: Tensor) -> list[Tensor]:
    """y and both gradients for one fixed random gradient."""
    gate, x = gate.detach().requires_grad_(), x.detach().requires_grad_()
    y = function(gate, x)  # type: ignore[operator]
    grad = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    return [y, *torch.autograd.grad(y, [gate, x], grad)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 7, 33), (0, 4), (300, 401)])
def test_native_is_reference(variant: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    gate, x = 4 * torch.randn(2, *shape, dtype=dtype)
    actual, expected = results(ops.swiglu, gate, x), results(reference.swiglu, gate, x)
    for a, b, quantity in zip(actual, expected, ("output", "gradient", "gradient"), strict=True):
        assert_close(a, b, quantity)
    with torch.no_grad():
        assert torch.equal(ops.swiglu(gate, x), actual[0])


def test_far_gates_and_nan(variant: str) -> None:
    gate = torch.tensor([-1e4, -100.0, 0.0, 100.0, 1e4, float("nan")])
    actual = results(ops.swiglu, gate, torch.ones(6))
    for a, b in zip(actual, results(reference.swiglu, gate, torch.ones(6)), strict=True):
        assert_close(a, b)


def test_threads_change_no_bit(variant: str) -> None:
    gate, x = torch.randn(2, 3, 50_001)
    runs = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        runs.append(results(ops.swiglu, gate, x))
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


def test_nothing_is_left_unwritten(variant: str) -> None:
    grad, gate, x = torch.randn(3, 5, 37)
    for outputs, inputs, name in (
        ([torch.full_like(x, torch.nan)], [gate, x], "swiglu_forward"),
        ([torch.full_like(x, torch.nan) for _ in range(2)], [grad, gate, x], "swiglu_backward"),
    ):
        library.call(name, outputs, inputs, [x.numel()])
        assert all(output.isfinite().all() for output in outputs)


def test_gradients_and_registration() -> None:
    gate, x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    gate, x = gate.detach().requires_grad_(), x.detach().requires_grad_()
    assert torch.autograd.gradcheck(ops.swiglu, (gate, x))
    assert torch.autograd.gradgradcheck(ops.swiglu, (gate, x))
    torch.library.opcheck(native.operation, (gate, x))
    grad = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(native.backward, (grad, gate, x))


def test_other_inputs() -> None:
    gate, x = torch.randn(2, 4, 6)
    scattered = torch.randn(6, 4).T.copy_(gate)
    assert torch.equal(ops.swiglu(scattered, x), ops.swiglu(gate, x))
    half = gate.bfloat16(), x.bfloat16()
    assert torch.equal(ops.swiglu(*half), reference.swiglu(*half))
    assert ops.swiglu(torch.zeros(2, 3, device="meta"), torch.zeros(2, 3, device="meta")).is_meta
    with pytest.raises(ThreefoldError, match=r"swiglu: expected x \[4, 6\], as gate"):
        ops.swiglu(gate, x[:, :5])
    with pytest.raises(ThreefoldError, match=r"all tensors to be torch.float32"):
        ops.swiglu(gate, x.double())
