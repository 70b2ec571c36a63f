"""p(x_{t+1} | x_1 … x_t) = softmax(head(norm(stack(embedding(x))))): one language model, any mixer.

With `classes` there is a second head, which reads the last token: p(class | x_1 … x_L).
Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training" (that head).
"""

from __future__ import annotations

from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.kernels import ops
from threefold.layers.linear import Linear
from threefold.memory.state import State
from threefold.models.backbone import Body, Reading
from threefold.models.input_checks import last_places
from threefold.models.model import Predictor
from threefold.models.spec import Spec


class LanguageModel(Body, Predictor):
    """Embedding, stack, norm and head; the head is the embedding unless `tie` is off."""

    kind = "language"

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
        Logits at padding, or of a row without tokens, are 0.
        """
        reading = self.read(tokens, state, form, mask)
        if last:
            logits = self._predict(self._last(reading))
            return _silence_empty(logits, reading.lengths), reading.after
        logits = self._predict(self.norm(reading.outputs))
        return logits if reading.rows is None else reading.rows.restore(logits), reading.after

    def classify(
        self,
        tokens: Tensor,
        state: State | None = None,
        *,
        form: str = "auto",
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, State]:
        """Logits of the classes [B, classes] after the last token, those of `forward`, the state.

        The logits of a row without tokens are 0.
        """
        if self.classes is None:
            raise ThreefoldError(
                f'{self.name}: has no classes; build it with options={{"classes": 2}} or more'
            )
        reading = self.read(tokens, state, form, mask)
        answer = _silence_empty(self.classes(self._last(reading)), reading.lengths)
        logits = self._predict(self.norm(reading.outputs))
        rows = reading.rows
        return answer, logits if rows is None else rows.restore(logits), reading.after

    def check_options(self) -> None:
        """Refuse a number of classes that is none."""
        if self.spec.option("classes") < 0:
            raise ThreefoldError(
                f"{self.name}: {self.spec.option('classes')} classes, expected 1 or more, or 0 for "
                "a language model alone"
            )

    def _predict(self, h: Tensor) -> Tensor:
        return ops.linear(h, self.embedding.weight if self.head is None else self.head.weight)

    def _last(self, reading: Reading) -> Tensor:
        """What the last real token of each row became, [B, width]."""
        h: Tensor = self.norm(last_places(reading.outputs, reading.lengths))
        return h

    def _refuse_if_not_causal(self) -> None:
        for layer, block in enumerate(self.stack.parts.values()):
            if not block.causal:
                mixer = self.spec.entries[layer % len(self.spec.entries)][0]
                raise ThreefoldError(
                    f"{self.name}: mixer {mixer!r} sees later tokens, so it cannot predict them; "
                    "choose a causal one"
                )


def _silence_empty(logits: Tensor, lengths: Tensor | None) -> Tensor:
    return logits if lengths is None else logits.masked_fill((lengths == 0).unsqueeze(1), 0)
