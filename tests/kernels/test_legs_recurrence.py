"""Gated units coupled with LegS: native = the steps with their transitions, both passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.recurrences import by_kernel
from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.kernels import legs_recurrence as native
from threefold.kernels import library, ops
from threefold.memory.coupled import CoupledGated, LegSTransitions

NAMES = ("inputs", "matrix", "say", "state", "position", "lengths")


def make(
    size: tuple[int, int, int, int, int],
    dtype: torch.dtype = torch.float64,
    *,
    lengths: bool = False,
) -> dict[str, Any]:
    """Random inputs for (B, L, H, M, N); rows are at different times."""
    batch, length, hidden, memories, order = size
    whole = hidden + memories * order
    return {
        "inputs": torch.randn(batch, length, 2, hidden, dtype=dtype),
        "matrix": torch.randn(2 * hidden, whole, dtype=dtype) * whole**-0.5,
        "say": torch.randn(memories, hidden, dtype=dtype) * hidden**-0.5,
        "state": torch.randn(batch, whole, dtype=dtype) * 0.5,
        "position": torch.tensor([0, 3, 1000, 7, 0])[:batch],
        "lengths": torch.tensor([length, 0, 1, length // 2, length])[:batch] if lengths else None,
    }


def plain(given: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    x, matrix, say, state, position, lengths = (given[name] for name in NAMES)
    memories, hidden = say.shape
    units = CoupledGated(matrix[:, :hidden], matrix[:, hidden:], say)
    memory = state[:, hidden:].view(len(state), memories, -1)
    scaled = LegSTransitions(memory.shape[2], position, 3, x.dtype)
    y, after, moved = units.step_loop(x, state[:, :hidden], memory, scaled, lengths)
    if lengths is not None:
        real = torch.arange(x.shape[1]) < lengths[:, None]
        y = torch.where(real.unsqueeze(-1), y, 0)
    return y, after, moved.flatten(1)


def fast(given: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    return by_kernel(ops.legs_recurrence(*given.values()))


def results(function: Any, given: dict[str, Any]) -> dict[str, Tensor]:
    leaves = {name: given[name].detach().requires_grad_() for name in NAMES[:4]}
    outputs = function({**given, **leaves})
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(o.shape, dtype=o.dtype, generator=generator) for o in outputs]
    found = torch.autograd.grad(outputs, list(leaves.values()), grads)
    made = dict(zip(("output", "state h", "state c"), outputs, strict=True))
    return made | {f"gradient of {k}": g for k, g in zip(leaves, found, strict=True)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lengths", [False, True])
def test_native_is_the_steps(variant: str, dtype: torch.dtype, lengths: bool) -> None:
    torch.manual_seed(0)
    for size in ((1, 2, 1, 1, 1), (5, 7, 17, 1, 9), (3, 12, 8, 3, 5), (5, 20, 33, 2, 32)):
        given = make(size, dtype, lengths=lengths)
        expected = results(plain, given)
        for name, tensor in results(fast, given).items():
            assert_close(tensor, expected[name], name.split()[0], f"{size}: {name}")


def test_threads_and_other_rows_change_no_bit(variant: str) -> None:
    torch.manual_seed(0)
    given = make((5, 40, 70, 2, 16), torch.float32)
    runs = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        runs.append(fast(given))
    torch.set_num_threads(1)
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))
    other = {**given, "inputs": given["inputs"].clone(), "position": given["position"].clone()}
    other["inputs"][[0, 1, 3, 4]] *= 2
    other["position"][[0, 1, 3, 4]] += 5
    assert all(torch.equal(a[2], b[2]) for a, b in zip(fast(other), runs[0], strict=True))


def test_buffers_hold_anything_before(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    given = make((5, 9, 6, 2, 5), torch.float32, lengths=True)
    expected = results(fast, given)
    empty = torch.Tensor.new_empty

    def poisoned(self: Tensor, *size: Any, **options: Any) -> Tensor:
        made = empty(self, *size, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    for name, tensor in results(fast, given).items():
        assert torch.equal(tensor, expected[name]), name


def test_opcheck() -> None:
    if library.current().native is None:
        pytest.skip("no native kernels here")
    torch.manual_seed(0)
    given = make((2, 4, 3, 1, 4), lengths=True)
    leaves = [given[n].requires_grad_() if n in NAMES[:4] else given[n] for n in NAMES]
    torch.library.opcheck(native.operation, (*leaves, True))


def test_shapes_are_checked(variant: str) -> None:
    given = make((2, 4, 3, 1, 4))
    for name, wrong in (
        ("say", torch.zeros(1, 4, dtype=torch.float64)),
        ("state", torch.zeros(2, 6, dtype=torch.float64)),
        ("position", torch.zeros(2)),
    ):
        with pytest.raises(ThreefoldError, match=r"legs_recurrence.*expected"):
            fast({**given, name: wrong})
