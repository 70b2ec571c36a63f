"""Decoders: what reads the target so far, and perhaps looks at the source, before it answers.

    plain      s_i = f(s_{i−1}, y_{i−1}),                        answer from s_i
    bahdanau   s_i = f(s_{i−1}, [y_{i−1}; c_i]), c_i by s_{i−1}, answer from (y_{i−1}, s_i, c_i)
    luong      s_i = f(s_{i−1}, y_{i−1}),        c_i by s_i,     answer from tanh(W [c_i; s_i])

f is a stack of any causal mixer, and s_i its output.  Where an element needs the context of the
one before it, the only form is the step.
Bahdanau et al. 2014, "Neural Machine Translation by Jointly Learning to Align and Translate";
Luong et al. 2015, "Effective Approaches to Attention-based Neural Machine Translation".
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from threefold.blocks.stack import Stack
from threefold.layers.attention_parts.scored_attention import ScoredAttention
from threefold.layers.linear import Linear
from threefold.memory.padding import real_elements
from threefold.memory.state import State

Answer = tuple[Tensor, State, Tensor | None]  # read-out [B, L, width], state, weights [B, L, M]


class Decoder(nn.Module):
    """Without attention: all it knows of the source is the state it begins with."""

    refusals: ClassVar[Mapping[str, str]] = {}
    attends = False

    def __init__(self, stack: Stack, norm: nn.Module) -> None:
        super().__init__()
        self.stack, self.norm = stack, norm

    @property
    def width(self) -> int:
        return self.stack.width

    @property
    def forms(self) -> tuple[str, ...]:
        return self.stack.forms

    def state_shapes(self, length: int, source: int) -> Mapping[str, Any]:
        """Shapes of the leaves of one row, after `length` tokens, for a source of `source`."""
        return {"decoder": self.stack.state_shapes(length)}

    def begin(self, carried: State, top: Tensor, source: Tensor, lengths: Tensor) -> State:
        """The state before the first token.

        carried: the stack's; top [B, width]: its newest output; source [B, M, width]: the
        encoder's outputs, 0 behind each row's length.
        """
        return {"decoder": carried}

    def forward(self, x: Tensor, state: State, form: str, lengths: Tensor | None) -> Answer:
        """Read-outs of embedded tokens x [B, L, width]; rows start at 0 and hold `lengths`."""
        y, carried = self.stack.run(x, state["decoder"], form, lengths, "Decoder")
        return self.norm(y), {"decoder": carried}, None


class AttentiveDecoder(Decoder):
    """A decoder that carries the source and looks at it."""

    attends = True

    def __init__(
        self, stack: Stack, norm: nn.Module, *, score: str = "general", max_source: int = 0
    ) -> None:
        super().__init__(stack, norm)
        self.attention = ScoredAttention(self.width, self.width, score=score, max_length=max_source)

    def state_shapes(self, length: int, source: int) -> Mapping[str, Any]:
        return {
            **super().state_shapes(length, source),
            "keys": (source, self.attention.score.key_size),
            "values": (source, self.width),
            "position": (),
        }

    def begin(self, carried: State, top: Tensor, source: Tensor, lengths: Tensor) -> State:
        keys = self.attention.score.prepare(source)
        keys = keys.clone() if keys is source else keys  # leaves of a state share no storage
        return {"decoder": carried, "keys": keys, "values": source, "position": lengths}

    def look(self, query: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Contexts and weights of queries [B, L, width]."""
        visible = real_elements(state["position"], state["values"].shape[1]).unsqueeze(1)
        return self.attention.look(query, state["keys"], state["values"], visible)


class Luong(AttentiveDecoder):
    """Looks after each element; all elements at once."""

    def __init__(
        self, stack: Stack, norm: nn.Module, *, score: str = "general", max_source: int = 0
    ) -> None:
        super().__init__(stack, norm, score=score, max_source=max_source)
        self.combine = Linear(2 * self.width, self.width, bias=False)

    def forward(self, x: Tensor, state: State, form: str, lengths: Tensor | None) -> Answer:
        y, carried = self.stack.run(x, state["decoder"], form, lengths, "Decoder")
        read, weights = self.answer(self.norm(y), state)
        return read, {**state, "decoder": carried}, weights

    def answer(self, s: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """tanh(W [c; s]) and the weights."""
        context, weights = self.look(s, state)
        return torch.tanh(self.combine(torch.cat([context, s], -1))), weights


class Sequential(AttentiveDecoder):
    """One element at a time, `shift` going from each to the next."""

    refusals: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("chunk", "parallel"), "each element is given what the one before it saw of the source"
    )

    @property
    def forms(self) -> tuple[str, ...]:
        return ("step",)

    def state_shapes(self, length: int, source: int) -> Mapping[str, Any]:
        return {**super().state_shapes(length, source), "shift": (self.width,)}

    @abstractmethod
    def advance(
        self, x: Tensor, shift: Tensor, carried: State, state: State, real: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor, State]:
        """One element [B, 1, width]: what to keep of it, the next shift, the stack's state."""

    @abstractmethod
    def prepare(self, x: Tensor) -> Tensor:
        """What can be done for all tokens before the first."""

    @abstractmethod
    def read(self, x: Tensor, *kept: Tensor) -> Tensor:
        """The read-outs, from the embedded tokens and what was kept of each."""

    def forward(self, x: Tensor, state: State, form: str, lengths: Tensor | None) -> Answer:
        carried, shift, seen = state["decoder"], state["shift"], []
        prepared = self.prepare(x)
        for t in range(x.shape[1]):
            real = None if lengths is None else lengths > t
            kept, after, carried = self.advance(prepared[:, t : t + 1], shift, carried, state, real)
            shift = after if real is None else after.where(real.unsqueeze(1), shift)
            seen.append(kept)
        *kept_all, weights = (torch.cat(parts, 1) for parts in zip(*seen, strict=True))
        return self.read(x, *kept_all), {**state, "decoder": carried, "shift": shift}, weights

    def run_stack(self, x: Tensor, carried: State, real: Tensor | None) -> tuple[Tensor, State]:
        """The stack's normed output to one element."""
        y, carried = self.stack.run(
            x, carried, "step", None if real is None else real.long(), "Decoder"
        )
        return self.norm(y), carried


class Bahdanau(Sequential):
    """Looks before each element, and reads what it saw together with the token.

    The answer is a maxout layer of pairs, of (y_{i−1}, s_i, c_i) as the paper's equation 4 has it
    (its appendix writes s_{i−1}).
    """

    def __init__(
        self, stack: Stack, norm: nn.Module, *, score: str = "additive", max_source: int = 0
    ) -> None:
        super().__init__(stack, norm, score=score, max_source=max_source)
        self.of_token = Linear(self.width, self.width)
        self.of_context = Linear(self.width, self.width, bias=False)
        self.maxout = Linear(3 * self.width, 2 * self.width)

    def begin(self, carried: State, top: Tensor, source: Tensor, lengths: Tensor) -> State:
        return {**super().begin(carried, top, source, lengths), "shift": top}

    def prepare(self, x: Tensor) -> Tensor:
        prepared: Tensor = self.of_token(x)
        return prepared

    def advance(
        self, x: Tensor, shift: Tensor, carried: State, state: State, real: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor, State]:
        context, weights = self.look(shift.unsqueeze(1), state)
        s, carried = self.run_stack(x + self.of_context(context), carried, real)
        return (s, context, weights), s.squeeze(1), carried

    def read(self, x: Tensor, *kept: Tensor) -> Tensor:
        pairs = self.maxout(torch.cat([x, *kept], -1))
        return torch.unflatten(pairs, -1, (-1, 2)).amax(-1)


class LuongInputFeeding(Sequential):
    """Luong's, where each element is also given the answer of the one before."""

    def __init__(
        self, stack: Stack, norm: nn.Module, *, score: str = "general", max_source: int = 0
    ) -> None:
        super().__init__(stack, norm, score=score, max_source=max_source)
        self.combine = Linear(2 * self.width, self.width, bias=False)
        self.of_token = Linear(self.width, self.width)
        self.of_answer = Linear(self.width, self.width, bias=False)

    def begin(self, carried: State, top: Tensor, source: Tensor, lengths: Tensor) -> State:
        state = super().begin(carried, top, source, lengths)
        return {**state, "shift": torch.zeros_like(top)}

    def prepare(self, x: Tensor) -> Tensor:
        prepared: Tensor = self.of_token(x)
        return prepared

    def advance(
        self, x: Tensor, shift: Tensor, carried: State, state: State, real: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor, State]:
        fed = x + self.of_answer(shift.unsqueeze(1))
        s, carried = self.run_stack(fed, carried, real)
        context, weights = self.look(s, state)
        answer = torch.tanh(self.combine(torch.cat([context, s], -1)))
        return (answer, weights), answer.squeeze(1), carried

    def read(self, x: Tensor, *kept: Tensor) -> Tensor:
        return kept[0]
