"""y = kernel ∗ x: long filters as convolutions, as sums over poles, and one element at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from threefold.kernels import cauchy as _cauchy
from threefold.kernels import filter_step as _filter_step
from threefold.kernels import long_convolution as _long_convolution
from threefold.kernels import online_convolution as _online_convolution
from threefold.kernels import reference
from threefold.kernels import vandermonde as _vandermonde
from threefold.kernels.autocast import promote
from threefold.kernels.checks import refuse
from threefold.kernels.dispatch import kernel_for, may_call_directly


def long_convolution(
    x: Tensor,
    kernel: Tensor,
    skip: Tensor | None = None,
    gate: Tensor | None = None,
    *,
    first: int = 0,
    whole: bool = False,
) -> Tensor:
    """`y_t = gate_t (Σ_m kernel_m x_{t−m} + skip x_t)` of each channel, for t from `first` on.

    x `[B, S, D]`, kernel `[D, K]`, skip `[D]`, gate and y `[B, S − first, D]`. Computed by one
    Fourier transform if `whole`, else in blocks where that is less work.
    """
    x, kernel, skip, gate = promote(x, kernel, skip, gate)
    given = {"x": x, "kernel": kernel, "skip": skip, "gate": gate}
    expected = _long_convolution.expected(x, kernel, skip, gate, first)
    if expected:
        refuse("long_convolution", expected, given)
    kernel = kernel[:, : x.shape[1]]
    run = kernel_for("long_convolution", x)
    if run is None:
        return reference.long_convolution(x, kernel, skip, gate, first=first)
    y: Tensor = run(x, kernel, skip, gate, first=first, whole=whole)
    return y


def vandermonde(
    factor: Tensor,
    coefficient: Tensor,
    length: int,
    *,
    lengths: Tensor | None = None,
    backwards: bool = False,
    dtype: torch.dtype,
) -> Tensor:
    """`y_l = Re Σ_n c_n w_n^l` of every channel, l < length, without the matrix of powers.

    factor w `[D, N, 2]`, coefficient c `[R, D, N, 2]`, pairs of float64. `backwards`
    counts l from a row's last element back; lengths `[R]` (int64) gives each row's length, and y is
    0 after it. Returns y `[R, length, D]` in dtype.
    """
    expected = _vandermonde.expected(factor, lengths, coefficient=coefficient)
    if expected:
        refuse("vandermonde", expected, {"factor": factor, "coefficient": coefficient})
    run = kernel_for("vandermonde", factor, dtype=dtype) or reference.vandermonde
    y: Tensor = run(factor, coefficient, lengths, length, backwards, dtype)
    return y


def moments(
    x: Tensor, factor: Tensor, *, lengths: Tensor | None = None, backwards: bool = False
) -> Tensor:
    """`m_n = Σ_l x_l w_n^l` for x `[R, L, D]`, the rest as in `vandermonde`: `[R, D, N, 2]`."""
    expected = _vandermonde.expected(factor, lengths, x=x)
    if expected:
        refuse("moments", expected, {"x": x, "factor": factor})
    sums: Tensor = (kernel_for("moments", x) or reference.moments)(x, factor, lengths, backwards)
    return sums


def cauchy(p: Tensor, q: Tensor, square: Tensor, real: Tensor, points: Tensor) -> Tensor:
    """`F_jk = Σ_n (i σ_k p_jn − c_k q_jn) / (c_k² m_n − σ_k² − 2 i σ_k c_k r_n)`, no matrix stored.

    p, q `[D, 4, N]`, square m and real r `[D, N]`, points (σ, c) `[2, K]`, float64.
    Returns F `[D, 4, K]`.
    """
    expected = _cauchy.expected(p, q, square, real, points)
    if expected:
        refuse("cauchy", expected, {"p": p, "q": q, "square": square, "real": real})
    sums: Tensor = (kernel_for("cauchy", p) or reference.cauchy)(p, q, square, real, points)
    return sums


def filter_step(
    x: Tensor,
    state: Tensor,
    factor: Tensor,
    write: Tensor,
    read: Tensor,
    skip: Tensor | None,
) -> tuple[Tensor, Tensor] | None:
    """`s = w ⊙ s₋ + b x`, `y = Re Σ_n conj(c_n) s_n + skip x`: one element; None: no kernel serves.

    x `[B, D]`, skip `[D]`, factor w `[D, 2, N]`, write b and read c `[D, 2·N]`, real parts first,
    state `[B, D, 2·N]` or of pairs `[B, D, N, 2]`. Returns y and the new state.
    """
    tensors = (x, state, factor, write, read, skip)
    if not may_call_directly(*tensors):
        return None
    expected = _filter_step.expected(*tensors)
    if expected:
        refuse("filter_step", expected, {"x": x, "state": state, "factor": factor})
    run = kernel_for("filter_step", x)
    if run is None:
        return None
    made: tuple[Tensor, Tensor] = run(*tensors)
    return made


def online_filter(kernel: Tensor, skip: Tensor | None) -> _online_convolution.OnlineFilter | None:
    """The filter prepared for one element at a time; None where no kernel serves."""
    if not may_call_directly(kernel, skip):
        return None
    prepare = kernel_for("online_convolution", kernel)
    return None if prepare is None else prepare(kernel, skip)
