"""op(inputs) = native(inputs) where a native kernel serves them, else plain torch

The door to the computations: memories and layers call operations only by these names. Each checks
the shapes of its inputs, then runs the native kernel, or its definition in plain torch where there
is no kernel for the device, dtype or options: `kernels/reference.py` for the operations that have
it there, else the function that the caller passes as `otherwise`. The other modules of `kernels`
are imported directly only for what is not an operation: the loaded library, caches, recorded steps,
and types such as `Sparse`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from threefold.kernels import library as _library
from threefold.kernels.dispatch import has_kernel, may_call_directly
from threefold.kernels.ops.basic import linear, rms_norm, short_convolution, token_shift
from threefold.kernels.ops.classical import random_convolutions, time_warping
from threefold.kernels.ops.filters import (
    cauchy,
    long_convolution,
    moments,
    online_filter,
    vandermonde,
)
from threefold.kernels.ops.recurrences import (
    cell_recurrence,
    diagonal_recurrence,
    legs_recurrence,
    linear_recurrence,
    reservoir,
    selective_scan,
)
from threefold.kernels.replay import program as _program

__all__ = [
    "NATIVE",
    "available",
    "cauchy",
    "cell_recurrence",
    "diagonal_recurrence",
    "legs_recurrence",
    "linear",
    "linear_recurrence",
    "long_convolution",
    "moments",
    "online_filter",
    "random_convolutions",
    "reservoir",
    "rms_norm",
    "runs_programs",
    "selective_scan",
    "short_convolution",
    "time_warping",
    "token_shift",
    "vandermonde",
]

# The operations that have a native kernel.
NATIVE = (
    "short_convolution",
    "linear",
    "rms_norm",
    "token_shift",
    "selective_scan",
    "decay_recurrence",
    "delta_recurrence",
    "cell_recurrence",
    "legs_recurrence",
    "diagonal_recurrence",
    "long_convolution",
    "online_convolution",
    "vandermonde",
    "reservoir",
    "cauchy",
)


def available() -> dict[str, str]:
    """For each operation, what runs float32 and float64 inputs on the CPU: native or reference."""
    kind = "reference" if _library.current().native is None else "native"
    return dict.fromkeys(NATIVE, kind)


def runs_programs(x: Tensor) -> bool:
    """Whether the step of one element x [B, 1, width] may run as a recorded program."""
    return (
        _program.few_enough_rows(len(x))
        and has_kernel(x)
        and may_call_directly(x)
        and not torch.is_autocast_enabled("cpu")
    )
