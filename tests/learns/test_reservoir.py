"""The echo state network: ridge as written out, pieces, bad input, and a delay that it learns."""

from __future__ import annotations

import pytest
import torch

from threefold.errors import ThreefoldError
from threefold.memory.reservoir import scaled, spectral_radius
from threefold.models import reservoir
from threefold.models.reservoir import EchoStateNetwork


def noise(length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(length, 1, generator=generator, dtype=torch.float64) - 0.5


def test_ridge_and_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservoir, "PIECE", 37)
    u = noise(300)
    y = u.roll(3, 0)
    network = EchoStateNetwork(units=40, wash_out=50, regularisation=1e-3, direct=False).fit(u, y)
    x = network.states(u)[50:]
    centred, wanted = x - x.mean(0), y[50:] - y[50:].mean(0)
    squares = centred.T @ centred + 1e-3 * torch.eye(40, dtype=torch.float64)
    expected = torch.linalg.solve(squares, centred.T @ wanted)
    assert network.readout is not None
    torch.testing.assert_close(network.readout, expected, rtol=1e-8, atol=1e-8)


def test_learns_a_delay() -> None:
    u = noise(1500)
    y = u.roll(5, 0)
    network = EchoStateNetwork(units=100, input_scale=0.1, regularisation=1e-9)
    network.fit([u[:600], u[600:1000]], [y[:600], y[600:1000]])
    error = (network.predict(u[1000:]) - y[1000:])[100:].pow(2).mean() / y.var()
    assert error < 1e-3


def test_spectral_radius_dense_and_arnoldi(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = torch.randn(90, 90, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    dense = spectral_radius(matrix)
    monkeypatch.setattr("threefold.memory.reservoir.DENSE", 10)
    assert spectral_radius(matrix) == pytest.approx(dense, rel=1e-6)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ThreefoldError, match="spectral radius 0"):
        scaled(torch.zeros(4, 4), 0.9)
    network, u = EchoStateNetwork(units=50, wash_out=0, regularisation=0.0), noise(30)
    with pytest.raises(ThreefoldError, match="no single answer"):
        network.fit(u, u)
    with pytest.raises(ThreefoldError, match="lengths"):
        network.fit(u, u[1:])
    u[7] = torch.nan
    with pytest.raises(ThreefoldError, match="element 7"):
        network.fit(u, u)
