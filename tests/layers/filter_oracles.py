"""Filters against their published layers, written out step by step in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.layers.published import (
    Case,
    Parameters,
    convolve,
    gelu,
    layer_norm,
    linear,
    short_convolution,
)


def h3(p: Parameters, x: Tensor, state_size: int, taps: int) -> Tensor:
    q, k, v = linear(p, "project", x).chunk(3, -1)
    u = short_convolution(k, p["conv.weight"]) * v
    A = torch.complex(-torch.exp(p["decay_log"]), p["angle"])
    delta, C = torch.exp(p["step_log"]).unsqueeze(1), torch.view_as_complex(p["read"])
    decay, B = torch.exp(delta * A), (torch.exp(delta * A) - 1) / A  # zero-order hold of B = 1
    h, out = torch.zeros_like(A), []
    for q_t, u_t in zip(q, u, strict=True):
        h = decay * h + B * u_t.unsqueeze(1)
        out.append(q_t * (2 * (C * h).sum(1).real + p["skip"] * u_t))
    return linear(p, "out", torch.stack(out))


def hyena(p: Parameters, x: Tensor, order: int, max_length: int, features: int) -> Tensor:
    width, bands = x.shape[1], (features - 1) // 2
    t = torch.arange(len(x), dtype=torch.float64).unsqueeze(1)
    angle = (
        2 * math.pi * t / max_length * torch.linspace(1e-4, bands - 1, bands, dtype=torch.float64)
    )
    share = t / (max_length - 1)
    z = torch.cat([share, torch.cos(angle), -torch.sin(angle)], 1)  # real and imaginary of e^{−i·}
    for name in ("first", "second", "third"):
        z = torch.sin(p["filters.frequency"] * linear(p, f"filters.{name}", z))
    slow, fast = math.log(1e-2) / 1.5, math.log(1e-2) / 0.3
    window = torch.exp(share * torch.linspace(slow, fast, width, dtype=torch.float64))
    kernels = (z @ p["filters.last.weight"].T).chunk(order - 1, -1)
    u = short_convolution(linear(p, "project", x), p["conv.weight"], p["conv.bias"])
    v, *gates = u.chunk(order + 1, -1)
    for n, kernel in enumerate(kernels):
        v = v * gates[n]
        v = convolve(v, (kernel * window).T) + p["filters.skip"][n] * v
    return linear(p, "out", v * gates[-1])


def long_conv(p: Parameters, x: Tensor, max_length: int, smooth: int = 0) -> Tensor:
    taps, size = p["filters.coefficients"], 2 * smooth + 1
    padded = torch.nn.functional.pad(taps, (smooth, smooth))
    taps = sum(padded[:, i : i + taps.shape[1]] for i in range(size)) / size  # type: ignore[assignment]
    kernel = taps.sign() * (taps.abs() - 0.003).clamp(min=0)
    y = gelu(convolve(x, kernel) + p["filters.skip"] * x)
    value, gate = linear(p, "out", y).chunk(2, -1)
    return value * torch.sigmoid(gate)


def ckconv(p: Parameters, x: Tensor, max_length: int, hidden: int, frequency: float) -> Tensor:
    width, y = x.shape[1], x
    for n in range(2):
        z = torch.linspace(1, -1, max_length, dtype=torch.float64).unsqueeze(1)
        for layer in ("first", "second", "third"):
            if layer == "first":
                weight = p["filters.first_weight"][n]
            else:
                v, g = p[f"filters.{layer}_direction"][n], p[f"filters.{layer}_magnitude"][n]
                weight = torch.stack(
                    [g[i] * v[i] / v[i].square().sum().sqrt() for i in range(len(v))]
                )
            z = z @ weight.T + p[f"filters.{layer}_bias"][n]
            z = z if layer == "third" else torch.sin(frequency * z)
        out = []
        for t in range(len(x)):
            lags = [y[t - m] @ z[m].view(width, width) for m in range(t + 1)]
            out.append(torch.stack(lags).sum(0) + p["bias"][n])
        y = layer_norm(torch.stack(out)) * p[f"norms.{n}.weight"] + p[f"norms.{n}.bias"]
        y = torch.relu(y)
    return linear(p, "out", torch.relu(y + x))


def s5(p: Parameters, x: Tensor, state_size: int, method: str = "zero_order_hold") -> Tensor:
    A = torch.complex(-torch.exp(p["decay_log"]), p["frequency"])
    B = torch.complex(*p["input.weight"].chunk(2))
    # Stored as [Re C, −Im C]: what Re(C s) reads of real and imaginary parts.
    C = torch.complex(*p["read.weight"].chunk(2, 1)).conj()
    delta = torch.exp(p["delta_log"])
    decay, gain = torch.exp(delta * A), (torch.exp(delta * A) - 1) / A
    if method == "bilinear":
        decay, gain = (1 + delta / 2 * A) / (1 - delta / 2 * A), delta / (1 - delta / 2 * A)
    s, out = torch.zeros_like(A), []
    for x_t in x:
        s = decay * s + gain * (B @ x_t.to(B.dtype))
        out.append(2 * (C @ s).real + p["skip"] * x_t)
    y = gelu(torch.stack(out))
    return y * torch.sigmoid(linear(p, "gate", y))


def bilinear(A: Tensor, B: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Ā = (I − ΔA/2)⁻¹(I + ΔA/2) and B̄ = (I − ΔA/2)⁻¹ΔB of one channel."""
    one = torch.eye(len(A), dtype=A.dtype)
    inverse = torch.linalg.inv(one - delta / 2 * A)
    return inverse @ (one + delta / 2 * A), inverse @ (delta * B)


def filtered(p: Parameters, x: Tensor, systems: list[tuple[Tensor, ...]], glu: bool) -> Tensor:
    """W gelu(Re(C s) + D x), s = Ā s₋ + B̄ x, with (Ā, B̄, C) of every channel."""
    outputs = []
    for channel, (A, B, C) in enumerate(systems):
        s, y = torch.zeros_like(B), []
        for x_t in x[:, channel]:
            s = A @ s + B * x_t
            y.append((C @ s).real + p["skip"][channel] * x_t)
        outputs.append(torch.stack(y))
    y = linear(p, "out", gelu(torch.stack(outputs, 1)))
    if not glu:
        return y
    left, gate = y.chunk(2, -1)
    return left * torch.sigmoid(gate)


def with_conjugates(pairs: Tensor) -> Tensor:
    """Numbers stored as pairs [..., N/2, 2], then their conjugates: [..., N]."""
    numbers = torch.view_as_complex(pairs)
    return torch.cat([numbers, numbers.conj()], -1)


def s4(p: Parameters, x: Tensor, state_size: int, glu: bool = True) -> Tensor:
    poles = with_conjugates(torch.stack([-torch.exp(p["decay_log"]), p["frequency"]], -1))
    P, B, C = (with_conjugates(p[name]) for name in ("P", "B", "C"))
    A = torch.diag(poles) - torch.outer(P, P.conj())
    return filtered(
        p, x, [(*bilinear(A, B, d), c) for d, c in zip(p["delta_log"].exp(), C, strict=True)], glu
    )


def s4d(
    p: Parameters, x: Tensor, state_size: int, method: str = "zero_order_hold", glu: bool = True
) -> Tensor:
    poles = with_conjugates(torch.stack([-torch.exp(p["decay_log"]), p["frequency"]], -1))
    systems = []
    for a, c, delta in zip(poles, with_conjugates(p["C"]), p["delta_log"].exp(), strict=True):
        one = torch.ones_like(a)
        if method == "bilinear":
            systems.append((*bilinear(torch.diag(a), one, delta), c))
        else:
            decay = torch.exp(delta * a)
            systems.append((torch.diag(decay), (decay - 1) / a, c))
    return filtered(p, x, systems, glu)


def lssl(p: Parameters, x: Tensor, state_size: int, glu: bool = False) -> Tensor:
    channels = zip(p["delta_log"].exp(), p["C"], strict=True)
    return filtered(p, x, [(*bilinear(p["A"], p["B"], d), c) for d, c in channels], glu)


CASES: tuple[Case, ...] = (
    ("h3", h3, {"state_size": 8, "taps": 5}),
    ("hyena", hyena, {"order": 2, "max_length": 32, "features": 9}),
    ("hyena", hyena, {"order": 3, "max_length": 24, "features": 9}),
    ("long_conv", long_conv, {"max_length": 24}),
    ("long_conv", long_conv, {"max_length": 32, "smooth": 2}),
    *(("s4", s4, {"state_size": 8, "glu": glu}) for glu in (True, False)),
    ("s4d", s4d, {"state_size": 8}),
    ("s4d", s4d, {"state_size": 8, "method": "bilinear", "glu": False}),
    *(("lssl", lssl, {"state_size": 8, "glu": glu}) for glu in (False, True)),
    ("ckconv", ckconv, {"max_length": 24, "hidden": 6, "frequency": 3.0}),
    ("ckconv", ckconv, {"max_length": 40, "hidden": 5, "frequency": 7.0}),
    ("s5", s5, {"state_size": 12}),
    ("s5", s5, {"state_size": 12, "method": "bilinear"}),
)
