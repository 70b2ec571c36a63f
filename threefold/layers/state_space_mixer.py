"""y = W gelu(K̄ ∗ x + D⊙x):  the base of mixers with one fixed filter per channel.

The time step Δ per channel and the sampling rate, and the layer around the filter as published with
S4: an optional norm before it, GELU, dropout, and a gated projection (GLU).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any, Generic, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.kernels.parameter_cache import ParameterCache, Value
from threefold.layers.checks import check_dropout
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.precision import upcast
from threefold.memory.discretisation import DELTA_RANGE, check_delta, check_rate
from threefold.memory.filter import Filter
from threefold.memory.state import State

# Elements per piece of the read-out.
PIECE = 4096


class Discretised(Mixer, Generic[Value]):
    """A mixer with a continuous-time system, discretised once until a parameter changes."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.derived: ParameterCache[Value] = ParameterCache()
        self.register_load_state_dict_post_hook(_loaded)  # type: ignore[no-untyped-call]

    @abstractmethod
    def discretise(self) -> Value:
        """The discretised system for the current parameters and rate."""

    @abstractmethod
    def check_loaded(self) -> None:
        """Raise an error if parameters loaded from a file make no stable filter."""

    def derive(self) -> Value:
        """The discretised system, computed again only if needed."""
        own = [p for p in self._parameters.values() if p is not None]
        return self.derived.of(own, self.discretise, getattr(self, "rate", None))

    def prepare_step(self) -> None:
        """Compute what a step needs besides the parameters, before it is recorded."""
        made = self.derive()
        if isinstance(made, Filter):
            _ = made.rounded

    def train(self, mode: bool = True) -> Self:
        """As in torch; values derived from the parameters are computed again."""
        self.derived.forget()
        return super().train(mode)


def _loaded(module: Any, keys: Any) -> None:
    module.derived.forget()
    module.check_loaded()


class FilterMixer(Discretised[Filter]):
    """One filter per channel, with its own Δ, initially log-uniform in `delta_range`.

    `rate` is the sampling rate relative to that of training: 0.5 doubles Δ.
    """

    def __init__(
        self,
        width: int,
        *,
        delta_range: tuple[float, float],
        rate: float,
        glu: bool,
        dropout: float,
        norm: bool,
        eps: float,
    ) -> None:
        super().__init__(width)
        check_dropout(self.name, dropout=dropout)
        low, high = check_delta_range(self.name, delta_range)
        self.rate, self.dropout = check_rate(rate, self.name), dropout
        self.delta_log = nn.Parameter(torch.empty(width).uniform_(math.log(low), math.log(high)))
        self.skip = nn.Parameter(torch.randn(width))
        self.norm = nn.LayerNorm(width, eps) if norm else None
        self.out = Linear(width, 2 * width if glu else width)
        self.glu = glu

    @abstractmethod
    def filter(self) -> Filter:
        """The discretised filter for the current parameters."""

    def discretise(self) -> Filter:
        return replace(self.filter(), skip=self.skip)

    @property
    def delta(self) -> Tensor:
        """Δ of each channel [H] at the current rate, float64."""
        return torch.exp(self.delta_log.double()) / self.rate

    def check_loaded(self) -> None:
        check_delta(self.delta.detach(), self.name)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        u = x if self.norm is None else self.norm(x)
        fixed = self.derive()
        y, memory = fixed.run(upcast(u), state["memory"], form=form, lengths=lengths)
        # In pieces, so that tensors wider than y never exist for all elements at once.
        parts = [self.read_out(part) for part in torch.split(y.to(x.dtype), PIECE, 1)]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return y, {"memory": memory}

    def read_out(self, y: Tensor) -> Tensor:
        """The layers after the filter, for y [B, L, width]."""
        y = self.out(F.dropout(F.gelu(y), self.dropout, self.training))
        return F.glu(y) if self.glu else y


def check_delta_range(
    owner: str, given: tuple[float, float], option: str = "delta_range"
) -> tuple[float, float]:
    """Raise an error unless the option is a valid range (low, high) of time steps."""
    low, high = given
    if not DELTA_RANGE[0] <= low <= high <= DELTA_RANGE[1]:
        raise ThreefoldError(
            f"{owner}: {option}={given}, expected {DELTA_RANGE[0]:g} ≤ low ≤ high ≤ "
            f"{DELTA_RANGE[1]:g}"
        )
    return low, high


def check_poles(owner: str, *parts: Tensor) -> None:
    """Raise an error for poles that are not finite; −e^decay + i·frequency is always stable."""
    if not all(bool(part.isfinite().all()) for part in parts):
        raise ThreefoldError(f"{owner}: A is not stable: a pole is not finite")


def count_pairs(owner: str, state_size: int) -> int:
    """The number of conjugate pairs: half of `state_size`, which must be even."""
    if state_size < 2 or state_size % 2:
        raise ThreefoldError(
            f"{owner}: state_size={state_size}, expected an even number: complex numbers come in "
            "conjugate pairs"
        )
    return state_size // 2


def as_complex(pairs: Tensor) -> Tensor:
    """[..., 2] to complex128 [...]."""
    return torch.view_as_complex(pairs.double().contiguous())


def as_pairs(numbers: Tensor) -> Tensor:
    """Complex [...] to real pairs [..., 2] of the default dtype."""
    return torch.view_as_real(numbers.resolve_conj()).to(torch.get_default_dtype()).contiguous()


def set_rate(model: nn.Module, rate: float) -> None:
    """Set the sampling rate of the input, relative to that of training, for all filters of a model.

    `rate=0.5` is for half as many samples in the same time: every Δ doubles, without retraining.
    Layers that combine several elements but have no rate (a cell, attention, a short convolution)
    would see a different signal, and are refused by name.  The rate is not saved: a saved model has
    that of its spec.
    """
    check_rate(rate, "set_rate")
    mixers = [part for part in model.modules() if isinstance(part, Mixer)]
    inner = [part for part in mixers if not any(isinstance(p, Mixer) for p in _below(part))]
    timeless = sorted({part.name for part in inner if _looks_around(part)})
    filters: list[Any] = [part for part in inner if hasattr(part, "rate")]
    if timeless or not filters:
        raise ThreefoldError(
            f"set_rate: {', '.join(timeless) or 'the model'} has no sampling rate; expected a "
            "model whose mixers are all filters with a rate: lssl, s4, s4d, s5"
        )
    for part in filters:
        part.rate = rate


def _below(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if part is not module]


def _looks_around(part: Mixer) -> bool:
    """Whether a layer combines several elements but has no rate."""
    return not hasattr(part, "rate") and (not part.causal or bool(part.state_shapes(1)))
