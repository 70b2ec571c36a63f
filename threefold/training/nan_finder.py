"""Find the module that first produced a non-finite number, by repeating the step with hooks.

A module is to blame if its inputs are finite and its output is not; of nested ones the innermost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from threefold.layers.mixer import Plan
from threefold.layers.padding import zero_padding

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
            return non_finite[0]
        if not bool(torch.isfinite(loss)):
            return "the outputs of all modules are finite, but the loss is not"
        loss.backward()  # type: ignore[no-untyped-call]
    if non_finite:
        return non_finite[0]
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not _is_finite(parameter.grad):
            return f"the gradient of {name} is not finite"
    return NOT_REPRODUCED


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


@contextmanager
def _recorded(model: nn.Module, non_finite: list[str]) -> Iterator[None]:
    """Append a phrase for each module where a non-finite number appears, in their order."""
    handles = []

    def make_hook(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if all(map(_is_finite, _tensors(_without_padding(output, kwargs)))):
                for tensor in _tensors(output):
                    if tensor.requires_grad:
                        tensor.register_hook(lambda g: _check(g, name, non_finite))  # type: ignore[no-untyped-call]
            elif all(map(_is_finite, _tensors((args, kwargs)))):
                non_finite.append(f"the first output that is not finite is that of {name}")
            elif module is model:
                non_finite.append("the inputs of the model are not finite")

        return hook

    for name, module in model.named_modules():  # inner modules finish before outer ones
        label = f"{name} ({type(module).__name__})" if name else type(module).__name__
        handles.append(module.register_forward_hook(make_hook(label), with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _check(gradient: Tensor | None, name: str, non_finite: list[str]) -> None:
    if gradient is not None and not _is_finite(gradient):  # None: a state that nothing reads
        where = f"that of the output of {name}"
        non_finite.append(f"the first gradient that is not finite is {where}")


def _without_padding(output: Any, kwargs: Any) -> Any:
    """The output of a module; of a mixer with 0 at padding, where it may leave anything."""
    plan = kwargs.get("plan")
    if not isinstance(plan, Plan):
        return output
    y, state = output
    return zero_padding(y, plan.lengths), state


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        if values.is_floating_point():
            yield values
    elif isinstance(values, (tuple, dict)):
        for item in values.values() if isinstance(values, dict) else values:
            yield from _tensors(item)
