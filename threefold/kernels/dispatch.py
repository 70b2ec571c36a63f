"""kernel = KERNELS[operation, device]  where it serves the dtype, form and length; else plain torch

The one place that decides what runs. Every operation of `ops` asks it; the modules of the native
kernels put their entries into the table, and another device's kernels would be further entries.
It also says whether a kernel may be called without torch's dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from threefold.kernels import library
from threefold.kernels.checks import PLAIN_TENSOR_TYPES
from threefold.kernels.replay.activity import active_recorder


class Kernel(NamedTuple):
    """An implementation of an operation on one kind of device."""

    run: Callable[..., Any]
    dtypes: tuple[torch.dtype, ...]
    shortest: int  # with fewer elements it costs more than it saves
    native: bool  # part of the compiled library, which may not be there


# (operation, kind of device) → the kernel. What has no entry runs in plain torch.
KERNELS: dict[tuple[str, str], Kernel] = {}


def register_kernel(
    operation: str,
    device: str,
    run: Callable[..., Any],
    *,
    dtypes: tuple[torch.dtype, ...] = tuple(library.SUFFIXES),
    shortest: int = 1,
    native: bool = True,
) -> None:
    """Put a kernel into the table, in place of an earlier one for the same device."""
    KERNELS[operation, device] = Kernel(run, dtypes, shortest, native)


def kernel_for(
    operation: str,
    x: Tensor,
    *,
    form: str = "chunk",
    chunk: int | None = None,
    dtype: torch.dtype | None = None,
) -> Callable[..., Any] | None:
    """The kernel for inputs like x [B, L, …] in a form; None: run the definition in plain torch.

    `dtype` is that of the numbers, if it is not that of x.
    """
    # The name of a device takes longer to find than all the rest.
    kernel = KERNELS.get((operation, "cpu" if x.is_cpu else x.device.type))
    if kernel is None or (dtype or x.dtype) not in kernel.dtypes:
        return None
    if kernel.native and (not kernels_loaded() or needs_definition()):
        return None
    if kernel.shortest > 1 and x.shape[1] < kernel.shortest:
        return None
    # x of an operation without forms may have no second axis.
    length = x.shape[1] if form == "step" else 0
    return kernel.run if runs_on_kernels(form, length, chunk) else None


def runs_on_kernels(form: str, length: int, chunk: int | None = None) -> bool:
    """Whether kernels run a form: chunks of the default length, one element without gradients.

    The step with gradients or in a loop, chunks of a given length and the parallel form are the
    definitions that the kernels are tested against.
    """
    if form == "step":
        return length == 1 and not torch.is_grad_enabled()
    return form == "chunk" and chunk is None


def kernels_loaded() -> bool:
    """Whether native kernels are in use."""
    return library.current().native is not None


# Under torch.compile the answer is a constant of the graph. This is what torch.compiler's decorator
# does; the decorator would import the compiler, which takes longer than importing torch.
kernels_loaded._dynamo_marked_constant = True  # type: ignore[attr-defined]


def transforms_active() -> bool:
    """Whether torch.func transforms what runs, or forward-mode derivatives are computed."""
    if torch.compiler.is_compiling():
        return False
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def needs_definition() -> bool:
    """Whether derivatives are computed in a way that native kernels do not know.

    They have a backward pass for autograd, but none for torch.func (grad, vjp, jacrev) and no
    forward-mode derivative, which torch would then take for zero in silence.
    """
    if not transforms_active():
        return False
    if forward_ad._current_level >= 0:
        return True
    return any(level.key() != TransformType.Vmap for level in get_interpreter_stack() or ())


def operations_watched() -> bool:
    """Whether something sees every operation of torch: a mode of the user, `make_fx`, a trace.

    A device by default (`with torch.device(…)`) is a mode, too, but sees nothing.
    """
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None:
        return True
    if not torch._C._len_torch_function_stack():
        return False
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return not all(isinstance(mode, DeviceContext) for mode in modes)


def may_call_directly(*inputs: Tensor | None) -> bool:
    """Whether the kernel may be called without torch's dispatcher, which takes longer than a step.

    Only for plain tensors without gradients: autograd, subclasses, function transforms, traces,
    modes and compilation need the dispatcher. What records a step sees direct calls.
    """
    return (
        not torch.compiler.is_compiling()
        and not torch.is_grad_enabled()
        and not transforms_active()
        and (active_recorder() is not None or not operations_watched())
        and all(x is None or (type(x) in PLAIN_TENSOR_TYPES and not x.is_neg()) for x in inputs)
    )


def needs_saving(*inputs: Tensor | None) -> bool:
    """Whether a backward pass may follow, so that a kernel has to save what it needs."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
