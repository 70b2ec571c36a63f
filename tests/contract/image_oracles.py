"""AlexNet, VGG, GoogLeNet and ResNeXt-50 as their papers list them, in calls of torch's functions.

Each function takes images and the convolutions, norms and linear layers of a model in the order in
which it has them; it reads their weights only.  `share` is the width relative to the published one:
every layer must have its published channels, times `share`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Simonyan & Zisserman 2015, table 1; M: the maximum of 2 × 2, a pair: channels of a 1 × 1 kernel.
VGG: dict[str, str] = {
    "vgg_a": "64 M 128 M 256 256 M 512 512 M 512 512 M",
    "vgg_b": "64 64 M 128 128 M 256 256 M 512 512 M 512 512 M",
    "vgg_c": "64 64 M 128 128 M 256 256 1:256 M 512 512 1:512 M 512 512 1:512 M",
    "vgg_d": "64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512 M",
    "vgg_e": "64 64 M 128 128 M 256 256 256 256 M 512 512 512 512 M 512 512 512 512 M",
}

# Szegedy et al. 2015, table 1: 1×1, 3×3 reduce, 3×3, 5×5 reduce, 5×5, pool proj; M: 3 × 3 / 2.
GOOGLENET = """
    64 96 128 16 32 32
    128 128 192 32 96 64
    M
    192 96 208 16 48 64
    160 112 224 24 64 64
    128 128 256 24 64 64
    112 144 288 32 64 64
    256 160 320 32 128 128
    M
    256 160 320 32 128 128
    384 192 384 48 128 128
"""


class Layers:
    """The layers of a model, one after another."""

    def __init__(self, layers: Iterable[Any], share: float) -> None:
        self.layers: Iterator[Any] = iter(layers)
        self.share = share

    def take(self, *shape: int) -> Any:
        """The next layer, whose weight must have this shape; −1: any."""
        layer = next(self.layers)
        assert len(layer.weight.shape) == len(shape)
        assert all(b in (a, -1) for a, b in zip(layer.weight.shape, shape, strict=True))
        return layer

    def convolution(self, channels: int, kernel: int) -> Any:
        return self.take(round(channels * self.share), -1, kernel, kernel)

    def relu_of(self, x: Tensor, channels: int, kernel: int, stride: int = 1) -> Tensor:
        """relu(W ∗ x + b), with zeros around the image."""
        layer = self.convolution(channels, kernel)
        return F.relu(F.conv2d(x, layer.weight, layer.bias, stride, kernel // 2))

    def linear(self, x: Tensor, outputs: int) -> Tensor:
        layer = self.take(outputs, -1)
        return x @ layer.weight.T + layer.bias

    def hidden(self, x: Tensor, outputs: int) -> Tensor:
        return self.linear(x, round(outputs * self.share)).relu()

    def finish(self, y: Tensor) -> Tensor:
        assert next(self.layers, None) is None, "the model has more layers"
        return y


def normalise(x: Tensor, norm: Any) -> Tensor:
    """Batch norm by the running statistics."""
    mean, variance, weight, bias = (
        part[:, None, None]
        for part in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    return (x - mean) / (variance + 1e-5).sqrt() * weight + bias


def local_norm(x: Tensor) -> Tensor:
    """x / (2 + 1e-4 · Σ of the squares of five neighbouring channels) ^ 0.75."""
    squares = F.pad(x.square(), (0, 0, 0, 0, 2, 2))
    total = sum(squares[:, i : i + x.shape[1]] for i in range(5))
    return x / (2 + 1e-4 * total) ** 0.75


def alexnet(x: Tensor, layers: Layers, classes: int) -> Tensor:
    """Krizhevsky et al. 2012, section 3.5: two halves meet in the third layer and in the head."""

    def halves(x: Tensor, channels: int, kernel: int) -> Tensor:
        layer = layers.convolution(channels, kernel)
        parts = zip(x.chunk(2, 1), layer.weight.chunk(2), layer.bias.chunk(2), strict=True)
        y = [F.conv2d(half, weight, bias, 1, kernel // 2) for half, weight, bias in parts]
        return torch.cat(y, 1).relu()

    first = layers.convolution(96, 11)
    x = F.conv2d(x, first.weight, first.bias, 4, 2).relu()
    x = F.max_pool2d(local_norm(x), 3, 2)
    x = F.max_pool2d(local_norm(halves(x, 256, 5)), 3, 2)
    x = layers.relu_of(x, 384, 3)
    x = F.max_pool2d(halves(halves(x, 384, 3), 256, 3), 3, 2)
    x = layers.hidden(layers.hidden(x.flatten(1), 4096), 4096)
    return layers.finish(layers.linear(x, classes))


def vgg(x: Tensor, layers: Layers, classes: int, name: str) -> Tensor:
    for item in VGG[name].split():
        if item == "M":
            x = F.max_pool2d(x, 2, 2)
        else:
            kernel, _, channels = item.rpartition(":")
            x = layers.relu_of(x, int(channels), int(kernel or 3))
    x = layers.hidden(layers.hidden(x.flatten(1), 4096), 4096)
    return layers.finish(layers.linear(x, classes))


def inception(x: Tensor, layers: Layers, classes: int) -> Tensor:
    def pooled(x: Tensor) -> Tensor:
        return F.max_pool2d(x, 3, 2, ceil_mode=True)

    x = local_norm(pooled(layers.relu_of(x, 64, 7, 2)))
    x = layers.relu_of(layers.relu_of(x, 64, 1), 192, 3)
    x = pooled(local_norm(x))
    for row in GOOGLENET.strip().splitlines():
        if row.strip() == "M":
            x = pooled(x)
            continue
        one, before3, three, before5, five, last = map(int, row.split())
        branches = [layers.relu_of(x, one, 1)]
        branches.append(layers.relu_of(layers.relu_of(x, before3, 1), three, 3))
        branches.append(layers.relu_of(layers.relu_of(x, before5, 1), five, 5))
        branches.append(layers.relu_of(F.max_pool2d(x, 3, 1, 1), last, 1))
        x = torch.cat(branches, 1)
    return layers.finish(layers.linear(x.mean((2, 3)), classes))


def resnext50(x: Tensor, layers: Layers, classes: int) -> Tensor:
    """Xie et al. 2017, figure 3a: every block adds the outputs of 32 narrow paths."""
    share = layers.share
    first, norm = layers.convolution(64, 7), layers.take(round(64 * share))
    x = normalise(F.conv2d(x, first.weight, None, 2, 3), norm).relu()
    x = F.max_pool2d(x, 3, 2, 1)
    for stage, count in enumerate((3, 4, 6, 3)):
        inner, outer = 128 * 2**stage, 256 * 2**stage
        for place in range(count):
            stride = 2 if stage > 0 and place == 0 else 1
            x = _residual(x, layers, inner, outer, stride, project=place == 0)
    return layers.finish(layers.linear(x.mean((2, 3)), classes))


def _residual(
    x: Tensor, layers: Layers, inner: int, outer: int, stride: int, *, project: bool
) -> Tensor:
    def pair(channels: int, kernel: int) -> tuple[Any, Any]:
        return layers.convolution(channels, kernel), layers.take(round(channels * layers.share))

    (reduce, norm1), (middle, norm2), (expand, norm3) = (
        pair(inner, 1),
        pair(inner, 3),
        pair(outer, 1),
    )
    paths = []
    for path in range(32):
        size = len(middle.weight) // 32
        own = slice(path * size, (path + 1) * size)
        y = F.conv2d(x, reduce.weight[own])
        y = normalise(y, _Part(norm1, own)).relu()
        y = F.conv2d(y, middle.weight[own], None, stride, 1)
        y = normalise(y, _Part(norm2, own)).relu()
        paths.append(F.conv2d(y, expand.weight[:, own]))
    total = normalise(torch.stack(paths).sum(0), norm3)
    if project:
        shortcut, norm = pair(outer, 1)
        x = normalise(F.conv2d(x, shortcut.weight, None, stride), norm)
    return (x + total).relu()


class _Part:
    """Some channels of a batch norm."""

    def __init__(self, norm: Any, own: slice) -> None:
        self.running_mean, self.running_var = norm.running_mean[own], norm.running_var[own]
        self.weight, self.bias = norm.weight[own], norm.bias[own]
