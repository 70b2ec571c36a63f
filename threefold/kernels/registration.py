"""threefold::name = a native function + the shapes of its outputs + its derivative

Registers a native operation with torch, so that autograd and torch.compile know it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LIBRARY = torch.library.Library("threefold", "DEF")  # type: ignore[no-untyped-call]

Operation = Callable[..., Any]


def define(schema: str, *, native: Operation, shapes: Operation) -> Operation:
    """Register an operation from its schema, its CPU function and the shapes of its outputs."""
    name = schema.split("(")[0]
    LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    LIBRARY.impl(name, native, "CPU")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"threefold::{name}", shapes, lib=LIBRARY)
    return getattr(torch.ops.threefold, name).default  # type: ignore[no-any-return]


def differentiate(name: str, *, save: Operation, backward: Operation) -> None:
    """Register an operation's derivative; `save(ctx, inputs, output)` saves what it needs."""
    torch.library.register_autograd(f"threefold::{name}", backward, setup_context=save, lib=LIBRARY)


def differentiate_once(name: str, use: str) -> None:
    """Make the derivative of `name`, itself a derivative, raise an error that says why."""

    def refuse(ctx: Any, *grads: Tensor) -> None:
        raise NotImplementedError(
            f"{use} can be differentiated only once; for second derivatives set "
            "THREEFOLD_KERNELS=reference, which runs plain torch"
        )

    differentiate(name, save=lambda ctx, inputs, output: None, backward=refuse)
