"""p(class_t | x) = softmax(W norm(stack(embedding(x)))_t): one label per element.

With causal mixers a label depends on earlier elements only, and the model can stream; with
`bidirectional` it depends on all.
"""

from __future__ import annotations

from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.linear import Linear
from threefold.memory.state import State
from threefold.models.backbone import Backbone
from threefold.models.spec import Spec


class Tagger(Backbone):
    """Assign one of `classes` to each token or vector (`input_size`)."""

    kind = "tagger"
    streams = True

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        dropout = nn.Dropout(spec.option("dropout"))
        self.head = nn.Sequential(dropout, Linear(spec.width, spec.option("classes")))

    def check_options(self) -> None:
        """Raise an error if there are no classes."""
        if self.spec.option("classes") < 1:
            raise ThreefoldError(
                f"{self.name}: {self.spec.option('classes')} classes, expected at least 1"
            )

    def forward(
        self,
        inputs: Tensor,
        state: State | None = None,
        *,
        form: str = "auto",
        mask: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Logits [B, L, classes] of tokens [B, L] or vectors [B, L, input_size], and the state.

        Logits at padding are 0.
        """
        output = self.run_backbone(inputs, state, form, mask, segments)
        logits: Tensor = self.head(self.norm(output.outputs))
        rows = output.rows
        return logits if rows is None else rows.restore(logits), output.after

    def step(self, element: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run one element per row, [B] or [B, input_size]; returns (logits [B, classes], state)."""
        logits, state = self(element.unsqueeze(1), state, form="step")
        return logits.squeeze(1), state
