"""p(class | x_1 … x_L) = softmax(head(pool(norm(stack(embedding(x)))))): one label per sequence.

Both members of a pair go through the same encoder; the head sees [a; b; a ⊙ b; a − b].
Tay et al. 2021, "Long Range Arena: A Benchmark for Efficient Transformers" (the head for pairs).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError, nearest
from threefold.layers.linear import Linear
from threefold.layers.padding import zero_padding
from threefold.memory import state as states
from threefold.memory.state import POSITION, Shapes, State
from threefold.models.backbone import Backbone, copy_weights
from threefold.models.pooling import make_pooling
from threefold.models.spec import Spec

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}
PAIR_MEMBERS = ("first", "second")  # names in the state


class PooledModel(Backbone):
    """One output for a sequence of tokens or vectors (`input_size`), or for a pair of them.

    With causal mixers it can stream: each call returns the output of all elements so far.
    """

    streams = True
    outputs_option: str  # the option that says how many numbers the head returns

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.pooling = make_pooling(spec.option("pooling"), spec.width)
        self.paired: bool = spec.option("pair")
        self.head = self._make_head()

    def forward(
        self,
        inputs: Tensor,
        state: State | None = None,
        *,
        form: str = "auto",
        mask: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Outputs [B, classes] of all elements so far, and the state.

        inputs: tokens [B, L] or vectors [B, L, input_size]; for pairs [B, 2, L] or [B, 2, L,
        input_size], with mask and segments [B, 2, L].  Outputs of an empty row are 0.
        """
        if not self.paired:
            vector, seen, state = self._encode(inputs, state, form, mask, segments)
            logits: Tensor = self.head(vector)
            return logits.masked_fill((seen == 0).unsqueeze(1), 0), state
        rows = self._check_pairs(inputs, mask, segments)
        vectors, seen, after = self._encode(
            _stack_pairs(inputs),
            None if state is None else self._join_pairs(state),
            form,
            None if mask is None else _stack_pairs(mask),
            None if segments is None else _stack_pairs(segments),
        )
        a, b = vectors[:rows], vectors[rows:]
        logits = self.head(torch.cat([a, b, a * b, a - b], -1))
        empty = (seen == 0).view(2, rows).all(0)
        return logits.masked_fill(empty.unsqueeze(1), 0), self._split_pairs(after, rows)

    def step(self, element: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run one element per row, [B] or [B, input_size]; returns its outputs and the state."""
        outputs, state = self(element.unsqueeze(2 if self.paired else 1), state, form="step")
        return outputs, state

    def forward_per_element(
        self, inputs: Tensor, state: State | None = None, *, form: str = "auto"
    ) -> tuple[Tensor, State]:
        """Outputs [B, L, classes] of all elements up to each one, and the state.

        For streams; needs causal mixers, and does not work with pairs.
        """
        if self.paired or not self.causal:
            reason = "reads pairs" if self.paired else "sees later elements"
            raise ThreefoldError(f"{self.name}: {reason}, so it has no output after each element")
        output = self.run_backbone(inputs, state, form, None)
        h = self.norm(output.outputs)
        logits: Tensor = self.head(self.pooling.running(h, output.before).to(h.dtype))
        return logits, {**self.pooling(h, output.before, None), **output.after}

    def respond(
        self, inputs: Tensor, state: State | None = None, *, last: bool = False
    ) -> tuple[Tensor, State]:
        """Outputs of the elements up to each one, or of all elements, and the state."""
        if last:
            return self(inputs, state)  # type: ignore[no-any-return]
        return self.forward_per_element(inputs, state)

    def example_inputs(self, batch: int, length: int) -> Tensor:
        """Random sequences, or pairs of them."""
        if not self.paired:
            return super().example_inputs(batch, length)
        members = super().example_inputs(2 * batch, length)
        return members.reshape(batch, 2, *members.shape[1:])

    def check_streams(self) -> None:
        """Raise an error unless single sequences are read by causal mixers."""
        if self.paired:
            raise ThreefoldError(
                f"a {self.kind} of pairs reads two texts and cannot read a single stream"
            )
        super().check_streams()

    def encode(
        self,
        inputs: Tensor,
        state: State | None = None,
        *,
        form: str = "auto",
        mask: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Pooled vectors [B, width] of single sequences, and the state."""
        vector, _, state = self._encode(inputs, state, form, mask, segments)
        return vector, state

    def transfer_from(self, other: Backbone) -> None:
        """Copy the weights of another model; the pooler of BERT becomes the hidden layer."""
        super().transfer_from(other)
        pooler, first = getattr(other, "pooler", None), self.head[0]
        if isinstance(pooler, Linear) and isinstance(first, Linear):
            copy_weights(first, pooler, f"{self.name}, hidden layer")

    def own_state_shapes(self) -> Shapes:
        """Shapes of the state leaves outside the stack: those of the pooling."""
        return self.pooling.shapes

    def empty_state(self, batch_size: int) -> State:
        """The state before the first element."""
        if not self.paired:
            return super().empty_state(batch_size)
        make = super().empty_state
        return {member: make(batch_size) for member in PAIR_MEMBERS}

    def state_size(self, length: int) -> int:
        """Bytes of the state of one row after `length` elements."""
        return super().state_size(length) * (2 if self.paired else 1)

    def check_state(self, state: State, rows: int) -> None:
        """Raise an error unless `state` is a state of this model for a batch of `rows`."""
        if not self.paired:
            return super().check_state(state, rows)
        return super().check_state(self._join_pairs(state), 2 * rows)

    def _encode(
        self,
        inputs: Tensor,
        state: State | None,
        form: str,
        mask: Tensor | None,
        segments: Tensor | None,
    ) -> tuple[Tensor, Tensor, State]:
        """Pooled vectors [B, width], elements seen per row [B], and the state."""
        output = self.run_backbone(inputs, state, form, mask, segments)
        h = zero_padding(self.norm(output.outputs), output.lengths)
        pooled = self.pooling(h, output.before, output.lengths)
        vector = pooled["memory"].to(h.dtype)
        seen: Tensor = pooled[POSITION]
        return vector, seen, {**pooled, **output.after} if self.causal else output.after

    def _join_pairs(self, state: State) -> State:
        """The state of B pairs as a state of 2 B rows."""
        if self.causal and (not isinstance(state, dict) or sorted(state) != sorted(PAIR_MEMBERS)):
            received = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise ThreefoldError(
                f"{self.name}: state of another model: given {received}, expected "
                f"{list(PAIR_MEMBERS)}, the states of both members of the pairs"
            )
        return states.join([state[member] for member in PAIR_MEMBERS]) if self.causal else state

    def _split_pairs(self, state: State, rows: int) -> State:
        if not self.causal:
            return state
        parts = (slice(0, rows), slice(rows, None))
        return {m: states.select(state, part) for m, part in zip(PAIR_MEMBERS, parts, strict=True)}

    def _check_pairs(self, inputs: Tensor, *more: Tensor | None) -> int:
        expected = "[batch, 2, length, input_size]" if self.input_size else "[batch, 2, length]"
        for tensor in (inputs, *more):
            if tensor is not None and (tensor.dim() < 3 or tensor.shape[1] != 2):
                raise ThreefoldError(
                    f"{self.name}: expected pairs {expected}, mask and segments [batch, 2, "
                    f"length]; given {tuple(tensor.shape)}"
                )
        return len(inputs)

    def _make_head(self) -> nn.Sequential:
        spec = self.spec
        counted, name = self.outputs_option, spec.option("activation")
        count, hidden = spec.option(counted), spec.option("hidden")
        if count < 1 or hidden < 0:
            raise ThreefoldError(
                f"{self.name}: {counted} is {count}, hidden {hidden}; expected 1 or more "
                f"{counted}; hidden 0 means a head without a hidden layer"
            )
        if name not in ACTIVATIONS:
            raise ThreefoldError(f"unknown activation {name!r}; {nearest(name, ACTIVATIONS)}")
        sizes = self._head_sizes(hidden)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [Linear(inputs, outputs), ACTIVATIONS[name]()]
        dropout = nn.Dropout(spec.option("dropout"))
        return nn.Sequential(*layers, dropout, Linear(sizes[-1], count))

    def _head_sizes(self, hidden: int) -> list[int]:
        """The width of the head's input, and of each of its hidden layers."""
        width = self.spec.width
        if self.paired:  # as in the Long Range Arena
            hidden = hidden or 4 * width
            return [4 * width, hidden, max(1, hidden // 2)]
        return [width, hidden] if hidden else [width]


class Classifier(PooledModel):
    """Classify sequences, or pairs of them: the outputs are the logits of the classes."""

    kind = "classifier"
    outputs_option = "classes"


def _stack_pairs(pairs: Tensor) -> Tensor:
    """All first members, then all second members, as one batch."""
    return torch.cat([pairs[:, 0], pairs[:, 1]])
