"""The RMS norm with its gate: native = reference, forward and backward."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.kernels import library, ops, reference
from threefold.kernels import rms_norm as native
from threefold.layers.norms import RMSNorm

DTYPES = [torch.float32, torch.float64]


def make(
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float64,
    *,
    weight: int = 1,
    gate: bool = True,
) -> dict[str, Any]:
    """Random inputs; the weight has that many of x's last axes, or is None for 0."""
    return {
        "x": torch.randn(shape, dtype=dtype),
        "weight": torch.randn(shape[-weight:], dtype=dtype) if weight else None,
        "gate": torch.randn(shape, dtype=dtype) if gate else None,
    }


def results(function: Any, inputs: dict[str, Any], gate_first: bool) -> list[Tensor]:
    """y and the gradients of every input for one fixed random gradient."""
    leaves = {k: None if v is None else v.detach().requires_grad_() for k, v in inputs.items()}
    y = function(**leaves, gate_first=gate_first)
    grad = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    return [y, *torch.autograd.grad(y, [v for v in leaves.values() if v is not None], grad)]


def assert_same(inputs: dict[str, Any], gate_first: bool) -> None:
    actual = results(ops.rms_norm, inputs, gate_first)
    expected = results(reference.rms_norm, inputs, gate_first)
    names = ["y", *(f"grad of {k}" for k, v in inputs.items() if v is not None)]
    for a, b, name in zip(actual, expected, names, strict=True):
        what = f"{name} of {tuple(inputs['x'].shape)} gate_first={gate_first}"
        assert_close(a, b, "output" if name == "y" else "gradient", what=what)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [3, 8, 17, 70])
def test_native_is_reference(variant: str, size: int, dtype: torch.dtype) -> None:
    flags = itertools.product([0, 1, 2], [False, True], [False, True])
    for weight, gate, gate_first in flags:
        for shape in ((1, size), (2, 5, 3, size)):
            assert_same(make(shape, dtype, weight=weight, gate=gate), gate_first)


@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("shape", [(3, 500, 67), (200, 5, 70), (2, 40_001)])
def test_threads_change_no_bit(variant: str, shape: tuple[int, ...], gate_first: bool) -> None:
    inputs = make(shape, torch.float32)
    runs = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        runs.append(results(ops.rms_norm, inputs, gate_first))
    for run in runs[1:]:
        for first, other in zip(runs[0], run, strict=True):
            assert torch.equal(first, other)
    assert_same({name: tensor.double() for name, tensor in inputs.items()}, gate_first)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_number(variant: str, dtype: torch.dtype) -> None:
    """Forward only: the norm of one number is its sign, so its gradient is only rounding."""
    inputs = make((5, 1), dtype)
    for gate_first in (False, True):
        assert_close(
            ops.rms_norm(**inputs, gate_first=gate_first),
            reference.rms_norm(**inputs, gate_first=gate_first),
        )


def test_step_gives_the_bits_of_the_operation(variant: str) -> None:
    inputs = make((2, 3, 17), torch.float32)
    y = ops.rms_norm(**inputs)
    with torch.no_grad():
        assert torch.equal(ops.rms_norm(**inputs), y)


@pytest.mark.parametrize("size", [5, 64])
def test_large_numbers_do_not_overflow(variant: str, size: int) -> None:
    x = torch.randn(3, size)
    expected = reference.rms_norm(x.double()).float()
    for scale in (1e20, 1e30, 1e37):
        assert_close(ops.rms_norm(x * scale), expected)
        assert_close(reference.rms_norm(x * scale), expected)
    assert_same({"x": x * 1e25, "weight": torch.randn(size), "gate": None}, False)
    assert ops.rms_norm(torch.zeros(2, size)).eq(0).all()


def test_nan_and_infinity_stay_in_their_row(variant: str) -> None:
    inputs = make((4, 19), torch.float32)
    inputs["x"][1, 18], inputs["x"][2, 0] = torch.nan, torch.inf
    assert ops.rms_norm(**inputs).isnan().all(1).tolist() == [False, True, True, False]
    inputs = make((4, 19), torch.float32)
    inputs["gate"][1, 3] = torch.nan
    assert ops.rms_norm(**inputs).isnan().nonzero().tolist() == [[1, 3]]
    y = ops.rms_norm(**inputs, gate_first=True)
    assert y.isnan().all(1).tolist() == [False, True, False, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_output_is_written_and_nothing_else(variant: str, dtype: torch.dtype) -> None:
    inputs = make((6, 2, 11), dtype, weight=2)
    rows, size, groups, guard = 12, 11, 2, 32
    (room,) = library.ask("rms_norm_workspace", dtype, [rows, size, groups])
    shapes = [(12, 11), (12, 11), (2, 11), (12, 11), (room,)]
    wholes = [torch.full((torch.Size(s).numel() + 2 * guard,), 7.0, dtype=dtype) for s in shapes]
    for whole in wholes:
        whole[guard:-guard] = torch.nan
    inside = [whole[guard:-guard] for whole in wholes]
    tensors = list(inputs.values())
    sizes = [rows, size, groups, 0]
    library.call("rms_norm_forward", inside[:1], tensors, sizes, [1e-5])
    grads = [torch.randn(12, 11, dtype=dtype), *tensors]
    library.call("rms_norm_backward", inside[1:], grads, sizes, [1e-5])
    for whole in wholes:
        assert not whole.isnan().any()
        assert (whole[:guard] == 7).all() and (whole[-guard:] == 7).all()


@pytest.mark.parametrize("gate_first", [False, True])
def test_gradcheck_and_opcheck(gate_first: bool) -> None:
    inputs = make((2, 3, 5), weight=2)
    leaves = [tensor.requires_grad_() for tensor in inputs.values()]
    function = lambda *t: ops.rms_norm(*t, gate_first=gate_first)  # noqa: E731
    assert torch.autograd.gradcheck(function, leaves)
    torch.library.opcheck(native.operation, (*leaves, 1e-5, gate_first))
    torch.library.opcheck(native.operation, (leaves[0], None, None, 1e-5, False))


def test_second_derivative_is_refused() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    (grad,) = torch.autograd.grad(ops.rms_norm(x).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="rms_norm can be differentiated only once"):
        grad.sum().backward()


def test_compiles_into_one_graph() -> None:
    part = RMSNorm(9)
    compiled = torch.compile(part, fullgraph=True, backend="aot_eager")
    x, gate = torch.randn(2, 9, requires_grad=True), torch.randn(2, 9)
    expected = torch.autograd.grad(part(x, gate).sum(), x)
    assert torch.equal(compiled(x, gate), part(x, gate))
    assert torch.equal(torch.autograd.grad(compiled(x, gate).sum(), x)[0], expected[0])


def test_part_is_a_norm_of_torch() -> None:
    part, plain = RMSNorm(9), nn.RMSNorm(9, eps=1e-5)
    assert isinstance(part, nn.RMSNorm)
    assert part.state_dict().keys() == plain.state_dict().keys()
    x = torch.randn(4, 9)
    assert_close(part(x), plain(x))


def test_scattered_input_and_other_dtypes() -> None:
    inputs = make((4, 6, 10), torch.float32)
    y = ops.rms_norm(**inputs)
    scattered = torch.randn(10, 6, 4).permute(2, 1, 0).copy_(inputs["x"])
    assert torch.equal(ops.rms_norm(scattered, inputs["weight"], inputs["gate"]), y)
    half = {name: tensor.bfloat16() for name, tensor in inputs.items()}
    assert torch.equal(ops.rms_norm(**half), reference.rms_norm(**half))
    mixed = ops.rms_norm(inputs["x"], inputs["weight"].bfloat16())
    assert mixed.dtype == torch.float32
    assert ops.rms_norm(torch.zeros(2, 3, device="meta")).shape == (2, 3)
    assert ops.rms_norm(torch.zeros(0, 3)).shape == (0, 3)


WRONG = {
    "no numbers": ({"x": torch.zeros(2, 0)}, r"x \[….* size\].*none empty; given x \[2, 0\]"),
    "weight": ({"weight": torch.zeros(5)}, r"weight \[6\].*given.*weight \[5\]"),
    "three axes": ({"weight": torch.zeros(2, 4, 6)}, r"weight \[6\].*weight \[2, 4, 6\]"),
    "gate": ({"gate": torch.zeros(2, 6)}, r"gate \[2, 4, 6\], none.*gate \[2, 6\]"),
    "whole numbers": ({"x": torch.zeros(2, 4, 6).long()}, "floating-point.*torch.int64"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_refused(case: str) -> None:
    change, message = WRONG[case]
    with pytest.raises(ThreefoldError, match=message):
        ops.rms_norm(**{**make((2, 4, 6), torch.float32), **change})
