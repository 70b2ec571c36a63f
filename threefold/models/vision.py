"""An image as a sequence of patches:  x_0 = class token,  x_i = W patch_i + b,  plus positions.

The stack sees all patches, by attention or by any mixer in both directions; the label is read from
the class token, or from the mean of the patches.
Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words: Transformers for Image Recognition at
Scale".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from threefold.blocks.stack import Entry, non_causal_entry
from threefold.errors import ThreefoldError, nearest
from threefold.kernels.autocast import under_autocast
from threefold.layers.linear import Linear
from threefold.memory.state import State
from threefold.models.backbone import Backbone
from threefold.models.embedding import Projection
from threefold.models.spec import Spec

POOLINGS = ("class", "mean")


class VisionTransformer(Backbone):
    """Images [B, channels, height, width] to one of `classes` (0: no head, see `encode`)."""

    kind = "vision"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        classes = spec.option("classes")
        by_token = spec.option("pooling") == "class"
        self.token = nn.Parameter(torch.empty(spec.width).normal_(std=0.02)) if by_token else None
        self.head = Linear(spec.width, classes) if classes else None
        if self.head is not None:
            nn.init.normal_(self.head.weight, std=0.02)
            nn.init.zeros_(self.head.bias)

    @property
    def grid(self) -> tuple[int, int]:
        """Number of patches vertically and horizontally."""
        height, width = self.spec.option("image")
        patch = self.spec.option("patch")
        return height // patch, width // patch

    @property
    def input_size(self) -> int:
        """Number of values in one patch."""
        size: int = self.spec.option("channels") * self.spec.option("patch") ** 2
        return size

    def forward(self, images: Tensor) -> tuple[Tensor, None]:
        """Logits [B, classes]; there is no state (None)."""
        if self.head is None:
            raise ThreefoldError(
                f'{self.name}: has no head; build it with options={{"classes": 10}}, or use encode'
            )
        h = self.encode(images)
        return self.head(h.mean(1) if self.token is None else h[:, 0]), None

    def respond(
        self, inputs: Tensor, state: State | None = None, *, last: bool = False
    ) -> tuple[Tensor, State]:
        """Logits [B, classes] of whole images; there is no state ({})."""
        return self(inputs)[0], {}

    def example_inputs(self, batch: int, length: int) -> Tensor:
        """Random images; their size gives the length."""
        shape = (batch, self.spec.option("channels"), *self.spec.option("image"))
        images = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
        return images.to(self.device, self.embedding.weight.dtype)

    def encode(self, images: Tensor) -> Tensor:
        """Outputs [B, patches, width] of the stack; a class token comes first."""
        x = self.embedding(self.patches(images), first=self.token)
        y, _ = self.stack(x, plan=self.stack.plan(x.shape[1], owner=self.name))
        h: Tensor = self.norm(y)
        return h

    def patches(self, images: Tensor) -> Tensor:
        """Cut images into patches [B, patches, channels · patch²], row by row."""
        expected = (self.spec.option("channels"), *self.spec.option("image"))
        check_images(images, expected, self.dtype, self.name)
        return cut_patches(images, self.spec.option("patch"))

    def check_options(self) -> None:
        """Raise an error if images cannot be cut into such patches."""
        spec = self.spec
        check_patches(spec, self.name)
        if spec.option("pooling") not in POOLINGS:
            name = spec.option("pooling")
            raise ThreefoldError(
                f"{self.name}: unknown pooling {name!r}; {nearest(name, POOLINGS)}"
            )
        if spec.option("classes") < 0:
            raise ThreefoldError(
                f"{self.name}: {spec.option('classes')} classes, expected 1 or more, or 0: no head"
            )

    def _make_embedding(self) -> Projection:
        down, across = self.grid
        tokens = int(self.spec.option("pooling") == "class")
        return Projection(self.spec, self.input_size, down * across + tokens)

    def _entries(self) -> list[Entry]:
        return [non_causal_entry(entry) for entry in self.spec.entries]


def check_patches(spec: Spec, owner: str) -> None:
    """Raise an error unless images of the spec's size can be cut into patches of the spec's."""
    image, patch, channels = map(spec.option, ("image", "patch", "channels"))
    is_size = len(image) == 2 and all(isinstance(side, int) and side > 0 for side in image)
    if not is_size or patch < 1 or channels < 1 or any(side % patch for side in image):
        raise ThreefoldError(
            f"{owner}: image {image}, patch {patch}, channels {channels}; expected a "
            "height and a width that are multiples of the patch, and at least 1 channel"
        )


def check_images(images: Any, expected: tuple[int, ...], dtype: torch.dtype, owner: str) -> None:
    """Raise an error unless images are [B, channels, height, width] as expected, in this dtype."""
    if not isinstance(images, Tensor) or images.shape[1:] != expected or len(images) == 0:
        received = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise ThreefoldError(
            f"{owner}: images are {received}, expected [batch, "
            f"{', '.join(map(str, expected))}] with at least one image"
        )
    if images.dtype != dtype and not under_autocast(images):
        raise ThreefoldError(
            f"{owner}: images are {images.dtype}, the weights are {dtype}; convert one"
        )


def cut_patches(images: Tensor, patch: int) -> Tensor:
    """Images [B, channels, height, width] as patches [B, patches, channels · patch²], by rows."""
    count, channels, height, width = images.shape
    cut = images.reshape(count, channels, height // patch, patch, width // patch, patch)
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2).flatten(2)
