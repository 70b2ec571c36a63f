"""The product of a few rows with a matrix: native = F.linear, and no row affects another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.kernels import library, ops
from threefold.kernels import linear as native
from threefold.kernels.replay.activity import ordinary_steps
from threefold.layers.linear import Linear

DTYPES = [torch.float32, torch.float64]
SIZES = [(1, 1), (3, 2), (16, 5), (33, 7), (48, 9), (64, 4), (100, 1), (129, 3), (768, 65)]


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


def run(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The native product; the test fails if the kernel is not used."""
    y = native.forward(x, weight, bias)
    assert y is not None
    assert torch.equal(y.nan_to_num(), ops.linear(x, weight, bias).nan_to_num())
    return y


def in_float64(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x.double(), weight.double(), None if bias is None else bias.double())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_native_is_reference(
    variant: str, size: tuple[int, int], bias: bool, dtype: torch.dtype
) -> None:
    inputs, outputs = size
    weight = torch.randn(outputs, inputs, dtype=dtype)
    offset = torch.randn(outputs, dtype=dtype) if bias else None
    for batch in ((), (1,), (2, 1), (3,), (1, 5), (8,)):
        x = torch.randn(*batch, inputs, dtype=dtype)
        y = run(x, weight, offset)
        assert (y.shape, y.dtype) == ((*batch, outputs), dtype)
        assert_close(y, F.linear(x, weight, offset))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_narrow_weights_are_summed_in_float32(
    variant: str, size: tuple[int, int], bias: bool
) -> None:
    inputs, outputs = size
    weight = torch.randn(outputs, inputs).bfloat16()
    offset = torch.randn(outputs).bfloat16() if bias else None
    for rows in (1, 2, 3, 8):
        x = torch.randn(rows, inputs).bfloat16()
        expected = in_float64(x, weight, offset).float()
        y = run(x.float(), weight, offset)
        assert y.dtype == torch.float32
        assert_close(y, expected)
        # The only rounding to bfloat16 is that of the result.
        assert torch.equal(run(x, weight, offset), y.bfloat16())


def test_rounding_to_bfloat16_is_torch_s(variant: str) -> None:
    """Ties to even, infinities, the largest numbers, and NaN."""
    largest = torch.finfo(torch.float32).max
    values = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, largest, -largest, torch.inf, 0.0, 1e-40]
    weight = torch.eye(8).bfloat16()
    for value in values:
        # A sum of two numbers of bfloat16, so that the result needs rounding.
        high = torch.tensor(value).bfloat16()
        low = (
            (torch.tensor(value) - high.float()).bfloat16()
            if abs(value) < largest
            else 0 * weight[0, 0]
        )
        x = torch.stack([high, low]).view(1, 2)
        wide = run(x.float(), torch.ones(1, 2).bfloat16())
        assert torch.equal(run(x, torch.ones(1, 2).bfloat16()), wide.bfloat16())
    assert run(torch.full((1, 8), torch.nan).bfloat16(), weight).isnan().all()


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
@pytest.mark.parametrize("size", [(1000, 70), (48, 1537), (31, 4001)])
def test_threads_and_other_rows_change_no_bit(
    variant: str, size: tuple[int, int], dtype: torch.dtype
) -> None:
    inputs, outputs = size
    weight, bias = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs).to(dtype)
    x = torch.randn(8, inputs).to(dtype)
    torch.set_num_threads(1)
    expected = torch.cat([run(row, weight, bias) for row in x.split(1)])
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for rows in range(1, 9):
            assert torch.equal(run(x[:rows], weight, bias), expected[:rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inputs", [33, 64])
def test_nan_stays_where_it_is(variant: str, inputs: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(4, inputs).to(dtype), torch.randn(5, inputs).to(dtype)
    x[2, inputs - 1] = torch.nan
    assert run(x, weight).isnan().nonzero()[:, 0].unique().tolist() == [2]
    x[2, inputs - 1], weight[3, 0] = 1, torch.nan
    assert run(x, weight).isnan().nonzero()[:, 1].unique().tolist() == [3]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
@pytest.mark.parametrize("inputs", [1, 31, 32, 45])
def test_nothing_else_is_read_or_written(variant: str, inputs: int, dtype: torch.dtype) -> None:
    """NaN around every input, and numbers around the output that must stay."""
    rows, outputs, guard = 3, 5, 64

    def inside(tensor: Tensor, around: float) -> tuple[Tensor, Tensor]:
        whole = torch.full((tensor.numel() + 2 * guard,), around, dtype=tensor.dtype)
        part = whole[guard:-guard].view(tensor.shape)
        return part.copy_(tensor), whole

    tensors = [torch.randn(*shape).to(dtype) for shape in ((rows, inputs), (outputs, inputs))]
    expected = run(*tensors)
    x, weight = (inside(tensor, torch.nan)[0] for tensor in tensors)
    y, whole = inside(torch.full((rows, outputs), torch.nan).to(dtype), 7.0)
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    work, around = inside(torch.full((rows, -(-inputs // 32) * 32), torch.nan, dtype=sums), 7.0)
    current = library.current().native
    assert current is not None
    narrow = dtype == torch.bfloat16
    function = current.functions["linear_narrow" if narrow else "linear", sums]
    pointers = [tensor.data_ptr() for tensor in (y, work, x, weight)]
    assert function(*pointers, None, rows, inputs, outputs, *([1] if narrow else []), 1) == 0
    assert torch.equal(y, expected)
    for buffer in (whole, around):
        assert (buffer[:guard] == 7).all() and (buffer[-guard:] == 7).all()


def test_scattered_and_misaligned_input(variant: str) -> None:
    x, weight = torch.randn(3, 2, 40), torch.randn(6, 40)
    expected = run(x, weight)
    scattered = torch.randn(40, 2, 3).permute(2, 1, 0).copy_(x)
    assert not scattered.is_contiguous()
    assert torch.equal(run(scattered, weight), expected)
    assert torch.equal(run(torch.randn(241)[1:].view(3, 2, 40).copy_(x), weight), expected)
    assert torch.equal(run(x, torch.randn(241)[1:].view(6, 40).copy_(weight)), expected)
    # A weight that is a view of another order is left to torch.
    assert native.forward(x, weight.t().contiguous().t(), None) is None
    assert_close(ops.linear(x, weight.t().contiguous().t()), expected)


def served_by_torch(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    return torch.equal(ops.linear(x, weight, bias), F.linear(x, weight, bias))


def test_torch_serves_the_rest() -> None:
    weight = torch.randn(6, 40)
    assert served_by_torch(torch.randn(native.MAX_ROWS + 1, 40), weight)
    assert native.forward(torch.randn(native.MAX_ROWS + 1, 40), weight, None) is None
    assert served_by_torch(torch.randn(2, 40).half(), weight.half())
    assert served_by_torch(torch.randn(0, 40), weight)
    assert ops.linear(torch.randn(2, 40, device="meta"), weight.to("meta")).shape == (2, 6)
    with library.using("reference"):
        assert served_by_torch(torch.randn(2, 40), weight)
        wide = ops.linear(torch.randn(2, 40), weight.bfloat16(), torch.randn(6).bfloat16())
        assert wide.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert ops.linear(torch.randn(2, 40), weight).dtype == torch.bfloat16
    z = torch.randn(1, 40, dtype=torch.complex64)
    assert torch.equal(ops.linear(z.conj().imag, torch.eye(40)), -z.imag)
    rows = torch.func.vmap(lambda x: ops.linear(x, weight))(torch.ones(3, 40))
    assert rows.shape == (3, 6)


def test_part_is_a_linear_of_torch() -> None:
    part, plain = Linear(40, 6), nn.Linear(40, 6)
    plain.load_state_dict(part.state_dict())
    assert isinstance(part, nn.Linear)
    x = torch.randn(2, 3, 40)
    assert_close(part(x), plain(x))
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(part(leaf).sum(), leaf)
        assert_close(grad, part.weight.sum(0).expand_as(grad), "gradient")
    compiled = torch.compile(part, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), plain(x))


WRONG = {
    "inputs": ((torch.zeros(2, 5), torch.zeros(6, 4)), r"expected x \[…, 4\].*given x \[2, 5\]"),
    "one axis": ((torch.zeros(2, 4), torch.zeros(4)), r"weight \[O, I\]; given.*weight \[4\]"),
    "bias": ((torch.zeros(2, 4), torch.zeros(6, 4), torch.zeros(5)), r"bias \[6\].*bias \[5\]"),
    "dtype": ((torch.zeros(2, 4).double(), torch.zeros(6, 4)), "x of torch.float32.*float64"),
    "narrow x": ((torch.zeros(2, 4).bfloat16(), torch.zeros(6, 4)), "x of torch.float32.*bfloat16"),
    "bias' dtype": (
        (torch.zeros(2, 4), torch.zeros(6, 4), torch.zeros(6).double()),
        "bias of torch.float32.*bias.*float64",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_refused(case: str) -> None:
    inputs, message = WRONG[case]
    with pytest.raises(ThreefoldError, match=message):
        ops.linear(*inputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_codes_are_the_product_of_the_widened_matrix(
    variant: str, size: tuple[int, int], dtype: torch.dtype
) -> None:
    inputs, outputs = size
    codes = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    scale, bias = torch.rand(outputs, dtype=dtype), torch.randn(outputs, dtype=dtype)
    weight = codes.to(dtype) * scale.unsqueeze(1)
    for batch in ((), (1,), (3,), (1, 5), (32,)):
        x = torch.randn(*batch, inputs, dtype=dtype)
        for offset in (None, bias):
            y = native.forward_codes(x, codes, scale, offset)
            assert y is not None and torch.equal(y, ops.linear_codes(x, codes, scale, offset))
            assert_close(y, F.linear(x, weight, offset))
    x = torch.randn(33, inputs, dtype=dtype)  # more rows than the kernel takes
    assert native.forward_codes(x, codes, scale, bias) is None
    assert_close(ops.linear_codes(x, codes, scale, bias), F.linear(x, weight, bias))
    with pytest.raises(ThreefoldError, match="linear_codes"):
        ops.linear_codes(torch.randn(2, inputs + 1, dtype=dtype), codes, scale)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [9, 16, 33])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 48), (65, 7), (3, 5), (100, 1), (31, 33)])
def test_many_rows_have_the_bits_of_one(
    variant: str, rows: int, inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    """In a recorded step, where rows are the lanes of vectors."""
    x, weight = torch.randn(rows, inputs, dtype=dtype), torch.randn(outputs, inputs, dtype=dtype)
    bias = torch.randn(outputs, dtype=dtype)
    with ordinary_steps():
        together = native.forward(x, weight, bias)
        alone = [native.forward(row, weight, bias) for row in x.split(1)]
    assert together is not None
    assert torch.equal(together, torch.cat([row for row in alone if row is not None]))
    assert_close(together, F.linear(x, weight, bias))
