"""Steps for sounds and images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from threefold.data.audio import Sound, read_wav, resample
from threefold.data.images import read_image, resize_image
from threefold.data.preprocessing.steps import Step
from threefold.errors import ThreefoldError

Array = NDArray[Any]


@dataclass(frozen=True)
class ReadSound(Step):
    """A WAV file, or `Sound`, → samples [length, 1]; `resampled`: other rates are converted."""

    NAME: ClassVar[str] = "read_sound"
    rate: int
    resampled: bool = False

    def apply(self, data: Path | str | Sound) -> Array:
        """The samples at the rate of training."""
        sound = data if isinstance(data, Sound) else read_wav(Path(data))
        samples = sound.samples
        if sound.rate != self.rate:
            if not self.resampled:
                raise ThreefoldError(
                    f"{_name(data)}: {sound.rate} samples per second, but the model was trained on "
                    f"{self.rate}; resample the sound, or train with "
                    f"--set data.sampling_rate={self.rate}, which resamples every sound"
                )
            samples = resample(samples, sound.rate, self.rate)
        return samples.reshape(-1, 1).astype(np.float32)


@dataclass(frozen=True)
class ReadImage(Step):
    """An image → grey levels from 0 to 1, pixel by pixel [height · width, 1]."""

    NAME: ClassVar[str] = "read_image"
    height: int
    width: int
    resized: bool = False  # images of another size are scaled; else they are refused

    def apply(self, data: Path | str | Array) -> Array:
        """The pixels, row by row."""
        pixels = np.asarray(data) if isinstance(data, np.ndarray) else read_image(Path(data), "L")
        if pixels.shape != (self.height, self.width):
            if not self.resized:
                size = " × ".join(map(str, pixels.shape[::-1]))
                raise ThreefoldError(
                    f"{_name(data)}: {size} pixels, but the model was trained on {self.width} × "
                    f"{self.height}; scale the image, or train with "
                    f"--set data.image_size={self.width}x{self.height}, which scales every image"
                )
            pixels = resize_image(pixels, self.height, self.width)
        return pixels.reshape(-1, 1).astype(np.float32) / np.float32(255)


@dataclass(frozen=True)
class ReadPicture(Step):
    """An image → levels from −1 to 1, [channels, height, width], for models that read patches."""

    NAME: ClassVar[str] = "read_picture"
    height: int
    width: int
    channels: int = 3  # 3: red, green and blue; 1: grey

    def apply(self, data: Path | str | Array) -> Array:
        """The levels; an array has levels from 0 to 255, [height, width] or with colours last."""
        colours = "RGB" if self.channels == 3 else "L"
        pixels = data if isinstance(data, np.ndarray) else read_image(Path(data), colours)
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
        expected = (self.height, self.width, self.channels)
        if pixels.shape != expected:
            raise ThreefoldError(
                f"{_name(data)}: an image {_size(pixels.shape)}, but the model was trained on "
                f"{_size(expected)} (height, width, colours); scale or convert it"
            )
        if pixels.dtype.kind not in "uif" or not bool(((pixels >= 0) & (pixels <= 255)).all()):
            raise ThreefoldError(f"{_name(data)}: levels are not numbers from 0 to 255")
        return picture_levels(pixels)


def picture_levels(pixels: Array) -> Array:
    """Levels from 0 to 255 [..., height, width, channels] as −1 to 1, with the channels first."""
    return np.moveaxis(pixels, -1, -3).astype(np.float32) / np.float32(127.5) - np.float32(1)


def _size(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _name(data: Any) -> str:
    return str(data) if isinstance(data, (str, Path)) else f"a {type(data).__name__}"
