"""LMU-FFT:  u = φ(E x + b),  m = Ā m₋ + B̄ u,  y = φ(V m + W x + c).

A sliding window over a signal, stored as Legendre coefficients, and nothing else recurrent: all of
its past is one convolution.
Chilkuri & Eliasmith 2021, "Parallelizing Legendre Memory Unit Training".
"""

from __future__ import annotations

from torch import Tensor, nn

from threefold.errors import ThreefoldError, nearest
from threefold.kernels.parameter_cache import ParameterCache
from threefold.layers.checks import check_hippo_sizes
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.precision import upcast
from threefold.memory.cell import ACTIVATIONS
from threefold.memory.filter_states import filter_states
from threefold.memory.hippo import sliding_window_system
from threefold.memory.state import State


class LMUFFT(Mixer):
    """The parallel Legendre memory unit: `memories` windows of `window` elements.

    Each has `order` coefficients.  `activation` is φ of the outputs, `encode_activation` that of u.
    The coefficients are of orthonormal polynomials, those of the paper times a constant each;
    zero-order hold.
    """

    def __init__(
        self,
        width: int,
        *,
        order: int = 32,
        window: float = 64.0,
        memories: int = 1,
        activation: str = "relu",
        encode_activation: str = "relu",
    ) -> None:
        super().__init__(width)
        check_hippo_sizes(self.name, width, order, window, memories)
        for name in (activation, encode_activation):
            if name not in ACTIVATIONS:
                raise ThreefoldError(
                    f"{self.name}: unknown activation {name!r}; {nearest(name, ACTIVATIONS)}"
                )
        self.order, self.window = order, window
        self.activation, self.encode_activation = activation, encode_activation
        self.encode = Linear(width, memories)
        self.input = Linear(width, width, bias=False)
        self.out = Linear(memories * order, width)
        for layer in (self.input, self.out):
            nn.init.xavier_normal_(layer.weight)
        nn.init.kaiming_uniform_(self.encode.weight, nonlinearity="linear")
        for layer in (self.encode, self.out):
            nn.init.zeros_(layer.bias)
        self.derived: ParameterCache[tuple[Tensor, ...]] = ParameterCache()
        self.carries(memory=(memories, order))

    def system(self, like: Tensor) -> tuple[Tensor, ...]:
        """Transition and write vector of the memory, in the dtype and on the device of `like`."""
        return sliding_window_system(self.derived, self.order, self.window, like)

    def prepare_step(self) -> None:
        """Compute what a step needs besides the parameters, before it is recorded."""
        self.system(upcast(self.out.weight))

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        u = upcast(_activate(self.encode_activation, self.encode(x)))
        found, last = filter_states(u, state["memory"], *self.system(u), form=form, lengths=lengths)
        read = self.out(found.flatten(2).to(x.dtype))
        return _activate(self.activation, read + self.input(x)), {"memory": last}


def _activate(name: str, x: Tensor) -> Tensor:
    function = ACTIVATIONS[name]
    return x if function is None else function(x)
