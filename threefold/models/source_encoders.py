"""Encoders of a `Captioner`: images or vectors → positions [B, positions, width].

    convolutional   the last stage of an image network, as in Xu et al. 2015
    patches         an image cut into squares, which a stack of any mixers reads in both directions
    vector          one vector, or several, by a linear map: features of another model, a class

A new encoder is a class with `check`, `forward` and `example_inputs`, and its line in ENCODERS.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from threefold.blocks.stack import Stack, non_causal_entry
from threefold.errors import ThreefoldError
from threefold.layers.linear import Linear
from threefold.models.convolutional import ConvolutionalNetwork
from threefold.models.embedding import Projection
from threefold.models.image_model import (
    check_image_size,
    check_images,
    check_patch,
    cut_patches,
)
from threefold.models.input_checks import check_dtype
from threefold.models.spec import Spec

STAGES = 3  # of an image network: 14 × 14 positions of 224 × 224 pixels, as in Xu et al. 2015
NARROWEST = 16  # first convolution of an image network
PLACE_SCALE = 0.02  # standard deviation of the vectors of places at the start

Maker = Callable[[Spec, str], "SourceEncoder"]


class SourceEncoder(nn.Module, ABC):
    """encoder(inputs) → [B, positions, width], for a spec of kind captioner."""

    positions: int  # the most positions that it returns; 0: as many as there are vectors
    grid: tuple[int, int] | None = None  # rows and columns of positions that tile an image

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Positions [B, positions, width] of checked inputs."""

    @abstractmethod
    def check(self, inputs: Any, dtype: torch.dtype) -> None:
        """Raise an error unless it can read these inputs with weights of this dtype."""

    @abstractmethod
    def example_inputs(self, batch: int) -> Tensor:
        """Random inputs that it can read, always the same."""


class ImageEncoder(SourceEncoder):
    """The base of encoders of images of one size, that of the spec."""

    def __init__(self, spec: Spec, owner: str) -> None:
        super().__init__()
        check_image_size(owner, spec.option("image"), spec.option("channels"))
        self.owner = owner
        self.shape = (spec.option("channels"), *spec.option("image"))

    def check(self, inputs: Any, dtype: torch.dtype) -> None:
        check_images(inputs, self.shape, dtype, self.owner)

    def example_inputs(self, batch: int) -> Tensor:
        return torch.randn(batch, *self.shape, generator=torch.Generator().manual_seed(0))


class ConvolutionalEncoder(ImageEncoder):
    """Positions of the last stage of an image network, with a learned vector for each place.

    A convolution finds a shape wherever it lies; the learned vectors say where it was found.
    """

    def __init__(self, spec: Spec, owner: str) -> None:
        super().__init__(spec, owner)
        if spec.option("encoder_mixers"):
            raise ThreefoldError(
                f"{owner}: encoder_mixers {spec.option('encoder_mixers')}, but the encoder "
                "'convolutional' has none; choose encoder='patches', or leave them out"
            )
        network = ConvolutionalNetwork(_network_spec(spec))
        self.network = nn.Sequential(OrderedDict(stem=network.stem, stages=network.stages))
        self.grid = network.grid
        self.positions = self.grid[0] * self.grid[1]
        self.project = Linear(network.feature_width, spec.width)
        self.places = nn.Parameter(torch.randn(self.positions, spec.width) * PLACE_SCALE)

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.network(inputs).flatten(2).mT
        outputs: Tensor = self.project(features) + self.places
        return outputs


class PatchEncoder(ImageEncoder):
    """Patches of an image with learned positions, and a stack of mixers that sees all of them."""

    def __init__(self, spec: Spec, owner: str) -> None:
        super().__init__(spec, owner)
        check_patch(owner, spec.option("image"), spec.option("patch"))
        self.patch = spec.option("patch")
        self.grid = (self.shape[1] // self.patch, self.shape[2] // self.patch)
        self.positions = self.grid[0] * self.grid[1]
        vision = _vision_spec(spec)
        self.embedding = Projection(vision, self.shape[0] * self.patch**2, self.positions)
        self.stack = Stack(
            spec.width,
            vision.depth,
            [non_causal_entry(entry) for entry in vision.entries],
            channel=spec.channel_entry,
            block=spec.block_entry,
            dropout=spec.option("dropout"),
        )
        self.norm = self.stack.final_norm()

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.embedding(cut_patches(inputs, self.patch))
        y, _ = self.stack(x, plan=self.stack.plan(x.shape[1], owner=self.owner))
        outputs: Tensor = self.norm(y)
        return outputs


class VectorEncoder(SourceEncoder):
    """Vectors [B, size], each one position, or several positions [B, M, size], by a linear map."""

    positions = 0

    def __init__(self, spec: Spec, owner: str) -> None:
        super().__init__()
        self.owner, self.size = owner, spec.option("input_size")
        if self.size < 1:
            raise ThreefoldError(
                f"{owner}: the encoder 'vector' reads vectors of input_size {self.size}; expected "
                '1 or more, e.g. options={"encoder": "vector", "input_size": 64}'
            )
        self.project = Linear(self.size, spec.width)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.project(inputs.unsqueeze(1) if inputs.dim() == 2 else inputs)
        return outputs

    def check(self, inputs: Any, dtype: torch.dtype) -> None:
        good = isinstance(inputs, Tensor) and inputs.dim() in (2, 3) and 0 not in inputs.shape
        if not good or inputs.shape[-1] != self.size:
            received = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
            raise ThreefoldError(
                f"{self.owner}: vectors are {received}, expected [batch, {self.size}], or [batch, "
                f"positions, {self.size}], with at least one"
            )
        check_dtype(inputs, dtype, self.owner, "vectors")

    def example_inputs(self, batch: int) -> Tensor:
        return torch.randn(batch, self.size, generator=torch.Generator().manual_seed(0))


def _network_spec(spec: Spec) -> Spec:
    """The spec of an image network whose last stage has about the width of the captioner."""
    depth = spec.option("encoder_depth") or STAGES
    options = {name: spec.option(name) for name in ("image", "channels", "network")}
    width = spec.option("encoder_width") or max(NARROWEST, spec.width // 2 ** (depth - 1))
    return Spec("convolutional", width, depth, (), options={**options, "classes": 0})


def _vision_spec(spec: Spec) -> Spec:
    """The spec of what reads the patches: its mixers, depth and positions."""
    return Spec(
        "vision",
        spec.width,
        spec.option("encoder_depth") or spec.depth,
        spec.option("encoder_mixers") or spec.mixers,
        options={name: spec.option(name) for name in ("image", "channels", "patch")},
    )


# By the option `encoder` of a captioner.
ENCODERS: dict[str, Maker] = {
    "convolutional": ConvolutionalEncoder,
    "patches": PatchEncoder,
    "vector": VectorEncoder,
}
