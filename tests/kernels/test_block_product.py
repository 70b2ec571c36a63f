"""Products with block-diagonal matrices: native = reference, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.kernels import block_product as native
from threefold.kernels import library, ops, reference
from threefold.kernels.registration import Operation

DTYPES = [torch.float32, torch.float64]
# (blocks, size) of two products side by side; the last of a row may fill a part of a vector.
SIZES = [((1, 1), (3, 1)), ((5, 2), (4, 4)), ((33, 4), (1, 4)), ((8, 8), (3, 8)), ((7, 3), (2, 5))]


def tensors(
    sizes: tuple[tuple[int, int], ...], length: int, dtype: torch.dtype
) -> tuple[list[Tensor], list[Tensor]]:
    inputs = [torch.randn(2, length, n * size, dtype=dtype) for n, size in sizes]
    return inputs, [torch.randn(n, size, size, dtype=dtype) for n, size in sizes]


def results(
    function: Operation, inputs: list[Tensor], weights: list[Tensor], count: int
) -> list[Tensor]:
    """y and all gradients for one fixed random gradient."""
    leaves = [tensor.detach().requires_grad_() for tensor in (*inputs, *weights)]
    y: Tensor = function(leaves[:count], leaves[count:])
    grad = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    return [y, *torch.autograd.grad(y, leaves, grad)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("length", [2, 70])
def test_native_is_reference(
    variant: str, sizes: tuple[tuple[int, int], ...], length: int, dtype: torch.dtype
) -> None:
    inputs, weights = tensors(sizes, length, dtype)
    assert native.serves(inputs, weights)
    actual = results(ops.block_products, inputs, weights, 2)
    assert "block_products" in type(actual[0].grad_fn).__name__
    expected = results(reference.block_products, inputs, weights, 2)
    for a, b in zip(actual, expected, strict=True):
        assert_close(a, b, "gradient")
    with torch.no_grad():
        assert torch.equal(ops.block_products(inputs, weights), actual[0])


def test_strides_do_not_matter(variant: str) -> None:
    whole, weight = torch.randn(2, 9, 48), torch.randn(6, 4, 4)
    for x in (whole[..., 24:], whole.flip(0)[..., ::2], whole[:1, :, :24].expand(2, -1, -1)):
        y = ops.block_products([x], [weight.mT])
        assert_close(y, reference.block_products([x], [weight.mT.contiguous()]))


def test_threads_change_no_bit(variant: str) -> None:
    inputs, weights = tensors(((128, 4), (64, 8)), 301, torch.float32)
    runs = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        runs.append(results(ops.block_products, inputs, weights, 2))
    for run in runs[1:]:
        assert all(map(torch.equal, run, runs[0]))


@pytest.mark.parametrize(("blocks", "size"), [(5, 4), (3, 8), (2, 3)])
def test_nothing_else_is_read_or_written(variant: str, blocks: int, size: int) -> None:
    """NaN around every input and in every output; numbers around the output that must stay."""
    width, rows, guard = blocks * size, 5, 64

    def inside(tensor: Tensor, around: float) -> tuple[Tensor, Tensor]:
        whole = torch.full((tensor.numel() + 2 * guard,), around)
        part = whole[guard:-guard].view(tensor.shape)
        return part.copy_(tensor), whole

    weight = torch.randn(blocks, size, size)
    x, grad = torch.randn(2, rows, width)
    expected = ops.block_products([x[None]], [weight])[0]
    nan = torch.full((rows, width), torch.nan)
    for name, like, inputs, more in (
        ("block_product", nan, (x, weight), [width, width, 0]),
        ("block_product_weight", weight * torch.nan, (grad, x), [width, width]),
    ):
        y, around = inside(like, 7.0)
        work, beyond = inside(torch.full(((width + 16) * size,), torch.nan), 7.0)
        given = [inside(tensor, torch.nan)[0] for tensor in inputs]
        library.call(name, [y, work], given, [rows, width, size, *more])
        assert y.isfinite().all()
        for whole in (around, beyond):
            assert (whole[:guard] == 7).all() and (whole[-guard:] == 7).all()
        if name == "block_product":
            assert torch.equal(y, expected)


def test_nan_stays_in_its_block(variant: str) -> None:
    (x,), (weight,) = tensors(((6, 4),), 3, torch.float32)
    x[0, 1, 9] = torch.nan
    y = ops.block_products([x], [weight])
    assert y.isnan().nonzero().tolist() == [[0, 1, channel] for channel in range(8, 12)]


def test_what_does_not_fit_is_refused() -> None:
    x, weight = torch.randn(2, 3, 8), torch.randn(2, 4, 4)
    for inputs, weights in (
        ([x], [weight, weight]),
        ([], []),
        ([x], [weight[:1]]),
        ([x, x[:, :2]], [weight, weight]),
        ([x], [weight[0]]),
    ):
        with pytest.raises(ThreefoldError, match=r"block_products: .*expected"):
            ops.block_products(inputs, weights)


def test_large_or_oblong_blocks_are_torch_s() -> None:
    x = torch.randn(2, 3, 32)
    for weight in (torch.randn(2, 16, 16), torch.randn(8, 4, 5), torch.randn(8, 4, 4).double()):
        assert not native.serves([x], [weight])
    weight = torch.randn(8, 4, 5)
    assert_close(ops.block_products([x], [weight]), reference.block_products([x], [weight]))
