"""A user's folder: one subfolder of sounds or images per class, or texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from threefold.data.audio import read_wav
from threefold.data.images import read_image
from threefold.data.preprocessing import Chain
from threefold.data.preprocessing.media import ReadImage, ReadSound
from threefold.data.preprocessing.numbers import Truncate
from threefold.data.readers import text_files
from threefold.errors import AmbiguousError, ThreefoldError
from threefold.tasks.task import Task
from threefold.tasks.user_data.examples import ExampleData, RawExamples, examples_task
from threefold.tasks.user_data.settings import Reading, ReadSettings
from threefold.tasks.user_data.text import text_task

TEXT_SUFFIXES = (
    *(".txt", ".md", ".text", ".log", ".tex", ".html", ".xml", ".json", ".py", ".c", ".abc"),
)
SOUND_SUFFIXES = (".wav",)
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".xlsx")


def folder_task(path: Path, reading: Reading) -> Task[Any]:
    """A classifier of sounds or images if there are any in subfolders, else a language model."""
    sounds = _files_in_subfolders(path, SOUND_SUFFIXES)
    images = _files_in_subfolders(path, IMAGE_SUFFIXES)
    if sounds and images:
        raise ThreefoldError(
            f"{path}: contains {len(sounds)} sounds and {len(images)} images; put them into "
            "different folders"
        )
    if sounds or images:
        return examples_task(_media(path, sounds or images, bool(sounds), reading), reading)
    _refuse_tables(path)
    files = text_files(path, [f"*{suffix}" for suffix in TEXT_SUFFIXES])
    return text_task(files, path.name, reading)


def _media(path: Path, files: Sequence[Path], sounds: bool, reading: Reading) -> ExampleData:
    settings = reading.settings
    what = "sounds" if sounds else "images"
    settings.allow_only(
        f"{path.name}, {what}", "length", "sampling_rate" if sounds else "image_size"
    )
    labels = [file.parent.name for file in files]
    shown = f"{len(files):,} {what} in {len(set(labels))} subfolders"
    cut = () if settings.length is None else (Truncate(settings.length),)

    def fit(train: Sequence[Path]) -> Chain:
        if reading.preprocessing is not None:
            return reading.preprocessing.inputs
        read = _sound_step(files, settings) if sounds else _image_step(files, settings)
        return Chain((read, *cut))

    return ExampleData(
        path.name,
        "classifier",
        "sound" if sounds else "image",
        RawExamples(files, labels, [str(file) for file in files]),
        fit,
        facts=(("inputs", shown), ("target", "the name of the subfolder")),
    )


def _sound_step(files: Sequence[Path], settings: ReadSettings) -> ReadSound:
    """The sampling rate of the sounds; different ones must be asked for."""
    if settings.sampling_rate is not None:
        return ReadSound(settings.sampling_rate, resampled=True)
    rates = Counter(read_wav(file).rate for file in files).most_common()
    if len(rates) > 1:
        shown = ", ".join(f"{count} at {rate}" for rate, count in rates)
        raise AmbiguousError(
            f"sounds of different sampling rates ({shown} per second)",
            [f"--set data.sampling_rate={rate}    resamples all" for rate, _ in rates],
        )
    return ReadSound(rates[0][0])


def _image_step(files: Sequence[Path], settings: ReadSettings) -> ReadImage:
    """The size of the images; different ones must be asked for."""
    if settings.image_size is not None:
        width, separator, height = settings.image_size.lower().partition("x")
        if not separator or not (width.isdigit() and height.isdigit()):
            raise ThreefoldError(
                f"data.image_size is {settings.image_size!r}, expected WIDTHxHEIGHT, e.g. 32x32"
            )
        return ReadImage(int(height), int(width), resized=True)
    sizes = Counter(read_image(file, "L").shape for file in files).most_common()
    if len(sizes) > 1:
        shown = ", ".join(f"{count} of {w} × {h}" for (h, w), count in sizes[:4])
        raise AmbiguousError(
            f"images of different sizes ({shown} pixels)",
            [f"--set data.image_size={w}x{h}    scales all" for (h, w), _ in sizes[:4]],
        )
    height, width = sizes[0][0]
    return ReadImage(height, width)


def _refuse_tables(path: Path) -> None:
    tables = [file for file in sorted(path.iterdir()) if file.suffix.lower() in TABLE_SUFFIXES]
    if tables:
        raise ThreefoldError(
            f"{path}: a folder of tables ({tables[0].name}, …); give one of the files, or join "
            "them into one table with a column that names the series (--series-column)"
        )


def _files_in_subfolders(path: Path, suffixes: Sequence[str]) -> list[Path]:
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir())
    files = (file for folder in folders for file in sorted(folder.iterdir()))
    return [file for file in files if file.suffix.lower() in suffixes]
