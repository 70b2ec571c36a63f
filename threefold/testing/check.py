"""Run the laws of the contract on one mixer, and say which of them it breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from threefold.errors import ThreefoldError
from threefold.layers.mixer import Mixer
from threefold.testing import laws
from threefold.testing.closeness import ContractError

Law = Callable[[Mixer], None]
# In an order in which the first that fails is most likely the reason for the others.
CAUSAL: dict[str, tuple[Law, torch.dtype]] = {
    "results": (laws.results, torch.float64),
    "causality": (laws.causality, torch.float64),
    "rows": (laws.rows, torch.float64),
    "state": (laws.state, torch.float64),
    "continuation": (laws.continuation, torch.float64),
    "forms": (laws.forms, torch.float64),
    "forms in float32": (laws.forms, torch.float32),
    "padding": (laws.padding, torch.float64),
    "gradients": (laws.gradients, torch.float64),
    "gradients of padding": (laws.gradients_of_padding, torch.float64),
    "calls": (laws.calls, torch.float64),
    "not finite": (laws.not_finite, torch.float64),
    "weights": (laws.weights, torch.float64),
    "autocast": (laws.autocast, torch.float32),
}
ONLY_CAUSAL = ("causality", "state", "continuation", "forms", "forms in float32")
NOT_CAUSAL: dict[str, tuple[Law, torch.dtype]] = {
    "no state": (laws.no_state, torch.float64),
    **{name: law for name, law in CAUSAL.items() if name not in ONLY_CAUSAL},
}


def check_mixer(cls: type[Mixer], *, width: int = 32, **options: Any) -> None:
    """Raise a ContractError that names every law that a mixer breaks, with the numbers.

    cls: a class that derives from `threefold.layers.mixer.Mixer`; width and options are given to
    its constructor.  Weights that start at zero are moved off it, so that they hide no fault.
    `threefold/testing/laws.py` lists the laws.
    """
    mixer = make_mixer(cls, width, options)
    broken = []
    for name, (law, dtype) in (CAUSAL if mixer.causal else NOT_CAUSAL).items():
        try:
            law(mixer.to(dtype))
        except ContractError as error:
            broken.append(f"{name}: {error}")
        except Exception as error:
            broken.append(f"{name}: {type(error).__name__}: {error}")
        if broken and name == "results":
            break  # all other laws compare these
    if broken:
        laws_broken = "\n  ".join(broken)
        raise ContractError(f"{cls.__name__} breaks the contract of mixers:\n  {laws_broken}")


def make_mixer(cls: type[Mixer], width: int, options: dict[str, Any]) -> Mixer:
    """A mixer in eval mode whose gates depend on the input: no weight is all zeros."""
    if not isinstance(cls, type) or not issubclass(cls, Mixer):
        raise ThreefoldError(
            f"check_mixer: given {cls!r}, expected a class that derives from "
            "threefold.layers.mixer.Mixer"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mixer = cls(width, **options)
        with torch.no_grad():
            for parameter in mixer.parameters():
                if not parameter.any():
                    parameter.uniform_(-0.3, 0.3)
    return mixer.eval()
