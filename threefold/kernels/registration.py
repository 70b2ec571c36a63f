"""threefold::name = a native function + the shapes of what it gives + its derivative

What every native operation needs to be a torch operation: known to autograd and torch.compile.
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
    """Give an operation its derivative; `save(ctx, inputs, output)` keeps what that needs."""
    torch.library.register_autograd(f"threefold::{name}", backward, setup_context=save, lib=LIBRARY)


def differentiate_once(name: str, use: str) -> None:
    """Say clearly that the operation `name`, itself a derivative, has no derivative."""

    def refuse(ctx: Any, *grads: Tensor) -> None:
        raise NotImplementedError(
            f"{use} can be differentiated once; for second derivatives set "
            "THREEFOLD_KERNELS=reference, whose operations are plain torch"
        )

    differentiate(name, save=lambda ctx, inputs, output: None, backward=refuse)
