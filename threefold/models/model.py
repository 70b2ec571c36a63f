"""What every model has: its spec, perhaps a tokenizer, a count of its parameters, and `save`."""

from __future__ import annotations

from abc import ABC
from os import PathLike
from typing import Any

import torch
from torch import nn

from threefold.errors import ThreefoldError
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
