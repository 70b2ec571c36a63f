"""A user's folder: one subfolder of sounds or images per class, or texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from threefold.data.audio import read_wav
from threefold.data.images import read_image
from threefold.data.readers import text_files
from threefold.tasks.stored import Array
from threefold.tasks.task import Task
from threefold.tasks.user_data.labelled import labelled_task
from threefold.tasks.user_data.text import text_task

TEXT_SUFFIXES = (
    *(".txt", ".md", ".text", ".log", ".tex", ".html", ".xml", ".json", ".py", ".c", ".abc"),
)
SOUND_SUFFIXES = (".wav",)
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")


def folder_task(
    path: Path,
    tokenizer: str | None,
    vocabulary: int,
    length: int | None,
    sampling_rate: int | None,
) -> Task[Any]:
    """A classifier of sounds or images if there are any in subfolders, else a language model."""
    if sounds := _files_in_subfolders(path, SOUND_SUFFIXES):
        rows = [_read_sound(file, sampling_rate)[:length] for file in sounds]
        return labelled_task(path.name, rows, [file.parent.name for file in sounds])
    if images := _files_in_subfolders(path, IMAGE_SUFFIXES):
        rows = [_read_pixels(file)[:length] for file in images]
        return labelled_task(path.name, rows, [file.parent.name for file in images])
    files = text_files(path, [f"*{suffix}" for suffix in TEXT_SUFFIXES])
    return text_task(files, path.name, tokenizer, vocabulary, length)


def _files_in_subfolders(path: Path, suffixes: Sequence[str]) -> list[Path]:
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir())
    files = (file for folder in folders for file in sorted(folder.iterdir()))
    return [file for file in files if file.suffix.lower() in suffixes]


def _read_sound(path: Path, sampling_rate: int | None) -> Array:
    samples: Array = read_wav(path, sampling_rate).samples
    return samples.reshape(-1, 1).astype(np.float32)


def _read_pixels(path: Path) -> Array:
    return read_image(path, "L").reshape(-1, 1) / np.float32(255)
