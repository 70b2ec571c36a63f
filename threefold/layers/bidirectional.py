"""Both directions:  y = W [ahead(x); back(x reversed) reversed] + b, around any mixer.

Every output depends on the whole sequence, so there is neither a step nor a state.
Schuster & Paliwal 1997, "Bidirectional Recurrent Neural Networks".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.table import MIXERS, mixer, options_of
from threefold.memory.state import State


class Bidirectional(Mixer):
    """Two copies of one mixer, the second on each row reversed within its own length.

    `mixer` is the name of the mixer and `options` are its keywords.
    """

    forms = ("parallel",)
    causal = False

    def __init__(
        self,
        width: int,
        *,
        mixer: str = "lstm",
        options: Mapping[str, Any] | None = None,
        layer: int = 0,
        depth: int = 1,
    ) -> None:
        super().__init__(width)
        place = {"layer": layer, "depth": depth}
        self.ahead, self.back = (make_inner(mixer, width, place, options or {}) for _ in range(2))
        self.out = Linear(2 * width, width)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        order = reversed_order(x, lengths)
        plan = self.ahead.plan(x.shape[1], lengths=lengths)
        ahead, _ = self.ahead(x, plan=plan)
        reversed_back, _ = self.back(take(x, order), plan=plan)
        back = take(reversed_back, order)
        none: Any = None
        return self.out(torch.cat([ahead, back], -1)), none


def make_inner(
    name: str, width: int, place: Mapping[str, int], options: Mapping[str, Any]
) -> Mixer:
    """Make a causal mixer, with `layer` and `depth` if its constructor takes them."""
    accepted = options_of(MIXERS[name].load()) if name in MIXERS else ()
    inner = mixer(name, **{k: v for k, v in place.items() if k in accepted}, **options, width=width)
    if not inner.causal:
        raise ThreefoldError(
            f"Bidirectional: mixer {name!r} already sees the whole sequence; choose a causal mixer"
        )
    return inner


def reversed_order(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Indices [B, L] that reverse each row within its length; padding stays in place."""
    places = torch.arange(x.shape[1], device=x.device)
    if lengths is None:
        return places.flip(0).expand(x.shape[:2])
    last = lengths.unsqueeze(1)
    return torch.where(places < last, last - 1 - places, places)


def take(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(1, order.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
