"""Image networks of `image_networks.py`:  y = head(mean(stages(stem(x)))).

`width` is that of the first convolution, by which every other one scales, and `depth` the number of
stages, from the first.  AlexNet and VGG have hidden layers in the head instead of the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from threefold.errors import ThreefoldError, nearest
from threefold.layers.checks import check_dropout
from threefold.layers.linear import Linear
from threefold.models.image_layers import Row
from threefold.models.image_model import ImageModel
from threefold.models.image_networks import NETWORKS
from threefold.models.spec import Spec

STEMS = ("auto", "published", "small")
SMALL_IMAGE = 64  # pixels of the shorter side below which `auto` takes the small stem


class ConvolutionalNetwork(ImageModel):
    """Images [B, channels, height, width] to one of `classes` (0: no head, see `encode`)."""

    kind = "convolutional"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._check_options()
        self.network = NETWORKS[spec.option("network")]
        stem = self.network.rows_of_stem(self._has_small_stem())
        stages = self.network.stages[: spec.depth]
        self._check_size([row for rows in (stem, *stages) for row in rows])
        self.stem, width = self._make(stem, spec.option("channels"))
        made = []
        for rows in stages:
            stage, width = self._make(rows, width)
            made.append(stage)
        self.stages = nn.Sequential(*made)
        self._feature_width = width
        self.head = self._make_head() if spec.option("classes") else None

    @property
    def feature_width(self) -> int:
        """Channels of the last stage."""
        return self._feature_width

    def encode(self, images: Tensor) -> Tensor:
        """Outputs [B, positions, feature_width] of the last stage, row by row."""
        self.check_images(images)
        features: Tensor = self.stages(self.stem(images))
        return features.flatten(2).mT

    def classify(self, features: Tensor) -> Tensor:
        """Logits [B, classes], from the mean of all positions or from each one."""
        if self.head is None or not self.network.hidden:
            return super().classify(features)
        logits: Tensor = self.head(features.mT.flatten(1))
        return logits

    def _scale(self, channels: int, divisor: int = 1) -> int:
        """Published channels at the width of the spec, a multiple of `divisor`."""
        share = self.spec.width / self.network.width
        return divisor * max(1, round(channels * share / divisor))

    def _make(self, rows: Sequence[Row], width: int) -> tuple[nn.Sequential, int]:
        """The modules of some rows after `width` channels, and their channels."""
        modules = []
        for row in rows:
            module, width = row.make(width, self._scale)
            modules.append(module)
        return nn.Sequential(*modules), width

    def _make_head(self) -> nn.Sequential:
        classes, dropout = self.spec.option("classes"), self.spec.option("dropout")
        hidden = [self._scale(size) for size in self.network.hidden]
        down, across = self.grid
        sizes = [self.feature_width * (down * across if hidden else 1), *hidden, classes]
        modules: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layer = Linear(inputs, outputs)
            nn.init.normal_(layer.weight, std=(2 / inputs) ** 0.5)
            nn.init.zeros_(layer.bias)
            modules += [nn.ReLU()] * bool(modules) + [nn.Dropout(dropout), layer]
        nn.init.normal_(layer.weight, std=0.01)
        return nn.Sequential(*modules)

    def _has_small_stem(self) -> bool:
        stem, side = self.spec.option("stem"), min(self.spec.option("image"))
        return bool(stem == "small" or (stem == "auto" and side < SMALL_IMAGE))

    def _check_size(self, rows: Sequence[Row]) -> None:
        """Note the positions of the last stage; refuse images that are too small for all rows."""
        down, across = self.spec.option("image")
        for row in rows:
            down, across = row.side(down), row.side(across)
            if min(down, across) < 1:
                raise ThreefoldError(
                    f"{self.name}: images of {self.spec.option('image')} pixels are too small for "
                    f"{self.spec.depth} stages of {self.spec.option('network')}; use fewer (depth)"
                    ', or the option stem="small"'
                )
        self.grid = down, across

    def _check_options(self) -> None:
        spec = self.spec
        self.check_image_options()
        check_dropout(self.name, dropout=spec.option("dropout"))
        for what, known in (("network", NETWORKS), ("stem", STEMS)):
            name = spec.option(what)
            if name not in known:
                raise ThreefoldError(
                    f"{self.name}: unknown {what} {name!r}; {nearest(name, known)}"
                )
        stages = len(NETWORKS[spec.option("network")].stages)
        if spec.depth > stages:
            raise ThreefoldError(
                f"{self.name}: depth is {spec.depth}, but {spec.option('network')} has {stages} "
                f"stages; expected 1 to {stages}"
            )
