"""threefold::name = a native function + the shapes of its outputs + its derivative

Registers a native operation with torch, so that autograd and torch.compile know it. For an
operation that is declared (`declarations.py`), all of it follows from the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.declaration import Declaration, Sizes, remember

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


class CallShapes(NamedTuple):
    """What follows from the shapes of tensors and from plain values, once for all calls."""

    like: int  # the argument whose dtype and device the results have
    shapes: list[Any]  # of the results
    sizes: Sizes  # also the plain values


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
        inputs = [(i, each) for i, each in enumerate(declaration.inputs) if not each.plain]
        self._tensors = [i for i, _ in inputs]
        self._names = [each.name for _, each in inputs]
        self._alike = [i for i, each in inputs if each.dtype is None]
        self._measured: dict[tuple[Any, ...], CallShapes] = {}
        self.dispatched = define(
            declaration.schema, native=native or self.call, shapes=self._shapes
        )

    def call(self, *values: Any) -> Any:
        """Call the kernel; a step without gradients calls this directly."""
        declared = self.declaration
        # A tensor has a shape, a plain value has none.
        key = tuple([getattr(x, "shape", x) for x in values])
        measured = self._measured.get(key)
        if measured is None:
            measured = self._measure(values)
            remember(self._measured, key, measured)
        like = values[measured.like]
        results = [like.new_empty(shape) for shape in measured.shapes]
        inputs, sizes = [values[i] for i in self._tensors], measured.sizes
        if self._lay_out is None:
            inputs = [x if x is None else x.contiguous() for x in inputs]
        else:
            laid_out, more = self._lay_out(dict(zip(self._names, inputs, strict=True)))
            inputs = [
                laid_out[name] if name in laid_out else library.contiguous(x)
                for name, x in zip(self._names, inputs, strict=True)
            ]
            sizes = {**sizes, **more}
        outputs: list[Tensor | None] = [x if x.numel() else None for x in results]
        if declared.workspace is not None:
            wanted = [int(sizes[name]) for name in declared.workspace]
            outputs.append(library.workspace(declared.workspace_function, like, wanted))
        library.call(
            declared.function,
            outputs,
            inputs,
            [int(sizes[name]) for name in declared.integers],
            [sizes[name] for name in declared.numbers],
            laid_out=True,
            dtype=like.dtype,
        )
        return results[0] if len(results) == 1 else tuple(results)

    def _shapes(self, *values: Any) -> Any:
        measured = self._measure(values)
        results = [values[measured.like].new_empty(shape) for shape in measured.shapes]
        return results[0] if len(results) == 1 else tuple(results)

    def _measure(self, values: Sequence[Any]) -> CallShapes:
        declared = self.declaration
        given = declared.given(values)
        sizes = declared.sizes(given)
        if self._add_sizes is not None:
            sizes.update(self._add_sizes(given, sizes))
        shapes = declared.result_shapes(given, sizes)
        sizes.update({name: given[name] for name in declared.names if name not in self._names})
        return CallShapes(next(i for i in self._alike if values[i] is not None), shapes, sizes)


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
    every = (*forward.names, *results)
    kept_names = [n for n in every if n in needed or (saved and n in forward.names)]
    kept = [every.index(name) for name in kept_names]
    grads_in = [f"grad_{name}" for name in results]
    unused = [every.index(name) for name in results if f"grad_{name}" not in needed]
    optional = any(argument.optional for argument in wanted.tensors if argument.name in grads_in)
    made = [result.name for result in wanted.results]
    places = [made.index(f"grad_{n}") if f"grad_{n}" in made else None for n in forward.names]

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        values = (*inputs, *_tuple(output))
        _keep(ctx, [values[place] for place in kept])
        ctx.shapes = [getattr(x, "shape", None) for x in inputs]
        if optional:
            ctx.set_materialize_grads(False)
        if unused:
            ctx.mark_non_differentiable(*(values[place] for place in unused))

    def differentiated(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        values = dict(zip(grads_in, grads, strict=True))
        for name, tensor, plain in zip(kept_names, tensors, ctx.plain, strict=True):
            values[name] = plain if tensor is None else tensor
        if saved and not values["save"]:
            again = operation.dispatched(
                *(True if n == "save" else values[n] for n in forward.names)
            )
            values.update({n: x for n, x in zip(results, again, strict=True) if n in saved})
        found = _tuple(backward.dispatched(*[values[name] for name in wanted.names]))
        return _gradients(ctx, found, places)

    differentiate(forward.name, save=save, backward=differentiated)
    differentiate_once(wanted.name, use=use)


def _keep(ctx: Any, values: Sequence[Any]) -> None:
    """Save tensors as autograd wants them, and plain values beside them."""
    tensors = [x if isinstance(x, Tensor) else None for x in values]
    ctx.plain = [x if y is None else None for x, y in zip(values, tensors, strict=True)]
    ctx.save_for_backward(*tensors)


def _gradients(
    ctx: Any, found: Sequence[Tensor], places: Sequence[int | None]
) -> tuple[Tensor | None, ...]:
    """The gradient of each input: the result at its place, in the shape of the input."""
    grads: list[Tensor | None] = [None] * len(places)
    for i, place in enumerate(places):
        if place is not None and ctx.needs_input_grad[i]:
            grad, shape = found[place], ctx.shapes[i]
            grads[i] = grad if grad.shape == shape else grad.reshape(shape)
    return tuple(grads)


def _tuple(results: Any) -> tuple[Tensor, ...]:
    """The results of an operation, also of one that returns a single tensor."""
    return (results,) if isinstance(results, Tensor) else tuple(results)
