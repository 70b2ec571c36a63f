"""The sparse reservoir: native = plain torch, forward and backward, and threads change no bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.kernels import library, ops
from threefold.memory import reservoir
from threefold.memory.spectrum import scale_to_radius


def make(batch: int, length: int, units: int, dtype: torch.dtype) -> dict[str, Any]:
    """A reservoir of spectral radius 0.9, one row of its matrix empty; lengths include 0 and L."""
    matrix = torch.randn(units, units) * (torch.rand(units, units) < 0.4)
    matrix[0] = 0
    matrix[-1, -1] = 1
    return {
        "drive": torch.randn(batch, length, units, dtype=dtype),
        "weight": reservoir.sparse(scale_to_radius(matrix.to(dtype), 0.9)),
        "state": torch.randn(batch, units, dtype=dtype),
        "lengths": torch.tensor([length, 0, length // 2, 1][:batch]),
    }


def results(given: dict[str, Any], form: str, **options: Any) -> list[Tensor]:
    """All states, the last, and the gradients of drive and state."""
    leaves = {name: given[name].detach().requires_grad_() for name in ("drive", "state")}
    outputs = reservoir.run(**{**given, **leaves}, form=form, **options)
    generator = torch.Generator().manual_seed(1)
    grads = [torch.randn(o.shape, dtype=o.dtype, generator=generator) for o in outputs]
    return [*outputs, *torch.autograd.grad(outputs, list(leaves.values()), grads)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", reservoir.ACTIVATIONS)
def test_native_is_plain(variant: str, activation: str, dtype: torch.dtype) -> None:
    for batch, length, units in ((1, 1, 1), (4, 9, 13), (2, 20, 40)):
        given = make(batch, length, units, dtype)
        for leak in (1.0, 0.3):
            options: dict[str, Any] = {"activation": activation, "leak": leak}
            fast, plain = (results(given, form, **options) for form in ("chunk", "step"))
            quantities = ("output", "state", "gradient", "gradient")
            for quantity, a, b in zip(quantities, fast, plain, strict=True):
                assert_close(a, b, quantity, f"{options}")


def test_threads_change_no_bit(variant: str) -> None:
    given = make(1, 40, 203, torch.float64)
    runs = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        runs.append(results(given, "chunk", leak=0.7))
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other, strict=True))


def test_padding_may_hold_anything(variant: str) -> None:
    given = make(4, 9, 13, torch.float64)
    expected = results(given, "chunk")
    behind = torch.arange(9) >= given["lengths"][:, None]
    given["drive"] = given["drive"].masked_fill(behind[:, :, None], torch.nan)
    for a, b in zip(results(given, "chunk"), expected, strict=True):
        assert torch.equal(a, b)


def test_wrong_shapes_and_lengths_are_refused(variant: str) -> None:
    given = make(2, 5, 7, torch.float64)
    with pytest.raises(ThreefoldError, match=r"state \[2, 7\]"):
        reservoir.run(**{**given, "state": torch.zeros(2, 6, dtype=torch.float64)})
    with pytest.raises(ThreefoldError, match="length"):
        reservoir.run(**{**given, "lengths": torch.tensor([6, 1])})


def test_the_reference_runs_where_there_is_no_kernel() -> None:
    given = make(2, 5, 7, torch.float64)
    with library.using("reference"):
        assert ops.available()["reservoir"] == "reference"
        plain = reservoir.run(**given)
    assert_close(plain[0], reservoir.run(**given, form="step")[0])
