"""Whole images [channels, height, width] from −1 to 1; the answer is what they show.

For the kinds `vision`, `convolutional` and `swin`; the option `kind` says which one a task trains.
The images and their splits are those of `pixels.py`; those of `digits8-images` are moved a little
for training.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from threefold.data.loaders import Batch
from threefold.errors import ThreefoldError, nearest
from threefold.tasks.pixels import digits8, scifar, sfashion
from threefold.tasks.table import IMAGE_KINDS
from threefold.tasks.task import Numbers, Task, declare

MOVES = 9  # positions of a training image of digits8-images


def digits8_images(folder: Path | None = None, *, kind: str = "vision") -> Task[Batch]:
    """The digits as images [1, 8, 8]; training images at nine positions each.

    Example 9 i + p of the training split is image i, moved by up to a pixel in each direction.
    """
    images = digits8(folder)

    def draw(split: str, numbers: Numbers) -> Batch:
        positions = MOVES if split == "train" else 1
        rows = _pictures(images.draw(split, numbers // positions), 8)
        if split == "train":
            rows = rows._replace(inputs=_moved(rows.inputs, numbers % MOVES))
        return rows

    train, valid, test = images.sizes
    task = declare("digits8-images", draw, sizes=(MOVES * train, valid, test))
    return _of_kind(task, kind)


def fashion_images(folder: Path | None = None, *, kind: str = "vision") -> Task[Batch]:
    """Fashion-MNIST as images [1, 28, 28]."""
    return _whole("fashion-images", sfashion(folder), 28, kind)


def cifar_images(folder: Path | None = None, *, kind: str = "vision") -> Task[Batch]:
    """CIFAR-10 as images [3, 32, 32]."""
    return _whole("cifar-images", scifar(folder), 32, kind)


def _whole(name: str, pixels: Task[Batch], side: int, kind: str) -> Task[Batch]:
    """The images of a task that reads them pixel by pixel."""

    def draw(split: str, numbers: Numbers) -> Batch:
        return _pictures(pixels.draw(split, numbers), side)

    return _of_kind(declare(name, draw, sizes=pixels.sizes), kind)


def _of_kind(task: Task[Batch], kind: str) -> Task[Batch]:
    """The task for another kind of model; it stays the same task."""
    if kind not in IMAGE_KINDS:
        raise ThreefoldError(
            f"{task.name}: a {kind} model does not read images; {nearest(kind, IMAGE_KINDS)}"
        )
    return replace(task, kind=kind)


def _pictures(rows: Batch, side: int) -> Batch:
    """Pixels [B, side², channels] from 0 to 1 as images [B, channels, side, side] from −1 to 1."""
    images = torch.unflatten(rows.inputs.mT, 2, (side, side)).contiguous()
    return rows._replace(inputs=2 * images - 1)


def _moved(images: Tensor, positions: Numbers) -> Tensor:
    """Move images by up to a pixel; new pixels at the border are background (−1)."""
    size, wide = images.shape[-1], F.pad(images, (1, 1, 1, 1), value=-1.0)
    return torch.stack(
        [
            image[:, down : down + size, across : across + size]
            for image, position in zip(wide, positions.tolist(), strict=True)
            for down, across in [divmod(position, 3)]
        ]
    )
