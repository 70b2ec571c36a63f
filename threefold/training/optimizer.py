"""Optimisers with parameter groups: with weight decay, without it, and with a low learning rate.

Layers declare them: class attributes `no_decay` and `slow` name parameters by the last part of
their dotted names.  Vectors (biases, scales) and the weights of norms never decay either.
Muon updates the matrices inside the stack; AdamW updates embeddings, heads and everything else.
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
from threefold.training.frozen_layers import layer_factors

if TYPE_CHECKING:
    from threefold.training.settings import TrainingSettings

SLOW_LR_FACTOR = 0.1  # factor of the learning rate of slow parameters
MUON_MOMENTUM = 0.95  # as published (Jordan et al. 2024, "Muon")
Groups: TypeAlias = list[dict[str, Any]]


class OptimizerGroup:
    """One or more optimisers, each with its own parameters; saved as plain tensors."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimisers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Update every parameter."""
        with torch.no_grad():
            for optimizer in self.optimizers:
                # torch's wrapper of `step` imports its compiler, which takes seconds.
                inspect.unwrap(type(optimizer).step)(optimizer)
        optimiser_stepped()

    def tensors(self) -> dict[str, Tensor]:
        """The state of the optimisers, by `optimizer/parameter/name`."""
        return {
            f"{number}/{parameter}/{name}": torch.as_tensor(value)
            for number, optimizer in enumerate(self.optimizers)
            for parameter, values in optimizer.state_dict()["state"].items()
            for name, value in values.items()
            if value is not None
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load a state that `tensors` returned."""
        for number, optimizer in enumerate(self.optimizers):
            state: dict[int, dict[str, Any]] = {}
            for path, value in tensors.items():
                owner, parameter, name = path.split("/")
                if int(owner) == number:
                    state.setdefault(int(parameter), {})[name] = value
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})


def make_optimizer(model: nn.Module, settings: TrainingSettings) -> OptimizerGroup:
    """The optimiser named in the settings, with the parameter groups of the model."""
    _avoid_compiler_import()
    groups = parameter_groups(
        model, settings.learning_rate, settings.weight_decay, settings.layer_decay
    )
    if settings.optimizer != "muon":
        return OptimizerGroup([_make(settings.optimizer, groups, settings)])
    matrices = _inner_matrices(model)
    muon_groups = _restricted(groups, lambda parameter: parameter in matrices)
    adamw_groups = _restricted(groups, lambda parameter: parameter not in matrices)
    optimizers = []
    if muon_groups:
        optimizers.append(_make("muon", muon_groups, settings))
    if adamw_groups:
        optimizers.append(_make("adamw", adamw_groups, settings))
    return OptimizerGroup(optimizers)


def _restricted(groups: Groups, wanted: Callable[[Tensor], bool]) -> Groups:
    """The groups with only the wanted parameters, without empty groups."""
    restricted = [{**g, "params": [p for p in g["params"] if wanted(p)]} for g in groups]
    return [group for group in restricted if group["params"]]


def _avoid_compiler_import() -> None:
    """Keep torch's optimisers from importing its compiler when constructed: it takes seconds."""
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
        raise ThreefoldError(f"unknown optimizer {name!r}; {nearest(name, known)}")
    return known[name]()


def adamw(
    model: nn.Module,
    learning_rate: float,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.95),
) -> torch.optim.AdamW:
    """AdamW with parameter groups; a schedule scales the learning rate `peak` of each group."""
    _avoid_compiler_import()
    groups = parameter_groups(model, learning_rate, weight_decay)
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas)


def parameter_groups(
    model: nn.Module, learning_rate: float, weight_decay: float, layer_decay: float = 1.0
) -> Groups:
    """Every trainable parameter in exactly one group; shared ones once, no group empty."""
    groups = _typed_groups(model, learning_rate, weight_decay)
    if layer_decay == 1:
        return groups
    factors = layer_factors(model, layer_decay)
    layers = []
    for group in groups:
        by_factor: dict[float, list[Tensor]] = {}
        for parameter in group["params"]:
            by_factor.setdefault(factors.get(id(parameter), 1.0), []).append(parameter)
        for factor, parameters in sorted(by_factor.items(), reverse=True):  # the peak first
            rate, decay = factor * group["lr"], group["weight_decay"]
            layers.append(_group(f"{group['name']} {factor:g}", parameters, rate, decay))
    return layers


def _typed_groups(model: nn.Module, learning_rate: float, weight_decay: float) -> Groups:
    slow = _declared(model, "slow")
    undecayed = _declared(model, "no_decay") | _norms(model)
    parameters: dict[str, list[Tensor]] = {"decay": [], "no_decay": [], "slow": []}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter in slow:
            parameters["slow"].append(parameter)
        elif parameter in undecayed or parameter.dim() < 2:
            parameters["no_decay"].append(parameter)
        else:
            parameters["decay"].append(parameter)
    rates = {
        "decay": (learning_rate, weight_decay),
        "no_decay": (learning_rate, 0.0),
        "slow": (SLOW_LR_FACTOR * learning_rate, 0.0),
    }
    return [_group(name, parameters[name], *rates[name]) for name in rates if parameters[name]]


def _group(name: str, parameters: list[Tensor], rate: float, decay: float) -> dict[str, Any]:
    return {"name": name, "params": parameters, "lr": rate, "peak": rate, "weight_decay": decay}


def scale_learning_rate(optimizer: torch.optim.Optimizer | OptimizerGroup, factor: float) -> None:
    """Set the learning rate of every group to `factor` times its peak."""
    for group in optimizer.param_groups:
        group["lr"] = factor * group["peak"]


def _inner_matrices(model: nn.Module) -> set[Tensor]:
    """Matrices that map features to features: no embeddings, heads or declared parameters."""
    excluded = _declared(model, "slow") | _declared(model, "no_decay") | _norms(model)
    stack = getattr(model, "stack", None)
    modules = (stack if isinstance(stack, nn.Module) else model).modules()
    matrices: set[Tensor] = {
        parameter
        for module in modules
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
        if parameter.dim() == 2 and parameter.requires_grad
    }
    return matrices - excluded


def _declared(model: nn.Module, attribute: str) -> set[Tensor]:
    """Parameters that modules name in a class attribute."""
    return set(_named(model, attribute))


def _named(model: nn.Module, attribute: str) -> Iterator[Tensor]:
    for module in model.modules():
        names = getattr(module, attribute, ())
        if names:
            for name, parameter in module.named_parameters():
                if name.rsplit(".", 1)[-1] in names:
                    yield parameter


def _norms(model: nn.Module) -> set[Tensor]:
    """Weights of norms; those with one norm per head are matrices."""
    return {
        parameter
        for module in model.modules()
        if type(module).__name__.endswith("Norm")
        for parameter in module.parameters(recurse=False)
    }
