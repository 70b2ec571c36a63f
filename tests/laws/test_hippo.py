"""HiPPO: what is remembered, how well, and what is forgotten."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.memory.coupled import LegSTransitions
from threefold.memory.hippo import (
    MEASURES,
    DecayingLegS,
    Fourier,
    LagT,
    LegS,
    LegT,
    hippo,
    normal_plus_low_rank,
)

SAMPLES = 10_000


def periods(count: int, samples: int = SAMPLES) -> Tensor:
    """A wave of `count` periods and two slower ones below it."""
    time = torch.arange(samples, dtype=torch.float64) / samples
    waves = [torch.sin(2 * math.pi * n * time + n) / n for n in (1, count // 2, count)]
    return torch.stack(waves).sum(0)


def error(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def of_the_whole_past(size: int, signal: Tensor) -> float:
    """Relative error of LegS's reconstruction of every sample so far."""
    memory = LegS(size)
    samples = len(signal)
    past = (torch.arange(samples, dtype=torch.float64).flip(0) + 0.5) / samples
    return error(memory.reconstruct(memory.project(signal)[-1], past), signal)


def test_legs_keeps_ten_periods_of_ten_thousand_samples() -> None:
    errors = [of_the_whole_past(size, periods(10)) for size in (16, 32, 64)]
    assert errors[2] < 0.02
    assert errors[0] > 4 * errors[1] > 4 * errors[2]


def test_the_error_falls_with_size_at_the_expected_rate() -> None:
    """A triangle wave is not a polynomial: the best error of N of them falls like N^−3/2."""
    time = torch.arange(4000, dtype=torch.float64) / 4000
    signal = (4 * time % 2 - 1).abs() - 0.5
    small, large = (of_the_whole_past(size, signal) for size in (12, 48))
    assert 1.1 < math.log(small / large) / math.log(4) < 2.0


@pytest.mark.parametrize("kind", [LegT, Fourier])
def test_windows_keep_what_is_inside_and_forget_the_rest(kind: type[LegT | Fourier]) -> None:
    samples, window = 4000, 1.0
    memory = kind(33, window)
    past = torch.linspace(0.1, 0.9, 200, dtype=torch.float64)
    # Full periods in the window: the best case for Fourier.
    time = torch.arange(2 * samples, dtype=torch.float64) / samples
    wave = torch.sin(2 * math.pi * 3 * time)
    kept = memory.project(wave, 1 / samples)
    now = (2 * samples - 0.5) / samples
    expected = torch.sin(2 * math.pi * 3 * (now - past))
    assert error(memory.reconstruct(kept[-1], past), expected) < 0.03
    # A bump that left the window one window ago has left the coefficients too.
    bump = torch.zeros(3 * samples, dtype=torch.float64)
    bump[:samples] = 1
    coefficients = memory.project(bump, 1 / samples)
    assert coefficients[-1].abs().max() < 0.02 * coefficients[samples - 1].abs().max()


@pytest.mark.parametrize("kind", [LagT, DecayingLegS])
def test_exponential_measures_decay(kind: type[LagT | DecayingLegS]) -> None:
    """The mean over e^{−s}, the first coefficient of both, decays by e in each window."""
    samples, window = 1000, 0.5
    memory = kind(8, window)
    bump = torch.zeros(3 * samples, dtype=torch.float64)
    bump[:samples] = 1
    mean = memory.project(bump, 1 / samples)[:, 0]
    for later in (500, 1000, 1500):
        faded = math.exp(-later / samples / window)
        assert mean[samples - 1 + later].item() == pytest.approx(mean[samples - 1].item() * faded)


@pytest.mark.parametrize("name", MEASURES)
def test_each_is_stable_and_its_basis_orthonormal_under_its_measure(name: str) -> None:
    memory = hippo(name, 7, 1.0)
    A, _ = memory.matrices()
    assert torch.linalg.eigvals(A).real.max() < 1e-9
    # The midpoint rule; an exponential measure is 1e-13 after 30 windows.
    end, count = (1.0, 20_000) if name in ("legs", "legt", "fourier") else (60.0, 400_000)
    past = (torch.arange(count, dtype=torch.float64) + 0.5) * end / count
    basis = memory.basis(past)
    gram = basis.mT @ (basis * memory.measure(past).unsqueeze(-1)) * end / count
    assert (gram - torch.eye(7, dtype=torch.float64)).abs().max() < 1e-4


@pytest.mark.parametrize("name", MEASURES)
def test_a_signal_may_come_in_pieces(name: str) -> None:
    memory = hippo(name, 7, 0.5)
    signal = torch.stack([periods(4, 60), periods(2, 60).flip(0)])
    whole = memory.project(signal, 0.01)
    first = memory.project(signal[:, :23], 0.01)
    second = memory.project(signal[:, 23:], 0.01, start=first[:, -1], before=23)
    assert torch.equal(torch.cat([first, second], 1), whole)


def test_every_past_moment_can_be_asked_for_at_any_time() -> None:
    """Not only at the end: after half of the signal, LegS reconstructs that half."""
    signal, memory = periods(6, 4000), LegS(48)
    coefficients = memory.project(signal)
    for now in (1500, 2750, 4000):
        when = torch.tensor([100, now // 3, now // 2, now - 100])
        found = memory.reconstruct(coefficients[now - 1], (now - 0.5 - when) / now)
        assert (found - signal[when]).abs().max() < 0.02 * signal.abs().max(), now


def test_legs_has_no_time_scale() -> None:
    """The same shape at half the speed has the same coefficients."""
    fast, slow = (LegS(16).project(periods(4, samples))[-1] for samples in (2000, 4000))
    assert error(fast, slow) < 0.01


def test_transitions_ahead_are_those_of_the_projection() -> None:
    memory, signal = LegS(9), periods(4, 30)
    whole = memory.project(signal)
    scaled = LegSTransitions(9, torch.tensor([0, 12]), 8, torch.float64)
    for element in range(10):
        A, B = scaled(element)
        for row, start in enumerate((0, 12)):
            place = start + element
            now = whole[place - 1] if place else torch.zeros(9, dtype=torch.float64)
            assert_close(A[row] @ now + B[row] * signal[place], whole[place])


def test_normal_plus_low_rank_is_legs() -> None:
    A, B = LegS(64).matrices()
    poles, P, turned = normal_plus_low_rank(64)
    assert (poles.imag > 0).all() and (poles.real == -0.5).all()
    # Traces of powers and moments do not depend on the basis.
    both = torch.cat([poles, poles.conj()])
    p, b = torch.cat([P, P.conj()]), torch.cat([turned, turned.conj()])
    again = torch.diag(both) - torch.outer(p, p.conj())
    expected, found = B.clone(), b.clone()
    for power in range(4):
        assert torch.allclose((b.conj() @ found).real, B @ expected, rtol=1e-9), power
        expected, found = A @ expected, again @ found


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ThreefoldError, match=r"size=0.*at least 1"):
        LegS(0)
    with pytest.raises(ThreefoldError, match=r"size=8.*odd"):
        Fourier(8)
    with pytest.raises(ThreefoldError, match=r"unknown measure 'legz'.*legt"):
        hippo("legz", 8)
    with pytest.raises(ThreefoldError, match=r"size=5.*even"):
        normal_plus_low_rank(5)
    with pytest.raises(ThreefoldError, match=r"start is \(3,\), expected \(8,\)"):
        LegT(8).project(torch.zeros(4), 0.1, start=torch.zeros(3))
    with pytest.raises(ThreefoldError, match=r"signal is \(0,\).*length ≥ 1"):
        LegS(8).project(torch.zeros(0))
    with pytest.raises(ThreefoldError, match="expected 'bilinear', the only one"):
        LegS(8).project(torch.zeros(4), method="zero_order_hold")
    with pytest.raises(ThreefoldError, match="Δ goes from"):
        LegT(8).project(torch.zeros(4), -1.0)
