"""Cells against their published equations, written out step by step in float64."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from tests.layers.published import (
    Case,
    Parameters,
    heads_of,
    layer_norm,
    linear,
    over_time,
    short_convolution,
    silu,
)

σ, tanh = torch.sigmoid, torch.tanh


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def gates(p: Parameters, x: Tensor, h: Tensor, count: int) -> tuple[Tensor, ...]:
    """W x + b + U h₋ of one element, gate by gate."""
    return (linear(p, "input", x) + p["recurrent"][0] @ h).chunk(count)


def rnn(p: Parameters, x: Tensor) -> Tensor:
    h, out = zeros(p["recurrent"].shape[-1]), []
    for x_t in x:
        h = tanh(gates(p, x_t, h, 1)[0])
        out.append(h)
    return linear(p, "out", torch.stack(out))


def lstm(p: Parameters, x: Tensor, full: bool = False) -> Tensor:
    """With peepholes where there are any: vectors, or matrices if `full`."""
    size = p["recurrent"].shape[-1]
    peephole = p.get("peephole", zeros(3, size))
    peepholes = peephole if full else torch.diag_embed(peephole)
    h, c, out = zeros(size), zeros(size), []
    for x_t in x:
        i, f, g, o = gates(p, x_t, h, 4)
        c = σ(f + peepholes[1] @ c) * c + σ(i + peepholes[0] @ c) * tanh(g)
        h = σ(o + peepholes[2] @ c) * tanh(c)
        out.append(h)
    return torch.stack(out)


def coupled_lstm(p: Parameters, x: Tensor) -> Tensor:
    size = p["recurrent"].shape[-1]
    h, c, out = zeros(size), zeros(size), []
    for x_t in x:
        f, g, o = gates(p, x_t, h, 3)
        c = σ(f) * c + (1 - σ(f)) * tanh(g)
        h = σ(o) * tanh(c)
        out.append(h)
    return torch.stack(out)


def gru(p: Parameters, x: Tensor, reset_after: bool = False, update_writes: bool = False) -> Tensor:
    matrix = p["recurrent"][0].chunk(3)[2]
    h, out = zeros(matrix.shape[-1]), []
    for x_t in x:
        r, z = (σ(gate) for gate in gates(p, x_t, h, 3)[:2])
        candidate = linear(p, "input", x_t).chunk(3)[2]
        if reset_after:
            candidate = tanh(candidate + r * (matrix @ h + p["inner_bias"][0]))
        else:
            candidate = tanh(candidate + matrix @ (r * h))
        kept = 1 - z if update_writes else z
        h = kept * h + (1 - kept) * candidate
        out.append(h)
    return torch.stack(out)


def blocks(p: Parameters, name: str, x: Tensor) -> Tensor:
    """x [L, D] times a block-diagonal matrix, as [L, blocks, outputs of a block]."""
    weight = p[f"{name}.weight"]
    y = torch.einsum("lni,nio->lno", heads_of(x, len(weight)), weight)
    return y + p[f"{name}.bias"].view(len(weight), -1)


def slstm(p: Parameters, x: Tensor, heads: int) -> Tensor:
    """Without the stabiliser, which changes no output."""
    convolved = silu(short_convolution(x, p["conv.weight"], p["conv.bias"]))
    z, o = blocks(p, "write", x).chunk(2, -1)
    i, f = blocks(p, "gates", convolved).chunk(2, -1)
    h = c = n = torch.zeros_like(z[0])
    out = []
    for z_t, i_t, f_t, o_t in over_time(z, i, f, o):
        u = torch.einsum("ns,nos->no", h, p["recurrent"]).chunk(4, -1)
        write, keep = torch.exp(i_t + u[1]), σ(f_t + u[2])
        c, n = keep * c + write * tanh(z_t + u[0]), keep * n + write
        h = σ(o_t + u[3]) * c / n
        out.append((layer_norm(h) * p["norm_weight"]).flatten())
    return torch.stack(out)


def positive_part(x: Tensor, positive: bool) -> Tensor:
    return torch.where(x >= 0, x + 0.5, σ(x)) if positive else x


def min_gru(p: Parameters, x: Tensor, positive: bool = True) -> Tensor:
    h, out = zeros(len(p["update.bias"])), []
    for x_t in x:
        z = σ(linear(p, "update", x_t))
        h = (1 - z) * h + z * positive_part(linear(p, "candidate", x_t), positive)
        out.append(h)
    return linear(p, "out", torch.stack(out))


def min_lstm(p: Parameters, x: Tensor, positive: bool = True) -> Tensor:
    h, out = zeros(len(p["forget.bias"])), []
    for x_t in x:
        f, i = σ(linear(p, "forget", x_t)), σ(linear(p, "write", x_t))
        h = (f * h + i * positive_part(linear(p, "candidate", x_t), positive)) / (f + i)
        out.append(h)
    return linear(p, "out", torch.stack(out))


def lru(p: Parameters, x: Tensor) -> Tensor:
    decay = torch.exp(torch.complex(-p["decay_log"].exp(), p["angle_log"].exp()))
    read = torch.complex(*p["out.weight"].chunk(2, 1)).conj()  # the sign of Im is the weight's
    h, out = torch.zeros_like(decay), []
    for x_t in x:
        h = decay * h + torch.complex(*linear(p, "input", x_t).chunk(2)) * p["scale_log"].exp()
        out.append((read @ h).real + p["skip"] * x_t)
    return torch.stack(out)


def rg_lru(p: Parameters, x: Tensor, heads: int, scale_first: bool = True) -> Tensor:
    u = short_convolution(linear(p, "input", x), p["conv.weight"], p["conv.bias"])
    a = σ(-p["rate"]) ** (8 * σ(blocks(p, "forget", u).flatten(1)))
    write = σ(blocks(p, "write", u).flatten(1)) * u
    h, hidden = torch.zeros_like(u[0]), []
    for t, (a_t, w_t) in enumerate(over_time(a, write)):
        h = a_t * h + ((1 - a_t**2).sqrt() if t or scale_first else 1.0) * w_t
        hidden.append(h)
    gate = torch.nn.functional.gelu(linear(p, "gate", x), approximate="tanh")
    return linear(p, "out", torch.stack(hidden) * gate)


def esn(p: Parameters, x: Tensor, leak: float) -> Tensor:
    matrix, starts = zeros(len(p["bias_in"]), len(p["bias_in"])), p["starts"].tolist()
    for row, (first, last) in enumerate(pairwise(starts)):
        matrix[row, p["columns"][first:last].long()] = p["values"][first:last]
    h, out = zeros(len(matrix)), []
    for x_t in x:
        h = (1 - leak) * h + leak * tanh(p["weight_in"] @ x_t + p["bias_in"] + matrix @ h)
        out.append(torch.cat([x_t, h]))
    return linear(p, "out", torch.stack(out))


def legendre(order: int, window: float) -> tuple[Tensor, Tensor, Tensor]:
    """A and B of Voelker et al. 2019, equations 2 and 3, and their coefficients over ours."""
    n = torch.arange(order, dtype=torch.float64)
    i, j = torch.meshgrid(n, n, indexing="ij")
    sign = torch.where(i < j, -torch.ones_like(i), (-1.0) ** (i - j + 1))
    scale = (-1.0) ** n * torch.sqrt(2 * n + 1)
    return (2 * i + 1) * sign / window, (2 * n + 1) * (-1.0) ** n / window, scale


def lmu(p: Parameters, x: Tensor, order: int, window: float, recurrent: bool = True) -> Tensor:
    A, B, scale = legendre(order, window)
    # Zero-order hold: e^[[A, B], [0, 0]] = [[Ā, B̄], [0, 1]].
    held = torch.zeros(order + 1, order + 1, dtype=torch.float64)
    held[:order, :order], held[:order, order] = A, B
    held = torch.linalg.matrix_exp(held)[:order]
    h, m, out = zeros(len(p["read"])), zeros(order), []
    for x_t in x:
        u = p["encode.weight"] @ x_t
        if recurrent:
            u = u + p["units.from_hidden"] @ h + p["units.from_memory"] @ (m / scale)
        m = held[:, :order] @ m + held[:, order] * u
        past = p["units.recurrent"] @ h if recurrent else 0.0
        h = tanh(linear(p, "input", x_t) + past + p["read"] @ (m / scale))
        out.append(h)
    return torch.stack(out)


def legs(order: int) -> tuple[Tensor, Tensor]:
    """A and B of Gu et al. 2020, theorem 2."""
    n = torch.arange(order, dtype=torch.float64)
    roots = torch.sqrt(2 * n + 1)
    return -(torch.outer(roots, roots).tril(-1) + torch.diag(n + 1)), roots


def legt(order: int, window: float) -> tuple[Tensor, Tensor]:
    """A and B of theorem 1, in coefficients of orthonormal polynomials."""
    A, B, scale = legendre(order, window)
    return A * scale / scale.unsqueeze(1), B / scale


def lagt(order: int, window: float) -> tuple[Tensor, Tensor]:
    """A and B of theorem 1 for Laguerre polynomials, in units of the window."""
    ones = torch.ones(order, order, dtype=torch.float64)
    return -ones.tril() / window, ones[0] / window


def hippo_rnn(p: Parameters, x: Tensor, order: int, window: float, measure: str) -> Tensor:
    A, B = {
        "legs": lambda: legs(order),
        "legt": lambda: legt(order, window),
        "lagt": lambda: lagt(order, window),
    }[measure]()
    one = torch.eye(order, dtype=torch.float64)
    h, c, out = zeros(p["say"].shape[1]), zeros(order), []
    for t, x_t in enumerate(x, 1):
        both = linear(p, "input", x_t) + p["recurrent"][0] @ h + p["read"] @ c
        candidate, gate = both.chunk(2)
        h = (1 - σ(gate)) * h + σ(gate) * tanh(candidate)
        step, push = (A / t, B / t) if measure == "legs" else (A, B)
        c = torch.linalg.solve(one - step / 2, (one + step / 2) @ c + push * (p["say"] @ h))
        out.append(h)
    return torch.stack(out)


HIPPO = {"order": 6, "window": 20.0}
CASES: tuple[Case, ...] = (
    ("rnn", rnn, {}),
    ("lstm", lstm, {}),
    ("peephole_lstm", lstm, {}),
    ("peephole_lstm", lstm, {"full": True}),
    ("coupled_lstm", coupled_lstm, {}),
    ("gru", gru, {}),
    *(
        ("gru", gru, {"reset_after": after, "update_writes": writes})
        for after, writes in ((True, False), (False, True), (True, True))
    ),
    ("slstm", slstm, {"heads": 2}),
    *(("min_gru", min_gru, {"positive": positive}) for positive in (True, False)),
    *(("min_lstm", min_lstm, {"positive": positive}) for positive in (True, False)),
    ("lru", lru, {}),
    *(("rg_lru", rg_lru, {"heads": 2, "scale_first": first}) for first in (True, False)),
    ("esn", esn, {"leak": 0.4}),
    *(("lmu", lmu, {**HIPPO, "recurrent": recurrent}) for recurrent in (True, False)),
    *(("hippo_rnn", hippo_rnn, {**HIPPO, "measure": m}) for m in ("legs", "legt", "lagt")),
)
