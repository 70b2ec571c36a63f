"""has_kernel(x) = x is on the CPU, its dtype has kernels, and the kernels are loaded

Decides whether a native kernel can run, and whether it may be called without torch's dispatcher.
`ops` asks for every operation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.linear import PLAIN_TENSOR_TYPES


def kernels_loaded() -> bool:
    """Whether native kernels are in use."""
    return library.current().native is not None


# Under torch.compile the answer is a constant of the graph. This is what torch.compiler's decorator
# does; the decorator would import the compiler, which takes longer than importing torch.
kernels_loaded._dynamo_marked_constant = True  # type: ignore[attr-defined]


def has_kernel(x: Tensor) -> bool:
    """Whether the native kernels can run on x."""
    return x.device.type == "cpu" and x.dtype in library.SUFFIXES and kernels_loaded()


def may_call_directly(*inputs: Tensor | None) -> bool:
    """Whether the kernel may be called without torch's dispatcher, which takes longer than a step.

    Only for plain tensors without gradients: autograd, subclasses, function transforms and
    compilation need the dispatcher.
    """
    return (
        not torch.compiler.is_compiling()
        and not torch.is_grad_enabled()
        and not torch._C._are_functorch_transforms_active()
        and all(x is None or (type(x) in PLAIN_TENSOR_TYPES and not x.is_neg()) for x in inputs)
    )
