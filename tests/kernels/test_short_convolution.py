"""The short convolution: native = reference, and the laws of the contract bit for bit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.kernels import library, ops, reference
from threefold.kernels import short_convolution as native
from threefold.kernels.ops import short_convolution

DTYPES = [torch.float32, torch.float64]
QUANTITIES = ("output", "state", *["gradient"] * 4)


def make(
    size: tuple[int, int, int, int],
    dtype: torch.dtype = torch.float64,
    *,
    bias: bool = True,
    state: bool = True,
    lengths: bool = False,
) -> dict[str, Any]:
    """Random inputs for (B, L, D, K); lengths include 0, 1 and L."""
    batch, length, channels, taps = size
    return {
        "x": torch.randn(batch, length, channels, dtype=dtype),
        "weight": torch.randn(channels, taps, dtype=dtype),
        "bias": torch.randn(channels, dtype=dtype) if bias else None,
        "state": torch.randn(batch, taps - 1, channels, dtype=dtype) if state else None,
        "lengths": torch.tensor([0, length, 1, length // 2, 1][:batch]) if lengths else None,
    }


def results(function: Any, inputs: dict[str, Any], silu: bool) -> list[Tensor]:
    """y, new state, and the gradients of every input for fixed random gradients of both."""
    leaves = {
        name: tensor.detach().requires_grad_(tensor.is_floating_point())
        for name, tensor in inputs.items()
        if tensor is not None
    }
    y, new_state = function(**leaves, silu=silu)
    generator = torch.Generator().manual_seed(1)
    grads = [
        torch.randn(tensor.shape, dtype=y.dtype, generator=generator) for tensor in (y, new_state)
    ]
    wanted = [tensor for tensor in leaves.values() if tensor.requires_grad]
    return [y, new_state, *torch.autograd.grad([y, new_state], wanted, grads)]


def assert_same(inputs: dict[str, Any], silu: bool) -> None:
    """Native = reference, forward and backward."""
    actual = results(short_convolution, inputs, silu)
    expected = results(reference.short_convolution, inputs, silu)
    names = ["y", "new_state", *(f"grad of {k}" for k, v in inputs.items() if v is not None)]
    for a, b, quantity, name in zip(actual, expected, QUANTITIES, names, strict=False):
        assert_close(a, b, quantity, what=f"{name} of {describe(inputs)} silu={silu}")


def describe(inputs: dict[str, Any]) -> str:
    return str({name: None if v is None else tuple(v.shape) for name, v in inputs.items()})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 3, 17, 70])
@pytest.mark.parametrize("taps", [1, 2, 4, 7])
def test_native_is_reference(variant: str, taps: int, channels: int, dtype: torch.dtype) -> None:
    flags = itertools.product([1, 2, 5, 33], *[[False, True]] * 4)
    for length, bias, state, lengths, silu in flags:
        size = (3, length, channels, taps)
        assert_same(make(size, dtype, bias=bias, state=state, lengths=lengths), silu)


@pytest.mark.parametrize("taps", [33, 64])
def test_long_filters(variant: str, taps: int) -> None:
    for length in (1, 40, 150):
        assert_same(make((4, length, 5, taps), lengths=True), True)


# Large enough to use three threads.
LARGE = [(2, 1, 30_001, 4), (2, 400, 70, 4), (5, 600, 17, 4), (2, 30_000, 1, 2), (4, 130, 100, 7)]


@pytest.mark.parametrize("size", LARGE)
def test_threads_change_no_bit(variant: str, size: tuple[int, int, int, int]) -> None:
    inputs = make(size, torch.float32, lengths=True)
    runs = []
    for threads in (1, 2, 3, 2):
        torch.set_num_threads(threads)
        assert torch.get_num_threads() == threads
        runs.append(results(short_convolution, inputs, True))
    for run in runs[1:]:
        for first, other in zip(runs[0], run, strict=True):
            assert torch.equal(first, other)
    torch.set_num_threads(3)
    assert_same({k: v if k == "lengths" else v.double() for k, v in inputs.items()}, True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("silu", [False, True])
def test_cut_anywhere_and_resume(variant: str, silu: bool, dtype: torch.dtype) -> None:
    """Pieces that carry the state give the bits of the uncut pass, with and without gradients."""
    inputs = make((2, 23, 19, 4), dtype)
    x, state = inputs.pop("x"), inputs.pop("state")
    y, last = short_convolution(x, state=state, **inputs, silu=silu)
    for pieces in ([23], [1] * 23, [1, 2, 3, 17], [20, 3], [22, 1]):
        for grad in (True, False):
            carried, outputs = state, []
            with torch.set_grad_enabled(grad):
                for piece in x.split(pieces, dim=1):
                    output, carried = short_convolution(piece, state=carried, **inputs, silu=silu)
                    outputs.append(output)
            assert torch.equal(torch.cat(outputs, 1), y)
            assert torch.equal(carried, last)


def test_state_of_none_is_zeros(variant: str) -> None:
    inputs = make((2, 6, 9, 4), state=False)
    zeros = torch.zeros(2, 3, 9, dtype=torch.float64)
    for a, b in zip(
        short_convolution(**inputs), short_convolution(**{**inputs, "state": zeros}), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("time", range(9))
def test_causal_bit_for_bit(variant: str, time: int) -> None:
    inputs = make((1, 9, 11, 4), torch.float32)
    before, _ = short_convolution(**inputs, silu=True)
    inputs["x"][:, time] += 1
    after, _ = short_convolution(**inputs, silu=True)
    assert torch.equal(before[:, :time], after[:, :time])
    assert not torch.equal(before[:, time], after[:, time])


def test_rows_are_independent_bit_for_bit(variant: str) -> None:
    inputs = make((3, 9, 11, 4), torch.float32)
    first = results(short_convolution, inputs, True)
    inputs["x"][1:] = torch.randn(2, 9, 11)
    inputs["state"][1:] = 1e10
    second = results(short_convolution, inputs, True)
    for index in (0, 1, 2, 5):  # y, new state, gradients of x and of the state
        assert torch.equal(first[index][0], second[index][0])
        assert not torch.equal(first[index][1], second[index][1]) or index == 5


@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_is_never_read(variant: str, dtype: torch.dtype) -> None:
    """NaN at padding, in x and in the gradient of y, changes nothing."""
    inputs = make((4, 12, 21, 4), dtype, lengths=True)
    lengths = inputs["lengths"]
    padding = (torch.arange(12) >= lengths[:, None])[:, :, None].expand(4, 12, 21)
    clean = {**inputs, "x": inputs["x"].masked_fill(padding, 0)}
    poisoned = {**inputs, "x": inputs["x"].masked_fill(padding, torch.nan)}
    for function in (short_convolution, reference.short_convolution):
        for a, b in zip(
            results(function, poisoned, True), results(function, clean, True), strict=True
        ):
            assert torch.equal(a, b)
        y, new_state = function(**poisoned, silu=True)
        assert torch.equal(y[padding], torch.zeros_like(y[padding]))
        assert torch.equal(new_state[0], inputs["state"][0])  # a row of no elements
        x = poisoned["x"].requires_grad_()
        y, _ = function(**{**poisoned, "x": x})
        grad = torch.ones_like(y).masked_fill(padding, torch.nan)
        (grad_x,) = torch.autograd.grad(y, x, grad)
        assert not grad_x.isnan().any()


@pytest.mark.parametrize("silu", [False, True])
def test_nan_stays_nan_and_goes_nowhere_else(variant: str, silu: bool) -> None:
    inputs = make((2, 10, 19, 4), torch.float32)
    inputs["x"][1, 3, 17] = torch.nan
    y, new_state = short_convolution(**inputs, silu=silu)
    assert y.isnan().nonzero().tolist() == [[1, time, 17] for time in (3, 4, 5, 6)]
    assert not new_state.isnan().any()
    _, _, grad_x, grad_weight, grad_bias, grad_state = results(short_convolution, inputs, silu)
    # Inputs that share an output with the NaN: its slope is NaN too.
    times = range(7) if silu else ()
    assert grad_x.isnan().nonzero().tolist() == [[1, time, 17] for time in times]
    assert grad_weight.isnan().nonzero().tolist() == [[17, tap] for tap in range(4)]
    assert grad_bias.isnan().nonzero().tolist() == ([[17]] if silu else [])
    assert not grad_state.isnan().any()


def guarded(shape: tuple[int, ...], dtype: torch.dtype, guard: int = 32) -> tuple[Tensor, Tensor]:
    """A tensor of NaN inside a larger one, whose ends must not change."""
    size = torch.Size(shape).numel()
    whole = torch.full((size + 2 * guard,), 7.0, dtype=dtype)
    whole[guard : guard + size] = torch.nan
    return whole[guard : guard + size].view(shape), whole


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(1, 1, 1, 1), (2, 5, 3, 4), (3, 7, 33, 2), (4, 6, 70, 7)])
def test_every_output_is_written_and_nothing_else(
    variant: str, size: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    batch, length, channels, taps = size
    inputs = make(size, dtype, lengths=True)
    tensors, sizes = list(inputs.values()), [batch, length, channels, taps, channels, 1]
    like = {"x": (batch, length, channels), "state": (batch, taps - 1, channels)}
    shapes = [like["x"], like["state"], (taps, channels)]
    outputs = [guarded(shape, dtype) for shape in shapes]
    library.call("short_convolution_forward", [o for o, _ in outputs], tensors, sizes)
    expected = results(reference.short_convolution, inputs, True)
    for (output, _), b in zip(outputs, expected[:2], strict=False):
        assert_close(output, b)

    gradients = [torch.randn(like[name], dtype=dtype) for name in ("x", "state")]
    shapes = [like["x"], (channels, taps), (channels,), like["state"]]
    outputs += [guarded(s, dtype) for s in [*shapes, (taps + batch * (taps + 1), channels)]]
    library.call(
        "short_convolution_backward",
        [o for o, _ in outputs[3:]],
        [*gradients, *tensors],
        sizes,
    )
    for output, whole in outputs:
        assert not output.isnan().any()
        guard = (whole.numel() - output.numel()) // 2
        assert (whole[:guard] == 7).all()
        assert (whole[guard + output.numel() :] == 7).all()


def test_gradcheck_through_two_pieces(variant: str) -> None:
    """From the inputs of one piece to the outputs of the next."""
    inputs = make((2, 3, 5, 4))
    tail = torch.randn(2, 2, 5, dtype=torch.float64)
    lengths = torch.tensor([1, 3])

    def two(x: Tensor, weight: Tensor, bias: Tensor, state: Tensor, tail: Tensor) -> Any:
        y, carried = short_convolution(x, weight, bias, state, lengths, silu=True)
        return y, *short_convolution(tail, weight, bias, carried, silu=True)

    leaves = [inputs[name] for name in ("x", "weight", "bias", "state")] + [tail]
    assert torch.autograd.gradcheck(two, [leaf.requires_grad_() for leaf in leaves])


def test_second_derivative_is_refused(variant: str) -> None:
    inputs = make((1, 3, 2, 2), state=False, bias=False)
    x = inputs["x"].requires_grad_()
    y, _ = short_convolution(x, inputs["weight"], silu=True)
    (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(
        NotImplementedError, match="short_convolution can be differentiated only once"
    ):
        grad.sum().backward()


@pytest.mark.parametrize("lengths", [False, True])
def test_opcheck(lengths: bool) -> None:
    inputs = make((2, 5, 6, 4), lengths=lengths)
    leaves = [
        tensor.requires_grad_() if tensor is not None and tensor.is_floating_point() else tensor
        for tensor in inputs.values()
    ]
    torch.library.opcheck(native.operation, (*leaves, True))
    gradients = (torch.randn(2, 5, 6).double(), torch.randn(2, 3, 6).double())
    detached = [None if tensor is None else tensor.detach() for tensor in leaves]
    torch.library.opcheck(native.backward, (*gradients, *detached, True))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_as_one_graph(dynamic: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(
        short_convolution, fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    for length in (5, 7, 1):
        inputs = make((2, length, 6, 4), lengths=True)
        for a, b in zip(
            results(compiled, inputs, True),
            results(short_convolution, inputs, True),
            strict=True,
        ):
            assert torch.equal(a, b)
        with torch.no_grad():
            assert torch.equal(compiled(**inputs)[0], short_convolution(**inputs)[0])


def test_reference_compiles_as_one_graph() -> None:
    torch.compiler.reset()
    compiled = torch.compile(short_convolution, fullgraph=True, backend="eager")
    inputs = make((2, 5, 6, 4), torch.bfloat16, lengths=True)
    assert torch.equal(compiled(**inputs)[0], short_convolution(**inputs)[0])


def test_without_the_dispatcher_under_transforms() -> None:
    """A step without gradients calls the kernel directly, but only on plain tensors."""
    inputs = make((3, 1, 6, 4))
    with torch.no_grad():
        y, _ = short_convolution(**inputs)
        mapped = torch.func.vmap(
            lambda x, state: short_convolution(x, inputs["weight"], inputs["bias"], state)[0],
        )(inputs["x"][:, None], inputs["state"][:, None])
        assert torch.equal(mapped[:, 0], y)
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = {k: None if v is None else mode.from_tensor(v) for k, v in inputs.items()}
            assert short_convolution(**fake)[0].shape == y.shape


def test_strides_do_not_matter(variant: str) -> None:
    inputs = make((2, 5, 6, 4), torch.float32)
    scattered = {
        "x": inputs["x"].transpose(1, 2).contiguous().transpose(1, 2),
        "weight": inputs["weight"].t().contiguous().t(),
        "bias": inputs["bias"].repeat_interleave(2)[::2],
        "state": inputs["state"].repeat(1, 1, 2)[:, :, :6],
        "lengths": torch.tensor([5, 0, 3, 0])[::2],
    }
    inputs["lengths"] = torch.tensor([5, 3])
    assert not any(tensor.is_contiguous() for tensor in scattered.values())
    for a, b in zip(
        results(short_convolution, scattered, True),
        results(short_convolution, inputs, True),
        strict=True,
    ):
        assert torch.equal(a, b)
    # One number off the alignment of a vector, and a gradient that is one number repeated.
    x = torch.randn(61)[1:].view(2, 5, 6).requires_grad_()
    y, _ = short_convolution(x, inputs["weight"])
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(y, short_convolution(x.clone(), inputs["weight"])[0])


def test_negated_view_in_a_step() -> None:
    """The imaginary part of a conjugate is a view whose numbers have the other sign in memory."""
    z = torch.randn(1, 1, 3, dtype=torch.complex64)
    weight = torch.ones(3, 1)
    with torch.no_grad():
        assert torch.equal(short_convolution(z.conj().imag, weight)[0], -z.imag)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_runs_the_reference(dtype: torch.dtype) -> None:
    inputs = make((2, 5, 6, 4), dtype, lengths=True)
    for a, b in zip(
        short_convolution(**inputs, silu=True),
        reference.short_convolution(**inputs, silu=True),
        strict=True,
    ):
        assert a.dtype == dtype
        assert torch.equal(a, b)


def test_other_devices_and_long_filters_run_the_reference() -> None:
    inputs = {name: None if v is None else v.to("meta") for name, v in make((2, 5, 6, 4)).items()}
    y, new_state = short_convolution(**inputs)
    assert (y.device.type, y.shape, new_state.shape) == ("meta", (2, 5, 6), (2, 3, 6))
    long = make((2, 5, 6, native.MAX_TAPS + 1))
    assert torch.equal(short_convolution(**long)[0], reference.short_convolution(**long)[0])


def test_empty_batch() -> None:
    y, new_state = short_convolution(**make((0, 5, 6, 4)))
    assert (y.shape, new_state.shape) == ((0, 5, 6), (0, 3, 6))


WRONG = {
    "two axes": (
        {"x": torch.zeros(5, 6)},
        r"x \[batch, length, channels\].*given x \[5, 6\]",
    ),
    "no elements": ({"x": torch.zeros(2, 0, 6)}, r"none empty; given x \[2, 0, 6\]"),
    "no taps": ({"weight": torch.zeros(6, 0)}, r"none empty.*weight \[6, 0\]"),
    "channels": ({"weight": torch.zeros(1, 4)}, r"weight \[6, taps\].*given.*weight \[1, 4\]"),
    "bias": ({"bias": torch.zeros(1)}, r"bias \[6\].*given.*bias \[1\]"),
    "state": ({"state": torch.zeros(2, 4, 6)}, r"state \[2, 3, 6\].*given.*state \[2, 4, 6\]"),
    "batch": ({"state": torch.zeros(1, 3, 6)}, r"state \[2, 3, 6\].*given.*state \[1, 3, 6\]"),
    "lengths": ({"lengths": torch.ones(3).long()}, r"lengths \[2\].*given.*lengths \[3\]"),
    "dtype": (
        {"weight": torch.zeros(6, 4).double()},
        "all tensors to be torch.float32 on cpu.*float64",
    ),
    "device": (
        {"bias": torch.zeros(6, device="meta")},
        "all tensors to be torch.float32 on cpu.*on meta",
    ),
    "lengths' dtype": ({"lengths": torch.ones(2)}, "lengths of torch.int64.*float32"),
    "whole numbers": ({"x": torch.zeros(2, 5, 6).long()}, "floating-point.*torch.int64"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_refused(case: str) -> None:
    change, message = WRONG[case]
    inputs = {**make((2, 5, 6, 4), torch.float32), **change}
    with pytest.raises(ThreefoldError, match=message):
        short_convolution(**inputs)


@pytest.mark.parametrize("choice", ["auto", "reference"])
@pytest.mark.parametrize("lengths", [[0, 6], [-1, 5]])
def test_lengths_out_of_range_are_refused(choice: str, lengths: list[int]) -> None:
    inputs = {**make((2, 5, 6, 4)), "lengths": torch.tensor(lengths)}
    with library.using(choice), pytest.raises(ThreefoldError, match="length"):
        short_convolution(**inputs)


def test_door_counts_the_operations() -> None:
    assert set(ops.available().values()) == {"native"}
    with library.using("reference"):
        assert set(ops.available().values()) == {"reference"}
