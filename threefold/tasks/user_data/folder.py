"""A user's folder: one subfolder of sounds, images or texts per class, or texts to be learnt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from threefold.data.audio import read_wav
from threefold.data.preprocessing import FORMS, Chain
from threefold.data.preprocessing.media import ReadSound, SoundFrames
from threefold.data.preprocessing.numbers import Truncate
from threefold.data.readers import read_text
from threefold.errors import AmbiguousError, ThreefoldError, option, setting
from threefold.tasks.table import IMAGE_KINDS
from threefold.tasks.task import Task
from threefold.tasks.user_data.examples import (
    LABELLED,
    ExampleData,
    RawExamples,
    examples_task,
)
from threefold.tasks.user_data.pictures import IMAGE_SUFFIXES, image_step, picture_step
from threefold.tasks.user_data.settings import Reading, ReadSettings
from threefold.tasks.user_data.text import text_task
from threefold.tasks.user_data.text_inputs import fit_texts

TEXT_SUFFIXES = (
    *(".txt", ".md", ".text", ".log", ".tex", ".html", ".xml", ".json", ".py", ".c", ".abc"),
)
MOST_SAMPLES = 1000  # of a sound that a model reads sample by sample, unless asked to
SOUND_SUFFIXES = (".wav",)
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".xlsx", ".npy", ".ts")
KINDS_OF_FILES = {
    "sounds": SOUND_SUFFIXES,
    "images": IMAGE_SUFFIXES,
    "texts": TEXT_SUFFIXES,
    "tables": TABLE_SUFFIXES,
}
EXPECTED = (
    "expected texts (.txt, .md, …), or sounds (.wav) or images (.png, .jpg, …) in one subfolder "
    "per class"
)
MOST_TEXT_TOKENS = 4096  # of one text with a class, unless `length` is given


def folder_task(path: Path, reading: Reading) -> Task[Any]:
    """A classifier of sounds or images if there are any in subfolders, else a language model."""
    name = path.name or path.resolve().name
    inside = _by_kind(file for folder in _folders(path) for file in sorted(folder.iterdir()))
    media = [kind for kind in ("sounds", "images") if inside[kind]]
    if media:
        _refuse_mixture(path, inside)
        _refuse_other_media(path, media[0], reading)
        data = _media(name, inside[media[0]], media[0] == "sounds", reading)
        return examples_task(data, reading)
    if reading.kind in LABELLED and inside["texts"]:
        return examples_task(_labelled_texts(name, inside["texts"], reading), reading)
    files = _by_kind(sorted(path.rglob("*"), key=lambda file: file.relative_to(path).as_posix()))
    _refuse_without_text(path, files)
    others = sum(len(found) for kind, found in files.items() if kind != "texts")
    notes = [f"{others:,} other files of the folder are not read"] if others else []
    if len({file.parent for file in inside["texts"]}) > 1:
        kind = option("kind", "classifier")
        notes.append(f"the texts are in subfolders; {kind} learns to tell these apart")
    return text_task(files["texts"], name, reading, notes)


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir())


def _by_kind(entries: Iterable[Path]) -> dict[str, list[Path]]:
    """Files by what they hold; hidden ones are left out."""
    kinds: dict[str, list[Path]] = {**{kind: [] for kind in KINDS_OF_FILES}, "others": []}
    for file in entries:
        if file.is_file() and not file.name.startswith("."):
            suffix = file.suffix.lower()
            kind = next((k for k, known in KINDS_OF_FILES.items() if suffix in known), "others")
            kinds[kind].append(file)
    return kinds


def _refuse_mixture(path: Path, inside: dict[str, list[Path]]) -> None:
    found = {kind: files for kind, files in inside.items() if files}
    if len(found) > 1:
        shown = " and ".join(f"{len(files)} {kind}" for kind, files in found.items())
        examples = ", ".join(str(files[0].relative_to(path)) for files in found.values())
        raise ThreefoldError(
            f"{path}: its subfolders contain {shown} ({examples}); put files of one kind into a "
            "folder of their own"
        )


def _refuse_other_media(path: Path, found: str, reading: Reading) -> None:
    """Refuse images for a model of sounds, and so on."""
    if reading.preprocessing is not None and reading.preprocessing.form != found.removesuffix("s"):
        trained = FORMS[reading.preprocessing.form]
        raise ThreefoldError(f"{path}: contains {found}, but the model was trained on {trained}")


def _refuse_without_text(path: Path, files: dict[str, list[Path]]) -> None:
    if files["texts"] and not files["tables"]:
        return
    for kind in ("sounds", "images"):
        if files[kind]:
            file = files[kind][0]
            raise ThreefoldError(
                f"{path}: {len(files[kind])} {kind} that are not in one subfolder per class; "
                f"expected e.g. {path}/CLASS/{file.name}"
            )
    if files["tables"]:
        raise ThreefoldError(
            f"{path}: a folder of tables ({files['tables'][0].name}, …); give one of the files, or "
            "join them into one table with a column that names the series "
            f"({option('series_column')})"
        )
    raise ThreefoldError(f"{path}: a folder without a file that can be read; {EXPECTED}")


def _labelled_texts(name: str, files: Sequence[Path], reading: Reading) -> ExampleData:
    """Texts whose classes are their subfolders."""
    settings = reading.settings
    settings.allow_only(f"{name}, texts with classes", "length", "tokenizer", "vocabulary")
    labels = [file.parent.name for file in files]
    kind = reading.kind or "classifier"
    shown = f"{len(files):,} texts in {len(set(labels))} subfolders"
    return ExampleData(
        name,
        kind,
        "file",
        RawExamples([read_text(file) for file in files], labels, [str(file) for file in files]),
        lambda texts: fit_texts(kind, texts, settings),
        facts=(("inputs", shown), ("target", "the name of the subfolder")),
    )


def _media(name: str, files: Sequence[Path], sounds: bool, reading: Reading) -> ExampleData:
    settings = reading.settings
    what = "sounds" if sounds else "images"
    own = ("sampling_rate", "sound_inputs") if sounds else ("image_size",)
    settings.allow_only(f"{name}, {what}", "length", *own)
    possible = ("classifier",) if sounds else ("classifier", *IMAGE_KINDS)
    settings.check_kind(f"{name}, {what},", *possible)
    kind = reading.kind or "classifier"
    if kind in IMAGE_KINDS:
        settings.allow_only(f"{name}, whole pictures", "image_size")
    labels = [file.parent.name for file in files]
    shown = f"{len(files):,} {what} in {len(set(labels))} subfolders"
    if sounds:
        shown += f", long ones as frames ({setting('data.sound_inputs', 'frames|samples')})"
    cut = () if settings.length is None else (Truncate(settings.length),)

    def fit(train: Sequence[Path]) -> Chain:
        if reading.preprocessing is not None:
            return reading.preprocessing.inputs
        if sounds:
            read = _sound_step(files, settings)
            return Chain((read, *_sound_frames(read, train, settings), *cut))
        image = picture_step if kind in IMAGE_KINDS else image_step
        return Chain((image(str(files[0].parents[1]), files, settings), *cut))

    return ExampleData(
        name,
        kind,
        "sound" if sounds else "image",
        RawExamples(files, labels, [str(file) for file in files]),
        fit,
        facts=(("inputs", shown), ("target", "the name of the subfolder")),
        otherwise=""
        if sounds
        else f"{option('kind')} classifier (by pixel), {', '.join(IMAGE_KINDS)}",
    )


def _sound_step(files: Sequence[Path], settings: ReadSettings) -> ReadSound:
    """The sampling rate of the sounds; different ones must be asked for."""
    if settings.sampling_rate is not None:
        return ReadSound(settings.sampling_rate, resampled=True)
    rates = Counter(read_wav(file).rate for file in files).most_common()
    if len(rates) > 1:
        shown = ", ".join(f"{count} at {rate}" for rate, count in rates)
        raise AmbiguousError(
            f"{files[0].parents[1]}: sounds of different sampling rates ({shown} per second)",
            [f"{setting('data.sampling_rate', str(r))}    resamples all" for r, _ in rates],
        )
    return ReadSound(rates[0][0])


def _sound_frames(
    read: ReadSound, train: Sequence[Path], settings: ReadSettings
) -> tuple[SoundFrames, ...]:
    """Frames of long sounds, unless something else was asked for; samples of short ones."""
    if settings.sound_inputs == "samples":
        return ()
    sounds = [read.apply(file) for file in train]
    if settings.sound_inputs is None and max(map(len, sounds)) <= MOST_SAMPLES:
        return ()
    return (SoundFrames.fit(sounds, read.rate),)
