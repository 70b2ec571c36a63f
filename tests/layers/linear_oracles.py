"""Linear recurrences against their published layers, written out step by step in float64."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.layers.published import (
    Case,
    Parameters,
    heads_of,
    layer_norm,
    over_time,
    rms,
    short_convolution,
    silu,
    softplus,
    unit,
)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def read(query: Tensor, memory: Tensor) -> Tensor:
    """o = Sᵀq of each head: query [H, K], memory [H, K, V]."""
    return torch.einsum("hk,hkv->hv", query, memory)


def outer(key: Tensor, value: Tensor) -> Tensor:
    return key.unsqueeze(-1) * value.unsqueeze(-2)


def rotated(x: Tensor, frequencies: Tensor) -> Tensor:
    """x [L, H, size] with channels (i, i + size/2) turned by t · frequencies[i]."""
    angle = (torch.arange(len(x)).unsqueeze(1) * frequencies).unsqueeze(1)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def convolved_heads(
    p: Parameters, x: Tensor, heads: int, taps: int = 4, *, silu_always: bool = True
) -> list[Tensor]:
    """Query, key and value: projection, short convolution, SiLU."""
    fields = []
    for name in ("query", "key", "value"):
        y = x @ p[f"convolved.projections.{name}.weight"].T
        y = short_convolution(y, p[f"convolved.convolutions.{name}.weight"]) if taps else y
        fields.append(heads_of(silu(y) if taps or silu_always else y, heads))
    return fields


def linear_attention(
    p: Parameters, x: Tensor, heads: int, normalise: bool = True, eps: float = 1e-5
) -> Tensor:
    q, k, v = (
        heads_of(x @ p[f"{f}.weight"].T + p[f"{f}.bias"], heads) for f in ("query", "key", "value")
    )
    q, k = (torch.where(y > 0, y + 1, y.exp()) for y in (q, k))  # elu + 1
    S, z, out = zeros(heads, k.shape[-1], v.shape[-1]), zeros(heads, k.shape[-1]), []
    for q_t, k_t, v_t in over_time(q, k, v):
        S, z = S + outer(k_t, v_t), z + k_t
        o, total = read(q_t, S), (z * q_t).sum(-1, keepdim=True)
        out.append((o / total if normalise else rms(o, p["norm.weight"], eps)).flatten())
    return torch.stack(out) @ p["out.weight"].T + p["out.bias"]


def delta_net(
    p: Parameters,
    x: Tensor,
    heads: int,
    negative_eigenvalues: bool = False,
    taps: int = 4,
    eps: float = 1e-5,
    expand_key: float = 1.0,
) -> Tensor:
    q, k, v = convolved_heads(p, x, heads, taps)
    q, k = unit(q) * q.shape[-1] ** -0.5, unit(k)
    beta = torch.sigmoid(x @ p["strength.weight"].T) * (2 if negative_eigenvalues else 1)
    S, out = zeros(heads, k.shape[-1], v.shape[-1]), []
    for q_t, k_t, v_t, b_t in over_time(q, k, v, beta):
        stored = read(k_t, S)
        S = S + outer(k_t, b_t.unsqueeze(-1) * (v_t - stored))
        out.append(rms(read(q_t, S), p["norm.weight"], eps).flatten())
    return torch.stack(out) @ p["out.weight"].T


def gated_rfa(p: Parameters, x: Tensor, heads: int) -> Tensor:
    q, k, v = (
        heads_of(x @ p[f"{f}.weight"].T + p[f"{f}.bias"], heads) for f in ("query", "key", "value")
    )
    gate = torch.sigmoid(x @ p["forget.weight"].T + p["forget.bias"])
    count = p["random"].shape[1]

    def phi(y: Tensor) -> Tensor:
        angle = torch.einsum("lhk,hdk->lhd", unit(y) * p["sigma"], p["random"])
        return torch.cat([angle.sin(), angle.cos()], -1) / math.sqrt(count)

    S, z, out = zeros(heads, 2 * count, v.shape[-1]), zeros(heads, 2 * count), []
    for q_t, k_t, v_t, g_t in over_time(phi(q), phi(k), v, gate):
        g = g_t.unsqueeze(-1)
        S = g.unsqueeze(-1) * S + (1 - g).unsqueeze(-1) * outer(k_t, v_t)
        z = g * z + (1 - g) * k_t
        total = (z * q_t).sum(-1, keepdim=True).clamp(min=0.1)
        out.append((read(q_t, S) / total).flatten())
    return torch.stack(out) @ p["out.weight"].T + p["out.bias"]


def abc(p: Parameters, x: Tensor, heads: int, slots: int, eps: float = 1e-5) -> Tensor:
    q, k, v, s, gate = (
        heads_of(x @ p[f"{f}.weight"].T, heads) for f in ("query", "key", "value", "slot", "gate")
    )
    size = k.shape[-1]
    frequencies = 10_000.0 ** (-2 * torch.arange(size // 2, dtype=torch.float64) / size)
    q, k = rotated(q, frequencies) * size**-0.5, rotated(k, frequencies)
    out = []
    for t in range(len(x)):
        phi = s[: t + 1].softmax(0)  # of each slot, over the past
        Sk = torch.einsum("lhm,lhk->hmk", phi, k[: t + 1])
        Sv = torch.einsum("lhm,lhv->hmv", phi, v[: t + 1])
        o = read(torch.einsum("hmk,hk->hm", Sk, q[t]).softmax(-1), Sv)
        out.append((rms(o, p["norm.weight"], eps) * silu(gate[t])).flatten())
    return torch.stack(out) @ p["out.weight"].T


def decaying_fast_weights(p: Parameters, x: Tensor, heads: int) -> Tensor:
    q, k, v, a, b = (
        heads_of(x @ p[f"{f}.weight"].T + p[f"{f}.bias"], heads)
        for f in ("query", "key", "value", "forget_key", "forget_value")
    )
    S, out = zeros(heads, k.shape[-1], v.shape[-1]), []
    for q_t, k_t, v_t, a_t, b_t in over_time(q, k, v, torch.sigmoid(a), torch.sigmoid(b)):
        S = S * outer(a_t, b_t) + outer(k_t, v_t)
        out.append(read(q_t * q.shape[-1] ** -0.5, S).flatten())
    return torch.stack(out) @ p["out.weight"].T + p["out.bias"]


def retnet(p: Parameters, x: Tensor, heads: int, eps: float = 1e-6) -> Tensor:
    q, k, v, gate = (
        heads_of(x @ p[f"{f}.weight"].T, heads) for f in ("query", "key", "value", "gate")
    )
    size = k.shape[-1]
    frequencies = 10_000.0 ** -torch.linspace(0, 1, size // 2, dtype=torch.float64)
    q, k = rotated(q, frequencies), rotated(k * size**-0.5, frequencies)
    gamma = 1 - 2.0 ** (-5 - torch.arange(heads, dtype=torch.float64))
    S, out = zeros(heads, size, v.shape[-1]), []
    for q_t, k_t, v_t, g_t in over_time(q, k, v, gate):
        S = gamma[:, None, None] * S + outer(k_t, v_t)
        out.append((rms(read(q_t, S), eps=eps) * silu(g_t)).flatten())
    return torch.stack(out) @ p["out.weight"].T


def mamba(p: Parameters, x: Tensor, zero_order_hold: bool = False, bias: bool = False) -> Tensor:
    A = -torch.exp(p["A_log"])
    u, gate = (x @ p["input.weight"].T + p.get("input.bias", 0.0)).chunk(2, -1)
    u = silu(short_convolution(u, p["conv.weight"], p["conv.bias"]))
    size, rank = A.shape[1], p["delta.weight"].shape[1]
    low, B, C = (u @ p["select.weight"].T).split([rank, size, size], -1)
    delta = softplus(low @ p["delta.weight"].T + p["delta_bias"])
    h, out = torch.zeros_like(A), []
    for u_t, d_t, B_t, C_t in over_time(u, delta, B, C):
        d = d_t.unsqueeze(1)
        write = torch.expm1(d * A) / A if zero_order_hold else d
        h = torch.exp(d * A) * h + write * B_t * u_t.unsqueeze(1)
        out.append(h @ C_t + p["D"] * u_t)
    return (torch.stack(out) * silu(gate)) @ p["out.weight"].T + p.get("out.bias", 0.0)


def gla(p: Parameters, x: Tensor, heads: int, taps: int = 0, eps: float = 1e-5) -> Tensor:
    q, k, v = convolved_heads(p, x, heads, taps, silu_always=False)
    forget = x @ p["forget.down.weight"].T @ p["forget.up.weight"].T + p["forget.up.bias"]
    alpha = heads_of(torch.sigmoid(forget) ** (1 / 16), heads)
    gate = heads_of(x @ p["gate.weight"].T, heads)
    S, out = zeros(heads, k.shape[-1], v.shape[-1]), []
    for q_t, k_t, v_t, a_t, g_t in over_time(q, k, v, alpha, gate):
        S = a_t.unsqueeze(-1) * S + outer(k_t, v_t)
        o = read(q_t * k.shape[-1] ** -0.5, S)
        out.append((rms(o, p["norm.weight"], eps) * silu(g_t)).flatten())
    return torch.stack(out) @ p["out.weight"].T


def rwkv6(p: Parameters, x: Tensor, heads: int, eps: float | None = None) -> Tensor:
    change = torch.cat([torch.zeros_like(x[:1]), x[:-1]]) - x
    low = torch.tanh((x + change * p["shares_first"]) @ p["shares_down"]).chunk(5, -1)
    w, k, v, r, g = (
        x + change * (mu + part @ up)
        for mu, part, up in zip(p["shares"], low, p["shares_up"], strict=True)
    )
    decay = p["decay_bias"] + torch.tanh(w @ p["decay_down"]) @ p["decay_up"]
    w = heads_of(torch.exp(-torch.exp(decay)), heads)
    r, k, v = (
        heads_of(y @ p[f"{f}.weight"].T, heads) for y, f in ((r, "query"), (k, "key"), (v, "value"))
    )
    gate, size = heads_of(silu(g @ p["gate.weight"].T), heads), k.shape[-1]
    S, out = zeros(heads, size, size), []
    for r_t, k_t, v_t, w_t, g_t in over_time(r, k, v, w, gate):
        o = read(r_t, S + outer(p["bonus"] * k_t, v_t))
        S = w_t.unsqueeze(-1) * S + outer(k_t, v_t)
        o = layer_norm(o, eps or 1e-5 * size) * p["norm.weight"] + p["norm.bias"]
        out.append((o * g_t).flatten())
    return torch.stack(out) @ p["out.weight"].T


def hgrn2(
    p: Parameters, x: Tensor, heads: int, layer: int = 0, depth: int = 1, eps: float = 1e-5
) -> Tensor:
    bound = torch.sigmoid(p["bound"]) if layer else 0.0
    alpha = bound + (1 - bound) * torch.sigmoid(x @ p["forget.weight"].T)
    q, v = silu(x @ p["query.weight"].T), x @ p["value.weight"].T
    q, k, v, alpha = (heads_of(y, heads) for y in (q, 1 - alpha, v, alpha))
    S, out = zeros(heads, k.shape[-1], v.shape[-1]), []
    for q_t, k_t, v_t, a_t in over_time(q, k, v, alpha):
        S = a_t.unsqueeze(-1) * S + outer(k_t, v_t)
        out.append(rms(read(q_t * k.shape[-1] ** -0.5, S).flatten(), p["norm.weight"], eps))
    return torch.stack(out) @ p["out.weight"].T


def mlstm(p: Parameters, x: Tensor, heads: int, eps: float = 1e-5) -> Tensor:
    x, gate = (x @ p["input.weight"].T).chunk(2, -1)
    convolved = silu(short_convolution(x, p["conv.weight"], p["conv.bias"]))
    q, k, v = (
        y @ torch.block_diag(*p[f])
        for y, f in ((convolved, "query"), (convolved, "key"), (x, "value"))
    )
    gates = torch.cat([q, k, v], -1) @ p["gates.weight"].T + p["gate_bias"]
    i, f = torch.exp(gates[:, :heads]), torch.sigmoid(gates[:, heads:])
    q, k, v = (heads_of(y, heads) for y in (q, k, v))
    k = k / k.shape[-1] ** 0.5
    C, n, out = zeros(heads, k.shape[-1], v.shape[-1]), zeros(heads, k.shape[-1]), []
    for q_t, k_t, v_t, i_t, f_t in over_time(q, k, v, i, f):
        C = f_t[:, None, None] * C + i_t[:, None, None] * outer(k_t, v_t)
        n = f_t[:, None] * n + i_t[:, None] * k_t
        h = read(q_t, C) / (n * q_t).sum(-1, keepdim=True).abs().clamp(min=1)
        out.append((layer_norm(h, eps) * p["norm_weight"]).flatten())
    return ((torch.stack(out) + p["skip"] * convolved) * silu(gate)) @ p["out.weight"].T


def mamba2(
    p: Parameters,
    x: Tensor,
    heads: int,
    state_size: int,
    groups: int = 1,
    norm_groups: int | None = None,
    delta_limit: tuple[float, float] | None = None,
    bias: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    channels, N = p["out.weight"].shape[1], groups * state_size
    projected = x @ p["input.weight"].T + p.get("input.bias", 0.0)
    gate, u, delta = projected.split([channels, channels + 2 * N, heads], -1)
    u = silu(short_convolution(u, p["conv.weight"], p["conv.bias"]))
    u, B, C = u.split([channels, N, N], -1)
    u, share = heads_of(u, heads), heads // groups
    B, C = (heads_of(y, groups).repeat_interleave(share, 1) for y in (B, C))
    delta, A = softplus(delta + p["delta_bias"]), -torch.exp(p["A_log"])
    delta = delta.clamp(*delta_limit) if delta_limit else delta
    h, out = zeros(heads, state_size, channels // heads), []
    for u_t, d_t, B_t, C_t, g_t in over_time(u, delta, B, C, gate):
        h = torch.exp(d_t * A)[:, None, None] * h + d_t[:, None, None] * outer(B_t, u_t)
        y = (read(C_t, h) + p["D"].view(-1, 1) * u_t).flatten() * silu(g_t)
        y = y.view(groups if norm_groups is None else norm_groups, -1)
        out.append(rms(y, p["norm_weight"].view_as(y), eps).flatten())
    return torch.stack(out) @ p["out.weight"].T + p.get("out.bias", 0.0)


def gsa(p: Parameters, x: Tensor, heads: int, slots: int, eps: float = 1e-5) -> Tensor:
    q, k, v = (silu(heads_of(x @ p[f"{f}.weight"].T, heads)) for f in ("query", "key", "value"))
    alpha = heads_of(torch.sigmoid(x @ p["forget.weight"].T) ** (1 / 8), heads)
    Sk, Sv, out = zeros(heads, slots, k.shape[-1]), zeros(heads, slots, v.shape[-1]), []
    for q_t, k_t, v_t, a_t in over_time(q, k, v, alpha):
        a = a_t.unsqueeze(-1)
        Sk, Sv = a * Sk + outer(1 - a_t, k_t), a * Sv + outer(1 - a_t, v_t)
        o = read(torch.einsum("hmk,hk->hm", Sk, q_t).softmax(-1), Sv)
        out.append(rms(silu(o.flatten()), p["norm.weight"], eps))
    return torch.stack(out) @ p["out.weight"].T


def gated_delta_net(
    p: Parameters,
    x: Tensor,
    heads: int,
    value_heads: int | None = None,
    taps: int = 4,
    eps: float = 1e-5,
) -> Tensor:
    q, k, v = convolved_heads(p, x, heads, taps)
    q, k = unit(q) * q.shape[-1] ** -0.5, unit(k)
    share, heads = (value_heads or heads) // heads, value_heads or heads
    q, k, v = q.repeat_interleave(share, 1), k.repeat_interleave(share, 1), heads_of(v, heads)
    beta = torch.sigmoid(x @ p["strength.weight"].T)
    delta = softplus(x @ p["delta.weight"].T + p["delta_bias"])
    alpha = torch.exp(-torch.exp(p["A_log"]) * delta)
    gate = heads_of(x @ p["gate.weight"].T, heads)
    S, out = zeros(heads, k.shape[-1], v.shape[-1]), []
    for q_t, k_t, v_t, b_t, a_t, g_t in over_time(q, k, v, beta, alpha, gate):
        S = a_t[:, None, None] * S
        S = S + outer(b_t[:, None] * k_t, v_t - read(k_t, S))
        out.append((rms(read(q_t, S), p["norm.weight"], eps) * silu(g_t)).flatten())
    return torch.stack(out) @ p["out.weight"].T


def rwkv7(
    p: Parameters,
    x: Tensor,
    heads: int,
    ranks: tuple[int, int, int, int] | None = None,
    eps: float | None = None,
) -> Tensor:
    return rwkv7_layer(p, x, heads, eps)[0]


def rwkv7_layer(
    p: Parameters, x: Tensor, heads: int, eps: float | None = None, first: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The outputs, and the values of the first layer: `first`, or those of this layer."""
    change = torch.cat([torch.zeros_like(x[:1]), x[:-1]]) - x
    x_r, x_w, x_k, x_v, x_a, x_g = (x + change * mu for mu in p["shares"])
    decay = p["decay_bias"] + torch.tanh(x_w @ p["decay_down"]) @ p["decay_up"]
    w = torch.exp(-math.exp(-0.5) * torch.sigmoid(decay))
    a = torch.sigmoid(p["rate_bias"] + x_a @ p["rate_down"] @ p["rate_up"])
    gate = torch.sigmoid(x_g @ p["gate_down"]) @ p["gate_up"]
    r, k, v = (y @ p[f"{f}.weight"].T for y, f in ((x_r, "query"), (x_k, "key"), (x_v, "value")))
    if first is not None:
        share = torch.sigmoid(p["residual.bias"] + x_v @ p["residual.down"] @ p["residual.up"])
        v = v + (first - v) * share
    first = v if first is None else first
    kappa = unit(heads_of(k * p["erase_scale"], heads), 1e-12)
    k = k * (1 + (a - 1) * p["write_scale"])
    r, k, v, w, a, gate = (heads_of(y, heads) for y in (r, k, v, w, a, gate))
    size = k.shape[-1]
    S, out = zeros(heads, size, size), []
    for r_t, k_t, v_t, w_t, a_t, e_t, g_t in over_time(r, k, v, w, a, kappa, gate):
        S = w_t.unsqueeze(-1) * S - outer(a_t * e_t, read(e_t, S)) + outer(k_t, v_t)
        o = layer_norm(read(r_t, S), eps or 1e-5 * size) * p["norm.weight"] + p["norm.bias"]
        o = o + (r_t * k_t * p["bonus"]).sum(-1, keepdim=True) * v_t
        out.append((o * g_t).flatten())
    return torch.stack(out) @ p["out.weight"].T, first


def rwkv7_channel(p: Parameters, x: Tensor) -> Tensor:
    change = torch.cat([torch.zeros_like(x[:1]), x[:-1]]) - x
    hidden = (x + change * p["shares"][0]) @ p["key.weight"].T
    return torch.relu(hidden) ** 2 @ p["out.weight"].T


def rwkv7_stack(p: Parameters, x: Tensor, depth: int, mixers: list[Any], **rest: Any) -> Tensor:
    """x ← x + time(norm(x)), x ← x + channel(norm(x)), the first layer's values handed down."""

    def part(name: str) -> Parameters:
        return {k.removeprefix(name): value for k, value in p.items() if k.startswith(name)}

    def norm(x: Tensor, name: str) -> Tensor:
        return layer_norm(x) * p[f"{name}.weight"] + p[f"{name}.bias"]

    first = None
    for block in (f"blocks.{layer}." for layer in range(depth)):
        normed = norm(x, f"{block}mixer_norm")
        y, first = rwkv7_layer(part(f"{block}mixer."), normed, **mixers[0][1], first=first)
        x = x + y
        x = x + rwkv7_channel(part(f"{block}channel."), norm(x, f"{block}channel_norm"))
    return x


def kda(
    p: Parameters,
    x: Tensor,
    heads: int,
    expand_key: float = 1.0,
    expand_value: float = 1.0,
    taps: int = 4,
    eps: float = 1e-5,
) -> Tensor:
    q, k, v = convolved_heads(p, x, heads, taps)
    q, k = unit(q) * q.shape[-1] ** -0.5, unit(k)
    beta = torch.sigmoid(x @ p["strength.weight"].T)
    delta = softplus(x @ p["delta.down.weight"].T @ p["delta.up.weight"].T + p["delta_bias"])
    alpha = torch.exp(-torch.exp(p["A_log"]) * heads_of(delta, heads))
    gate = x @ p["gate.down.weight"].T @ p["gate.up.weight"].T + p["gate.up.bias"]
    S, out = zeros(heads, k.shape[-1], v.shape[-1]), []
    for q_t, k_t, v_t, b_t, a_t, g_t in over_time(q, k, v, beta, alpha, heads_of(gate, heads)):
        S = a_t.unsqueeze(-1) * S
        S = S + outer(b_t[:, None] * k_t, v_t - read(k_t, S))
        out.append((rms(read(q_t, S), p["norm.weight"], eps) * torch.sigmoid(g_t)).flatten())
    return torch.stack(out) @ p["out.weight"].T


CASES: tuple[Case, ...] = (
    ("linear_attention", linear_attention, {"heads": 2}),
    ("linear_attention", linear_attention, {"heads": 2, "normalise": False, "eps": 0.1}),
    ("delta_net", delta_net, {"heads": 2}),
    ("delta_net", delta_net, {"heads": 2, "taps": 0, "expand_key": 0.5, "eps": 0.1}),
    ("delta_net", delta_net, {"heads": 2, "negative_eigenvalues": True}),
    ("gated_rfa", gated_rfa, {"heads": 2}),
    ("abc", abc, {"heads": 2, "slots": 3}),
    ("abc", abc, {"heads": 2, "slots": 3, "eps": 0.1}),
    ("decaying_fast_weights", decaying_fast_weights, {"heads": 2}),
    ("retnet", retnet, {"heads": 2}),
    ("retnet", retnet, {"heads": 2, "eps": 0.1}),
    ("mamba", mamba, {}),
    ("mamba", mamba, {"zero_order_hold": True, "bias": True}),
    ("gla", gla, {"heads": 2}),
    ("gla", gla, {"heads": 2, "taps": 3, "eps": 0.1}),
    ("rwkv6", rwkv6, {"heads": 2}),
    ("rwkv6", rwkv6, {"heads": 2, "eps": 0.1}),
    ("hgrn2", hgrn2, {"heads": 2}),
    ("hgrn2", hgrn2, {"heads": 2, "layer": 1, "depth": 3, "eps": 0.1}),
    ("mlstm", mlstm, {"heads": 2}),
    ("mlstm", mlstm, {"heads": 2, "eps": 0.1}),
    ("mamba2", mamba2, {"heads": 4, "state_size": 6}),
    ("mamba2", mamba2, {"heads": 4, "state_size": 6, "groups": 2, "bias": True}),
    (
        "mamba2",
        mamba2,
        {
            **{"heads": 4, "state_size": 6, "groups": 2, "norm_groups": 1, "eps": 0.1},
            "delta_limit": (0.01, 0.6),
        },
    ),
    ("gsa", gsa, {"heads": 2, "slots": 3}),
    ("gsa", gsa, {"heads": 2, "slots": 3, "eps": 0.1}),
    ("gated_delta_net", gated_delta_net, {"heads": 2}),
    ("gated_delta_net", gated_delta_net, {"heads": 2, "value_heads": 4, "eps": 0.1}),
    ("gated_delta_net", gated_delta_net, {"heads": 2, "taps": 0}),
    ("rwkv7", rwkv7, {"heads": 2}),
    ("rwkv7", rwkv7, {"heads": 2, "ranks": (3, 5, 4, 7), "eps": 0.1}),
    (
        "stack",
        rwkv7_stack,
        {
            **{"depth": 3, "mixers": [("rwkv7", {"heads": 2})]},
            **{"channel": ("rwkv7", {}), "block": ("pre_norm", {"norm": "layer"})},
        },
    ),
    ("kda", kda, {"heads": 2}),
    ("kda", kda, {"heads": 3, "expand_key": 1.5, "expand_value": 1.5, "taps": 0, "eps": 0.1}),
)
