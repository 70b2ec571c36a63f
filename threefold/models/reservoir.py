"""x = (1−α) x₋ + α φ(W_in u + b + W x₋),  y = W_o [u; x] + b_o,  W_o = YᵀX (XᵀX + βI)⁻¹

A random reservoir, and a read-out by ridge regression in closed form.  X and Y are centred first,
so that b_o is not penalised.
Jaeger 2001, "The echo state approach to analysing and training recurrent neural networks".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.memory import reservoir

# Elements whose states are held at once, whatever the length of a series.
PIECE = 1024


@dataclass(kw_only=True)
class EchoStateNetwork:
    """From series [L, I] to series [L, O]; computed in float64.

    The first `wash_out` elements of each series are run but not learned from.  With fewer elements
    than features the ridge still has one answer for a regularisation above 0; 0 is refused.
    """

    units: int = 500
    spectral_radius: float = 0.9
    density: float = 0.1
    leak: float = 1.0
    input_scale: float = 1.0
    bias_scale: float = 0.0
    activation: str = "tanh"
    regularisation: float = 1e-6
    wash_out: int = 100
    direct: bool = True
    seed: int = 0
    weight: reservoir.Sparse | None = field(default=None, init=False, repr=False)
    weight_in: Tensor = field(default_factory=lambda: torch.empty(0), init=False, repr=False)
    bias: Tensor = field(default_factory=lambda: torch.empty(0), init=False, repr=False)
    readout: Tensor | None = field(default=None, init=False, repr=False)
    offset: Tensor = field(default_factory=lambda: torch.empty(0), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.units < 1 or not 0 < self.leak <= 1 or self.wash_out < 0:
            raise ThreefoldError(
                f"EchoStateNetwork: units={self.units}, leak={self.leak}, wash_out={self.wash_out};"
                " expected at least 1 unit, a leak above 0 up to 1, and no negative wash-out"
            )
        if not self.regularisation >= 0:
            raise ThreefoldError(f"regularisation={self.regularisation}, expected 0 or more")
        if self.activation not in reservoir.ACTIVATIONS:
            known = ", ".join(reservoir.ACTIVATIONS)
            raise ThreefoldError(f"activation {self.activation!r}, expected one of {known}")

    def start(self, inputs: int) -> None:
        """Draw the reservoir for so many inputs; the same seed draws the same."""
        generator = torch.Generator().manual_seed(self.seed)
        drawn = reservoir.draw(self.units, self.units, density=self.density, generator=generator)
        self.weight = reservoir.sparse(reservoir.scaled(drawn, self.spectral_radius))
        self.weight_in = self.input_scale * reservoir.draw(self.units, inputs, generator=generator)
        self.bias = self.bias_scale * reservoir.draw(1, self.units, generator=generator)[0]

    def states(self, inputs: Tensor) -> Tensor:
        """All states [L, units] of one series from the empty state."""
        (series,) = _series("inputs", inputs)
        if self.weight is None:
            self.start(series.shape[1])
        return torch.cat([states for _, states in self._pieces(series)])

    def fit(
        self, inputs: Tensor | Sequence[Tensor], targets: Tensor | Sequence[Tensor]
    ) -> EchoStateNetwork:
        """Learn the read-out in one pass; memory does not grow with the length."""
        pairs = _pairs(_series("inputs", inputs), _series("targets", targets))
        self.start(pairs[0][0].shape[1])
        sums = _Sums()
        for series, wanted in pairs:
            seen = 0
            for features, states in self._pieces(series):
                rows = slice(max(0, self.wash_out - seen), None)
                here = wanted[seen : seen + len(states)]
                sums.add(self._features(features, states)[rows], here[rows])
                seen += len(states)
        self.readout, self.offset = sums.solve(self.regularisation)
        return self

    def predict(self, inputs: Tensor) -> Tensor:
        """The outputs [L, O] of one series, from the empty state."""
        (series,) = _series("inputs", inputs)
        if self.readout is None:
            raise ThreefoldError("predict: the read-out is not learned yet; call fit first")
        made = [self._features(u, x) @ self.readout for u, x in self._pieces(series)]
        return torch.cat(made) + self.offset

    def _features(self, inputs: Tensor, states: Tensor) -> Tensor:
        return torch.cat([inputs, states], 1) if self.direct else states

    def _pieces(self, series: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(inputs, states) of one piece of a series after another."""
        assert self.weight is not None
        if series.shape[1] != self.weight_in.shape[1]:
            raise ThreefoldError(
                f"inputs of {series.shape[1]} numbers an element, expected "
                f"{self.weight_in.shape[1]} as learned from"
            )
        state = series.new_zeros(1, self.units)
        for piece in series.split(PIECE):
            drive = torch.addmm(self.bias, piece, self.weight_in.T).unsqueeze(0)
            with torch.no_grad():
                states, state = reservoir.run(
                    drive, self.weight, state, activation=self.activation, leak=self.leak
                )
            yield piece, states[0]


class _Sums:
    """XᵀX, XᵀY and the sums of X and Y: all that a ridge needs of its samples."""

    def __init__(self) -> None:
        self.count = 0
        self.parts: tuple[Tensor, ...] = ()

    def add(self, x: Tensor, y: Tensor) -> None:
        made = (x.T @ x, x.T @ y, x.sum(0), y.sum(0))
        before = self.parts or (0.0,) * len(made)
        self.parts = tuple(a + b for a, b in zip(made, before, strict=True))
        self.count += len(x)

    def solve(self, regularisation: float) -> tuple[Tensor, Tensor]:
        if self.count == 0:
            raise ThreefoldError("fit: no element is left behind the wash-out; shorten it")
        squares, products, x, y = self.parts
        if regularisation == 0 and self.count <= len(x):
            raise ThreefoldError(
                f"fit: {self.count} elements for {len(x)} features have no single answer without "
                "regularisation; give more elements or a regularisation above 0"
            )
        squares = squares - torch.outer(x, x) / self.count
        products = products - torch.outer(x, y) / self.count
        squares.diagonal().add_(regularisation)
        factor, failed = torch.linalg.cholesky_ex(squares)
        if int(failed):
            raise ThreefoldError(
                f"fit: the features are linearly dependent at regularisation={regularisation}; "
                "raise it"
            )
        weight = torch.cholesky_solve(products, factor)
        return weight, (y - x @ weight) / self.count


def _series(what: str, given: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """One series or several as float64 [L, …], finite and not empty."""
    made = []
    for series in [given] if isinstance(given, Tensor) else given:
        series = series.double()
        series = series.unsqueeze(1) if series.ndim == 1 else series
        if series.ndim != 2 or 0 in series.shape:
            raise ThreefoldError(f"{what}: a series is {tuple(series.shape)}, expected [L, size]")
        if not bool(torch.isfinite(series).all()):
            where = int((~torch.isfinite(series)).any(1).int().argmax())
            raise ThreefoldError(f"{what}: element {where} is not finite; remove or fill it first")
        made.append(series)
    if not made:
        raise ThreefoldError(f"{what}: no series was given")
    return made


def _pairs(inputs: list[Tensor], targets: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    lengths = [[len(series) for series in each] for each in (inputs, targets)]
    if lengths[0] != lengths[1]:
        raise ThreefoldError(f"fit: inputs of lengths {lengths[0]}, targets of {lengths[1]}")
    return list(zip(inputs, targets, strict=True))
