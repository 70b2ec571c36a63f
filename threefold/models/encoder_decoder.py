"""p(y | x) = Π_i p(y_i | y_1 … y_{i−1}, x): a source (tokens, an image, a vector) to a text.

`encode` reads a source once and returns the state from which the target is predicted token by
token.  From there on the model is used like a language model, so `threefold.generate` works.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.layers.checks import check_dropout
from threefold.layers.padding import PaddedRows
from threefold.memory.forms import plan_form
from threefold.memory.state import State, leaf_dtype
from threefold.models.decoders import DecoderOutput
from threefold.models.input_checks import check_range, check_tokens, last_elements
from threefold.models.model import Predictor
from threefold.models.spec import Spec


class EncoderDecoder(Predictor):
    """The base of encoder–decoder models: checks, padding and logits."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        check_dropout(self.name, dropout=spec.option("dropout"))

    @abstractmethod
    def encode(self, source: Tensor, *, mask: Tensor | None = None) -> State:
        """Encode sources; returns the state from which their targets are predicted."""

    @abstractmethod
    def decode(
        self, tokens: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> DecoderOutput:
        """Outputs [B, L, width] for tokens [B, L], the state, and attention weights or None."""

    @abstractmethod
    def compute_logits(self, outputs: Tensor) -> Tensor:
        """Outputs [..., width] to logits [..., vocabulary]."""

    @property
    @abstractmethod
    def forms(self) -> tuple[str, ...]:
        """The forms of the decoder."""

    @property
    def refusals(self) -> Mapping[str, str]:
        """Why a form is not available, by its name."""
        return {}

    @property
    def causal(self) -> bool:
        """Always True: later target tokens are never seen."""
        return True

    def prefill(self, inputs: Tensor) -> State:
        """The state after the source, from which the tokens of the target continue."""
        return self.encode(inputs)

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

        state: from `encode` or an earlier call.  last: logits [B, vocabulary] after the last real
        token of each row only.  Logits at padding and of empty rows are 0.
        """
        (outputs, after, _), rows = self._decode_checked(tokens, state, form, mask)
        if not last:
            logits = self.compute_logits(outputs)
            return logits if rows is None else rows.restore(logits), after
        lengths = None if rows is None else rows.lengths
        logits = self.compute_logits(last_elements(outputs, lengths))
        if lengths is not None:
            logits = logits.masked_fill((lengths == 0).unsqueeze(1), 0)
        return logits, after

    def _decode_checked(
        self, tokens: Tensor, state: State | None, form: str, mask: Tensor | None
    ) -> tuple[DecoderOutput, PaddedRows | None]:
        check_tokens(tokens, self.name)
        form = plan_form(form, tokens.shape[1], self.forms, self.name, self.refusals)
        if state is None:
            raise ThreefoldError(
                f"{self.name}: no source was given; pass the state returned by model.encode(source)"
            )
        self.check_state(state, len(tokens))
        rows = None if mask is None else PaddedRows(mask, tokens.shape, self.name)
        aligned = tokens if rows is None else rows.align(tokens)
        check_range(tokens, aligned, mask, self.spec.vocabulary, self.name)
        lengths = None if rows is None else rows.lengths
        outputs, after, weights = self.decode(aligned, state, form, lengths)
        return (outputs, self._in_own_dtype(after), weights), rows

    def _in_own_dtype(self, state: State) -> State:
        """The state with the leaves outside the stack in the model's dtype, also under autocast."""
        return {
            name: leaf if isinstance(leaf, dict) else leaf.to(leaf_dtype(name, self.dtype))
            for name, leaf in state.items()
        }

    def _refuse_foreign_state(self, state: State) -> None:
        if not isinstance(state, dict) or "decoder" not in state:
            raise ThreefoldError(
                f"{self.name}: the state is not a state of this model; expected the result "
                "of model.encode(source) or of an earlier call"
            )


class TokenSource(EncoderDecoder):
    """The base of models whose source is a sequence of tokens, of its own vocabulary or not."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        if spec.option("source_vocabulary") < 0:
            raise ThreefoldError(
                f"{self.name}: source_vocabulary is {spec.option('source_vocabulary')}, "
                "expected 1 or more, or 0 for the same as the target"
            )

    @abstractmethod
    def encode_source(self, source: Tensor, lengths: Tensor | None) -> State:
        """The state before the target, for tokens [B, M] aligned at 0, with `lengths` per row."""

    @property
    def source_vocabulary(self) -> int:
        """Number of different source tokens."""
        size: int = self.spec.option("source_vocabulary")
        return size or self.spec.vocabulary

    def encode(self, source: Tensor, *, mask: Tensor | None = None) -> State:
        """Encode sources [B, M]; returns the state from which their targets are predicted."""
        check_tokens(source, self.name, "the source's tokens")
        rows = None if mask is None else PaddedRows(mask, source.shape, self.name)
        aligned = source if rows is None else rows.align(source)
        check_range(source, aligned, mask, self.source_vocabulary, f"{self.name}, source")
        state = self.encode_source(aligned, None if rows is None else rows.lengths)
        return self._in_own_dtype(state)

    def example_inputs(self, batch: int, length: int) -> Tensor:
        """Random tokens that can be a source and a target."""
        tokens = super().example_inputs(batch, length)
        return tokens % min(self.spec.vocabulary, self.source_vocabulary)

    def training_outputs(self, inputs: Tensor) -> Tensor:
        """Logits of a target that is the source."""
        outputs: Tensor = self(inputs, self.encode(inputs))[0]
        return outputs
