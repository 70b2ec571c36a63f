"""What the configs of other libraries have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from threefold.errors import ThreefoldError

ACTIVATION_NAMES = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}  # other names are the same


def refuse_unusual(kind: str, config: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Raise an error if a config asks for something that a Spec cannot express."""
    for name, value in usual.items():
        if config.get(name, value) != value:
            raise ThreefoldError(f"{kind}: {name} is {config[name]!r}; only {value!r} is supported")
