"""What every model has: its spec, perhaps a tokenizer, a count of its parameters, and `save`.

A `Predictor` answers tokens with logits of the next one and carries a state: what the runtime asks
for, be it a language model or the decoder of a translator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.memory.state import State
from threefold.models.spec import Spec


class Model(nn.Module, ABC):
    """A network built from a spec."""

    kind: str

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        if not isinstance(spec, Spec) or spec.kind != self.kind:
            given = f"a spec of kind {spec.kind!r}" if isinstance(spec, Spec) else repr(spec)
            raise ThreefoldError(f"{self.name}: given {given}, expected a Spec of {self.kind!r}")
        self.spec = spec
        self.tokenizer: Any = None

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def parameter_count(self) -> int:
        """Numbers that are trained; tied weights count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def save(self, folder: str | PathLike[str]) -> None:
        """Write a folder that `threefold.load` reads: all of it, or nothing."""
        from threefold.models.saving import save

        save(self, folder)


class Predictor(Model):
    """p(next token | tokens so far and the state): what can be generated from."""

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
        Logits at padding, or of a row without tokens, are 0.
        """

    @abstractmethod
    def check_state(self, state: State, rows: int) -> None:
        """Refuse a state that is not one of this model for that many rows."""

    def step(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One token of each row [B]; returns (logits [B, vocabulary], state)."""
        if tokens.dim() != 1:
            raise ThreefoldError(
                f"{self.name}.step: tokens is {tuple(tokens.shape)}, expected [batch], "
                "one token of each row"
            )
        return self.forward(tokens.unsqueeze(1), state, form="step", last=True)
