"""threefold::name = a native function + the shapes of its outputs + its derivative

Registers a native operation with torch, so that autograd and torch.compile know it. For an
operation that is declared (`declarations.py`), all of it follows from the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.declaration import Declaration, Sizes
from threefold.kernels.system_memory import on_large_pages

LIBRARY = torch.library.Library("threefold", "DEF")  # type: ignore[no-untyped-call]

Operation = Callable[..., Any]
# What a module adds to the sizes that follow from the shapes, given the arguments and those sizes.
AddSizes = Callable[[Mapping[str, Any], Sizes], Mapping[str, Any]]
# Returns further tables that the kernel reads, given the arguments and all sizes, to which it may
# add; last the workspace, if that is the module's.
Tables = Callable[[Mapping[str, Any], Sizes], Mapping[str, Tensor]]
# Returns further gradients by name, given all arguments and results of a backward pass.
Finish = Callable[[Mapping[str, Any]], Mapping[str, Tensor]]


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


# Shapes of inputs for which an operation keeps what follows from them.
_MOST_PLANS = 256


class NativeOperation:
    """A declared operation: `dispatched` is torch's, `call` runs the kernel at once.

    `native`, if given, runs on the CPU instead of `call`, with which it may begin. `large`: results
    may be so large that large pages are worth asking for.
    """

    def __init__(
        self,
        declaration: Declaration,
        *,
        add_sizes: AddSizes | None = None,
        tables: Tables | None = None,
        native: Operation | None = None,
        large: bool = False,
    ) -> None:
        self.declaration = declaration
        self._add_sizes, self._tables, self._large = add_sizes, tables, large
        self._plans: dict[Any, tuple[Sizes, list[Any]]] = {}
        self.dispatched = define(
            declaration.schema, native=native or self.call, shapes=self._shapes
        )

    def call(self, *values: Any) -> Any:
        """Call the kernel; a step without gradients calls this directly."""
        declared = self.declaration
        given = declared.given(values)
        sizes, shapes = self._planned(given)
        results = declared.allocate(given, shapes)
        if self._large:
            on_large_pages(results)
        outputs: list[Tensor | None] = [x if x.numel() else None for x in results]
        inputs, strides = self._inputs(given, sizes)
        if declared.workspace:
            wanted = [int(sizes[name]) for name in declared.workspace]
            outputs.append(library.workspace(declared.workspace_function, results[0], wanted))
        elif declared.workspace is not None:
            outputs.append(inputs.pop())
        library.call(
            declared.function,
            outputs,
            inputs,
            [int(sizes[name]) for name in declared.integers],
            [given[name] for name in declared.numbers],
            laid_out=True,
            strides=strides,
            dtype=results[0].dtype,
        )
        return results[0] if len(results) == 1 else tuple(results)

    def _planned(self, given: Mapping[str, Any]) -> tuple[Sizes, list[Any]]:
        """A copy of the sizes and flags, and the shapes of the results."""
        key = tuple(x.shape if isinstance(x, Tensor) else x for x in given.values())
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._plan(given)
        return dict(plan[0]), plan[1]

    def _plan(self, given: Mapping[str, Any]) -> tuple[Sizes, list[Any]]:
        declared = self.declaration
        sizes = declared.sizes(given)
        if self._add_sizes is not None:
            sizes.update(self._add_sizes(given, sizes))
        shapes = declared.result_shapes(given, sizes)
        for argument in declared.inputs:
            if argument.plain:
                sizes.setdefault(argument.name, given[argument.name])
        return sizes, shapes

    def _inputs(
        self, given: Mapping[str, Any], sizes: Sizes
    ) -> tuple[list[Tensor | None], list[int] | None]:
        """The tensors as the kernel reads them, and their strides; adds steps to the sizes."""
        declared = self.declaration
        tensors: dict[str, Any] = {}
        for one in declared.read:
            x = given[one.name]
            if one.stride == "" and x is not None:
                x = library.with_unit_stride(x) if x.dim() > 3 else x
            elif one.stride and x is not None:
                x, sizes[one.stride] = library.evenly_spaced(x)
            elif one.stride:
                sizes[one.stride] = 0
            elif x is not None:
                x = x.contiguous()
            tensors[one.name] = x
        if self._tables is not None:
            tensors.update(self._tables(given, sizes))
        return list(tensors.values()), declared.strides(tensors) if declared.strided else None

    def _shapes(self, *values: Any) -> Any:
        given = self.declaration.given(values)
        _, shapes = self._plan(given)
        results = self.declaration.allocate(given, shapes)
        return results[0] if len(results) == 1 else tuple(results)


def derive(
    operation: NativeOperation,
    backward: NativeOperation,
    use: str | None,
    *,
    keeps: tuple[str, ...] = (),
    given: Finish | None = None,
    finish: Finish | None = None,
) -> None:
    """Make `backward` the derivative of `operation`, by the names of what both are declared with.

    It gets the inputs and results that it names, the gradient of result y as grad_y, and whether
    input x needs one as needs_x; its result grad_x is the gradient of input x. A result that exists
    only with the flag `save` is computed again if it is missing. In plain torch, `given` changes
    what `backward` gets, and `finish` computes further gradients, from all of these and what it
    `keeps`. `use` names the operation in the error of a second derivative; None: it has one.
    """
    forward, wanted = operation.declaration, backward.declaration
    results = [result.name for result in forward.results]
    needed = {*wanted.names, *keeps}
    saved = {one.name for one in forward.results if one.when == "save" and one.name in wanted.names}
    grads_in = [f"grad_{name}" for name in results]
    may_miss = {one.name for one in wanted.tensors if one.optional} | set(grads_in) - needed

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        values = forward.given(inputs)
        values.update(zip(results, _tuple(output), strict=True))
        tensors = {name: x for name, x in values.items() if isinstance(x, Tensor)}
        ctx.plain = {name: x for name, x in values.items() if name not in tensors}
        again = bool(saved) and not values["save"]
        ctx.kept = [n for n in tensors if n in needed or (again and n in forward.names)]
        ctx.shapes = {name: x.shape for name, x in tensors.items()}
        ctx.save_for_backward(*(tensors[name] for name in ctx.kept))
        # Zeros for results that have no gradient could be as large as what is saved.
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(values[n] for n in results if f"grad_{n}" not in needed))

    def differentiated(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        values = {**ctx.plain, **dict(zip(ctx.kept, ctx.saved_tensors, strict=True))}
        if saved and not values["save"]:
            made = operation.dispatched(
                *(True if n == "save" else values[n] for n in forward.names)
            )
            values.update({n: x for n, x in zip(results, made, strict=True) if n in saved})
        like = next((grad for grad in grads if grad is not None), None)
        if like is None:
            return (None,) * len(forward.names)
        for name, grad in zip(grads_in, grads, strict=True):
            there = grad is not None or name in may_miss
            values[name] = grad if there else like.new_zeros(ctx.shapes[name.removeprefix("grad_")])
        needs = dict(zip(forward.names, ctx.needs_input_grad, strict=True))
        values.update({f"needs_{name}": need for name, need in needs.items()})
        if given is not None:
            values.update(given(values))
        found = backward.dispatched(*(values[name] for name in wanted.names))
        named = (result.name for result in wanted.results)
        by_name = dict(zip(named, _tuple(found), strict=True))
        if finish is not None:
            by_name.update(finish({**values, **by_name}))
        return tuple(
            by_name[f"grad_{name}"].reshape(ctx.shapes[name])
            if need and name in ctx.shapes and f"grad_{name}" in by_name
            else None
            for name, need in needs.items()
        )

    differentiate(forward.name, save=save, backward=differentiated)
    if use is not None:
        differentiate_once(wanted.name, use=use)


def _tuple(results: Any) -> tuple[Tensor, ...]:
    """The results of an operation, also of one that returns a single tensor."""
    return (results,) if isinstance(results, Tensor) else tuple(results)
