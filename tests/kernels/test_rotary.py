"""Rotary positions: native = reference, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.kernels import library, ops, reference
from threefold.kernels import rotary as native
from threefold.layers.positions import rotary_frequencies

DTYPES = [torch.float32, torch.float64]
POSITIONS = {"zeros": [0, 0], "near": [3, 9], "far": [2, 10_000_000]}


def make(size: int, positions: list[int], dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
    """Queries of four heads and keys of two, six elements of two rows."""
    query, key = torch.randn(2, 6, 4, size, dtype=dtype), torch.randn(2, 6, 2, size, dtype=dtype)
    return query, key, torch.tensor(positions), rotary_frequencies(size, query.device)


def results(function: Any, query: Tensor, key: Tensor, *rest: Tensor) -> list[Tensor]:
    leaves = [query.detach().requires_grad_(), key.detach().requires_grad_()]
    turned = function(*leaves, *rest)
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(y.shape, dtype=y.dtype, generator=generator) for y in turned]
    return [*turned, *torch.autograd.grad(turned, leaves, grads)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 7, 16, 50])
@pytest.mark.parametrize("positions", POSITIONS)
def test_native_is_reference(variant: str, positions: str, size: int, dtype: torch.dtype) -> None:
    given = make(size, POSITIONS[positions], dtype)
    assert native.serves(*given)
    actual, expected = results(ops.rotary, *given), results(reference.rotary, *given)
    for a, b, quantity in zip(actual, expected, ("output",) * 2 + ("gradient",) * 2, strict=True):
        assert_close(a, b, quantity)


def test_threads_change_no_bit(variant: str) -> None:
    query, key = torch.randn(2, 3, 90, 4, 64)
    given = query, key, torch.tensor([0, 5, 1]), rotary_frequencies(64, query.device)
    runs = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        runs.append(results(ops.rotary, *given))
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


def test_gradients_and_registration() -> None:
    query, key, position, frequencies = make(6, [0, 3])
    leaves = query.requires_grad_(), key.requires_grad_()
    assert torch.autograd.gradcheck(lambda q, k: ops.rotary(q, k, position, frequencies), leaves)
    tables = torch.randn(2, 9, 3, dtype=torch.float64)
    torch.library.opcheck(native.operation, (*leaves, *tables, torch.tensor([0, 3]), False))


def test_nothing_is_left_unwritten_and_tables_end(variant: str) -> None:
    x, tables = torch.randn(2, 5, 3, 7), torch.randn(2, 8, 3)
    y = torch.full_like(x, torch.nan)
    library.call("rotary", [y], [x, *tables, torch.tensor([0, 3])], [*x.shape, 3, 8, 0])
    assert y.isfinite().all()
    with pytest.raises(ThreefoldError, match="outside its table"):
        library.call("rotary", [y], [x, *tables, torch.tensor([0, 4])], [*x.shape, 3, 8, 0])


def test_other_inputs() -> None:
    query, key, position, frequencies = make(6, [0, 3], torch.float32)
    scattered = query.transpose(1, 2).contiguous().transpose(1, 2)
    whole = ops.rotary(query, key, position, frequencies)
    assert torch.equal(ops.rotary(scattered, key, position, frequencies)[0], whole[0])
    fewer = ops.rotary(query[:, :2], key, position, frequencies)
    assert_close(fewer[0], whole[0][:, :2])
    half = query.bfloat16(), key.bfloat16(), position, frequencies
    assert torch.equal(ops.rotary(*half)[0], reference.rotary(*half)[0])
