"""Spoken words synthesised by eSpeak NG, the library in the package `espeakng-loader`.

The library is third-party native code, identified by its hash, so it runs in a process of its own:
`python -m threefold.data.speech_synthesis FOLDER` reads words and voices as JSON and writes an npz
file.
"""

from __future__ import annotations

import ctypes
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from threefold.data.audio import Samples
from threefold.errors import ThreefoldError

LIBRARY, VOICES = "espeakng_loader/libespeak-ng.so", "espeakng_loader/espeak-ng-data"
SYNCHRONOUS, UTF8, BY_CHARACTER = 2, 1, 1  # constants of speak_lib.h
SYNTHESIS_TIMEOUT = 600  # seconds, for all words


def synthesise(
    folder: Path, words: Sequence[str], voices: Sequence[str]
) -> tuple[list[list[Samples]], int]:
    """Every word in every voice ([voice][word], samples from −1 to 1), and the sampling rate."""
    request = json.dumps({"words": list(words), "voices": list(voices)}).encode()
    command = [sys.executable, "-m", __name__, str(folder)]
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, timeout=SYNTHESIS_TIMEOUT
        )
    except subprocess.TimeoutExpired as error:
        raise ThreefoldError(f"eSpeak NG did not finish within {SYNTHESIS_TIMEOUT} s") from error
    if done.returncode:
        errors = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ThreefoldError(f"eSpeak NG failed: {errors[-1] if errors else done.returncode}")
    with np.load(io.BytesIO(done.stdout)) as file:
        ends = np.cumsum(file["lengths"])
        clips = np.split((file["samples"] / 32768).astype(np.float32), ends[:-1])
        rate = int(file["rate"])
    return [clips[i : i + len(words)] for i in range(0, len(clips), len(words))], rate


def voices_of(folder: Path) -> list[str]:
    """The names of the voice variants in alphabetical order, without those that have a space."""
    names = (path.name for path in (folder / VOICES / "voices" / "!v").iterdir())
    return sorted(name for name in names if " " not in name)


class Speaker:
    """The loaded library."""

    def __init__(self, folder: Path) -> None:
        self.library: Any = ctypes.CDLL(str(folder / LIBRARY))
        data = str((folder / VOICES).parent).encode()
        self.rate = int(self.library.espeak_Initialize(SYNCHRONOUS, 0, data, 0))
        if self.rate <= 0:
            raise ThreefoldError(f"{folder}: eSpeak NG found no voices in this folder")
        self.chunks: list[bytes] = []
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
        )
        self._callback = kind(self._hear)  # kept alive: the library has only its address
        self.library.espeak_SetSynthCallback(self._callback)

    def _hear(self, samples: Any, count: int, events: Any) -> int:
        if samples and count > 0:
            self.chunks.append(ctypes.string_at(samples, 2 * count))
        return 0

    def say(self, word: str, voice: str) -> NDArray[np.int16]:
        """A word as 16-bit samples."""
        if self.library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise ThreefoldError(f"eSpeak NG has no voice {voice!r}")
        self.library.espeak_ng_SetRandSeed(ctypes.c_long(1))  # its default seed is the time
        self.chunks.clear()
        text = word.encode()
        size = ctypes.c_size_t(len(text) + 1)
        zero = ctypes.c_uint(0)
        self.library.espeak_Synth(text, size, zero, BY_CHARACTER, zero, UTF8, None, None)
        self.library.espeak_Synchronize()
        return np.frombuffer(b"".join(self.chunks), np.int16)


def answer_request() -> None:
    """Synthesise the words given on stdin and write them to stdout."""
    request = json.load(sys.stdin)
    speaker = Speaker(Path(sys.argv[1]))
    clips = [speaker.say(word, voice) for voice in request["voices"] for word in request["words"]]
    npz = io.BytesIO()
    lengths = np.array([len(clip) for clip in clips])
    np.savez(npz, samples=np.concatenate(clips), lengths=lengths, rate=np.array(speaker.rate))
    sys.stdout.buffer.write(npz.getvalue())


if __name__ == "__main__":
    answer_request()
