"""The rows of `image_networks.py`: each makes one module of an image network, at any width.

    residual    y = relu(x + f(x)),  f: two 3 × 3 convolutions, or 1 × 1, 3 × 3, 1 × 1 (inner > 0)
    inception   y = [1 × 1 ; 3 × 3 ; 5 × 5 ; pooled], each after a 1 × 1 convolution of its own

He et al. 2016, "Deep Residual Learning for Image Recognition"; Szegedy et al. 2015, "Going Deeper
with Convolutions"; Xie et al. 2017, "Aggregated Residual Transformations" (groups).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.errors import ThreefoldError

Scale: TypeAlias = Callable[..., int]  # published channels (and a divisor) → channels


class Convolution(nn.Module):
    """relu(norm(W ∗ x)), or relu(W ∗ x + b) without a norm; `activate` says whether with relu."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int | None = None,
        groups: int = 1,
        norm: bool = False,
        activate: bool = True,
    ) -> None:
        super().__init__()
        around = kernel // 2 if padding is None else padding
        self.convolution = nn.Conv2d(
            inputs, outputs, kernel, stride, around, groups=groups, bias=not norm
        )
        self.norm = nn.BatchNorm2d(outputs) if norm else None
        self.activate = activate
        nn.init.kaiming_normal_(self.convolution.weight, mode="fan_out", nonlinearity="relu")
        if self.convolution.bias is not None:
            nn.init.zeros_(self.convolution.bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.convolution(x)
        if self.norm is not None:
            if self.training and y[:, 0].numel() == 1:
                raise ThreefoldError(
                    "a batch norm cannot be trained on one image with one position; use batches of "
                    "2 or more images, or fewer stages (depth)"
                )
            y = self.norm(y)
        return F.relu(y) if self.activate else y


class ResidualBlock(nn.Module):
    """relu(shortcut(x) + f(x)); the shortcut is the identity where the shapes allow it.

    A stride is in the 3 × 3 convolution, as in the implementations that are in use; the paper has
    it in the first 1 × 1 convolution.
    """

    def __init__(self, inputs: int, outputs: int, inner: int, stride: int, groups: int) -> None:
        super().__init__()
        if inner:
            shapes = [(inner, 1, 1, 1), (inner, 3, stride, groups), (outputs, 1, 1, 1)]
        else:
            shapes = [(outputs, 3, stride, 1), (outputs, 3, 1, 1)]
        parts, before = [], inputs
        for place, (channels, kernel, step, split) in enumerate(shapes, 1):
            activate = place < len(shapes)
            parts.append(
                Convolution(
                    *(before, channels, kernel),
                    stride=step,
                    groups=split,
                    norm=True,
                    activate=activate,
                )
            )
            before = channels
        self.parts = nn.Sequential(*parts)
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            None
            if same
            else Convolution(inputs, outputs, 1, stride=stride, norm=True, activate=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        kept: Tensor = x if self.shortcut is None else self.shortcut(x)
        return F.relu(kept + self.parts(x))


class InceptionBlock(nn.Module):
    """Four branches side by side: 1 × 1, 3 × 3, 5 × 5 and a pooled one."""

    def __init__(self, inputs: int, one: int, three: Pair, five: Pair, pooled: int) -> None:
        super().__init__()
        self.one = Convolution(inputs, one, 1)
        self.three = _reduced(inputs, three, 3)
        self.five = _reduced(inputs, five, 5)
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), Convolution(inputs, pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1)


def _reduced(inputs: int, channels: Pair, kernel: int) -> nn.Sequential:
    """A 1 × 1 convolution to fewer channels, and the convolution itself."""
    return nn.Sequential(Convolution(inputs, channels[0], 1), Convolution(*channels, kernel))


# ------------------------------------------------------------------------------------- rows

Pair: TypeAlias = tuple[int, int]  # channels of a 1 × 1 convolution, and of what follows it


@dataclass(frozen=True)
class ConvRow:
    """A convolution with a relu; padded so that only its stride changes the size."""

    channels: int
    kernel: int = 3
    stride: int = 1
    padding: int | None = None
    groups: int = 1
    norm: bool = False

    def make(self, inputs: int, scale: Scale) -> tuple[nn.Module, int]:
        """The module after `inputs` channels, and its channels."""
        if inputs % self.groups:
            raise ThreefoldError(
                f"a convolution of {inputs} channels cannot have {self.groups} groups; choose a "
                f"width that is a multiple of {self.groups}"
            )
        outputs = scale(self.channels, self.groups)
        module = Convolution(
            *(inputs, outputs, self.kernel),
            stride=self.stride,
            padding=self.padding,
            groups=self.groups,
            norm=self.norm,
        )
        return module, outputs

    def side(self, side: int) -> int:
        """The side of the output for a side of the input."""
        around = self.kernel // 2 if self.padding is None else self.padding
        return (side + 2 * around - self.kernel) // self.stride + 1


@dataclass(frozen=True)
class PoolRow:
    """The maximum of `kernel` × `kernel` pixels; `ceil`: also of the rest at the border."""

    kernel: int = 3
    padding: int = 0
    ceil: bool = False

    def make(self, inputs: int, scale: Scale) -> tuple[nn.Module, int]:
        """The module after `inputs` channels, and its channels."""
        return nn.MaxPool2d(self.kernel, 2, self.padding, ceil_mode=self.ceil), inputs

    def side(self, side: int) -> int:
        """The side of the output for a side of the input."""
        return (side + 2 * self.padding - self.kernel + self.ceil) // 2 + 1


@dataclass(frozen=True)
class LocalNormRow:
    """Local response normalisation over five channels (Krizhevsky et al. 2012)."""

    def make(self, inputs: int, scale: Scale) -> tuple[nn.Module, int]:
        """The module after `inputs` channels, and its channels."""
        # torch divides alpha by the number of channels, the paper does not.
        return nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0), inputs

    def side(self, side: int) -> int:
        """The side of the output for a side of the input."""
        return side


@dataclass(frozen=True)
class ResidualRow:
    """A residual block; inner: channels of the 3 × 3 convolution between two 1 × 1; 0: none."""

    channels: int
    inner: int = 0
    stride: int = 1
    groups: int = 1

    def make(self, inputs: int, scale: Scale) -> tuple[nn.Module, int]:
        """The module after `inputs` channels, and its channels."""
        outputs = scale(self.channels)
        inner = scale(self.inner, self.groups) if self.inner else 0
        return ResidualBlock(inputs, outputs, inner, self.stride, self.groups), outputs

    def side(self, side: int) -> int:
        """The side of the output for a side of the input."""
        return (side - 1) // self.stride + 1


@dataclass(frozen=True)
class InceptionRow:
    """Channels of the four branches; pairs are (after the 1 × 1 convolution, output)."""

    one: int
    three: Pair
    five: Pair
    pooled: int

    def make(self, inputs: int, scale: Scale) -> tuple[nn.Module, int]:
        """The module after `inputs` channels, and its channels."""
        one, pooled = scale(self.one), scale(self.pooled)
        three = scale(self.three[0]), scale(self.three[1])
        five = scale(self.five[0]), scale(self.five[1])
        return (
            InceptionBlock(inputs, one, three, five, pooled),
            one + three[1] + five[1] + pooled,
        )

    def side(self, side: int) -> int:
        """The side of the output for a side of the input."""
        return side


Row: TypeAlias = "ConvRow | PoolRow | LocalNormRow | ResidualRow | InceptionRow"
