"""kernel = f(parameters, t),  t = 0 … length−1: long filters, and when they are computed.

With gradients the taps are computed for each call, as many as it needs.  Without, a power of two of
them is computed once and cached, with what streaming derives from them, until a parameter changes
(`kernels/parameter_cache.py`).  While a module inside is watched, by a hook or a `forward` of its
own, nothing is cached: it is called in each call of the layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.kernels import library
from threefold.kernels.fourier import next_power_of_two
from threefold.kernels.parameter_cache import ParameterCache
from threefold.kernels.replay.validity import is_watched
from threefold.memory.buffer import needs_gradient
from threefold.memory.convolution import MixingFilter, PreparedFilter

Filter = PreparedFilter | MixingFilter


class LongFilters(nn.Module, ABC):
    """Filters of up to `max_length` taps per channel, for one or more convolutions."""

    prepared: ClassVar[type[Filter]] = PreparedFilter  # what is made of a kernel and its skip

    def __init__(self, max_length: int, owner: str) -> None:
        super().__init__()
        if max_length < 1:
            raise ThreefoldError(f"{owner}: max_length is {max_length}, expected at least 1 tap")
        self.max_length = max_length
        self.derived: ParameterCache[list[Filter]] = ParameterCache()
        self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]

    @abstractmethod
    def make(self, length: int) -> list[tuple[Tensor, Tensor]]:
        """(kernel [D, length], skip [D]) of each convolution, at least float32.

        With prepared = MixingFilter, basis and mixing.
        """

    def forward(self, length: int) -> list[Filter]:
        """The filters with at least `length` taps, or all taps."""
        length = min(length, self.max_length)
        parameters = list(self.parameters())
        if not needs_gradient(*parameters):
            length = min(next_power_of_two(length), self.max_length)
        # Without modules inside, nothing can be watched but this one, which is called anyway.
        watched = self._modules and is_watched(self)
        cache: ParameterCache[list[Filter]] = ParameterCache() if watched else self.derived
        return cache.of(
            parameters,
            lambda: [self.prepared(*made) for made in self.make(length)],
            length,
            library.current(),
        )

    def train(self, mode: bool = True) -> Self:
        """As in torch; values derived from the parameters are computed again."""
        self.derived.forget()
        return super().train(mode)


def _forget(module: nn.Module, keys: Any) -> None:
    assert isinstance(module, LongFilters)
    module.derived.forget()
