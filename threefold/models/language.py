"""p(x_{t+1} | x_1 … x_t) = softmax(head(norm(stack(embedding(x))))): one language model, any mixer.

Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training".
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.linear import Linear
from threefold.memory.state import State
from threefold.models.backbone import Backbone, BackboneOutput
from threefold.models.embedding import Embedding
from threefold.models.input_checks import last_elements
from threefold.models.model import Predictor
from threefold.models.spec import Spec


class LanguageModel(Backbone, Predictor):
    """Embedding, stack, norm and head; the head is the embedding matrix unless `tie` is False."""

    kind = "language"
    writes_text = True
    streams = True

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._refuse_if_not_causal()
        self.head = None if spec.option("tie") else Linear(spec.width, spec.vocabulary, False)
        if self.head is not None:
            nn.init.normal_(self.head.weight, std=0.02)

    def forward(
        self,
        tokens: Tensor,
        state: State | None = None,
        *,
        form: str = "auto",
        mask: Tensor | None = None,
        last: bool = False,
    ) -> tuple[Tensor, State]:
        """Logits [B, L, vocabulary] of the token after each of tokens [B, L], and the state.

        last: logits [B, vocabulary] after the last real token of each row only.
        Logits at padding and of empty rows are 0.
        """
        output = self.run_backbone(tokens, state, form, mask)
        if last:
            logits = self._predict(self._last(output))
            return _zero_empty_rows(logits, output.lengths), output.after
        logits = self._predict(self.norm(output.outputs))
        return logits if output.rows is None else output.rows.restore(logits), output.after

    def respond(
        self, inputs: Tensor, state: State | None = None, *, last: bool = False
    ) -> tuple[Tensor, State]:
        """Logits after each token, or after the last, and the state."""
        return self(inputs, state, last=last)  # type: ignore[no-any-return]

    def _predict(self, h: Tensor) -> Tensor:
        if self.head is None:
            return cast(Embedding, self.embedding).scores(h)
        logits: Tensor = self.head(h)
        return logits

    def _last(self, output: BackboneOutput) -> Tensor:
        """The normed output [B, width] of the last real token of each row."""
        h: Tensor = self.norm(last_elements(output.outputs, output.lengths))
        return h

    def _refuse_if_not_causal(self) -> None:
        for layer, block in enumerate(self.stack.parts.values()):
            if not block.causal:
                mixer = self.spec.entries[layer % len(self.spec.entries)][0]
                raise ThreefoldError(
                    f"{self.name}: mixer {mixer!r} sees later tokens, so it cannot predict them; "
                    "choose a causal mixer"
                )


def _zero_empty_rows(logits: Tensor, lengths: Tensor | None) -> Tensor:
    return logits if lengths is None else logits.masked_fill((lengths == 0).unsqueeze(1), 0)
