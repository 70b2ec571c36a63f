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


def _name(data: Any) -> str:
    return str(data) if isinstance(data, (str, Path)) else f"a {type(data).__name__}"
