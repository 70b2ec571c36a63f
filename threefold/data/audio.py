"""Audio: reading WAV files, resampling by a polyphase filter, mel-frequency cepstral coefficients.

    resample   y[m] = Σₖ h[mM − kL] x[k],  rates new : old = L : M,  h a Kaiser-windowed sinc
    mfcc       c = DCT(log(mel · |FFT(frame ⊙ Hann)|²))
Davis & Mermelstein 1980, "Comparison of Parametric Representations for … Word Recognition".
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from threefold.data.readers import file_error, read_bytes
from threefold.errors import ThreefoldError

Samples: TypeAlias = NDArray[np.float32]

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
SINC_ZERO_CROSSINGS = 10  # on each side
KAISER_BETA = 5.0  # shape of the window
FLOOR = 1e-6  # power that is added to every band, whose logarithm is taken


class Sound(NamedTuple):
    """Samples from −1 to 1 of one channel."""

    samples: Samples
    rate: int  # samples per second


def read_wav(path: Path, rate: int | None = None) -> Sound:
    """Read PCM of 8 to 32 bits or floats, channels averaged; the rate must be `rate` if given."""
    header, data = _header_and_data(path)
    encoding, channels, file_rate, _, _, bits = struct.unpack("<HHIIHH", header[:16])
    if encoding == EXTENSIBLE and len(header) >= 26:
        encoding = struct.unpack("<H", header[24:26])[0]
    if rate is not None and file_rate != rate:
        raise file_error(
            path, None, f"{file_rate} samples per second, expected {rate}; resample the file"
        )
    try:
        samples = decode_samples(data, encoding, bits, channels)
    except ThreefoldError as error:
        raise file_error(path, None, str(error)) from error
    if len(samples) == 0 or file_rate < 1:
        what = f"{len(samples)} samples in {channels} channels at {file_rate} per second"
        raise file_error(path, None, f"damaged: {what}")
    if not np.isfinite(samples).all():
        raise file_error(path, None, "contains samples that are not finite")
    return Sound(samples, file_rate)


def _header_and_data(path: Path) -> tuple[bytes, bytes]:
    """The two chunks that every WAV file has: its format and its samples."""
    content = read_bytes(path)
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise file_error(
            path, None, "not a WAV file: it does not begin with RIFF … WAVE; convert it"
        )
    chunks = _chunks(content, path)
    if b"fmt " not in chunks or b"data" not in chunks or len(chunks[b"fmt "]) < 16:
        raise file_error(path, None, "not a valid WAV file: its format or its data are missing")
    return chunks[b"fmt "], chunks[b"data"]


def _chunks(content: bytes, path: Path) -> dict[bytes, bytes]:
    chunks: dict[bytes, bytes] = {}
    start = 12
    while start + 8 <= len(content):
        name, size = struct.unpack("<4sI", content[start : start + 8])
        if start + 8 + size > len(content):
            what = f"{name.decode('latin-1')!r} should have {size} bytes"
            raise file_error(path, None, f"truncated: {what}, has {len(content) - start - 8}")
        chunks.setdefault(name, content[start + 8 : start + 8 + size])
        start += 8 + size + size % 2
    return chunks


def decode_samples(data: bytes, encoding: int, bits: int, channels: int) -> Samples:
    """Samples from −1 to 1, averaged over channels, of the bytes of a WAV file."""
    if channels < 1 or bits not in (8, 16, 24, 32, 64) or len(data) % (bits // 8 * channels):
        raise ThreefoldError(
            f"damaged: {len(data)} bytes of {bits}-bit samples in {channels} channels"
        )
    numbers = _numbers(data, encoding, bits).reshape(-1, channels)
    mean: Samples = numbers.mean(1, dtype=np.float64).astype(np.float32)
    return mean


def _numbers(data: bytes, encoding: int, bits: int) -> Samples:
    if encoding == FLOAT and bits in (32, 64):
        return np.frombuffer(data, f"<f{bits // 8}").astype(np.float32)
    if encoding == PCM and bits == 8:
        return ((np.frombuffer(data, np.uint8) - 128.0) / 128).astype(np.float32)
    if encoding == PCM and bits in (16, 32):
        numbers = np.frombuffer(data, f"<i{bits // 8}")
        return (numbers / 2.0 ** (bits - 1)).astype(np.float32)
    if encoding == PCM and bits == 24:
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return (wide.view("<i4")[:, 0] / 2.0**31).astype(np.float32)
    raise ThreefoldError(
        f"unsupported encoding {encoding} with {bits} bits; expected PCM or floats"
    )


def resample(samples: NDArray[np.floating[Any]], old: int, new: int) -> Samples:
    """Resample to another rate; returns ⌈n · new / old⌉ samples."""
    divisor = math.gcd(old, new)
    up, down = new // divisor, old // divisor
    if up == down:
        return samples.astype(np.float32)
    taps = _filter(up, down)
    half = len(taps) // 2
    count = -(-len(samples) * up // down)
    # Output m is at m·down of the upsampled sound, where every up-th sample is not zero: it weighs
    # sample `last` by tap `phase`, the one before by tap `phase` + up, and so on.
    last, phase = np.divmod(np.arange(count) * down + half, up)
    reach = len(taps) // up + 1
    padded = np.concatenate([np.zeros(reach), samples, np.zeros(reach)])
    filled = np.concatenate([taps, np.zeros(reach * up + up - len(taps))])
    resampled = np.zeros(count)
    for back in range(reach):  # summed in a fixed order: the same digits on every machine
        resampled += filled[phase + back * up] * padded[last - back + reach]
    return resampled.astype(np.float32)


@lru_cache(maxsize=32)
def _filter(up: int, down: int) -> NDArray[np.float64]:
    """A low-pass filter at the smaller of both Nyquist frequencies, with gain `up`."""
    most = max(up, down)
    half = SINC_ZERO_CROSSINGS * most
    taps = np.sinc(np.arange(-half, half + 1) / most) * np.kaiser(2 * half + 1, KAISER_BETA)
    return np.asarray(taps / taps.sum() * up)


def mfcc(
    samples: NDArray[np.floating[Any]],
    rate: int,
    *,
    coefficients: int = 20,
    mels: int = 64,
    window: int = 200,
    hop: int = 100,
) -> Samples:
    """Cepstral coefficients [1 + n // hop, coefficients]; the sound is mirrored at its ends.

    16,000 samples give 161 frames, as in Kidger et al. 2020, "Neural Controlled Differential
    Equations for Irregular Time Series".
    """
    half = window // 2
    padded = np.pad(
        samples.astype(np.float64), half, mode="reflect" if len(samples) > half else "edge"
    )
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop]
    return cepstra(frames, rate, coefficients=coefficients, mels=mels)


def cepstra(
    frames: NDArray[np.floating[Any]],
    rate: int,
    *,
    coefficients: int = 20,
    mels: int = 64,
    floor: float = FLOOR,
) -> Samples:
    """Cepstral coefficients [n, coefficients] of frames [n, window], each by itself."""
    energies = np.log(mel_energies(frames, rate, mels) + floor)
    return (energies @ _cosines(mels, coefficients)).astype(np.float32)


def mel_energies(
    frames: NDArray[np.floating[Any]], rate: int, mels: int = 64
) -> NDArray[np.float64]:
    """The power [n, mels] of frames [n, window] in bands that are equally wide in mels."""
    window = frames.shape[-1]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    power = np.abs(np.fft.rfft(frames * hann, axis=1)) ** 2
    return np.asarray(power @ _mel_filters(rate, window, mels))


@lru_cache(maxsize=32)
def _mel_filters(rate: int, window: int, mels: int) -> NDArray[np.float64]:
    """Triangles [window // 2 + 1, mels], equally wide in mels (2595 log₁₀(1 + f / 700))."""
    top = 2595 * np.log10(1 + rate / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, mels + 2) / 2595) - 1)
    bins = np.linspace(0, rate / 2, window // 2 + 1)[:, None]
    low, centre, high = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (bins - low) / (centre - low), (high - bins) / (high - centre)
    return np.asarray(np.maximum(0.0, np.minimum(rising, falling)))


@lru_cache(maxsize=32)
def _cosines(size: int, count: int) -> NDArray[np.float64]:
    """The first columns of the orthonormal DCT-II [size, count]."""
    table = np.cos(np.pi / size * (np.arange(size)[:, None] + 0.5) * np.arange(count))
    table *= np.sqrt(2 / size)
    table[:, 0] /= np.sqrt(2)
    return np.asarray(table)
