"""Cauchy products on the unit circle: native = the quotients written out, with gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.kernels import cauchy as native
from threefold.kernels import library, ops
from threefold.memory.dplr import unit_circle_points


def make(channels: int, size: int) -> list[Tensor]:
    """Products and poles; some poles are close to the circle."""
    p, q = torch.randn(2, channels, 4, size, dtype=torch.float64)
    real = -torch.logspace(-6, 0, channels * size, dtype=torch.float64).view(channels, size)
    square = real.square() + 4 * torch.rand(channels, size, dtype=torch.float64)
    return [t.clone().requires_grad_() for t in (p, q, square, real)]


def written_out(p: Tensor, q: Tensor, square: Tensor, real: Tensor, points: Tensor) -> Tensor:
    sine, cosine = points[:, None, None]
    below = torch.complex(
        cosine**2 * square.unsqueeze(-1) - sine**2, -2 * sine * cosine * real.unsqueeze(-1)
    ).unsqueeze(1)
    above = torch.complex(-cosine * q.unsqueeze(-1), sine * p.unsqueeze(-1))
    return (above / below).sum(2)


def results(function: object, inputs: list[Tensor], points: Tensor) -> list[Tensor]:
    found = function(*inputs, points)  # type: ignore[operator]
    weight = torch.randn(found.shape, dtype=found.dtype, generator=torch.Generator().manual_seed(1))
    grads = torch.autograd.grad((found * weight).real.sum(), inputs)
    return [torch.view_as_real(found), *grads]


@pytest.mark.parametrize(("channels", "size"), [(1, 1), (3, 2), (2, 33)])
def test_native_is_written_out(variant: str, channels: int, size: int) -> None:
    for length in (1, 2, 3, 16, 63, 200):
        inputs, points = make(channels, size), unit_circle_points(length)
        expected = results(written_out, inputs, points)
        for a, b in zip(results(ops.cauchy, inputs, points), expected, strict=True):
            assert_close(a, b, "output", f"{channels} {size} {length}")


def test_reference_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one block and in several."""
    inputs, points = make(3, 4), unit_circle_points(100)
    expected = results(written_out, inputs, points)
    for block in (2**20, 80):
        monkeypatch.setattr("threefold.kernels.reference.BLOCK_NUMBERS", block)
        with library.using("reference"):
            found = results(ops.cauchy, inputs, points)
        for a, b in zip(found, expected, strict=True):
            assert_close(a, b, "output", f"{block}")


def test_threads_change_no_bit(variant: str) -> None:
    inputs, points = make(13, 9), unit_circle_points(3000)
    runs = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        runs.append(results(ops.cauchy, inputs, points))
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], run, strict=True))


def test_gradcheck_opcheck_and_nan() -> None:
    inputs, points = make(2, 3), unit_circle_points(14)
    assert torch.autograd.gradcheck(lambda *given: ops.cauchy(*given, points), inputs)
    torch.library.opcheck(native.operation, (*inputs, points))
    broken = [tensor.detach().clone() for tensor in inputs]
    broken[0][1, 2, 0] = torch.nan
    found = ops.cauchy(*broken, points)
    assert found[1, 2].isnan().all() and found[0].isfinite().all() and found[1, :2].isfinite().all()


def test_wrong_input_is_refused() -> None:
    p, q, square, real = make(2, 3)
    points = unit_circle_points(14)
    with pytest.raises(ThreefoldError, match=r"p \[channels, 4, size\]"):
        ops.cauchy(p[:, :3], q, square, real, points)
    with pytest.raises(ThreefoldError, match=r"square \[2, 3\]"):
        ops.cauchy(p, q, square[:1], real, points)
    with pytest.raises(ThreefoldError, match="float64"):
        ops.cauchy(p, q.float(), square, real, points)
