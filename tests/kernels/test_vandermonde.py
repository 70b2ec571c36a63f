"""Vandermonde products and their transpose: native = the matrix of powers, with gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from tests.tolerances import TOLERANCES, assert_close, relative_error
from threefold.errors import ThreefoldError
from threefold.kernels import library, ops
from threefold.kernels import vandermonde as native

DTYPES = [torch.float32, torch.float64]


def factors(channels: int, size: int) -> Tensor:
    """Inside the unit circle, many of them close to it."""
    radius = torch.exp(-(torch.rand(channels, size, dtype=torch.float64) ** 4))
    angle = torch.rand(channels, size, dtype=torch.float64) * 6.28
    return torch.stack([radius * angle.cos(), radius * angle.sin()], -1)


def matrix(
    factor: Tensor, lengths: Tensor | None, rows: int, length: int, backwards: bool
) -> Tensor:
    """w^l for every element of every row, [R, L, D, N]: the matrix that the kernels never store."""
    ends = torch.full((rows,), length) if lengths is None else lengths
    places = torch.arange(length).expand(rows, length)
    powers = ends[:, None] - 1 - places if backwards else places
    real = (places < ends[:, None])[..., None, None]
    found = torch.view_as_complex(factor) ** powers.clamp(min=0)[..., None, None]
    return torch.where(real, found, 0)


def make(channels: int, size: int, rows: int, length: int, dtype: torch.dtype) -> list[Tensor]:
    coefficient = torch.randn(rows, channels, size, 2, dtype=torch.float64)
    x = torch.randn(rows, length, channels, dtype=dtype)
    return [t.requires_grad_() for t in (factors(channels, size), coefficient, x)]


def assert_same(
    inputs: list[Tensor], lengths: Tensor | None, backwards: bool, what: str = ""
) -> None:
    """Both products and all their gradients against the matrix."""
    factor, coefficient, x = inputs
    rows, length, _ = x.shape
    powers = matrix(factor, lengths, rows, length, backwards)
    c = torch.view_as_complex(coefficient)
    options = {"lengths": lengths, "backwards": backwards}
    pairs = (
        (
            ops.vandermonde(factor, coefficient, length, dtype=x.dtype, **options),
            torch.einsum("rldn,rdn->rld", powers, c).real,
            [factor, coefficient],
        ),
        (
            ops.moments(x, factor, **options),
            torch.view_as_real(torch.einsum("rldn,rld->rdn", powers, x.to(powers.dtype))),
            [factor, x],
        ),
    )
    for found, expected, leaves in pairs:
        limit, slack = TOLERANCES[x.dtype, "output"], TOLERANCES[x.dtype, "gradient"]
        assert relative_error(found, expected) <= limit, what
        weight = torch.randn_like(found)
        got = torch.autograd.grad(found, leaves, weight)
        wanted = torch.autograd.grad(expected, leaves, weight.double(), retain_graph=True)
        for a, b in zip(got, wanted, strict=True):
            assert relative_error(a, b) <= slack, what


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("channels", "size"), [(1, 1), (7, 3), (16, 4), (37, 2)])
def test_native_is_the_matrix(variant: str, channels: int, size: int, dtype: torch.dtype) -> None:
    for length, backwards, cut in itertools.product(
        (1, 2, 63, 65, 200), (False, True), (False, True)
    ):
        inputs = make(channels, size, 3, length, dtype)
        lengths = torch.tensor([length, 0, length // 2]) if cut else None
        assert_same(inputs, lengths, backwards, f"{length} {backwards} {cut}")


def test_reference_is_the_matrix() -> None:
    with library.using("reference"):
        for length, backwards in itertools.product((1, 64, 130), (False, True)):
            inputs = make(3, 2, 2, length, torch.float64)
            assert_same(inputs, torch.tensor([length, length // 3]), backwards)
            assert_same(inputs, None, backwards)


def test_long_filters_in_float32(variant: str) -> None:
    """16,384 powers: within the tolerance of 256 of them, however slowly they decay."""
    length, size = 16384, 8
    decay = torch.logspace(-6, -2, size, dtype=torch.float64).expand(2, size)
    angle = torch.rand(2, size, dtype=torch.float64) * 10
    log = torch.complex(-decay, angle)
    factor = torch.view_as_real(torch.exp(log)).requires_grad_()
    coefficient = torch.randn(1, 2, size, 2, dtype=torch.float64, requires_grad=True)
    y = ops.vandermonde(factor, coefficient, length, dtype=torch.float32)
    powers = torch.exp(torch.arange(length).view(-1, 1, 1) * log)
    c = torch.view_as_complex(coefficient)
    expected = torch.einsum("ldn,rdn->rld", powers, c).real
    assert_close(y, expected, "output")
    grad = torch.randn_like(y)
    grads = torch.autograd.grad(y, [factor, coefficient], grad)
    with library.using("reference"):
        exact = ops.vandermonde(factor, coefficient, length, dtype=torch.float64)
    wanted = torch.autograd.grad(exact, [factor, coefficient], grad.double())
    for a, b in zip(grads, wanted, strict=True):
        assert relative_error(a, b) <= TOLERANCES[torch.float32, "output"]


def test_factors_of_zero_and_one(variant: str) -> None:
    factor = torch.tensor([[[0.0, 0.0], [1.0, 0.0]]], dtype=torch.float64, requires_grad=True)
    coefficient = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    y = ops.vandermonde(factor, coefficient, 100, dtype=torch.float64)
    assert y[0, :, 0].tolist() == [2.0] + [1.0] * 99
    (grad,) = torch.autograd.grad(y.sum(), factor)
    assert grad[0, 0].tolist() == [1.0, -1.0], "only the first power has a slope at 0"
    assert grad[0, 1].tolist() == [4950.0, -4950.0]


def test_rows_without_coefficients_and_padding(variant: str) -> None:
    """Padding may contain NaN; NaN in a coefficient stays in its row and channel."""
    factor, coefficient, x = (t.detach() for t in make(9, 2, 3, 70, torch.float32))
    coefficient[0] = 0
    coefficient[1, 8, 1, 0] = torch.nan
    y = ops.vandermonde(factor, coefficient, 70, dtype=torch.float32)
    assert (y[0] == 0).all()
    assert y[1, :, 8].isnan().all() and y[1, :, :8].isfinite().all() and y[2].isfinite().all()
    lengths = torch.tensor([0, 70, 5])
    padded = x.masked_fill((torch.arange(70) >= lengths[:, None]).unsqueeze(-1), torch.nan)
    for backwards in (False, True):
        found = ops.moments(padded, factor, lengths=lengths, backwards=backwards)
        assert torch.equal(found, ops.moments(x, factor, lengths=lengths, backwards=backwards))
        assert found.isfinite().all() and (found[0] == 0).all()


def test_threads_change_no_bit(variant: str) -> None:
    factor, coefficient, x = make(50, 5, 2, 3000, torch.float32)
    runs = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        y = ops.vandermonde(factor, coefficient, 3000, dtype=torch.float32)
        m = ops.moments(x, factor, backwards=True)
        grads = torch.autograd.grad([y.square().sum(), m.square().sum()], [factor, coefficient, x])
        runs.append([y, m, *grads])
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], run, strict=True))


def test_poisoned_buffers(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not written is not read: workspace full of NaN changes nothing."""
    inputs = make(5, 3, 2, 90, torch.float64)
    plain = native._workspace

    def poisoned(*given: object) -> list[Tensor]:
        return [room.fill_(torch.nan) for room in plain(*given)]  # type: ignore[arg-type]

    monkeypatch.setattr(native, "_workspace", poisoned)
    assert_same(inputs, torch.tensor([90, 31]), True)


def test_gradcheck_opcheck_and_compile() -> None:
    factor, coefficient, x = make(2, 2, 2, 5, torch.float64)
    for lengths, backwards in itertools.product((None, torch.tensor([5, 2])), (False, True)):
        product = (factor, coefficient, lengths, 5, backwards, torch.float64)
        sums = (x, factor, lengths, backwards)
        assert torch.autograd.gradcheck(
            lambda f, c, n=lengths, b=backwards: native.operation(f, c, n, 5, b, torch.float64),
            (factor, coefficient),
        )
        assert torch.autograd.gradcheck(
            lambda x, f, n=lengths, b=backwards: native.moments_operation(x, f, n, b), (x, factor)
        )
        torch.library.opcheck(native.operation, product)
        torch.library.opcheck(native.moments_operation, sums)
    run = torch.compile(
        lambda f, c: ops.vandermonde(f, c, 5, dtype=torch.float64),
        fullgraph=True,
        backend="aot_eager",
    )
    assert torch.equal(
        run(factor, coefficient), ops.vandermonde(factor, coefficient, 5, dtype=torch.float64)
    )


def test_wrong_input_is_refused() -> None:
    factor, coefficient, x = make(3, 2, 2, 5, torch.float32)
    with pytest.raises(ThreefoldError, match=r"factor \[D, N, 2\].*\[3, 2\]"):
        ops.vandermonde(factor[..., 0], coefficient, 5, dtype=torch.float32)
    with pytest.raises(ThreefoldError, match=r"coefficient \[R, 3, 2, 2\]"):
        ops.vandermonde(factor, coefficient[:, :2], 5, dtype=torch.float32)
    with pytest.raises(ThreefoldError, match="float64"):
        ops.vandermonde(factor.float(), coefficient, 5, dtype=torch.float32)
    with pytest.raises(ThreefoldError, match=r"x \[R, L, 3\]"):
        ops.moments(x[..., :2], factor)
    with pytest.raises(ThreefoldError, match="length is outside"):
        ops.moments(x, factor, lengths=torch.tensor([6, 1]))
