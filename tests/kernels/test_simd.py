"""The functions of native/simd.h against float64: accuracy, both ends of the range, NaN."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from threefold.kernels import library

Array = np.ndarray


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


# name → its number in native/test_function.cpp, the exact function, and the allowed error in ulp.
FUNCTIONS: dict[str, tuple[int, Callable[[Array], Array], float]] = {
    "exponential": (0, np.exp, 2),
    "exponential_normal": (1, np.exp, 2),
    "sigmoid": (2, sigmoid, 3),
    "silu": (3, lambda x: x * sigmoid(x), 4),
    "softplus": (5, lambda x: np.logaddexp(x, 0), 4),
    "hyperbolic tangent": (8, np.tanh, 4),
    "error function": (11, np.vectorize(math.erf, otypes=[np.longdouble]), 2),
    "power": (6, np.exp2, 2),
    "power − 1": (7, lambda x: np.expm1(x * np.log(np.longdouble(2))), 4),
}
DTYPES = [torch.float32, torch.float64]


def run(function: int, x: torch.Tensor) -> Array:
    y = torch.full_like(x, torch.nan)
    library.call("test_function", [y], [x], [x.numel(), function])
    return y.numpy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_ulps_of_the_truth(variant: str, name: str, dtype: torch.dtype) -> None:
    function, truth, ulps = FUNCTIONS[name]
    limit = 87.0 if dtype == torch.float32 else 700.0
    # An odd number of elements, so that the last vector is not full.
    x = torch.cat(
        [
            torch.linspace(-limit, limit, 20_001, dtype=dtype),
            torch.linspace(-3, 3, 20_000, dtype=dtype),
            torch.tensor([0.0, -0.0, 1e-30, -1e-30], dtype=dtype),
        ]
    )
    expected = truth(x.numpy().astype(np.longdouble))
    spacing = np.spacing(np.abs(expected).astype(x.numpy().dtype))
    error = np.abs(run(function, x) - expected) / spacing
    assert error.max() <= ulps, f"{error.max():.2f} ulp at x = {x[int(error.argmax())].item()}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_slope_of_silu(variant: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-80, 80, 10_001, dtype=dtype)
    wide = x.numpy().astype(np.longdouble)
    expected = sigmoid(wide) * (1 + wide * (1 - sigmoid(wide)))
    # The slope crosses zero, and 1 − σ cancels: the error is measured against the largest term.
    error = np.abs(run(4, x) - expected) / (1 + np.abs(wide))
    assert error.max() <= 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("function", "truth"), [(9, np.sin), (10, np.cos)])
def test_angles(
    variant: str, function: int, truth: Callable[[Array], Array], dtype: torch.dtype
) -> None:
    """Also far from 0, where an angle is many turns, and beyond what is computed side by side."""
    x = torch.cat(
        [torch.linspace(-50, 50, 20_001), torch.linspace(-999_999, 3e6, 20_000), torch.zeros(1)]
    ).to(dtype)
    error = np.abs(run(function, x) - truth(x.numpy().astype(np.longdouble)))
    assert error.max() <= torch.finfo(dtype).eps
    assert np.isnan(run(function, torch.tensor([torch.nan, torch.inf], dtype=dtype))).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_ends_of_the_range(variant: str, dtype: torch.dtype) -> None:
    inf, large = float("inf"), 1e30
    ends = torch.tensor([-inf, -large, large, inf], dtype=dtype)
    np.testing.assert_array_equal(run(0, ends), [0, 0, inf, inf])
    np.testing.assert_array_equal(run(1, ends), [0, 0, inf, inf])
    np.testing.assert_array_equal(run(2, ends), [0, 0, 1, 1])
    np.testing.assert_array_equal(run(5, ends), [0, 0, ends[2].item(), inf])
    np.testing.assert_array_equal(run(3, ends[1:]), [0, ends[2].item(), inf])
    np.testing.assert_array_equal(run(6, ends), [0, 0, inf, inf])
    np.testing.assert_array_equal(run(7, ends[:2]), [-1, -1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_exponential_reaches_its_last_numbers(variant: str, dtype: torch.dtype) -> None:
    """Correct up to overflow, and down through the denormal numbers."""
    info = torch.finfo(dtype)
    top, bottom = np.log(info.max), np.log(info.smallest_normal)
    x = torch.tensor([top * (1 - 1e-7), top * (1 + 1e-6), bottom - 5, bottom * 1.3], dtype=dtype)
    y = run(0, x)
    np.testing.assert_allclose(y[0], np.exp(x[0].double().item()), rtol=1e-6)
    assert y[1] == np.inf
    np.testing.assert_allclose(y[2], np.exp(x[2].double().item()), rtol=1e-4)
    assert 0 < y[2] < info.smallest_normal
    assert y[3] == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", range(12))
def test_nan_stays_nan_and_stays_in_its_lane(
    variant: str, function: int, dtype: torch.dtype
) -> None:
    x = torch.linspace(-2, 2, 37, dtype=dtype)
    x[5] = x[36] = torch.nan
    assert np.flatnonzero(np.isnan(run(function, x))).tolist() == [5, 36]
