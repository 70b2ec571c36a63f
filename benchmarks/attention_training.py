"""One training step of a small attention language model: loss and all gradients, no optimiser.

The peer is the same model in plain torch, as a short script would have it: one projection for
queries, keys and values, `scaled_dot_product_attention`, a table of rotations, `F.rms_norm`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.mamba_training import threefold
from benchmarks.measure import Comparison, Contender, max_ratio
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec

PEER = "plain torch"
VOCABULARY = 256


def language_model(width: int, depth: int) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(Spec("language", width, depth, ("attention",), vocabulary=VOCABULARY))


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Layer(nn.Module):
    """x + attention(norm(x)), then x + swiglu(norm(x))."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.mixer_norm, self.channel_norm = Norm(width), Norm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.input = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.mixer_norm(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(read.transpose(1, 2).reshape(batch, length, width))
        h = self.channel_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.input(h))


class Peer(nn.Module):
    """The language model in plain torch, with the weights of ours."""

    def __init__(self, model: LanguageModel, length: int) -> None:
        super().__init__()
        width = model.spec.width
        attention = model.get_submodule("stack.blocks.0.mixer")
        heads = attention.heads.heads  # type: ignore[union-attr]
        hidden = model.get_parameter("stack.blocks.0.channel.gate.weight").shape[0]
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer(width, heads, hidden) for _ in range(model.spec.depth))
        self.norm = Norm(width)
        half = width // heads // 2
        angle = torch.outer(torch.arange(length), 10_000.0 ** (-torch.arange(half) / half))
        self.cos, self.sin = angle.cos(), angle.sin()
        with torch.no_grad():
            for weight, ours in zip(self.parameters_as_ours(), ours_sorted(model), strict=True):
                weight.copy_(ours)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.linear(self.norm(x), self.embedding.weight)

    def parameters_as_ours(
        self, of: Callable[[Tensor], Tensor] = lambda weight: weight
    ) -> list[Tensor]:
        """The weights, or what `of` makes of them, in the order of `ours_sorted`."""
        named: dict[str, Tensor] = {}
        for number, layer in enumerate(self.layers):
            block, attention = f"stack.blocks.{number}", layer.qkv
            q, k, v = of(attention.weight).chunk(3)
            heads = f"{block}.mixer.heads"
            named |= {f"{heads}.query.weight": q, f"{heads}.key.weight": k}
            named |= {f"{heads}.value.weight": v, f"{heads}.out.weight": of(layer.out.weight)}
            for name, weight in (("gate", layer.gate), ("input", layer.input), ("out", layer.down)):
                named[f"{block}.channel.{name}.weight"] = of(weight.weight)
            for name in ("mixer_norm", "channel_norm"):
                named[f"{block}.{name}.weight"] = of(layer.get_parameter(f"{name}.weight"))
        named |= {
            "embedding.weight": of(self.embedding.weight),
            "norm.weight": of(self.norm.weight),
        }
        return [weight for _, weight in sorted(named.items())]


def ours_sorted(model: nn.Module) -> list[Tensor]:
    return [parameter for _, parameter in sorted(model.named_parameters())]


def plain(peer: Peer, tokens: Tensor, targets: Tensor) -> Contender:
    parameters = list(peer.parameters())

    def run() -> list[Tensor]:
        loss = F.cross_entropy(peer(tokens).flatten(0, 1), targets.flatten())
        found = dict(zip(parameters, torch.autograd.grad(loss, parameters), strict=True))
        return [loss, *peer.parameters_as_ours(lambda weight: found[weight])]  # type: ignore[index]

    return run


def comparison(
    width: int, depth: int, limit: float, batch: int, length: int, rounds: int
) -> Comparison:
    """One step on random tokens."""
    model = language_model(width, depth)
    tokens, targets = torch.randint(VOCABULARY, (2, batch, length))
    peer = Peer(model, length)
    return Comparison(
        f"attention, width {width} × {depth}, training step of {batch} × {length} tokens",
        {"threefold": threefold(model, tokens, targets), PEER: plain(peer, tokens, targets)},
        rounds=rounds,
        targets=(max_ratio(limit, PEER),),
    )


def run() -> Iterator[Comparison]:
    """Two small models, on short and on long rows."""
    for width, depth, limit in ((128, 4, 1.0), (64, 2, 1.05)):
        for batch, length in ((16, 128), (16, 256)):
            yield comparison(width, depth, limit, batch, length, rounds=25)


def quick() -> Iterator[Comparison]:
    """One narrow model."""
    yield comparison(32, 1, 1.0, 2, 16, rounds=2)
