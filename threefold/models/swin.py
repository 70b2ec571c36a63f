"""Swin: patches in stages;  blocks of attention inside windows, then 2 × 2 patches become one.

Every second block shifts its windows by half of their side, so that neighbouring windows exchange
information.  `width` is that of the first stage and doubles with each of `depth` stages.
Liu et al. 2021, "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows".
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from threefold.blocks.block import PreNorm
from threefold.blocks.channel import MLP
from threefold.errors import ThreefoldError
from threefold.layers.checks import check_dropout
from threefold.layers.heads import choose_heads
from threefold.layers.linear import Linear
from threefold.layers.mixer import Plan
from threefold.layers.window_attention import WindowAttention
from threefold.models.image_model import ImageModel, cut_patches
from threefold.models.spec import Spec

LARGEST_WINDOW = 7  # as published
WINDOWS = range(4, LARGEST_WINDOW + 1)  # those preferred where they divide a grid
HEAD_SIZE = 32  # as published


class PatchMerging(nn.Module):
    """x [B, rows · columns, width] to W norm([four neighbours]), half as many rows and columns.

    An odd number of them is made even by zeros.
    """

    def __init__(self, width: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.grid = grid
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = self.grid
        grid = F.pad(x.reshape(len(x), *self.grid, -1), (0, 0, 0, columns % 2, 0, rows % 2))
        cut = grid.reshape(len(x), (rows + 1) // 2, 2, (columns + 1) // 2, 2, -1)
        joined = cut.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)
        merged: Tensor = self.reduction(self.norm(joined))
        return merged


class SwinStage(nn.Module):
    """Blocks of one width, and in every stage but the last the merging of their patches."""

    def __init__(self, blocks: list[PreNorm], merging: PatchMerging | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.merging = merging

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x, _ = block(x, plan=Plan("parallel"))
        return x if self.merging is None else self.merging(x)


class SwinTransformer(ImageModel):
    """Images [B, channels, height, width] to one of `classes` (0: no head, see `encode`).

    blocks: of each stage; (): two in each.  window: side of the windows; 0: the largest from 4 to 7
    that divides a stage's grid of patches, otherwise 7.  Images and grids of other sides are padded
    with zeros, as in the published code; a smaller grid is a single window.  heads: of the first
    stage, twice as many in each later one; 0: of a size near 32.
    """

    kind = "swin"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._check_options()
        patch = spec.option("patch")
        self.embedding = Linear(spec.option("channels") * patch**2, spec.width)
        self.embedding_norm = nn.LayerNorm(spec.width)
        self.stages = nn.Sequential(*map(self._make_stage, range(spec.depth)))
        self.norm = nn.LayerNorm(self.feature_width)
        classes = spec.option("classes")
        self.head = Linear(self.feature_width, classes) if classes else None
        if self.head is not None:
            nn.init.normal_(self.head.weight, std=0.02)
            nn.init.zeros_(self.head.bias)

    @property
    def feature_width(self) -> int:
        """The width of the last stage."""
        return int(self.spec.width * 2 ** (self.spec.depth - 1))

    @property
    def blocks(self) -> tuple[int, ...]:
        """The number of blocks in each stage."""
        chosen: tuple[int, ...] = self.spec.option("blocks")
        return chosen or (2,) * self.spec.depth

    def encode(self, images: Tensor) -> Tensor:
        """Outputs [B, positions, feature_width] of the last stage, row by row."""
        self.check_images(images)
        patch = self.spec.option("patch")
        down, across = (-side % patch for side in images.shape[2:])
        patches = cut_patches(F.pad(images, (0, across, 0, down)), patch)
        x = self.embedding_norm(self.embedding(patches))
        h: Tensor = self.norm(self.stages(x))
        return h

    def grid(self, stage: int) -> tuple[int, int]:
        """Rows and columns of patches in a stage."""
        side = self.spec.option("patch") * 2**stage
        down, across = (-(-pixels // side) for pixels in self.spec.option("image"))
        return down, across

    def _make_stage(self, stage: int) -> SwinStage:
        width, grid = self.spec.width * 2**stage, self.grid(stage)
        window = self._window(stage)
        heads = 2**stage * choose_heads(
            self.spec.width, self.spec.option("heads") or None, HEAD_SIZE
        )
        # A single window has no neighbour to exchange with.
        shift = window // 2 if min(grid) > window else 0
        blocks = [
            PreNorm(
                WindowAttention(
                    width, grid=grid, window=window, shift=shift * (place % 2), heads=heads
                ),
                MLP(width),
                norm="layer",
                dropout=self.spec.option("dropout"),
            )
            for place in range(self.blocks[stage])
        ]
        merging = PatchMerging(width, grid) if stage + 1 < self.spec.depth else None
        return SwinStage(blocks, merging)

    def _window(self, stage: int) -> int:
        grid, asked = self.grid(stage), self.spec.option("window")
        most = min(*grid, asked or LARGEST_WINDOW)
        fitting = [side for side in WINDOWS if side <= most and not any(s % side for s in grid)]
        return most if asked else max(fitting, default=most)

    def _check_options(self) -> None:
        spec = self.spec
        self.check_image_options()
        check_dropout(self.name, dropout=spec.option("dropout"))
        if spec.option("patch") < 1:
            raise ThreefoldError(
                f"{self.name}: patch is {spec.option('patch')}, expected 1 or more pixels"
            )
        counts = [count for count in self.blocks if isinstance(count, int) and count > 0]
        if len(counts) != spec.depth or len(self.blocks) != spec.depth:
            raise ThreefoldError(
                f"{self.name}: blocks is {self.blocks}, depth {spec.depth}; expected a number of "
                "blocks, 1 or more, for each stage"
            )
        for name in ("window", "heads"):
            if spec.option(name) < 0:
                raise ThreefoldError(
                    f"{self.name}: {name} is {spec.option(name)}, expected 1 or more, or 0: chosen"
                )
        down, across = self.grid(0)
        if min(down, across) < 2 ** (spec.depth - 1):
            raise ThreefoldError(
                f"{self.name}: {down} × {across} patches cannot be halved {spec.depth - 1} times; "
                "use fewer stages (depth), a smaller patch, or larger images"
            )
