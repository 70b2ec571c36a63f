"""AdamW with parameter groups: what decays, what does not, and what learns slowly.

Layers declare it: class attributes `no_decay` and `slow` name parameters by the last part of their
dotted names.  Vectors (biases, scales) and the weights of norms never decay either.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SLOW = 0.1  # the learning rate of slow parameters, as a factor


def adamw(
    model: nn.Module,
    learning_rate: float,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.95),
) -> torch.optim.AdamW:
    """AdamW over the groups; each group remembers its `peak`, which the schedule scales."""
    groups = parameter_groups(model, learning_rate, weight_decay)
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas)


def parameter_groups(
    model: nn.Module, learning_rate: float, weight_decay: float
) -> list[dict[str, Any]]:
    """Every parameter that learns, in exactly one group; shared ones once, no group empty."""
    slow = _declared(model, "slow")
    steady = _declared(model, "no_decay") | _norms(model)
    groups: dict[str, list[Tensor]] = {"decay": [], "no_decay": [], "slow": []}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter in slow:
            groups["slow"].append(parameter)
        elif parameter in steady or parameter.dim() < 2:
            groups["no_decay"].append(parameter)
        else:
            groups["decay"].append(parameter)
    settings = {
        "decay": (learning_rate, weight_decay),
        "no_decay": (learning_rate, 0.0),
        "slow": (SLOW * learning_rate, 0.0),
    }
    return [
        {"name": name, "params": chosen, "lr": rate, "peak": rate, "weight_decay": decay}
        for name, chosen in groups.items()
        for rate, decay in [settings[name]]
        if chosen
    ]


def set_rate(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Scale the learning rate of every group from its peak."""
    for group in optimiser.param_groups:
        group["lr"] = factor * group["peak"]


def _declared(model: nn.Module, attribute: str) -> set[Tensor]:
    """Parameters that a module names in its class attribute."""
    return {
        parameter
        for module in model.modules()
        for names in [getattr(module, attribute, ())]
        for name, parameter in module.named_parameters()
        if name.rsplit(".", 1)[-1] in names
    }


def _norms(model: nn.Module) -> set[Tensor]:
    """Weights of norms, which are matrices where there is one for each head."""
    return {
        parameter
        for module in model.modules()
        if type(module).__name__.endswith("Norm")
        for parameter in module.parameters(recurse=False)
    }
