"""One element of a diagonal filter: native = definition, in both layouts of the state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.kernels import library, ops
from threefold.memory.filter import Filter, diagonal_filter

DTYPES = [torch.float32, torch.float64]


def make(channels: int, numbers: int, dtype: torch.dtype) -> Filter:
    torch.manual_seed(channels)
    poles = torch.complex(-torch.rand(channels, numbers), torch.randn(channels, numbers)).cdouble()
    write, read = torch.randn(2, channels, numbers, dtype=torch.complex128)
    made = diagonal_filter(poles, write, read, torch.rand(channels).double(), dtype=dtype)
    return Filter(made.transition, made.write, made.read, dtype, skip=torch.randn(channels))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize(("rows", "channels", "numbers"), [(1, 1, 1), (3, 5, 7), (17, 33, 32)])
def test_native_is_the_definition(
    variant: str, rows: int, channels: int, numbers: int, pairs: bool, dtype: torch.dtype
) -> None:
    fixed = make(channels, numbers, dtype)
    x, gate = torch.randn(2, rows, 1, channels, dtype=dtype)
    state = torch.randn(rows, channels, 2 * numbers, dtype=dtype)
    given = state.view(rows, channels, 2, numbers).mT.contiguous() if pairs else state
    with torch.no_grad():
        y, after = fixed.run(x, given, form="step", gate=gate)
        with library.using("reference"):
            expected, expected_after = fixed.run(x, given, form="step", gate=gate)
    assert after.shape == given.shape
    assert_close(y, expected)
    assert_close(after, expected_after, "state")


def test_a_row_has_the_same_bits_alone(variant: str) -> None:
    fixed = make(33, 9, torch.float32)
    x, state = torch.randn(5, 1, 33), torch.randn(5, 33, 18)
    with torch.no_grad():
        together = fixed.run(x, state, form="step")
        for row in range(5):
            alone = fixed.run(x[row : row + 1], state[row : row + 1], form="step")
            assert torch.equal(alone[0][0], together[0][row])
            assert torch.equal(alone[1][0], together[1][row])


def test_every_output_is_written_and_nothing_else(variant: str) -> None:
    inputs = [torch.randn(*shape) for shape in ((3, 5), (3, 5, 7, 2), (5, 2, 7), (5, 14), (5, 14))]
    wholes = [torch.full((size + 64,), 7.0) for size in (15, 210)]
    outputs = [whole[32:-32].fill_(torch.nan) for whole in wholes]
    library.call("filter_step", outputs, [*inputs, None], [3, 5, 7, True])
    for whole in wholes:
        assert not whole.isnan().any()
        assert (whole[:32] == 7).all() and (whole[-32:] == 7).all()


def test_gradients_run_the_definition() -> None:
    fixed = make(4, 3, torch.float64)
    x = torch.randn(2, 1, 4, dtype=torch.float64, requires_grad=True)
    state = torch.randn(2, 4, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *given: fixed.run(*given, form="step"), (x, state))


def test_wrong_input_is_refused() -> None:
    x, state, factor, one = (torch.zeros(*s) for s in ((2, 5), (2, 5, 7, 2), (5, 2, 7), (5, 14)))
    wrong: dict[str, tuple[Tensor, ...]] = {
        r"state \[2, 5, numbers, 2\] or \[2, 5, 2·numbers\].*": (x, state[:1], factor, one, one),
        r"factor \[5, 2, 7\]": (x, state, factor[:, :, :6], one, one),
        "torch.float32": (x, state.double(), factor, one, one),
    }
    for message, given in wrong.items():
        with torch.no_grad(), pytest.raises(ThreefoldError, match=f"filter_step.*{message}"):
            ops.filter_step(*given, None)
