"""p(x_{t+1} | x_1 … x_t) = softmax(head(norm(stack(embedding(x))))): one language model, any mixer.

With `classes` there is a second head on the last token: p(class | x_1 … x_L).
Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training" (second head).
"""

from __future__ import annotations

from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.kernels import ops
from threefold.layers.linear import Linear
from threefold.memory.state import State
from threefold.models.backbone import Backbone, BackboneOutput
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
        classes = spec.option("classes")
        self.head = None if spec.option("tie") else Linear(spec.width, spec.vocabulary, False)
        self.classes = Linear(spec.width, classes) if classes else None
        for module in (self.head, self.classes):
            if module is not None:
                nn.init.normal_(module.weight, std=0.02)

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

    def classify(
        self,
        tokens: Tensor,
        state: State | None = None,
        *,
        form: str = "auto",
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, State]:
        """Class logits [B, classes] after the last token, the logits of `forward`, and the state.

        Logits of an empty row are 0.
        """
        if self.classes is None:
            raise ThreefoldError(
                f'{self.name}: has no class head; build it with options={{"classes": 2}} or more'
            )
        output = self.run_backbone(tokens, state, form, mask)
        class_logits = _zero_empty_rows(self.classes(self._last(output)), output.lengths)
        logits = self._predict(self.norm(output.outputs))
        rows = output.rows
        return class_logits, logits if rows is None else rows.restore(logits), output.after

    def check_options(self) -> None:
        """Raise an error if the number of classes is negative."""
        if self.spec.option("classes") < 0:
            raise ThreefoldError(
                f"{self.name}: {self.spec.option('classes')} classes, expected 1 or more, or 0 for "
                "no class head"
            )

    def _predict(self, h: Tensor) -> Tensor:
        return ops.linear(h, self.embedding.weight if self.head is None else self.head.weight)

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
