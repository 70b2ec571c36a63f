"""Published image networks as one table: a stem, stages of rows, and the hidden layers of a head.

                     published at 1,000 classes, 224 × 224 pixels       parameters here
    alexnet          60 million (two groups)                                 60,965,224
    vgg_a … vgg_e    133, 133, 134, 138, 144 million                 132.9 … 143.7 million
    inception        7.0 million (GoogLeNet without auxiliary heads)          6,998,552
    resnet18 … 152   11.7, 21.8, 25.6, 44.5, 60.2 million              11.7 … 60.2 million
    resnext50        25.0 million (32 groups of 4)                           25,028,904

Krizhevsky et al. 2012, "ImageNet Classification with Deep Convolutional Neural Networks"; Simonyan
& Zisserman 2015, "Very Deep Convolutional Networks"; Szegedy et al. 2015, "Going Deeper with
Convolutions"; He et al. 2016, "Deep Residual Learning"; Xie et al. 2017, "Aggregated Residual
Transformations".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from threefold.models.image_layers import (
    ConvRow,
    InceptionRow,
    LocalNormRow,
    PoolRow,
    ResidualRow,
    Row,
)


@dataclass(frozen=True)
class ImageNetwork:
    """A published network; `width` is that of its first convolution, by which all others scale."""

    stem: tuple[Row, ...]
    stages: tuple[tuple[Row, ...], ...]
    hidden: tuple[int, ...] = ()  # layers of the head, which then sees every position
    dropout: float = 0.0  # in the head
    width: int = 64

    def rows_of_stem(self, small: bool) -> tuple[Row, ...]:
        """The stem; for small images a 3 × 3 convolution with stride 1 first, and no pooling."""
        if not small or not self.stem:
            return self.stem
        first, *others = (row for row in self.stem if not isinstance(row, PoolRow))
        assert isinstance(first, ConvRow)
        return (replace(first, kernel=3, stride=1, padding=None), *others)


def _vgg(counts: Sequence[int], last: int = 3) -> ImageNetwork:
    """Stages of 3 × 3 convolutions; `last`: the kernel of the third ones."""
    channels = (64, 128, 256, 512, 512)
    kernels = (3, 3, last, 3)
    stages: tuple[tuple[Row, ...], ...] = tuple(
        (*(ConvRow(size, kernels[place]) for place in range(count)), PoolRow(2))
        for size, count in zip(channels, counts, strict=True)
    )
    return ImageNetwork((), stages, hidden=(4096, 4096), dropout=0.5)


def _resnet(counts: Sequence[int], *, bottleneck: bool, groups: int = 1) -> ImageNetwork:
    """Stages of residual blocks; from the second on, the first block halves the sides."""
    inner = 128 if groups > 1 else 64
    stages: list[tuple[Row, ...]] = []
    for stage, count in enumerate(counts):
        row = ResidualRow(64 * 2**stage)
        if bottleneck:
            row = ResidualRow(256 * 2**stage, inner * 2**stage, groups=groups)
        stages.append((replace(row, stride=1 + (stage > 0)), *[row] * (count - 1)))
    return ImageNetwork((ConvRow(64, 7, 2, norm=True), PoolRow(3, padding=1)), tuple(stages))


ALEXNET = ImageNetwork(
    (ConvRow(96, 11, 4, padding=2), LocalNormRow(), PoolRow(3)),
    (
        (ConvRow(256, 5, groups=2), LocalNormRow(), PoolRow(3)),
        (ConvRow(384), ConvRow(384, groups=2), ConvRow(256, groups=2), PoolRow(3)),
    ),
    hidden=(4096, 4096),
    dropout=0.5,
    width=96,
)

_HALVE = PoolRow(3, ceil=True)

INCEPTION = ImageNetwork(
    (
        ConvRow(64, 7, 2),
        _HALVE,
        LocalNormRow(),
        ConvRow(64, 1),
        ConvRow(192),
        LocalNormRow(),
        _HALVE,
    ),
    (
        (
            InceptionRow(64, (96, 128), (16, 32), 32),
            InceptionRow(128, (128, 192), (32, 96), 64),
        ),
        (
            _HALVE,
            InceptionRow(192, (96, 208), (16, 48), 64),
            InceptionRow(160, (112, 224), (24, 64), 64),
            InceptionRow(128, (128, 256), (24, 64), 64),
            InceptionRow(112, (144, 288), (32, 64), 64),
            InceptionRow(256, (160, 320), (32, 128), 128),
        ),
        (
            _HALVE,
            InceptionRow(256, (160, 320), (32, 128), 128),
            InceptionRow(384, (192, 384), (48, 128), 128),
        ),
    ),
    dropout=0.4,
)

NETWORKS: dict[str, ImageNetwork] = {
    "alexnet": ALEXNET,
    "vgg_a": _vgg((1, 1, 2, 2, 2)),
    "vgg_b": _vgg((2, 2, 2, 2, 2)),
    "vgg_c": _vgg((2, 2, 3, 3, 3), last=1),
    "vgg_d": _vgg((2, 2, 3, 3, 3)),
    "vgg_e": _vgg((2, 2, 4, 4, 4)),
    "inception": INCEPTION,
    "resnet18": _resnet((2, 2, 2, 2), bottleneck=False),
    "resnet34": _resnet((3, 4, 6, 3), bottleneck=False),
    "resnet50": _resnet((3, 4, 6, 3), bottleneck=True),
    "resnet101": _resnet((3, 4, 23, 3), bottleneck=True),
    "resnet152": _resnet((3, 8, 36, 3), bottleneck=True),
    "resnext50": _resnet((3, 4, 6, 3), bottleneck=True, groups=32),
}
