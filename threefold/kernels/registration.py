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
# Returns more by name, given all arguments (and results) of a backward pass.
More = Callable[[Mapping[str, Any]], Mapping[str, Tensor]]


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
        self._names = [each.name for each in declaration.read]
        self._tensors = [declaration.names.index(name) for name in self._names]
        alike = [each.name for each in declaration.tensors if each.dtype is None]
        self._alike = [declaration.names.index(name) for name in alike]
        self._plain = [each.name for each in declaration.inputs if each.plain]
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
        sizes = declared.sizes(given) | {name: given[name] for name in self._plain}
        if self._add_sizes is not None:
            sizes.update(self._add_sizes(given, sizes))
        shapes = declared.result_shapes(given, sizes)
        return CallShapes(next(i for i in self._alike if values[i] is not None), shapes, sizes)


def derive(
    operation: NativeOperation,
    backward: NativeOperation,
    use: str | None,
    *,
    keeps: tuple[str, ...] = (),
    prepare: More | None = None,
    finish: More | None = None,
) -> None:
    """Make `backward` the derivative of `operation`, by the names of what both are declared with.

    It gets the inputs and results that it names, and the gradient of result y as grad_y; its result
    grad_x is the gradient of input x. A result that exists only with the flag `save` is computed
    again if it is missing. In plain torch, `prepare` changes what `backward` gets, also from inputs
    that it `keeps`, and `finish` computes further gradients. `use` names the operation in the error
    of a second derivative; None: the module registers one.
    """
    forward, wanted = operation.declaration, backward.declaration
    kept = _Kept.of(forward, wanted, keeps)
    grads_in = [f"grad_{result.name}" for result in forward.results]
    made = [result.name for result in wanted.results]
    grads_out = [f"grad_{name}" for name in forward.names]

    def differentiated(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        values = dict(zip(grads_in, grads, strict=True))
        for name, tensor, plain in zip(kept.names, ctx.saved_tensors, ctx.plain, strict=True):
            values[name] = plain if tensor is None else tensor
        if kept.saved and not values["save"]:
            again = operation.dispatched(
                *(True if n == "save" else values[n] for n in forward.names)
            )
            values.update({forward.results[i].name: again[i] for i in kept.saved})
        if prepare is not None:
            values.update(prepare(values))
        found = _tuple(backward.dispatched(*[values[name] for name in wanted.names]))
        by_name = dict(zip(made, found, strict=True))
        if finish is not None:
            by_name.update(finish(values | by_name))
        return _gradients(ctx, [by_name.get(name) for name in grads_out])

    differentiate(forward.name, save=kept.save, backward=differentiated)
    if use is not None:
        differentiate_once(wanted.name, use=use)


class _Kept(NamedTuple):
    """What a forward pass keeps of its inputs and results, by their places in this order."""

    names: list[str]
    places: list[int]
    again: frozenset[int]  # kept only to compute again what was not saved
    flag: int | None  # the place of `save`, if there are saved results
    saved: list[int]  # those, among the results
    unused: list[int]  # results whose gradient is not wanted
    optional: bool  # a missing gradient is not made zeros

    @classmethod
    def of(cls, forward: Declaration, wanted: Declaration, keeps: tuple[str, ...]) -> _Kept:
        """What the backward pass `wanted` of an operation needs."""
        results = [result.name for result in forward.results]
        saved = [i for i, result in enumerate(forward.results) if result.when == "save"]
        every, needed = [*forward.names, *results], {*wanted.names, *keeps}
        names = [n for n in every if n in needed or (saved and n in forward.names)]
        grads_in = [f"grad_{name}" for name in results]
        return cls(
            names,
            [every.index(name) for name in names],
            frozenset(every.index(n) for n in names if n not in needed and n != "save"),
            every.index("save") if saved else None,
            saved,
            [every.index(name) for name in results if f"grad_{name}" not in needed],
            any(argument.optional for argument in wanted.tensors if argument.name in grads_in),
        )

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep it."""
        values = (*inputs, *_tuple(output))
        spare = self.again if self.flag is not None and values[self.flag] else ()
        _keep(ctx, [None if place in spare else values[place] for place in self.places])
        ctx.shapes = [getattr(x, "shape", None) for x in inputs]
        if self.optional:
            ctx.set_materialize_grads(False)
        if self.unused:
            ctx.mark_non_differentiable(*(values[place] for place in self.unused))


def _keep(ctx: Any, values: Sequence[Any]) -> None:
    """Save tensors as autograd wants them, and plain values beside them."""
    tensors = [x if isinstance(x, Tensor) else None for x in values]
    ctx.plain = [x if y is None else None for x, y in zip(values, tensors, strict=True)]
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, found: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The gradient of each input that needs one, in the shape of the input."""
    grads: list[Tensor | None] = [None] * len(found)
    for i, grad in enumerate(found):
        if grad is not None and ctx.needs_input_grad[i]:
            shape = ctx.shapes[i]
            grads[i] = grad if grad.shape == shape else grad.reshape(shape)
    return tuple(grads)


def _tuple(results: Any) -> tuple[Tensor, ...]:
    """The results of an operation, also of one that returns a single tensor."""
    return (results,) if isinstance(results, Tensor) else tuple(results)
