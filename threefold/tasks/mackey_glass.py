"""The Mackey–Glass series: ẋ(t) = 0.2 x(t−τ) / (1 + x(t−τ)¹⁰) − 0.1 x(t), chaotic from τ ≈ 16.8 on.

    x   1.06  0.99  0.92  0.87  0.83  0.82  0.85  …     one number for each unit of time
    target    0.99  0.92  0.87  0.83  0.82  0.85  …     the next one, or many, running free

With τ = 17 small errors grow slowly (a Lyapunov exponent of about 0.007), so that 84 units ahead
can be predicted; always answering the mean has a normalised error of 1.
Mackey & Glass 1977, "Oscillation and chaos in physiological control systems"; 84 units ahead since
Lapedes & Farber 1987.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from threefold.errors import ThreefoldError

GROWTH, DECAY = 0.2, 0.1
PREDICTION_HORIZON = 84  # units of time ahead, as in published results


def mackey_glass(
    length: int,
    *,
    delay: float = 17.0,
    start: float = 1.2,
    skip: int = 1000,
    sub_steps: int = 10,
) -> Tensor:
    """x at `length` units of time, float64, from a constant past `start`; `skip` units are dropped.

    Fourth-order Runge–Kutta with `sub_steps` steps per unit.  The delayed value halfway between
    two steps is interpolated by a cubic Hermite polynomial, so that the order stays four.
    (Published series often use Euler's method with ten steps per unit: another trajectory of nearly
    the same equation.)
    """
    lag = round(delay * sub_steps)
    if length < 1 or skip < 0 or sub_steps < 1 or lag < 2 or abs(lag - delay * sub_steps) > 1e-9:
        raise ThreefoldError(
            f"mackey_glass: length {length}, skip {skip}, delay {delay} in steps of 1/{sub_steps}; "
            "expected at least one element, and a delay of an integer number of steps, at least 2"
        )
    step = 1 / sub_steps
    x, slopes = [start] * (lag + 1), [0.0] * lag
    for i in range((skip + length - 1) * sub_steps):
        early, late = _growth(x[i]), _growth(x[i + 1])
        slopes.append(early - DECAY * x[-1])
        # Before time 0 the past is constant, whatever the slope at 0.
        bend = step / 8 * (slopes[i] - slopes[i + 1]) if i >= lag else 0.0
        between = _growth((x[i] + x[i + 1]) / 2 + bend)
        x.append(_step(x[-1], step, early, between, late))
    return torch.tensor(x[lag::sub_steps][skip:], dtype=torch.float64)


def _growth(delayed: float) -> float:
    # x¹⁰ by products, which are the same on every machine, unlike a library's power function.
    square = delayed * delayed
    fifth = square * square * delayed
    return GROWTH * delayed / (1 + fifth * fifth)


def _step(x: float, step: float, early: float, between: float, late: float) -> float:
    """One step of ẋ = growth(t) − decay·x, with the growth at its beginning, middle and end."""
    first = early - DECAY * x
    second = between - DECAY * (x + step / 2 * first)
    third = between - DECAY * (x + step / 2 * second)
    fourth = late - DECAY * (x + step * third)
    return x + step / 6 * (first + 2 * second + 2 * third + fourth)


def normalised_error(predicted: Tensor, target: Tensor, variance: float) -> float:
    """√(mean squared error / variance): 1 for always answering the mean."""
    return math.sqrt(float((predicted - target).square().mean()) / variance)
