"""Kinds of attention as published, every weight written out in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.layers.published import Case, Parameters, heads_of, linear, unit


def fields(p: Parameters, part: str, x: Tensor, heads: int) -> tuple[Tensor, ...]:
    """Query, key and value as [H, L, size]."""
    names = ("query", "key", "value")
    return tuple(heads_of(linear(p, f"{part}{n}", x), heads).transpose(0, 1) for n in names)


def read(weights: Tensor, value: Tensor) -> Tensor:
    """Σ_j a_ij v_j of all heads, joined: [L, H·size]."""
    return (weights @ value).transpose(0, 1).flatten(1)


def softmax_where(scores: Tensor, seen: Tensor) -> Tensor:
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


def distances(length: int) -> Tensor:
    """i − j."""
    return torch.arange(length).unsqueeze(1) - torch.arange(length)


def rotate(x: Tensor) -> Tensor:
    """Channels c and c + size/2 of element t turned by t · 10,000^{−2c/size}."""
    size = x.shape[-1]
    rates = 10_000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    turn = torch.polar(torch.ones(1).double(), torch.arange(x.shape[-2]).unsqueeze(1) * rates)
    turned = torch.complex(*x.chunk(2, -1)) * turn
    return torch.cat([turned.real, turned.imag], -1)


def attention(
    p: Parameters,
    x: Tensor,
    heads: int,
    window: int | None = None,
    causal: bool = True,
    bias: bool = False,
    part: str = "heads.",
) -> Tensor:
    """With rotary positions; within a window if one is given."""
    q, k, v = fields(p, part, x, heads)
    far = distances(len(x))
    seen = far >= 0 if causal else torch.ones_like(far, dtype=torch.bool)
    seen = seen if window is None else seen & (far.abs() < window)
    weights = softmax_where(rotate(q) @ rotate(k).mT / math.sqrt(q.shape[-1]), seen)
    return linear(p, f"{part}out", read(weights, v))


def local_attention(
    p: Parameters, x: Tensor, heads: int, window: int, causal: bool = True
) -> Tensor:
    return attention(p, x, heads, window, causal, part="attention.heads.")


def based(p: Parameters, x: Tensor, heads: int, window: int, key_size: int) -> Tensor:
    q, k, v = fields(p, "linear.", x, heads)
    s = q @ k.mT / math.sqrt(key_size)
    weights = (1 + s + s.square() / 2).tril()  # the Taylor expansion of eˢ
    everything = read(weights / weights.sum(-1, keepdim=True), v)
    nearby = attention(p, x, heads, window, part="local.attention.heads.")
    return linear(p, "linear.out", everything) + nearby


def transformer_xl(p: Parameters, x: Tensor, heads: int, memory: int) -> Tensor:
    q, k, v = fields(p, "heads.", x, heads)
    length, width = x.shape
    rates = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(length).unsqueeze(1) * rates
    waves = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
    waves = heads_of(linear(p, "distance", waves), heads).transpose(0, 1)
    content, place = (p[name].unsqueeze(1) for name in ("content_bias", "distance_bias"))
    far = distances(length)
    by_distance = (q + place) @ waves.mT  # [H, i, distance]
    by_distance = by_distance.gather(-1, far.clamp(min=0).expand(heads, -1, -1))
    scores = ((q + content) @ k.mT + by_distance) / math.sqrt(q.shape[-1])
    seen = (far >= 0) & (far < memory)
    return linear(p, "heads.out", read(softmax_where(scores, seen), v))


def bigbird(
    p: Parameters, x: Tensor, heads: int, block: int, window: int, globals: int, random: int
) -> Tensor:
    count, half = len(x) // block, window // 2
    graph = torch.zeros(count, count, dtype=torch.bool)
    graph[:globals], graph[:, :globals] = True, True
    for i in range(count):
        graph[i, max(0, i - half) : i + half + 1] = True
        others = [j for j in range(globals, count) if abs(i - j) > half]
        for part in range(random):  # one from each of equal parts of the others
            low, high = (n * len(others) // random for n in (part, part + 1))
            if high > low:
                draw = int(p["draws"][i, part])
                graph[i, others[low + (draw * (high - low) >> 31)]] = True
    seen = graph.repeat_interleave(block, 0).repeat_interleave(block, 1)
    q, k, v = fields(p, "heads.", x, heads)
    weights = softmax_where(q @ k.mT / math.sqrt(q.shape[-1]), seen)
    return linear(p, "heads.out", read(weights, v))


def reformer(p: Parameters, x: Tensor, heads: int, buckets: int, chunk: int, rounds: int) -> Tensor:
    """Every round's pairs by its own sorting; a pair of several rounds counts once."""
    q, v = (heads_of(linear(p, name, x), heads).transpose(0, 1) for name in ("query", "value"))
    length = len(x)
    shown = torch.zeros(heads, length, length, dtype=torch.bool)
    for rotation in p["rotations"]:
        turned = q @ rotation
        bucket = torch.cat([turned, -turned], -1).argmax(-1)
        for h in range(heads):
            hashed = bucket[h].tolist()
            order = sorted(range(length), key=lambda i: (hashed[i], i))
            place = {element: rank // chunk for rank, element in enumerate(order)}
            for i in range(length):
                for j in range(length):
                    if hashed[i] == hashed[j] and place[i] - place[j] in (0, 1):
                        shown[h, i, j] = True
    itself = torch.eye(length, dtype=torch.bool)
    scores = (q @ unit(q).mT / math.sqrt(q.shape[-1])).masked_fill(itself, -1e5)
    return linear(p, "out", read(softmax_where(scores, shown | itself), v))


def luna(p: Parameters, x: Tensor, heads: int, slots: int) -> Tensor:
    def attend(part: str, queries: Tensor, source: Tensor) -> Tensor:
        q = heads_of(linear(p, f"{part}.query", queries), heads).transpose(0, 1)
        _, k, v = fields(p, f"{part}.", source, heads)
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        return linear(p, f"{part}.out", read(weights, v))

    return attend("unpack", x, attend("pack", p["slots"], x))


BIGBIRD = {"heads": 2, "block": 2, "window": 3, "globals": 1, "random": 2}
CASES: tuple[Case, ...] = (
    ("attention", attention, {"heads": 2, "bias": True}),
    ("attention", attention, {"heads": 2, "causal": False}),
    *(
        ("local_attention", local_attention, {"heads": 2, "window": window, "causal": causal})
        for window in (2, 5, 100)
        for causal in (True, False)
    ),
    ("based", based, {"heads": 2, "window": 6, "key_size": 5}),
    *(("transformer_xl", transformer_xl, {"heads": 2, "memory": m}) for m in (2, 7, 100)),
    ("bigbird", bigbird, BIGBIRD),
    ("bigbird", bigbird, {**BIGBIRD, "window": 5, "globals": 0, "random": 0}),
    *(
        ("reformer", reformer, {"heads": 2, "buckets": 4, "chunk": chunk, "rounds": 3})
        for chunk in (64, 4)
    ),
    ("luna", luna, {"heads": 2, "slots": 5}),
)
