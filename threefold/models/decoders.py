"""Decoders: they read the target so far, and may attend to the source, to predict the next token.

    plain      s_i = f(s_{i−1}, y_{i−1}),                        output from s_i
    bahdanau   s_i = f(s_{i−1}, [y_{i−1}; c_i]), c_i by s_{i−1}, output from (y_{i−1}, s_i, c_i)
    luong      s_i = f(s_{i−1}, y_{i−1}),        c_i by s_i,     output from tanh(W [c_i; s_i])

f is a stack of any causal mixers, s_i its output and c_i the context.  Where an element needs the
context of the previous one, the only form is the step.
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
from threefold.layers.mixer import Plan
from threefold.memory.padding import real_elements
from threefold.memory.state import State

DecoderOutput = tuple[Tensor, State, Tensor | None]  # outputs, state, weights [B, L, M]


class Decoder(nn.Module):
    """Without attention: all it knows of the source is its initial state."""

    refusals: ClassVar[Mapping[str, str]] = {}
    has_attention = False

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
        """Shapes of the leaves of one row after `length` tokens, with `source` source tokens."""
        return {"decoder": self.stack.state_shapes(length)}

    def initial_state(self, carried: State, top: Tensor, source: Tensor, lengths: Tensor) -> State:
        """The state before the first token.

        carried: the state of the stack; top [B, width]: its last output; source [B, M, width]: the
        outputs of the encoder, 0 after the end of each row.
        """
        return {"decoder": carried}

    def forward(self, x: Tensor, state: State, form: str, lengths: Tensor | None) -> DecoderOutput:
        """Outputs for embedded tokens x [B, L, width], aligned at 0, with `lengths` per row."""
        plan = Plan(form, lengths, state_checked=True)
        y, carried = self.stack(x, state["decoder"], plan=plan)
        return self.norm(y), {"decoder": carried}, None


class AttentionDecoder(Decoder):
    """A decoder whose state holds the source, to which it attends."""

    has_attention = True

    def __init__(
        self, stack: Stack, norm: nn.Module, *, score: str = "general", max_source_length: int = 0
    ) -> None:
        super().__init__(stack, norm)
        self.attention = ScoredAttention(
            self.width, self.width, score=score, max_length=max_source_length
        )

    def state_shapes(self, length: int, source: int) -> Mapping[str, Any]:
        return {
            **super().state_shapes(length, source),
            "keys": (source, self.attention.score.key_size),
            "values": (source, self.width),
            "position": (),
        }

    def initial_state(self, carried: State, top: Tensor, source: Tensor, lengths: Tensor) -> State:
        keys = self.attention.score.prepare(source)
        keys = (
            keys.clone() if keys is source else keys
        )  # the leaves of a state must not share storage
        return {"decoder": carried, "keys": keys, "values": source, "position": lengths}

    def attend(self, query: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Contexts and attention weights of queries [B, L, width]."""
        source = state["values"]
        visible = real_elements(state["position"], source.shape[1])
        context, weights = self.attention(query, source, mask=visible, keys=state["keys"])
        return context, weights

    def attend_after(self, combine: Linear, s: Tensor, state: State) -> tuple[Tensor, Tensor]:
        """Luong's outputs tanh(W [c; s]) of the stack's outputs s, and the attention weights."""
        context, weights = self.attend(s, state)
        return torch.tanh(combine(torch.cat([context, s], -1))), weights


class LuongDecoder(AttentionDecoder):
    """Attends after the stack, so that all elements run at once."""

    def __init__(
        self, stack: Stack, norm: nn.Module, *, score: str = "general", max_source_length: int = 0
    ) -> None:
        super().__init__(stack, norm, score=score, max_source_length=max_source_length)
        self.combine = Linear(2 * self.width, self.width, bias=False)

    def forward(self, x: Tensor, state: State, form: str, lengths: Tensor | None) -> DecoderOutput:
        plan = Plan(form, lengths, state_checked=True)
        y, carried = self.stack(x, state["decoder"], plan=plan)
        outputs, weights = self.attend_after(self.combine, self.norm(y), state)
        return outputs, {**state, "decoder": carried}, weights


class StepwiseDecoder(AttentionDecoder):
    """Runs one element at a time; `shift` is what each hands to the next."""

    refusals: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("chunk", "parallel"), "each element needs the attention context of the previous one"
    )

    @property
    def forms(self) -> tuple[str, ...]:
        return ("step",)

    def state_shapes(self, length: int, source: int) -> Mapping[str, Any]:
        return {**super().state_shapes(length, source), "shift": (self.width,)}

    @abstractmethod
    def run_element(
        self, x: Tensor, shift: Tensor, carried: State, state: State, real: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor, State]:
        """Run one element [B, 1, width]: tensors for `read_out` and the attention weights, the next
        shift, and the state of the stack.
        """

    @abstractmethod
    def prepare(self, x: Tensor) -> Tensor:
        """Computations that can be done for all tokens at once, before the first."""

    @abstractmethod
    def read_out(self, x: Tensor, *parts: Tensor) -> Tensor:
        """The outputs, from the embedded tokens and the tensors that `run_element` returned."""

    def forward(self, x: Tensor, state: State, form: str, lengths: Tensor | None) -> DecoderOutput:
        carried, shift, elements = state["decoder"], state["shift"], []
        prepared = self.prepare(x)
        for t in range(x.shape[1]):
            real = None if lengths is None else lengths > t
            parts, after, carried = self.run_element(
                prepared[:, t : t + 1], shift, carried, state, real
            )
            shift = after if real is None else after.where(real.unsqueeze(1), shift)
            elements.append(parts)
        *joined, weights = (torch.cat(parts, 1) for parts in zip(*elements, strict=True))
        return self.read_out(x, *joined), {**state, "decoder": carried, "shift": shift}, weights

    def run_stack(self, x: Tensor, carried: State, real: Tensor | None) -> tuple[Tensor, State]:
        """The normed output of the stack for one element."""
        plan = Plan("step", None if real is None else real.long(), state_checked=True)
        y, carried = self.stack(x, carried, plan=plan)
        return self.norm(y), carried


class BahdanauDecoder(StepwiseDecoder):
    """Attends before each element, and feeds the context to the stack with the token.

    The output is a maxout layer over pairs, of (y_{i−1}, s_i, c_i) as in equation 4 of the paper
    (its appendix has s_{i−1}).
    """

    def __init__(
        self, stack: Stack, norm: nn.Module, *, score: str = "additive", max_source_length: int = 0
    ) -> None:
        super().__init__(stack, norm, score=score, max_source_length=max_source_length)
        self.of_token = Linear(self.width, self.width)
        self.of_context = Linear(self.width, self.width, bias=False)
        self.maxout = Linear(3 * self.width, 2 * self.width)

    def initial_state(self, carried: State, top: Tensor, source: Tensor, lengths: Tensor) -> State:
        return {**super().initial_state(carried, top, source, lengths), "shift": top}

    def prepare(self, x: Tensor) -> Tensor:
        prepared: Tensor = self.of_token(x)
        return prepared

    def run_element(
        self, x: Tensor, shift: Tensor, carried: State, state: State, real: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor, State]:
        context, weights = self.attend(shift.unsqueeze(1), state)
        s, carried = self.run_stack(x + self.of_context(context), carried, real)
        return (s, context, weights), s.squeeze(1), carried

    def read_out(self, x: Tensor, *parts: Tensor) -> Tensor:
        pairs = self.maxout(torch.cat([x, *parts], -1))
        return torch.unflatten(pairs, -1, (-1, 2)).amax(-1)


class LuongInputFeedingDecoder(StepwiseDecoder):
    """A Luong decoder that also feeds the output of the previous element to the stack."""

    def __init__(
        self, stack: Stack, norm: nn.Module, *, score: str = "general", max_source_length: int = 0
    ) -> None:
        super().__init__(stack, norm, score=score, max_source_length=max_source_length)
        self.combine = Linear(2 * self.width, self.width, bias=False)
        self.of_token = Linear(self.width, self.width)
        self.of_answer = Linear(self.width, self.width, bias=False)

    def initial_state(self, carried: State, top: Tensor, source: Tensor, lengths: Tensor) -> State:
        state = super().initial_state(carried, top, source, lengths)
        return {**state, "shift": torch.zeros_like(top)}

    def prepare(self, x: Tensor) -> Tensor:
        prepared: Tensor = self.of_token(x)
        return prepared

    def run_element(
        self, x: Tensor, shift: Tensor, carried: State, state: State, real: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor, State]:
        fed = x + self.of_answer(shift.unsqueeze(1))
        s, carried = self.run_stack(fed, carried, real)
        output, weights = self.attend_after(self.combine, s, state)
        return (output, weights), output.squeeze(1), carried

    def read_out(self, x: Tensor, *parts: Tensor) -> Tensor:
        return parts[0]
