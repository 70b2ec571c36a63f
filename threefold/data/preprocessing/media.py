"""Steps for sounds and images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from threefold.data.audio import FLOOR, Sound, cepstra, mel_energies, read_wav, resample
from threefold.data.images import read_image, resize_image
from threefold.data.preprocessing.steps import Step
from threefold.errors import ThreefoldError, setting

Array = NDArray[Any]
FRAMES_PER_SECOND, FRAME_SECONDS = 100, 0.025
QUIETEST = 0.5  # share of the bands of training


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
class SoundFrames(Step):
    """Samples [n, 1] → cepstral coefficients [frames, 20], standardised.

    Frame i is computed from the samples i · hop … i · hop + window − 1 alone, so that a stream of
    samples gives the same frames.  A sound shorter than a window is followed by silence.
    floor: the median power of the bands of training, added to all: what is far quieter is the same.
    """

    NAME: ClassVar[str] = "sound_frames"
    rate: int
    window: int
    hop: int
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    floor: float = FLOOR

    @classmethod
    def fit(cls, sounds: Sequence[Array], rate: int) -> SoundFrames:
        """Frames of 25 ms every 10 ms, on the scale of the frames of these sounds [n, 1]."""
        hop = max(1, rate // FRAMES_PER_SECOND)
        bare = cls(rate, max(2, round(rate * FRAME_SECONDS)), hop)
        powers = np.concatenate([mel_energies(bare._frames(x), rate).ravel() for x in sounds])
        quiet = np.quantile(powers[powers > 0], QUIETEST) if powers.any() else 0.0
        bare = replace(bare, floor=max(FLOOR, float(quiet)))
        frames = np.concatenate([bare._coefficients(sound) for sound in sounds]).astype(np.float64)
        deviation = frames.std(0)
        deviation[deviation < 1e-9] = 1.0  # sounds of silence
        mean = tuple(frames.mean(0).tolist())
        return replace(bare, mean=mean, deviation=tuple(deviation.tolist()))

    def apply(self, data: Array) -> Array:
        """The frames of a sound."""
        scaled: Array = (self._coefficients(data) - self.mean) / np.array(self.deviation)
        return scaled.astype(np.float32)

    def count(self, samples: int) -> int:
        """How many frames are complete."""
        return 0 if samples < self.window else 1 + (samples - self.window) // self.hop

    def _coefficients(self, data: Array) -> Array:
        return cepstra(self._frames(data), self.rate, floor=self.floor)

    def _frames(self, data: Array) -> Array:
        samples = np.asarray(data, np.float64).reshape(-1)
        padded = np.pad(samples, (0, max(0, self.window - len(samples))))
        return np.lib.stride_tricks.sliding_window_view(padded, self.window)[:: self.hop]


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
