"""Find the module that first produced a non-finite number, by repeating the step with hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

NOT_REPRODUCED = "it did not happen again when the step was repeated"


def find_non_finite(model: nn.Module, repeat: Callable[[], Tensor]) -> str:
    """Where the first non-finite number appears while `repeat` computes the loss, as a phrase."""
    for name, parameter in model.named_parameters():
        if not _is_finite(parameter):
            return f"the weights {name} are not finite"
    non_finite: list[str] = []
    with _recorded(model, non_finite):
        loss = repeat()
        if non_finite:
            return f"the first output that is not finite is that of {non_finite[0]}"
        if not bool(torch.isfinite(loss)):
            return "the outputs of all modules are finite, but the loss is not"
        loss.backward()  # type: ignore[no-untyped-call]
    if non_finite:
        return f"the first gradient that is not finite is that of the output of {non_finite[0]}"
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not _is_finite(parameter.grad):
            return f"the gradient of {name} is not finite"
    return NOT_REPRODUCED


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


@contextmanager
def _recorded(model: nn.Module, non_finite: list[str]) -> Iterator[None]:
    """Append modules whose output, or its gradient, is not finite, in the order they appear."""
    handles = []

    def make_hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            for tensor in _tensors(output):
                if not _is_finite(tensor):
                    non_finite.append(name)
                elif tensor.requires_grad:
                    tensor.register_hook(lambda g: _check(g, name, non_finite))  # type: ignore[no-untyped-call]

        return hook

    for name, module in model.named_modules():  # inner modules finish before outer ones
        if name:
            kind = type(module).__name__
            handles.append(module.register_forward_hook(make_hook(f"{name} ({kind})")))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _check(gradient: Tensor, name: str, non_finite: list[str]) -> None:
    if not bool(gradient.isfinite().all()):
        non_finite.append(name)


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, tuple):
        for item in output:
            yield from _tensors(item)
