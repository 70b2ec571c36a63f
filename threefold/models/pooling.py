"""One vector per sequence:  last h_L,  first h_1,  mean Σ h_t / L,  attention Σ a_t h_t.

Attention: a = softmax_t(cᵀ tanh(W h_t + b)).  Every kind can continue from a state, which holds the
vector so far (`memory`), the number of elements and, for attention, the log of the sum of their
weights.
Yang et al. 2016, "Hierarchical Attention Networks for Document Classification".
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError, nearest
from threefold.layers.linear import Linear
from threefold.layers.positions import advance_position
from threefold.layers.precision import upcast
from threefold.memory.padding import real_elements
from threefold.memory.state import POSITION, Shapes, State
from threefold.models.input_checks import last_elements

LOG_ZERO = -1e30  # the log of a zero weight; finite, so that the difference of two is 0


class Pooling(nn.Module, ABC):
    """Pool the elements h [B, L, width], zero after `lengths`, and those before into one vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shapes: Shapes = {"memory": (width,), POSITION: ()}

    @abstractmethod
    def forward(self, h: Tensor, state: State, lengths: Tensor | None) -> State:
        """The state after h; its `memory` is the vector of all elements so far, 0 if none."""

    @abstractmethod
    def running(self, h: Tensor, state: State) -> Tensor:
        """The vector [B, L, width] after each element of h, without padding."""


class LastPooling(Pooling):
    """The last element."""

    def forward(self, h: Tensor, state: State, lengths: Tensor | None) -> State:
        last = upcast(last_elements(h, lengths))
        if lengths is not None:
            last = torch.where((lengths > 0).unsqueeze(1), last, state["memory"])
        return {"memory": last, POSITION: advance_position(state[POSITION], h.shape[1], lengths)}

    def running(self, h: Tensor, state: State) -> Tensor:
        return upcast(h)


class FirstPooling(Pooling):
    """The first element, such as a class token."""

    def forward(self, h: Tensor, state: State, lengths: Tensor | None) -> State:
        empty = (state[POSITION] == 0).unsqueeze(1)
        first = torch.where(empty, upcast(h[:, 0]), state["memory"])
        return {"memory": first, POSITION: advance_position(state[POSITION], h.shape[1], lengths)}

    def running(self, h: Tensor, state: State) -> Tensor:
        first: Tensor = self.forward(h, state, None)["memory"]
        return first.unsqueeze(1).expand(-1, h.shape[1], -1)


class MeanPooling(Pooling):
    """The mean of all elements."""

    def forward(self, h: Tensor, state: State, lengths: Tensor | None) -> State:
        seen = advance_position(state[POSITION], h.shape[1], lengths)
        before = state[POSITION].unsqueeze(1) * state["memory"]
        mean = (before + upcast(h).sum(1)) / seen.clamp(min=1).unsqueeze(1)
        return {"memory": mean, POSITION: seen}

    def running(self, h: Tensor, state: State) -> Tensor:
        before = state[POSITION].view(-1, 1, 1)
        seen = before + torch.arange(1, h.shape[1] + 1, device=h.device).view(1, -1, 1)
        mean: Tensor = (before * state["memory"].unsqueeze(1) + upcast(h).cumsum(1)) / seen
        return mean


class AttentionPooling(Pooling):
    """A mean with learned weights."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.shapes = {**self.shapes, "weight": ()}
        self.hidden = Linear(width, width)
        self.query = nn.Parameter(torch.empty(width).normal_(std=width**-0.5))

    def forward(self, h: Tensor, state: State, lengths: Tensor | None) -> State:
        score = self._score(h)
        if lengths is not None:
            score = score.masked_fill(~real_elements(lengths, h.shape[1]), LOG_ZERO)
        before = state["weight"].masked_fill(state[POSITION] == 0, LOG_ZERO)
        after = torch.logaddexp(before, score.logsumexp(1))
        share = torch.exp(score - after.unsqueeze(1)).unsqueeze(1)
        earlier = torch.exp(before - after).unsqueeze(1) * state["memory"]
        seen = advance_position(state[POSITION], h.shape[1], lengths)
        return {
            "memory": earlier + (share @ upcast(h)).squeeze(1),
            POSITION: seen,
            "weight": after.masked_fill(seen == 0, 0),
        }

    def running(self, h: Tensor, state: State) -> Tensor:
        # Weights relative to the earlier elements, or to the first: later ones are never used.
        # Scores are at most Σ|c|, so their exponentials fit float64.
        score = self._score(h).double()
        new = (state[POSITION] == 0).unsqueeze(1)
        origin = torch.where(new, score[:, :1], state["weight"].double().unsqueeze(1))
        share = torch.exp(score - origin).unsqueeze(-1)
        continued = (~new).double().unsqueeze(-1)
        total = continued * state["memory"].unsqueeze(1) + (share * h).cumsum(1)
        return upcast((total / (continued + share.cumsum(1))).to(h.dtype))

    def _score(self, h: Tensor) -> Tensor:
        return upcast(torch.tanh(self.hidden(h)) @ self.query)


POOLINGS: dict[str, type[Pooling]] = {
    "last": LastPooling,
    "first": FirstPooling,
    "mean": MeanPooling,
    "attention": AttentionPooling,
}


def make_pooling(name: str, width: int) -> Pooling:
    """Make a pooling by name, one of POOLINGS."""
    if name not in POOLINGS:
        raise ThreefoldError(f"unknown pooling {name!r}; {nearest(name, POOLINGS)}")
    return POOLINGS[name](width)
