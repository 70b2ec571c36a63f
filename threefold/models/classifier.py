"""p(class | x_1 … x_L) = softmax(head(pool(norm(stack(embedding(x)))))): one label of a sequence.

Of a pair, both are read by the same encoder and the head sees [a; b; a ⊙ b; a − b].
Tay et al. 2021, "Long Range Arena: A Benchmark for Efficient Transformers" (the head of pairs).
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
from threefold.models.backbone import Body, copy_weights
from threefold.models.pooling import make_pooling
from threefold.models.spec import Spec

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}
MEMBERS = ("first", "second")  # of a pair, in the state


class Classifier(Body):
    """Tokens or vectors (`input_size`) to one of `classes`, by any pooling, alone or in pairs.

    With causal mixers it streams: the answer of each call is that of all elements so far.
    """

    kind = "classifier"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.pooling = make_pooling(spec.option("pooling"), spec.width)
        self.paired: bool = spec.option("pair")
        self.head = self._head()

    def forward(
        self,
        inputs: Tensor,
        state: State | None = None,
        *,
        form: str = "auto",
        mask: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Logits [B, classes] of all elements so far, and the state.

        inputs: tokens [B, L] or vectors [B, L, input_size]; of pairs [B, 2, L] or [B, 2, L,
        input_size], mask and segments [B, 2, L] alike.  Logits of a row without elements are 0.
        """
        if not self.paired:
            vector, seen, state = self._encode(inputs, state, form, mask, segments)
            logits: Tensor = self.head(vector)
            return logits.masked_fill((seen == 0).unsqueeze(1), 0), state
        rows = self._check_pairs(inputs, mask, segments)
        vectors, seen, after = self._encode(
            _stacked(inputs),
            None if state is None else self._joined(state),
            form,
            None if mask is None else _stacked(mask),
            None if segments is None else _stacked(segments),
        )
        a, b = vectors[:rows], vectors[rows:]
        logits = self.head(torch.cat([a, b, a * b, a - b], -1))
        empty = (seen == 0).view(2, rows).all(0)
        return logits.masked_fill(empty.unsqueeze(1), 0), self._parted(after, rows)

    def step(self, element: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One element of each row, [B] or [B, input_size]; returns (logits [B, classes], state)."""
        return self.forward(element.unsqueeze(2 if self.paired else 1), state, form="step")

    def answers(
        self, inputs: Tensor, state: State | None = None, *, form: str = "auto"
    ) -> tuple[Tensor, State]:
        """Logits [B, L, classes] after each element, each of all elements so far, and the state.

        Without pairs, and with causal mixers: what a stream is answered with.
        """
        if self.paired or not self.causal:
            why = "reads pairs" if self.paired else "sees later elements"
            raise ThreefoldError(f"{self.name}: {why}, so it has no answer after each element")
        reading = self.read(inputs, state, form, None)
        h = self.norm(reading.outputs)
        logits: Tensor = self.head(self.pooling.along(h, reading.before).to(h.dtype))
        return logits, {**self.pooling(h, reading.before, None), **reading.after}

    def encode(
        self,
        inputs: Tensor,
        state: State | None = None,
        *,
        form: str = "auto",
        mask: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """The pooled vectors [B, width] of sequences (not of pairs), and the state."""
        vector, _, state = self._encode(inputs, state, form, mask, segments)
        return vector, state

    def transfer(self, other: Body) -> None:
        """Take over what another model has learnt; a pooler (BERT's) becomes the hidden layer."""
        super().transfer(other)
        pooler, first = getattr(other, "pooler", None), self.head[0]
        if isinstance(pooler, Linear) and isinstance(first, Linear):
            copy_weights(first, pooler, f"{self.name}, hidden layer")

    def beside(self) -> Shapes:
        """Leaves of the state beside the stack's: those of the pooling."""
        return self.pooling.shapes

    def empty_state(self, batch_size: int) -> State:
        """The state before the first element."""
        if not self.paired:
            return super().empty_state(batch_size)
        one = super().empty_state
        return {member: one(batch_size) for member in MEMBERS}

    def state_size(self, length: int) -> int:
        """Bytes that the state of one row takes after `length` elements."""
        return super().state_size(length) * (2 if self.paired else 1)

    def check_state(self, state: State, rows: int) -> None:
        """Refuse a state that is not one of this model for that many rows."""
        if not self.paired:
            return super().check_state(state, rows)
        return super().check_state(self._joined(state), 2 * rows)

    def _encode(
        self,
        inputs: Tensor,
        state: State | None,
        form: str,
        mask: Tensor | None,
        segments: Tensor | None,
    ) -> tuple[Tensor, Tensor, State]:
        """Vectors [B, width], elements that each row has seen [B], and the state."""
        reading = self.read(inputs, state, form, mask, segments)
        h = zero_padding(self.norm(reading.outputs), reading.lengths)
        pooled = self.pooling(h, reading.before, reading.lengths)
        vector = pooled["memory"].to(h.dtype)
        seen: Tensor = pooled[POSITION]
        return vector, seen, {**pooled, **reading.after} if self.causal else reading.after

    def _joined(self, state: State) -> State:
        """The state of pairs as one of twice as many rows."""
        if self.causal and (not isinstance(state, dict) or sorted(state) != sorted(MEMBERS)):
            given = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise ThreefoldError(
                f"{self.name}: state of another model: given {given}, expected {list(MEMBERS)}, "
                "the states of both members of the pairs"
            )
        return states.join([state[member] for member in MEMBERS]) if self.causal else state

    def _parted(self, state: State, rows: int) -> State:
        if not self.causal:
            return state
        parts = (slice(0, rows), slice(rows, None))
        return {m: states.select(state, part) for m, part in zip(MEMBERS, parts, strict=True)}

    def _check_pairs(self, inputs: Tensor, *more: Tensor | None) -> int:
        wanted = "[batch, 2, length, input_size]" if self.input_size else "[batch, 2, length]"
        for given in (inputs, *more):
            if given is not None and (given.dim() < 3 or given.shape[1] != 2):
                raise ThreefoldError(
                    f"{self.name}: of pairs expected {wanted}, mask and segments [batch, 2, "
                    f"length]; given {tuple(given.shape)}"
                )
        return len(inputs)

    def _head(self) -> nn.Sequential:
        spec = self.spec
        classes, hidden, name = map(spec.option, ("classes", "hidden", "activation"))
        if classes < 1 or hidden < 0:
            raise ThreefoldError(
                f"{self.name}: {classes} classes, hidden {hidden}; expected at least 1 class, and "
                "hidden 0 for a head without a hidden layer"
            )
        if name not in ACTIVATIONS:
            raise ThreefoldError(f"unknown activation {name!r}; {nearest(name, ACTIVATIONS)}")
        sizes = [4 * spec.width if self.paired else spec.width]
        if self.paired:  # as the Long Range Arena has it
            hidden = hidden or 4 * spec.width
            sizes += [hidden, max(1, hidden // 2)]
        elif hidden:
            sizes += [hidden]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [Linear(inputs, outputs), ACTIVATIONS[name]()]
        dropout = nn.Dropout(spec.option("dropout"))
        return nn.Sequential(*layers, dropout, Linear(sizes[-1], classes))


def _stacked(pairs: Tensor) -> Tensor:
    """All first members, then all second ones."""
    return torch.cat([pairs[:, 0], pairs[:, 1]])
