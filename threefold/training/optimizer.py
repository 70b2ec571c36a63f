"""Optimisers with parameter groups: what decays, what does not, and what learns slowly.

Layers declare it: class attributes `no_decay` and `slow` name parameters by the last part of their
dotted names.  Vectors (biases, scales) and the weights of norms never decay either.
Muon moves the matrices inside the stack; embeddings, heads and all else go by AdamW beside it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError, nearest
from threefold.kernels.parameter_cache import optimiser_stepped

if TYPE_CHECKING:
    from threefold.training.settings import TrainingSettings

SLOW = 0.1  # the learning rate of slow parameters, as a factor
MUON_MOMENTUM = 0.95  # as published (Jordan et al. 2024, "Muon")
Groups: TypeAlias = list[dict[str, Any]]


class OptimizerGroup:
    """One optimiser or several that share the parameters among them; saved as plain tensors."""

    def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all."""
        return [group for part in self.parts for group in part.param_groups]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Move every parameter."""
        with torch.no_grad():
            for part in self.parts:
                # Torch's wrapper of it imports its compiler, which takes seconds.
                inspect.unwrap(type(part).step)(part)
        optimiser_stepped()

    def tensors(self) -> dict[str, Tensor]:
        """What they remember, by `part/parameter/name`."""
        return {
            f"{place}/{index}/{name}": torch.as_tensor(value)
            for place, part in enumerate(self.parts)
            for index, values in part.state_dict()["state"].items()
            for name, value in values.items()
            if value is not None
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Remember what `tensors` gave."""
        for place, part in enumerate(self.parts):
            state: dict[int, dict[str, Any]] = {}
            for path, value in tensors.items():
                owner, index, name = path.split("/")
                if int(owner) == place:
                    state.setdefault(int(index), {})[name] = value
            groups = part.state_dict()["param_groups"]
            part.load_state_dict({"state": state, "param_groups": groups})


def make_optimizer(model: nn.Module, settings: TrainingSettings) -> OptimizerGroup:
    """The optimiser that the settings name, over the groups of the model."""
    _calm()
    groups = parameter_groups(model, settings.learning_rate, settings.weight_decay)
    if settings.optimizer != "muon":
        return OptimizerGroup([_make(settings.optimizer, groups, settings)])
    matrices = _inner_matrices(model)
    parts = []
    for chosen, make in ((True, "muon"), (False, "adamw")):
        mine = [
            {**group, "params": kept}
            for group in groups
            for kept in [[p for p in group["params"] if (p in matrices) == chosen]]
            if kept
        ]
        if mine:
            parts.append(_make(make, mine, settings))
    return OptimizerGroup(parts)


def _calm() -> None:
    """Have optimisers not import torch's compiler when they are made: it takes seconds."""
    if "torch._dynamo" in sys.modules:
        return
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        inner = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if inner is not None and not hasattr(inner, "__dynamo_disable"):
            inner.__dynamo_disable = inner


def _make(name: str, groups: Groups, s: TrainingSettings) -> torch.optim.Optimizer:
    known: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(groups),
        "momentum": lambda: torch.optim.SGD(groups, momentum=s.momentum),
        "nesterov": lambda: torch.optim.SGD(groups, momentum=s.momentum, nesterov=s.momentum > 0),
        "adagrad": lambda: torch.optim.Adagrad(groups),
        "adadelta": lambda: torch.optim.Adadelta(groups),
        "adam": lambda: torch.optim.Adam(groups, betas=(s.momentum, s.beta2), fused=True),
        "adamw": lambda: torch.optim.AdamW(groups, betas=(s.momentum, s.beta2), fused=True),
        # Updates scaled to AdamW's size, so that one learning rate serves both (Liu et al. 2025).
        "muon": lambda: torch.optim.Muon(
            groups, momentum=MUON_MOMENTUM, adjust_lr_fn="match_rms_adamw"
        ),
    }
    if name not in known:
        raise ThreefoldError(f"unknown optimiser {name!r}; {nearest(name, known)}")
    return known[name]()


def adamw(
    model: nn.Module,
    learning_rate: float,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.95),
) -> torch.optim.AdamW:
    """AdamW over the groups; each group remembers its `peak`, which the schedule scales."""
    _calm()
    groups = parameter_groups(model, learning_rate, weight_decay)
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas)


def parameter_groups(model: nn.Module, learning_rate: float, weight_decay: float) -> Groups:
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


def set_rate(optimiser: torch.optim.Optimizer | OptimizerGroup, factor: float) -> None:
    """Scale the learning rate of every group from its peak."""
    for group in optimiser.param_groups:
        group["lr"] = factor * group["peak"]


def _inner_matrices(model: nn.Module) -> set[Tensor]:
    """Matrices that map features to features: not embeddings, heads, or what is declared."""
    apart = _declared(model, "slow") | _declared(model, "no_decay") | _norms(model)
    inside = getattr(model, "stack", None)
    modules = (inside if isinstance(inside, nn.Module) else model).modules()
    found: set[Tensor] = {
        parameter
        for module in modules
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
        if parameter.dim() == 2 and parameter.requires_grad
    }
    return found - apart


def _declared(model: nn.Module, attribute: str) -> set[Tensor]:
    """Parameters that a module names in its class attribute."""
    return set(_named(model, attribute))


def _named(model: nn.Module, attribute: str) -> Iterator[Tensor]:
    for module in model.modules():
        names = getattr(module, attribute, ())
        if names:
            for name, parameter in module.named_parameters():
                if name.rsplit(".", 1)[-1] in names:
                    yield parameter


def _norms(model: nn.Module) -> set[Tensor]:
    """Weights of norms, which are matrices where there is one for each head."""
    return {
        parameter
        for module in model.modules()
        if type(module).__name__.endswith("Norm")
        for parameter in module.parameters(recurse=False)
    }
