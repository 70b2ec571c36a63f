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
from threefold.layers.handover import HANDOVER, give, put, take
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer, Plan
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
        first: bool = True,
    ) -> None:
        super().__init__(width)
        place = {"layer": layer, "depth": depth, "first": first}
        self.ahead, self.back = (make_inner(mixer, width, place, options or {}) for _ in range(2))
        self.out = Linear(2 * width, width)
        for side in ("ahead", "back"):
            self.hands_over(**{f"{side}_{n}": shape for n, shape in self.ahead.handover.items()})

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        order = reversed_order(x, lengths)
        plan = self.ahead.plan(x.shape[1], lengths=lengths)
        ahead, handed = self._run("ahead", x, state, plan)
        reversed_back, handed_back = self._run("back", reorder(x, order), state, plan)
        back = reorder(reversed_back, order)
        handed = {**handed, **handed_back}  # what comes from `back` stays in its reversed order
        return self.out(torch.cat([ahead, back], -1)), put({}, handed)

    def _run(
        self, side: str, x: Tensor, state: State, plan: Plan
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The outputs of one side, and what it hands to the same side of later layers."""
        inner: Mixer = getattr(self, side)
        if HANDOVER not in state:
            return inner(x, plan=plan)[0], {}
        handed = {
            n.removeprefix(f"{side}_"): t
            for n, t in state[HANDOVER].items()
            if n.startswith(f"{side}_")
        }
        y, after = inner(x, give(inner.handover, inner.empty_state(len(x)), handed), plan=plan)
        return y, {f"{side}_{name}": tensor for name, tensor in take(after)[1].items()}


def make_inner(
    name: str, width: int, place: Mapping[str, int], options: Mapping[str, Any]
) -> Mixer:
    """Make a causal mixer, with the keywords of its `place` that its constructor takes."""
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


def reorder(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(1, order.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
