"""op(inputs) = kernel(inputs) where a kernel serves them, else plain torch

The door to the computations: memories and layers call operations only by these names. Each checks
the shapes of its inputs and asks `kernels/dispatch.py` for the kernel. Where none serves the
device, dtype, form or options, the definition in plain torch runs: `kernels/reference.py` for the
operations that have it there; a recurrence returns None, and `memory` runs its own. The other
modules of `kernels` are imported directly only for what is not an operation: the loaded library,
caches, recorded steps, and types such as `Sparse`.
"""

from __future__ import annotations

from threefold.kernels.dispatch import KERNELS, kernels_loaded
from threefold.kernels.ops.basic import (
    block_products,
    embedding,
    linear,
    linear_codes,
    product,
    rms_norm,
    rotary,
    short_convolution,
    swiglu,
    token_shift,
)
from threefold.kernels.ops.classical import random_convolutions, time_warping, word_vectors
from threefold.kernels.ops.filters import (
    cauchy,
    filter_step,
    long_convolution,
    moments,
    online_filter,
    vandermonde,
)
from threefold.kernels.ops.histories import history_step
from threefold.kernels.ops.recurrences import (
    cell_recurrence,
    diagonal_recurrence,
    legs_recurrence,
    linear_recurrence,
    reservoir,
    selective_scan,
    spiking_reservoir,
)

__all__ = [
    "available",
    "block_products",
    "cauchy",
    "cell_recurrence",
    "diagonal_recurrence",
    "embedding",
    "filter_step",
    "history_step",
    "legs_recurrence",
    "linear",
    "linear_codes",
    "linear_recurrence",
    "long_convolution",
    "moments",
    "online_filter",
    "product",
    "random_convolutions",
    "reservoir",
    "rms_norm",
    "rotary",
    "selective_scan",
    "short_convolution",
    "spiking_reservoir",
    "swiglu",
    "time_warping",
    "token_shift",
    "vandermonde",
    "word_vectors",
]


def available(device: str = "cpu") -> dict[str, str]:
    """For each operation, what runs float32 and float64 inputs on a device: native or reference."""
    known = {operation for operation, _ in KERNELS}
    serving = {
        operation
        for (operation, where), kernel in KERNELS.items()
        if where == device and (kernels_loaded() or not kernel.native)
    }
    return {name: "native" if name in serving else "reference" for name in sorted(known)}
