"""An image as a sequence of patches:  x_0 = class token,  x_i = W patch_i + b,  plus positions.

The stack sees all patches, by attention or by any mixer in both directions; the label is read from
the class token, or from the mean of the patches.
Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words: Transformers for Image Recognition at
Scale".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from threefold.blocks.stack import Entry, non_causal_entry
from threefold.errors import ThreefoldError, nearest
from threefold.layers.linear import Linear
from threefold.models.backbone import Backbone
from threefold.models.embedding import Projection
from threefold.models.image_model import ImageModel, check_patch, cut_patches
from threefold.models.spec import Spec

POOLINGS = ("class", "mean")


class VisionTransformer(ImageModel, Backbone):
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

    @property
    def feature_width(self) -> int:
        """Size of the features at one position."""
        return self.spec.width

    def pool(self, features: Tensor) -> Tensor:
        """The output at the class token, or the mean of the patches."""
        return super().pool(features) if self.token is None else features[:, 0]

    def encode(self, images: Tensor) -> Tensor:
        """Outputs [B, patches, width] of the stack; a class token comes first."""
        x = self.embedding(self.patches(images), first=self.token)
        y, _ = self.stack(x, plan=self.stack.plan(x.shape[1], owner=self.name))
        h: Tensor = self.norm(y)
        return h

    def patches(self, images: Tensor) -> Tensor:
        """Cut images into patches [B, patches, channels · patch²], row by row."""
        self.check_images(images)
        return cut_patches(images, self.spec.option("patch"))

    def check_options(self) -> None:
        """Raise an error if images cannot be cut into such patches."""
        spec = self.spec
        self.check_image_options()
        check_patch(self.name, spec.option("image"), spec.option("patch"))
        if spec.option("pooling") not in POOLINGS:
            name = spec.option("pooling")
            raise ThreefoldError(
                f"{self.name}: unknown pooling {name!r}; {nearest(name, POOLINGS)}"
            )

    def _make_embedding(self) -> Projection:
        down, across = self.grid
        tokens = int(self.spec.option("pooling") == "class")
        return Projection(self.spec, self.input_size, down * across + tokens)

    def _entries(self) -> list[Entry]:
        return [non_causal_entry(entry) for entry in self.spec.entries]
