"""Models of whole images [B, channels, height, width], and what they are as encoders.

    features = model.encode(images)      [B, positions, feature_width], row by row
    summary = model.pool(features)       [B, feature_width], one vector of an image
    logits, _ = model(images)            [B, classes], of a model with a head

With the option classes=0 there is no head: an encoder only.  Images have one size, that of the
spec, and are refused otherwise.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.memory.state import State
from threefold.models.input_checks import check_dtype
from threefold.models.model import Model


class ImageModel(Model):
    """Images to one of `classes`; `encode` and `pool` serve as an encoder."""

    head: nn.Module | None

    @abstractmethod
    def encode(self, images: Tensor) -> Tensor:
        """Features [B, positions, feature_width] of images [B, channels, height, width]."""

    @property
    @abstractmethod
    def feature_width(self) -> int:
        """Size of the features at one position."""

    def pool(self, features: Tensor) -> Tensor:
        """One vector [B, feature_width] of an image: the mean of its positions."""
        return features.mean(1)

    def classify(self, features: Tensor) -> Tensor:
        """Logits [B, classes] from features."""
        if self.head is None:
            raise ThreefoldError(
                f'{self.name}: has no head; build it with options={{"classes": 10}}, or use encode'
            )
        logits: Tensor = self.head(self.pool(features))
        return logits

    def forward(self, images: Tensor) -> tuple[Tensor, None]:
        """Logits [B, classes]; there is no state (None)."""
        return self.classify(self.encode(images)), None

    def respond(
        self, inputs: Tensor, state: State | None = None, *, last: bool = False
    ) -> tuple[Tensor, State]:
        """Logits [B, classes] of whole images; there is no state ({})."""
        return self(inputs)[0], {}

    def example_inputs(self, batch: int, length: int) -> Tensor:
        """Random images; their size gives the length."""
        shape = (batch, self.spec.option("channels"), *self.spec.option("image"))
        images = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
        return images.to(self.device, self.dtype)

    def check_image_options(self) -> None:
        """Raise an error unless image, channels and classes are sizes."""
        check_image_size(self.name, self.spec.option("image"), self.spec.option("channels"))
        if self.spec.option("classes") < 0:
            raise ThreefoldError(
                f"{self.name}: {self.spec.option('classes')} classes, expected 1 or more, or 0: "
                "no head"
            )

    def check_images(self, images: Tensor) -> None:
        """Raise an error unless images have the size of the spec and the dtype of the weights."""
        expected = (self.spec.option("channels"), *self.spec.option("image"))
        check_images(images, expected, self.dtype, self.name)


def check_images(images: Any, expected: tuple[int, ...], dtype: torch.dtype, owner: str) -> None:
    """Raise an error unless images are [B, channels, height, width] as expected, in this dtype."""
    if not isinstance(images, Tensor) or images.shape[1:] != expected or len(images) == 0:
        received = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise ThreefoldError(
            f"{owner}: images are {received}, expected [batch, "
            f"{', '.join(map(str, expected))}] with at least one image"
        )
    check_dtype(images, dtype, owner, "images")


def check_image_size(owner: str, image: Any, channels: int) -> None:
    """Raise an error unless these are a height, a width and a number of channels."""
    sides = [side for side in image if isinstance(side, int) and side > 0]
    if len(image) != 2 or len(sides) != 2 or channels < 1:
        raise ThreefoldError(
            f"{owner}: image {image}, channels {channels}; expected a height and a width in "
            "pixels, and at least 1 channel"
        )


def check_patch(owner: str, image: tuple[int, int], patch: int) -> None:
    """Raise an error unless an image can be cut into such patches."""
    if patch < 1 or any(side % patch for side in image):
        raise ThreefoldError(
            f"{owner}: image {image}, patch {patch}; expected a height and a width that are "
            "multiples of the patch"
        )


def cut_patches(images: Tensor, patch: int) -> Tensor:
    """Images [B, channels, …] as patches [B, patches, channels · patch²], row by row."""
    rows, columns = (side // patch for side in images.shape[2:])
    cut = images.reshape(*images.shape[:2], rows, patch, columns, patch)
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
