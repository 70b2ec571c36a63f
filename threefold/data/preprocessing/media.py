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
from threefold.errors import ThreefoldError, setting

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
                    f"{setting('data.sampling_rate', str(self.rate))}, which resamples every sound"
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
        return self.pixels(data, "L").reshape(-1, 1).astype(np.float32) / np.float32(255)

    def pixels(self, data: Path | str | Array, colours: str) -> Array:
        """The image as [height, width(, 3)] from 0 to 255."""
        pixels = np.asarray(data) if isinstance(data, np.ndarray) else None
        pixels = read_image(Path(data), colours) if pixels is None else pixels  # type: ignore[arg-type]
        if pixels.ndim != (2 if colours == "L" else 3):
            raise ThreefoldError(
                f"an image of shape {pixels.shape}; expected [height, width"
                f"{'' if colours == 'L' else ', 3'}]"
            )
        if pixels.shape[:2] == (self.height, self.width):
            return pixels
        if not self.resized:
            size = " × ".join(map(str, pixels.shape[1::-1]))
            raise ThreefoldError(
                f"{_name(data)}: {size} pixels, but the model was trained on {self.width} × "
                f"{self.height}; scale the image, or train with "
                f"{setting('data.image_size', f'{self.width}x{self.height}')}, which scales every "
                "image"
            )
        return resize_image(pixels, self.height, self.width)


@dataclass(frozen=True)
class ReadPicture(ReadImage):
    """An image → a whole picture [channels, height, width] from −1 to 1, cut into patches later."""

    NAME: ClassVar[str] = "read_picture"
    colours: str = "RGB"  # or L, grey

    def apply(self, data: Path | str | Array) -> Array:
        """The picture, of one channel or of three."""
        pixels = self.pixels(data, self.colours)
        if pixels.dtype.kind not in "uif" or not bool(((pixels >= 0) & (pixels <= 255)).all()):
            raise ThreefoldError(f"{_name(data)}: levels are not numbers from 0 to 255")
        return picture_levels(pixels[..., None] if self.colours == "L" else pixels)


def picture_levels(pixels: Array) -> Array:
    """Levels from 0 to 255 [..., height, width, channels] as −1 to 1, with the channels first."""
    return np.moveaxis(pixels, -1, -3).astype(np.float32) / np.float32(127.5) - np.float32(1)


def _name(data: Any) -> str:
    return str(data) if isinstance(data, (str, Path)) else f"a {type(data).__name__}"
