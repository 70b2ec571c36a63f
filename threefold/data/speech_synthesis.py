"""Spoken words made by eSpeak NG, the library of the package `espeakng-loader`.

The library is native code that somebody else wrote, known by its hash, so it runs in a process of
its own: `python -m threefold.data.speech_synthesis FOLDER` reads words and voices as JSON and
writes an npz file.
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
SYNCHRONOUS, UTF8, BY_CHARACTER = 2, 1, 1  # of speak_lib.h
SYNTHESIS_TIMEOUT = 600  # seconds for all words


def synthesise(
    folder: Path, words: Sequence[str], voices: Sequence[str]
) -> tuple[list[list[Samples]], int]:
    """Every word in every voice ([voice][word], numbers from −1 to 1), and the rate."""
    asked = json.dumps({"words": list(words), "voices": list(voices)}).encode()
    command = [sys.executable, "-m", __name__, str(folder)]
    try:
        done = subprocess.run(command, input=asked, capture_output=True, timeout=SYNTHESIS_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise ThreefoldError(f"eSpeak NG did not finish within {SYNTHESIS_TIMEOUT} s") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ThreefoldError(f"eSpeak NG failed: {said[-1] if said else done.returncode}")
    with np.load(io.BytesIO(done.stdout)) as found:
        ends = np.cumsum(found["lengths"])
        clips = np.split((found["samples"] / 32768).astype(np.float32), ends[:-1])
        rate = int(found["rate"])
    return [clips[i : i + len(words)] for i in range(0, len(clips), len(words))], rate


def voices_of(folder: Path) -> list[str]:
    """The names of the variants, in order; one with a space cannot be asked for."""
    names = (path.name for path in (folder / VOICES / "voices" / "!v").iterdir())
    return sorted(name for name in names if " " not in name)


class Speaker:
    """The library, opened."""

    def __init__(self, folder: Path) -> None:
        self.library: Any = ctypes.CDLL(str(folder / LIBRARY))
        data = str((folder / VOICES).parent).encode()
        self.rate = int(self.library.espeak_Initialize(SYNCHRONOUS, 0, data, 0))
        if self.rate <= 0:
            raise ThreefoldError(f"{folder}: eSpeak NG finds no voices there")
        self.pieces: list[bytes] = []
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
        )
        self._callback = kind(self._hear)  # kept: the library holds its address only
        self.library.espeak_SetSynthCallback(self._callback)

    def _hear(self, samples: Any, count: int, events: Any) -> int:
        if samples and count > 0:
            self.pieces.append(ctypes.string_at(samples, 2 * count))
        return 0

    def say(self, word: str, voice: str) -> NDArray[np.int16]:
        """16-bit samples of a word."""
        if self.library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise ThreefoldError(f"eSpeak NG knows no voice {voice!r}")
        self.library.espeak_ng_SetRandSeed(ctypes.c_long(1))  # by itself it takes the time
        self.pieces.clear()
        text = word.encode()
        size = ctypes.c_size_t(len(text) + 1)
        zero = ctypes.c_uint(0)
        self.library.espeak_Synth(text, size, zero, BY_CHARACTER, zero, UTF8, None, None)
        self.library.espeak_Synchronize()
        return np.frombuffer(b"".join(self.pieces), np.int16)


def main() -> None:
    """Say what stdin asks for and write it to stdout."""
    asked = json.load(sys.stdin)
    speaker = Speaker(Path(sys.argv[1]))
    clips = [speaker.say(word, voice) for voice in asked["voices"] for word in asked["words"]]
    made = io.BytesIO()
    lengths = np.array([len(clip) for clip in clips])
    np.savez(made, samples=np.concatenate(clips), lengths=lengths, rate=np.array(speaker.rate))
    sys.stdout.buffer.write(made.getvalue())


if __name__ == "__main__":
    main()
