"""Long convolutions: native = the sum written out, whole, in blocks, and one element at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.kernels import library, ops, reference
from threefold.kernels import long_convolution as native
from threefold.kernels.online_convolution import OnlineFilter, OnlineStep, largest_tile

DTYPES = [torch.float32, torch.float64]


def direct(
    x: Tensor, kernel: Tensor, skip: Tensor | None, gate: Tensor | None = None, first: int = 0
) -> Tensor:
    """The definition: a matrix of taps for each channel."""
    length, taps = x.shape[1], kernel.shape[1]
    lag = torch.arange(length).unsqueeze(1) - torch.arange(length)
    seen = (lag >= 0) & (lag < taps)
    matrix = kernel[:, lag.clamp(0, taps - 1)] * seen
    y = torch.einsum("dts,bsd->btd", matrix, x)
    y = (y if skip is None else y + skip * x)[:, first:]
    return y if gate is None else y * gate


def make(
    rows: int,
    length: int,
    channels: int,
    taps: int,
    dtype: torch.dtype,
    *,
    outputs: int | None = None,
) -> list[Tensor]:
    """x, kernel and skip; with a number of outputs also a gate."""
    shapes = [(rows, length, channels), (channels, taps), (channels,)]
    if outputs is not None:
        shapes.append((rows, outputs, channels))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def assert_same(inputs: list[Tensor], first: int, size: int | None = None) -> None:
    """Outputs and gradients against the definition in float64."""
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = direct(*exact, first=first)
    if size is None:
        y = ops.long_convolution(*inputs, first=first)
    else:
        y, _ = native.operation(*inputs, *[None] * (4 - len(inputs)), size, first, False)
    assert_close(y, expected, what=f"{[tuple(t.shape) for t in inputs]} from {first} by {size}")
    weight = torch.randn_like(y)
    found = torch.autograd.grad(y, inputs, weight)
    wanted = torch.autograd.grad(expected, exact, weight.double())
    for a, b in zip(found, wanted, strict=True):
        assert_close(a, b, "gradient", f"gradient of {tuple(a.shape)} from {first} by {size}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 7, 16, 45])
def test_native_is_the_sum(variant: str, channels: int, dtype: torch.dtype) -> None:
    for length, taps, first in ((1, 1, 0), (2, 5, 1), (5, 3, 0), (33, 33, 0), (70, 9, 20)):
        assert_same(make(3, length, channels, taps, dtype), first)
        assert_same(make(3, length, channels, taps, dtype, outputs=length - first), first)


@pytest.mark.parametrize("size", [16, 32, 64, 128, 256, 1024, 2048])
def test_any_size_of_block(variant: str, size: int) -> None:
    """Powers of two and of four, in the cache and by quarters, one block and many."""
    assert_same(make(2, 150, 5, 14, torch.float64), 3, size)
    # The value before the gate is not saved here, but recomputed for the gate's gradient.
    assert_same(make(2, 150, 5, 14, torch.float64, outputs=147), 3, size)


def test_a_gate_is_read_where_it_lies(variant: str) -> None:
    """A slice of the projections; a gate without gradient, and none of the other inputs either."""
    x, kernel, skip, wide = make(2, 40, 17, 40, torch.float64, outputs=40)
    three = torch.cat([wide, wide, wide], -1)
    expected = ops.long_convolution(x, kernel, skip, wide)
    assert torch.equal(ops.long_convolution(x, kernel, skip, three.chunk(3, -1)[1]), expected)
    weight = torch.randn_like(expected)
    inputs = [x, kernel, skip]
    wanted = torch.autograd.grad(expected, [*inputs, wide], weight)
    fixed = ops.long_convolution(*inputs, wide.detach())
    for a, b in zip(torch.autograd.grad(fixed, inputs, weight), wanted, strict=False):
        assert torch.equal(a, b)
    alone = ops.long_convolution(*(t.detach() for t in inputs), wide)
    assert torch.equal(torch.autograd.grad(alone, wide, weight)[0], wanted[3])


def test_reference_is_the_sum() -> None:
    with library.using("reference"):
        for first in (0, 17):
            assert_same(make(2, 40, 6, 40, torch.float64), first)
            assert_same(make(2, 40, 6, 9, torch.float32, outputs=40 - first), first)


def test_blocks_where_the_filter_is_short() -> None:
    assert native.transform_size(16384, 16384, whole=False) == 32768
    assert native.transform_size(16384, 64, whole=False) <= 1024
    assert native.transform_size(16384, 64, whole=True) == 32768


def test_gradcheck(variant: str) -> None:
    inputs = make(2, 11, 3, 6, torch.float64, outputs=9)
    assert torch.autograd.gradcheck(lambda *given: ops.long_convolution(*given, first=2), inputs)


def test_threads_change_no_bit(variant: str) -> None:
    inputs = make(3, 300, 70, 300, torch.float32, outputs=300)
    runs = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        y = ops.long_convolution(*inputs)
        runs.append([y, *torch.autograd.grad(y.square().sum(), inputs)])
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], run, strict=True))


def test_long_sequences_in_float32(variant: str) -> None:
    x, kernel, skip = (t.detach() for t in make(1, 8192, 17, 8192, torch.float32))
    exact = reference.long_convolution(x.double(), kernel.double(), skip.double())
    assert_close(ops.long_convolution(x, kernel, skip), exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [3, 32, 45])
def test_online_is_the_sum(variant: str, channels: int, dtype: torch.dtype) -> None:
    """Rows at different positions; one of them pauses, and the sums are rebuilt midway."""
    length, begin = 300, [0, 7, 128]
    x, kernel, skip = (t.detach() for t in make(3, length, channels, length, dtype))
    expected = direct(x.double(), kernel.double(), skip.double())
    online = OnlineFilter(kernel, skip)
    at, outputs, pending = list(begin), torch.zeros_like(x), x.new_zeros(3, 512, channels)
    inputs = torch.full_like(x, torch.nan)
    for row, place in enumerate(begin):
        inputs[row, :place] = x[row, :place]
    for turn in range(160):
        rebuild = turn in (0, 77)
        if rebuild:
            again = x.new_zeros(3, 512, channels)
            if turn:
                kept = pending
            pending = again
        going = [p if row != 1 or turn % 3 else -1 - p for row, p in enumerate(at)]
        now = torch.stack([x[row, p] for row, p in enumerate(at)])
        places, tile = torch.tensor(going), largest_tile(at, rebuild=rebuild)
        y = OnlineStep(online, inputs, pending).advance(now, places, tile, rebuild=rebuild)
        if turn == 77:
            tile = largest_tile(at, rebuild=False)
            OnlineStep(online, inputs, kept).advance(now, places, tile, rebuild=False)
            for row, place in enumerate(at):
                assert torch.equal(pending[row, place:], kept[row, place:]), "the same bits"
        for row, place in enumerate(going):
            if place >= 0:
                outputs[row, place] = y[row]
                at[row] += 1
    for row, (start, end) in enumerate(zip(begin, at, strict=True)):
        assert_close(outputs[row, start:end], expected[row, start:end], what=f"row {row}")
        assert torch.equal(inputs[row, :end], x[row, :end]) and inputs[row, end:].isnan().all()


def test_bad_shapes() -> None:
    x, kernel, skip = make(2, 5, 3, 4, torch.float32)
    for given, words in (
        ((x[0], kernel), r"\[B, L, D\]"),
        ((x, kernel[:2]), r"kernel \[3, K\]"),
        ((x, kernel, skip[:1]), r"skip \[3\]"),
        ((x, kernel.double()), "float32"),
        ((x, kernel, skip, x[:, 1:]), r"gate \[2, 5, 3\], as y"),
    ):
        with pytest.raises(ThreefoldError, match=words):
            ops.long_convolution(*given)
