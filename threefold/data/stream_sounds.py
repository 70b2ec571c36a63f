"""The samples of a sound as elements of a stream: a WAV file, or bare samples (PCM)."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from threefold.data.audio import EXTENSIBLE, FLOAT, PCM, decode_samples
from threefold.data.preprocessing.media import SoundFrames
from threefold.data.stream_encoders import Elements, Encoder, UnreadableError
from threefold.errors import ThreefoldError

SOUND_FORMATS = {"s16le": (PCM, 1, 16), "s32le": (PCM, 1, 32), "f32le": (FLOAT, 1, 32)}
LONGEST_HEADER = 1 << 20  # bytes before the samples
UNKNOWN_SIZES = (0, 0xFFFFFFFF)  # written by programs that write to a pipe


class SoundEncoder(Encoder):
    """Samples from −1 to 1 [n, 1], channels averaged, at the rate of the model's training.

    frames: makes frames [n, coefficients] of the samples, if the model reads them.
    sample_format: None for a WAV file, or a name of SOUND_FORMATS for bare samples of one channel.
    """

    def __init__(
        self, rate: int, sample_format: str | None = None, frames: SoundFrames | None = None
    ) -> None:
        self.rate, self.frames = rate, frames
        self.layout: list[int] = []  # encoding, channels, bits
        self.left: int | None = None  # bytes of samples to come, if the header says it
        self.missing_bytes = 0  # at the end of a truncated file
        if sample_format is not None:
            self.layout = list(SOUND_FORMATS[sample_format])

    def encode(self, data: bytes, final: bool) -> tuple[Elements, int]:
        start = 0
        if not self.layout:
            start = self._read_header(data, final)
            if not start:
                return self._elements(np.zeros((0, 1), np.float32)), 0
        encoding, channels, bits = self.layout
        frame = channels * bits // 8
        available = len(data) - start
        size = available if self.left is None else min(available, self.left)
        size -= size % frame
        samples = decode_samples(data[start : start + size], encoding, bits, channels)
        if not np.isfinite(samples).all():
            raise UnreadableError(start, "contains samples that are not finite")
        done = self.left is not None and self.left - size < frame  # other chunks may follow
        elements = self._elements(samples.reshape(-1, 1))
        if self.frames is not None and not (final or done):
            size = len(elements) * self.frames.hop * frame  # the rest is a part of the next frame
        if self.left is not None:
            self.left -= size
        if final and not done:
            self.missing_bytes = self.left or 0
        return elements, len(data) if final or done else start + size

    def _elements(self, samples: Elements) -> Elements:
        """The samples, or their complete frames."""
        if self.frames is None:
            return samples
        count = self.frames.count(len(samples))
        return self.frames.apply(samples)[:count]

    def settings(self) -> dict[str, Any]:
        return {"layout": self.layout, "left": self.left}

    def restore(self, settings: dict[str, Any]) -> None:
        self.layout, self.left = settings["layout"], settings["left"]

    def _read_header(self, data: bytes, final: bool) -> int:
        """The byte at which the samples begin; 0 if there are too few bytes to say it."""
        if data[:4] != b"RIFF"[: len(data[:4])] or data[8:12] != b"WAVE"[: len(data[8:12])]:
            raise UnreadableError(0, "not a WAV file: it does not begin with RIFF … WAVE")
        start, header = 12, b""
        while start + 8 <= len(data):
            name, size = struct.unpack("<4sI", data[start : start + 8])
            start += 8
            if name == b"data":
                self._use_header(header, size)
                return start
            header = data[start : start + size] if name == b"fmt " else header
            start += size + size % 2
        if final or len(data) > LONGEST_HEADER:
            raise UnreadableError(0, "not a WAV file: it has no samples")
        return 0

    def _use_header(self, header: bytes, size: int) -> None:
        if len(header) < 16:
            raise UnreadableError(0, "not a valid WAV file: its format is missing")
        encoding, channels, rate, _, _, bits = struct.unpack("<HHIIHH", header[:16])
        if encoding == EXTENSIBLE and len(header) >= 26:
            encoding = struct.unpack("<H", header[24:26])[0]
        if rate != self.rate:
            raise UnreadableError(
                0,
                f"{rate} samples per second, but the model was trained on {self.rate}; resample "
                "the sound before it is streamed",
            )
        try:
            decode_samples(b"", encoding, bits, channels)
        except ThreefoldError as error:
            raise UnreadableError(0, str(error)) from error
        self.layout = [encoding, channels, bits]
        self.left = None if size in UNKNOWN_SIZES else size


def wav_rate(path: Path) -> int | None:
    """The sampling rate in the header of a WAV file; None if it is none."""
    with path.open("rb") as file:
        start = file.read(1 << 12)
    at = start.find(b"fmt ")
    if start[:4] != b"RIFF" or at < 0 or len(start) < at + 16:
        return None
    rate: int = struct.unpack("<I", start[at + 12 : at + 16])[0]
    return rate
