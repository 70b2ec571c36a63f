"""p(y | x) = Π_i p(y_i | y_1 … y_{i−1}, x): one sequence is read, another written.

`encode` reads a source once and returns the state from which the target is predicted token by
token; from there on the model is used as a language model is, so `threefold.generate` writes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.layers.checks import check_dropout
from threefold.layers.padding import PaddedRows
from threefold.memory.forms import plan_form
from threefold.memory.state import State
from threefold.models.decoders import Answer
from threefold.models.input_checks import check_range, check_tokens, last_places
from threefold.models.model import Predictor
from threefold.models.spec import Spec


class Translator(Predictor):
    """What encoder–decoder models have in common: checks, padding, and the read-out."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        dropout = spec.option("dropout")
        check_dropout(self.name, dropout=dropout)
        if spec.option("source_vocabulary") < 0:
            raise ThreefoldError(
                f"{self.name}: source_vocabulary is {spec.option('source_vocabulary')}, "
                "expected 1 or more, or 0 for the target's"
            )

    @abstractmethod
    def read_source(self, source: Tensor, lengths: Tensor | None) -> State:
        """The state before the target, for tokens [B, M] that start at 0 and hold `lengths`."""

    @abstractmethod
    def decode(self, tokens: Tensor, state: State, form: str, lengths: Tensor | None) -> Answer:
        """Read-outs [B, L, width] for tokens [B, L], the state, and weights if there are any."""

    @abstractmethod
    def logits_of(self, read: Tensor) -> Tensor:
        """Read-outs [..., width] to logits [..., vocabulary]."""

    @property
    @abstractmethod
    def forms(self) -> tuple[str, ...]:
        """The forms of the decoder."""

    @property
    def refusals(self) -> Mapping[str, str]:
        """Why there is no such form, by its name."""
        return {}

    @property
    def source_vocabulary(self) -> int:
        """Tokens of the source."""
        given: int = self.spec.option("source_vocabulary")
        return given or self.spec.vocabulary

    @property
    def causal(self) -> bool:
        """Always true: of the target only what is written is seen."""
        return True

    def encode(self, source: Tensor, *, mask: Tensor | None = None) -> State:
        """Read sources [B, M]; returns the state from which their targets are predicted."""
        check_tokens(source, self.name, "the source's tokens")
        rows = None if mask is None else PaddedRows(mask, source.shape, self.name)
        aligned = source if rows is None else rows.align(source)
        check_range(source, aligned, mask, self.source_vocabulary, f"{self.name}, source")
        return self.read_source(aligned, None if rows is None else rows.lengths)

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

        state: of `encode`, or of an earlier call.  last: logits [B, vocabulary] after the last
        real token of each row only.  Logits at padding, or of a row without tokens, are 0.
        """
        (read, after, _), rows = self._answer(tokens, state, form, mask)
        if not last:
            logits = self.logits_of(read)
            return logits if rows is None else rows.restore(logits), after
        lengths = None if rows is None else rows.lengths
        logits = self.logits_of(last_places(read, lengths))
        if lengths is not None:
            logits = logits.masked_fill((lengths == 0).unsqueeze(1), 0)
        return logits, after

    def _answer(
        self, tokens: Tensor, state: State | None, form: str, mask: Tensor | None
    ) -> tuple[Answer, PaddedRows | None]:
        check_tokens(tokens, self.name)
        form = plan_form(form, tokens.shape[1], self.forms, self.name, self.refusals)
        if state is None:
            raise ThreefoldError(
                f"{self.name}: there is no source; give the state of model.encode(source)"
            )
        self.check_state(state, len(tokens))
        rows = None if mask is None else PaddedRows(mask, tokens.shape, self.name)
        aligned = tokens if rows is None else rows.align(tokens)
        check_range(tokens, aligned, mask, self.spec.vocabulary, self.name)
        return self.decode(aligned, state, form, None if rows is None else rows.lengths), rows

    def _refuse_foreign(self, state: State) -> None:
        if not isinstance(state, dict) or "decoder" not in state:
            raise ThreefoldError(
                f"{self.name}: the state is not one of this model; expected "
                "model.encode(source) or what an earlier call returned"
            )
