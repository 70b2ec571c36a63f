"""The diagonal recurrence: native = plain torch, forward and backward, real and complex."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.recurrences import by_kernel
from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.kernels import diagonal_recurrence as native
from threefold.kernels import library, ops
from threefold.memory.linear.diagonal import plain_diagonal

DTYPES = [torch.float32, torch.float64]


def make(
    size: tuple[int, int, int],
    dtype: torch.dtype = torch.float64,
    *,
    planes: bool = False,
    fixed: bool = False,
    lengths: bool = False,
) -> dict[str, Any]:
    """Random inputs for (B, L, D), decays within the unit circle; lengths include 0, 1 and L."""
    batch, length, channels = size
    each = (2, channels) if planes else (channels,)
    decay = torch.rand(*([] if fixed else [batch, length]), *each, dtype=dtype) * 1.4 - 0.7
    return {
        "decay": decay,
        "write": torch.randn(batch, length, *each, dtype=dtype),
        "state": torch.randn(batch, *each, dtype=dtype),
        "lengths": torch.tensor([0, length, 1, length // 2][:batch]) if lengths else None,
    }


def fast(**given: Any) -> tuple[Tensor, Tensor]:
    return by_kernel(ops.diagonal_recurrence(**given))


def plain(decay: Tensor, write: Tensor, state: Tensor, lengths: Any) -> tuple[Tensor, Tensor]:
    return plain_diagonal(decay, write, state, "step", lengths)


def results(function: Any, given: dict[str, Any]) -> list[Tensor]:
    """All memories, the last, and the gradients of every input."""
    leaves = {k: given[k].detach().requires_grad_() for k in ("decay", "write", "state")}
    outputs = function(**leaves, lengths=given["lengths"])
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(o.shape, dtype=o.dtype, generator=generator) for o in outputs]
    return [*outputs, *torch.autograd.grad(outputs, list(leaves.values()), grads)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 3, 17, 40])
def test_native_is_reference(variant: str, channels: int, dtype: torch.dtype) -> None:
    flags = itertools.product([1, 2, 9], [False, True], [False, True], [False, True])
    for length, planes, fixed, lengths in flags:
        options = {"planes": planes, "fixed": fixed, "lengths": lengths}
        given = make((4, length, channels), dtype, **options)
        quantities = ("output", "state", *["gradient"] * 3)
        for quantity, a, b in zip(
            quantities, results(fast, given), results(plain, given), strict=True
        ):
            assert_close(a, b, quantity, f"{options}")


@pytest.mark.parametrize("planes", [False, True])
def test_threads_change_no_bit(variant: str, planes: bool) -> None:
    given = make((3, 300, 70), torch.float32, planes=planes, fixed=planes, lengths=True)
    runs = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        runs.append(results(fast, given))
    for run in runs[1:]:
        for first, other in zip(runs[0], run, strict=True):
            assert torch.equal(first, other)


def test_padding_is_never_read_and_nan_stays(variant: str) -> None:
    given = make((4, 6, 9), torch.float32, lengths=True)
    padding = (torch.arange(6) >= given["lengths"][:, None])[:, :, None]
    for value in (torch.nan, 0.0):
        filled = {k: given[k].masked_fill(padding, value) for k in ("decay", "write")}
        got = results(fast, {**given, **filled})
        assert all(t.isfinite().all() for t in got)
    given = make((2, 6, 9), torch.float32)
    given["write"][1, 3, 8] = torch.nan
    out, _ = fast(**given)
    assert out.isnan().nonzero().tolist() == [[1, t, 8] for t in (3, 4, 5)]


def test_a_memory_that_fades_stays_fast_and_zero(variant: str) -> None:
    given = make((1, 4000, 8), torch.float32)
    given["decay"].fill_(0.9)
    given["write"].zero_()
    out, last = fast(**given)
    assert (last == 0).all() and (out[:, 2000:] == 0).all()


def test_gradcheck_opcheck_and_compile() -> None:
    for planes, fixed in itertools.product([False, True], repeat=2):
        given = make((3, 4, 5), planes=planes, fixed=fixed, lengths=True)
        lengths = given.pop("lengths")
        leaves = [tensor.requires_grad_() for tensor in given.values()]
        assert torch.autograd.gradcheck(
            lambda d, w, s, n=lengths: native.operation(d, w, s, n), leaves
        )
        torch.library.opcheck(native.operation, (*leaves, lengths))
        run = torch.compile(
            lambda d, w, s, n=lengths: fast(decay=d, write=w, state=s, lengths=n),
            fullgraph=True,
            backend="aot_eager",
        )
        assert torch.equal(run(*leaves)[0], native.operation(*leaves, lengths)[0])


WRONG = {
    "decay": ({"decay": torch.zeros(2, 5, 7)}, r"decay \[2, 5, 6\] or \[6\].*\[2, 5, 7\]"),
    "dtype": ({"decay": torch.zeros(2, 5, 6).double()}, "all tensors to be torch.float32.*float64"),
    "lengths": ({"lengths": torch.tensor([0, 6])}, "length is outside 0 … L"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_refused(case: str) -> None:
    change, message = WRONG[case]
    with library.using("auto"), pytest.raises(ThreefoldError, match=message):
        fast(**{**make((2, 5, 6), torch.float32), **change})
