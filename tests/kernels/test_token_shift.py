"""The token shift: native = reference, forward and backward."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.kernels import library, ops, reference
from threefold.kernels import token_shift as native

DTYPES = [torch.float32, torch.float64]


def make(
    size: tuple[int, int, int, int],
    dtype: torch.dtype = torch.float64,
    *,
    state: bool = True,
    lengths: bool = False,
) -> dict[str, Any]:
    """Random inputs for (N, B, L, D); lengths include 0, 1 and L."""
    shares, batch, length, channels = size
    return {
        "x": torch.randn(batch, length, channels, dtype=dtype),
        "shares": torch.rand(shares, channels, dtype=dtype),
        "state": torch.randn(batch, channels, dtype=dtype) if state else None,
        "lengths": torch.tensor([0, length, 1, length // 2][:batch]) if lengths else None,
    }


def results(function: Any, inputs: dict[str, Any]) -> list[Tensor]:
    """y, new state, and the gradients of every input for fixed random gradients of both."""
    leaves = {
        name: tensor.detach().requires_grad_(tensor.is_floating_point())
        for name, tensor in inputs.items()
        if tensor is not None
    }
    outputs = function(**leaves)
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(out.shape, dtype=out.dtype, generator=generator) for out in outputs]
    wanted = [tensor for tensor in leaves.values() if tensor.requires_grad]
    return [*outputs, *torch.autograd.grad(outputs, wanted, grads)]


def assert_same(inputs: dict[str, Any]) -> None:
    actual, expected = results(ops.token_shift, inputs), results(reference.token_shift, inputs)
    for index, (a, b) in enumerate(zip(actual, expected, strict=True)):
        assert_close(a, b, ("output", "state", *["gradient"] * 3)[index], what=f"result {index}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 3, 17, 70])
def test_native_is_reference(variant: str, channels: int, dtype: torch.dtype) -> None:
    flags = itertools.product([1, 2, 6], [1, 2, 9], [False, True], [False, True])
    for shares, length, state, lengths in flags:
        assert_same(make((shares, 4, length, channels), dtype, state=state, lengths=lengths))


@pytest.mark.parametrize("size", [(6, 4, 100, 70), (2, 4, 1, 20_001), (1, 4, 9_000, 3)])
def test_threads_change_no_bit(variant: str, size: tuple[int, int, int, int]) -> None:
    inputs = make(size, torch.float32, lengths=True)
    runs = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        runs.append(results(ops.token_shift, inputs))
    for run in runs[1:]:
        for first, other in zip(runs[0], run, strict=True):
            assert torch.equal(first, other)


@pytest.mark.parametrize("grad", [False, True])
def test_cut_anywhere_and_resume(variant: str, grad: bool) -> None:
    inputs = make((3, 2, 11, 19), torch.float32)
    x, carried = inputs["x"], inputs["state"]
    y, last = ops.token_shift(**inputs)
    outputs = []
    with torch.set_grad_enabled(grad):
        for piece in x.split([1, 4, 1, 5], dim=1):
            output, carried = ops.token_shift(piece, inputs["shares"], carried)
            outputs.append(output)
    assert torch.equal(torch.cat(outputs, 2), y)
    assert torch.equal(carried, last)


def test_padding_is_never_read_and_nan_stays(variant: str) -> None:
    inputs = make((2, 4, 6, 9), torch.float32, lengths=True)
    padding = (torch.arange(6) >= inputs["lengths"][:, None])[:, :, None].expand(4, 6, 9)
    clean = {**inputs, "x": inputs["x"].masked_fill(padding, 0)}
    poisoned = {**inputs, "x": inputs["x"].masked_fill(padding, torch.nan)}
    for function in (ops.token_shift, reference.token_shift):
        for a, b in zip(results(function, poisoned), results(function, clean), strict=True):
            assert torch.equal(a, b)
    inputs = make((2, 2, 6, 9), torch.float32)
    inputs["x"][1, 3, 8] = torch.nan
    y, last = ops.token_shift(**inputs)
    assert y[0].isnan().nonzero().tolist() == [[1, 3, 8], [1, 4, 8]]
    assert not last.isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_output_is_written_and_nothing_else(variant: str, dtype: torch.dtype) -> None:
    size, guard = (3, 4, 5, 11), 32
    inputs = make(size, dtype, lengths=True)
    like = [(3, 4, 5, 11), (4, 11)]
    shapes = [*like, (4, 5, 11), (3, 11), (4, 11), (4, 3, 11)]
    wholes = [torch.full((torch.Size(s).numel() + 2 * guard,), 7.0, dtype=dtype) for s in shapes]
    for whole in wholes:
        whole[guard:-guard] = torch.nan
    inside = [whole[guard:-guard] for whole in wholes]
    tensors = list(inputs.values())
    library.call("token_shift_forward", inside[:2], tensors, list(size))
    grads = [torch.randn(shape, dtype=dtype) for shape in like]
    library.call("token_shift_backward", inside[2:], [*grads, *tensors], list(size))
    for whole in wholes:
        assert not whole.isnan().any()
        assert (whole[:guard] == 7).all() and (whole[-guard:] == 7).all()


def test_gradcheck_opcheck_and_compile() -> None:
    inputs = make((2, 3, 4, 5), lengths=True)
    lengths = inputs.pop("lengths")
    leaves = [tensor.requires_grad_() for tensor in inputs.values()]
    assert torch.autograd.gradcheck(lambda *t: ops.token_shift(*t, lengths), leaves)
    torch.library.opcheck(native.operation, (*leaves, lengths))
    torch.library.opcheck(native.operation, (*leaves[:2], None, None))
    compiled = torch.compile(ops.token_shift, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(*leaves), ops.token_shift(*leaves), strict=True):
        assert torch.equal(a, b)


def test_scattered_input_and_other_dtypes() -> None:
    inputs = make((2, 4, 6, 10), torch.float32)
    y, _ = ops.token_shift(**inputs)
    scattered = torch.randn(10, 6, 4).permute(2, 1, 0).copy_(inputs["x"])
    assert torch.equal(ops.token_shift(**{**inputs, "x": scattered})[0], y)
    half = {k: None if v is None else v.bfloat16() for k, v in inputs.items()}
    assert torch.equal(ops.token_shift(**half)[0], reference.token_shift(**half)[0])


WRONG = {
    "two axes": (
        {"x": torch.zeros(5, 6)},
        r"x \[batch, length, channels\].*given x \[5, 6\]",
    ),
    "shares": ({"shares": torch.zeros(2, 5)}, r"share \[shares, 6\].*given.*shares \[2, 5\]"),
    "state": ({"state": torch.zeros(3, 6)}, r"state \[2, 6\].*given.*state \[3, 6\]"),
    "dtype": (
        {"shares": torch.zeros(2, 6).double()},
        "all tensors to be torch.float32 on cpu.*float64",
    ),
    "lengths": ({"lengths": torch.tensor([0, 6])}, "length"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("choice", ["auto", "reference"])
def test_wrong_input_is_refused(case: str, choice: str) -> None:
    change, message = WRONG[case]
    with library.using(choice), pytest.raises(ThreefoldError, match=message):
        ops.token_shift(**{**make((2, 2, 5, 6), torch.float32), **change})
