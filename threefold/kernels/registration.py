"""threefold::name = a native function + the shapes of its outputs + its derivative

Registers a native operation with torch, so that autograd and torch.compile know it. For an
operation that is declared (`declarations.py`), all of it follows from the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.declaration import Declaration, Sizes

LIBRARY = torch.library.Library("threefold", "DEF")  # type: ignore[no-untyped-call]

Operation = Callable[..., Any]
# What a module adds to the sizes that follow from the shapes, given the arguments and those sizes.
AddSizes = Callable[[Mapping[str, Any], Sizes], Mapping[str, Any]]
# Returns some of the tensors as the kernel reads them, and what goes with them, such as strides.
LayOut = Callable[[Mapping[str, Any]], tuple[Mapping[str, Any], Mapping[str, Any]]]


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


def save_or_recompute(
    ctx: Any, given: Tensor, tensors: Sequence[Any], results: Sequence[Any]
) -> None:
    """Save what the backward pass of a loop (given, *tensors) → (out, _, saved) needs.

    The inputs are needed only to compute again what was not saved: `ctx.saved` says which.
    """
    out, _, saved = results
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(saved)
    ctx.save_for_backward(*tensors, out, saved, None if ctx.saved else given)


def differentiate_once(name: str, use: str) -> None:
    """Make the derivative of `name`, itself a derivative, raise an error that says why."""

    def refuse(ctx: Any, *grads: Tensor) -> None:
        raise NotImplementedError(
            f"{use} can be differentiated only once; for second derivatives set "
            "THREEFOLD_KERNELS=reference, which runs plain torch"
        )

    differentiate(name, save=lambda ctx, inputs, output: None, backward=refuse)


class NativeOperation:
    """A declared operation: `dispatched` is torch's, `call` runs the kernel at once.

    `native`, if given, runs on the CPU instead of `call`, with which it may begin.
    """

    def __init__(
        self,
        declaration: Declaration,
        *,
        add_sizes: AddSizes | None = None,
        lay_out: LayOut | None = None,
        native: Operation | None = None,
    ) -> None:
        self.declaration = declaration
        self._add_sizes, self._lay_out = add_sizes, lay_out
        self.dispatched = define(
            declaration.schema, native=native or self.call, shapes=self._shapes
        )

    def call(self, *values: Any) -> Any:
        """Call the kernel; a step without gradients calls this directly."""
        declared = self.declaration
        given, sizes, results = self._begin(values)
        tensors = {argument.name: given[argument.name] for argument in declared.tensors}
        laid_out, more = ({}, {}) if self._lay_out is None else self._lay_out(tensors)
        sizes.update(more)
        inputs = [laid_out[n] if n in laid_out else library.contiguous(tensors[n]) for n in tensors]
        outputs: list[Tensor | None] = [x if x.numel() else None for x in results]
        sizes.update({name: given[name] for name in declared.names if name not in tensors})
        if declared.workspace is not None:
            wanted = [int(sizes[name]) for name in declared.workspace]
            outputs.append(library.workspace(declared.workspace_function, results[0], wanted))
        library.call(
            declared.function,
            outputs,
            inputs,
            [int(sizes[name]) for name in declared.integers],
            [given[name] for name in declared.numbers],
            laid_out=True,
            dtype=results[0].dtype,
        )
        return results[0] if len(results) == 1 else tuple(results)

    def _shapes(self, *values: Any) -> Any:
        _, _, results = self._begin(values)
        return results[0] if len(results) == 1 else tuple(results)

    def _begin(self, values: tuple[Any, ...]) -> tuple[dict[str, Any], Sizes, list[Tensor]]:
        """The arguments by name, all sizes, and new tensors for the results."""
        given = self.declaration.given(values)
        sizes = self.declaration.sizes(given)
        if self._add_sizes is not None:
            sizes.update(self._add_sizes(given, sizes))
        return given, sizes, self.declaration.allocate(given, sizes)


def derive(operation: NativeOperation, backward: NativeOperation, use: str) -> None:
    """Make `backward` the derivative of `operation`, by the names of what both are declared with.

    It gets the inputs and results that it names, and the gradient of result y as grad_y; its result
    grad_x is the gradient of input x. A result that exists only with the flag `save` is computed
    again if it is missing. `use` names the operation in the error of a second derivative.
    """
    forward, wanted = operation.declaration, backward.declaration
    results = [result.name for result in forward.results]
    saved = {result.name for result in forward.results if result.when == "save"}
    needed = set(wanted.names)
    grads_in = [f"grad_{name}" for name in results]

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        values = forward.given(inputs)
        values.update(zip(results, _tuple(output), strict=True))
        tensors = {name: x for name, x in values.items() if isinstance(x, Tensor)}
        ctx.plain = {name: x for name, x in values.items() if name not in tensors}
        ctx.kept = [n for n in tensors if n in needed or (saved and n in forward.names)]
        ctx.shapes = {name: tensors[name].shape for name in forward.names if name in tensors}
        ctx.save_for_backward(*(tensors[name] for name in ctx.kept))
        if any(argument.optional for argument in wanted.tensors if argument.name in grads_in):
            ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(values[n] for n in results if f"grad_{n}" not in needed))

    def differentiated(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        values = {**ctx.plain, **dict(zip(ctx.kept, ctx.saved_tensors, strict=True))}
        if saved and not values["save"]:
            made = operation.dispatched(
                *(True if n == "save" else values[n] for n in forward.names)
            )
            values.update({n: x for n, x in zip(results, made, strict=True) if n in saved})
        values.update(zip(grads_in, grads, strict=True))
        found = backward.dispatched(*(values[name] for name in wanted.names))
        named = (result.name for result in wanted.results)
        by_name = dict(zip(named, _tuple(found), strict=True))
        return tuple(
            by_name[f"grad_{name}"].reshape(ctx.shapes[name])
            if needs and name in ctx.shapes and f"grad_{name}" in by_name
            else None
            for name, needs in zip(forward.names, ctx.needs_input_grad, strict=True)
        )

    differentiate(forward.name, save=save, backward=differentiated)
    differentiate_once(wanted.name, use=use)


def _tuple(results: Any) -> tuple[Tensor, ...]:
    """The results of an operation, also of one that returns a single tensor."""
    return (results,) if isinstance(results, Tensor) else tuple(results)
