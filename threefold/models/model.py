"""The base classes of models: a spec, an optional tokenizer, a parameter count, and `save`.

A `Predictor` maps tokens to logits of the next token and carries a state.  Text generation needs
nothing else, so it works for language models and encoder–decoder models alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from os import PathLike
from typing import Any

from torch import Tensor

from threefold.data.preprocessing import Preprocessing
from threefold.errors import ThreefoldError
from threefold.layers.placement import Placed
from threefold.memory.state import State
from threefold.models.spec import Spec

# Named, not imported: a model is built without what runs it.
PREDICTION = "threefold.runtime.prediction"


class Model(Placed, ABC):
    """A network built from a spec."""

    kind: str

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        if not isinstance(spec, Spec) or spec.kind != self.kind:
            received = f"a spec of kind {spec.kind!r}" if isinstance(spec, Spec) else repr(spec)
            raise ThreefoldError(
                f"{self.name}: given {received}, expected a Spec of kind {self.kind!r}"
            )
        self.spec = spec
        self.tokenizer: Any = None
        self.preprocessing: Preprocessing | None = None  # from a user's data to tensors

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def parameter_count(self) -> int:
        """Number of trainable parameters; tied weights count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def predict(self, inputs: Any, **options: Any) -> Any:
        """Answer raw inputs with labels, numbers, texts, tags or forecasts: `threefold.predict`."""
        return import_module(PREDICTION).predict(self, inputs, **options)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write a folder that `threefold.load` reads; a failed save changes nothing."""
        from threefold.models.saving import save

        save(self, folder)


class Predictor(Model):
    """p(next token | tokens so far and the state): a model that can generate tokens."""

    @abstractmethod
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

    @abstractmethod
    def check_state(self, state: State, rows: int) -> None:
        """Raise an error unless `state` is a state of this model for a batch of `rows`."""

    def step(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Run one token per row [B]; returns (logits [B, vocabulary], state)."""
        if tokens.dim() != 1:
            raise ThreefoldError(
                f"{self.name}.step: tokens is {tuple(tokens.shape)}, expected [batch], "
                "one token per row"
            )
        logits, state = self(tokens.unsqueeze(1), state, form="step", last=True)
        return logits, state
