"""Which module first gave a number that is none: found by running the step again and looking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

NOT_AGAIN = "it did not happen again when the step was repeated"


def first_bad(model: nn.Module, again: Callable[[], Tensor]) -> str:
    """Where the first non-finite number arises when `again` gives the loss; in words."""
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            return f"the weights {name} are not finite"
    found: list[str] = []
    with _watched(model, found):
        loss = again()
        if found:
            return f"the first output that is not finite is that of {found[0]}"
        if not bool(torch.isfinite(loss)):
            return "all outputs of modules are finite, the loss of them is not"
        loss.backward()  # type: ignore[no-untyped-call]
    gradients = [
        name
        for name, p in model.named_parameters()
        if p.grad is not None and not bool(p.grad.isfinite().all())
    ]
    if found:
        return (
            f"the first gradient that is not finite, from the loss on, is of what {found[0]} gave"
        )
    if gradients:
        return f"the gradient of {gradients[0]} is not finite"
    return NOT_AGAIN


@contextmanager
def _watched(model: nn.Module, found: list[str]) -> Iterator[None]:
    """Note modules whose output, or the gradient of it, is not finite, in the order they come."""
    handles = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, given: Any, output: Any) -> None:
            for tensor in _tensors(output):
                if not bool(tensor.isfinite().all()):
                    found.append(name)
                elif tensor.requires_grad:
                    tensor.register_hook(lambda g: _note(g, name, found))  # type: ignore[no-untyped-call]

        return hook

    for name, module in model.named_modules():  # inner ones answer before those they are in
        if name:
            kind = type(module).__name__
            handles.append(module.register_forward_hook(watch(f"{name} ({kind})")))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _note(gradient: Tensor, name: str, found: list[str]) -> None:
    if not bool(gradient.isfinite().all()):
        found.append(name)


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, tuple):
        for item in output:
            yield from _tensors(item)
