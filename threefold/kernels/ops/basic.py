"""Linear maps, norms, short convolutions and token shifts: the parts that most layers have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from threefold.kernels import block_product as _block_product
from threefold.kernels import linear as _linear
from threefold.kernels import matrix_product as _matrix_product
from threefold.kernels import reference
from threefold.kernels import rms_norm as _rms_norm
from threefold.kernels import rotary as _rotary
from threefold.kernels import short_convolution as _short_convolution
from threefold.kernels import swiglu as _swiglu
from threefold.kernels import token_shift as _token_shift
from threefold.kernels.autocast import promote, under_autocast
from threefold.kernels.checks import check_lengths, refuse
from threefold.kernels.dispatch import kernel_for, may_call_directly
from threefold.kernels.replay.activity import active_recorder


def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    state: Tensor | None = None,
    lengths: Tensor | None = None,
    *,
    silu: bool = False,
) -> tuple[Tensor, Tensor]:
    """Causal depthwise convolution, `y_t = bias + Σ_k weight_k · x_{t−K+1+k}`.

    x `[B, L, D]`, weight `[D, K]` (its last column multiplies the current element), bias `[D]`;
    state `[B, K−1, D]` is the K−1 inputs before x, zeros if None. lengths `[B]` (int64) is the
    number of real elements in each row: the others are not read, and y is 0 there. `silu` applies
    SiLU to y. Returns y `[B, L, D]` and the new state, the last K−1 real inputs.
    """
    carried = x.dtype if state is None else state.dtype
    x, weight, bias, state = promote(x, weight, bias, state)
    expected = _short_convolution.expected(x, weight, bias, state, lengths)
    if expected:
        given = {"x": x, "weight": weight, "bias": bias, "state": state, "lengths": lengths}
        refuse("short_convolution", expected, given)
    run = kernel_for("short_convolution", x)
    if run is None or weight.shape[1] > _short_convolution.MAX_TAPS:
        check_lengths(lengths, x.shape[1])
        run = reference.short_convolution
    y, after = run(x, weight, bias, state, lengths, silu)
    return y, after.to(carried)


def embedding(tokens: Tensor, table: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Rows of a table of bfloat16, or of int8 codes with a scale for each row, in another dtype."""
    recorder = active_recorder()
    with nullcontext() if recorder is None else recorder.not_watching():
        y = table[tokens].to(dtype)
        y = y if scale is None else y * scale[tokens].unsqueeze(-1).to(dtype)
    if recorder is not None:
        recorder.gather_narrow(y, table, scale, tokens)
    return y


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`y = x Wᵀ + bias` along the last axis: x `[…, I]`, weight `[O, I]`, bias `[O]`.

    A few rows without gradients run on the native kernel: a row's result has the same bits whatever
    the other rows are, and products with bfloat16 weights are summed in float32. With bfloat16
    weights x is bfloat16 or float32, and y has the dtype of x. Large products of float32 are by
    oneDNN where that is faster (`matrix_product.py`).
    """
    if may_call_directly(x) and not under_autocast(x):
        run = kernel_for("linear", x)
        y: Tensor | None = None if run is None else run(x, weight, bias)
        if y is not None:
            return y
    expected = _linear.expected(x, weight, bias)
    if expected:
        refuse("linear", expected, {"x": x, "weight": weight, "bias": bias})
    return (_large_product(x, weight, bias) or reference.linear)(x, weight, bias)


def product(x: Tensor, matrix: Tensor) -> Tensor:
    """`y = x matrix` along the last axis: x `[…, I]`, matrix `[I, O]`; large ones as `linear`."""
    weight = matrix.t()
    run = _large_product(x, weight, None)
    return x @ matrix if run is None else run(x, weight, None)


def _large_product(
    x: Tensor, weight: Tensor, bias: Tensor | None
) -> Callable[[Tensor, Tensor, Tensor | None], Tensor] | None:
    serves = _matrix_product.serves(x, weight, bias)
    return kernel_for("matrix_product", x) if serves else None


def block_products(inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Products with block-diagonal matrices, side by side: `y_nj = Σ_i x_ni W_nij`.

    inputs `[B, L, N·I]` and as many weights `[N, I, J]`; y `[B, L, Σ N·J]`.
    """
    expected = _block_product.expected(inputs, weights)
    if expected:
        named = {"x": inputs, "weight": weights}
        given = {f"{name}{i}": t for name, some in named.items() for i, t in enumerate(some)}
        refuse("block_products", expected, given)
    serves = _block_product.serves(inputs, weights)
    run = kernel_for("block_products", inputs[0]) if serves else None
    y: Tensor = (run or reference.block_products)(inputs, weights)
    return y


def linear_codes(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """`y = scale ⊙ (x codesᵀ) + bias` along the last axis: int8 codes `[O, I]`, scale `[O]`.

    A few rows without gradients run on the native kernel, as in `linear`; for more of them, and
    with gradients, the codes are widened first.
    """
    if codes.dim() != 2 or codes.shape[1] != x.shape[-1] or scale.shape != codes.shape[:1]:
        given = {"x": x, "codes": codes, "scale": scale, "bias": bias}
        refuse("linear_codes", "x […, I], codes [O, I], scale [O]", given)
    if may_call_directly(x) and not under_autocast(x):
        run = kernel_for("linear_codes", x)
        y: Tensor | None = None if run is None else run(x, codes, scale, bias)
        if y is not None:
            return y
    return reference.linear(x, codes.to(scale.dtype) * scale.unsqueeze(1), bias)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    eps: float = 1e-5,
    gate_first: bool = False,
) -> Tensor:
    """`y = x / √(mean(x²) + eps) ⊙ weight ⊙ silu(gate)` along the last axis, in x's dtype.

    x and gate `[…, D]`, weight `[D]` or `[G, D]` for x `[…, G, D]`; both optional. `gate_first`
    multiplies x by silu(gate) before the norm (Mamba-2). Correct also where x² overflows.
    """
    x, weight, gate = promote(x, weight, gate)
    expected = _rms_norm.expected(x, weight, gate)
    if expected:
        refuse("rms_norm", expected, {"x": x, "weight": weight, "gate": gate})
    alike = all(t is None or (t.dtype == x.dtype and t.device == x.device) for t in (weight, gate))
    run = kernel_for("rms_norm", x) if alike else None
    y: Tensor = (run or reference.rms_norm)(x, weight, gate, eps, gate_first)
    return y


def swiglu(gate: Tensor, x: Tensor) -> Tensor:
    """`y = silu(gate) ⊙ x`, of one shape."""
    if torch.is_autocast_enabled("cpu"):  # keeps what the layers before it made
        return F.silu(gate) * x
    gate, x = promote(gate, x)
    expected = _swiglu.expected(gate, x)
    if expected:
        refuse("swiglu", expected, {"gate": gate, "x": x})
    run = kernel_for("swiglu", gate)
    y: Tensor = (run or reference.swiglu)(gate, x)
    return y


def rotary(
    query: Tensor, key: Tensor, position: Tensor, frequencies: Tensor
) -> tuple[Tensor, Tensor]:
    """Channels i and i + size//2 of both turned by position · frequency_i (rotary positions).

    query and key `[B, L, H, size]`, `position` int64 `[B]` where each row starts, `frequencies`
    float64 `[size//2]`. Angles are float64 (float32 is off by 1.6e-2 after a million elements). An
    odd last channel is unchanged. There may be fewer queries than keys: the first elements'.
    """
    serves = _rotary.serves(query, key, position, frequencies)
    serves = serves and not torch.is_autocast_enabled("cpu")  # keeps more for the backward pass
    run = kernel_for("rotary", query) if serves else None
    turned: tuple[Tensor, Tensor] = (run or reference.rotary)(query, key, position, frequencies)
    return turned


def token_shift(
    x: Tensor, shares: Tensor, state: Tensor | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """N mixtures of each element and the one before it, `y_n = x + (x₋ − x) ⊙ share_n`.

    x `[B, L, D]`, shares `[N, D]`, state `[B, D]` the element before x (zeros if None), lengths
    `[B]` as in `short_convolution`. Returns y `[N, B, L, D]` and the last real element.
    """
    carried = x.dtype if state is None else state.dtype
    x, shares, state = promote(x, shares, state)
    expected = _token_shift.expected(x, shares, state, lengths)
    if expected:
        given = {"x": x, "shares": shares, "state": state, "lengths": lengths}
        refuse("token_shift", expected, given)
    run = kernel_for("token_shift", x)
    if run is None:
        check_lengths(lengths, x.shape[1])
        run = reference.token_shift
    mixtures, last = run(x, shares, state, lengths)
    return mixtures, last.to(carried)
