"""The input of a stream for a model: which encoder reads it, and which reader prepares it."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from threefold.data.cells import LARGEST_NUMBER
from threefold.data.preprocessing import Preprocessing
from threefold.data.preprocessing.media import ReadSound, SoundFrames
from threefold.data.preprocessing.numbers import (
    FillMissing,
    MissingNumberError,
    Standardise,
)
from threefold.data.preprocessing.series_scales import SeriesScales
from threefold.data.preprocessing.text import TokenizeSentences, WordNumbers
from threefold.data.stream_encoders import SentenceEncoder, WordListEncoder, encoder_for
from threefold.data.stream_rows import RowEncoder, RowLayout
from threefold.data.stream_sounds import SOUND_FORMATS, SoundEncoder, wav_rate
from threefold.data.table_formats import REFUSED_SUFFIXES, TABLE_SUFFIXES, table_suffix
from threefold.data.tagged_lines import TAG_SUFFIXES
from threefold.errors import ThreefoldError, nearest, option
from threefold.runtime.array_source import ArrayEncoder, array_bytes, frame_bytes, is_array
from threefold.runtime.source import Input, Source, Wait
from threefold.runtime.stream_inputs import (
    SentenceReader,
    SoundReader,
    StreamReader,
    TokenReader,
    WordReader,
)
from threefold.runtime.stream_rows import RowReader

POLICIES = ("carry", "mask", "stop")
TEXT_TABLES = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson")  # what a stream reads of TABLE_SUFFIXES


class InputSettings(NamedTuple):
    """How the input is read; None where the model decides."""

    columns: tuple[str, ...] | None
    missing: str | None
    sound_format: str | None


class StreamInput(NamedTuple):
    """A source of elements and what prepares them."""

    source: Source
    reader: StreamReader


def open_input(
    model: Any, data: Input, settings: InputSettings, wait: Wait | None = None
) -> StreamInput:
    """Open an input at its beginning."""
    if isinstance(data, str) and not data:
        raise ThreefoldError("the input is empty; expected the path of a file")
    preprocessing: Preprocessing | None = model.preprocessing
    form = "" if preprocessing is None else preprocessing.form
    data = frame_bytes(data)
    if settings.sound_format is not None and form != "sound":
        raise ThreefoldError("stream: sound_format is given, but the model does not read sounds")
    if form == "image":
        raise ThreefoldError("a model of images reads whole images; use `threefold predict`")
    if form == "sound":
        return _open_sound(model, data, settings, wait)
    if model.kind != "hierarchical" and model.input_size:
        return _open_rows(model, data, settings, wait)
    _refuse_row_settings(settings)
    if form == "words":
        assert preprocessing is not None  # it has a form
        _refuse_text_table(data, preprocessing)
        step = preprocessing.inputs.find(WordNumbers)
        if step is None:
            raise ThreefoldError(
                "this tagger reads words as several tokens each, so a stream of words cannot be "
                "read element by element; use `threefold predict`"
            )
        path = _path(data)
        tagged = True if path is not None and table_suffix(path) in TAG_SUFFIXES else None
        encoder = WordListEncoder(step.numbers, tagged)
        return StreamInput(Source(data, encoder, wait), WordReader(model))
    if model.kind == "hierarchical":
        return _open_sentences(model, data, wait)
    return _open_text(model, data, wait)


def _refuse_row_settings(settings: InputSettings) -> None:
    if settings.columns is not None:
        raise ThreefoldError("stream: columns can only be chosen in a table; this model reads text")
    if settings.missing is not None:
        raise ThreefoldError("stream: missing values are only in tables; this model reads text")


# --------------------------------------------------------------------------------- text


def _open_text(model: Any, data: Input, wait: Wait | None) -> StreamInput:
    tokenizer = model.tokenizer
    parts = getattr(tokenizer, "parts", None)
    reader = TokenReader(model, parts)
    if is_array(data):
        known = range(model.spec.vocabulary) if parts is None else parts
        tokens = array_bytes(data, 0, min(len(known), model.spec.vocabulary))
        return StreamInput(Source(tokens, ArrayEncoder(0), wait), reader)
    if model.preprocessing is not None:
        _refuse_text_table(data, model.preprocessing)
    if tokenizer is None:
        raise ThreefoldError(
            f"this {model.kind} model reads tokens, but was saved without a tokenizer, so it "
            "cannot read text; set model.tokenizer and save it again"
        )
    return StreamInput(Source(data, encoder_for(tokenizer), wait), reader)


def _open_sentences(model: Any, data: Input, wait: Wait | None) -> StreamInput:
    preprocessing: Preprocessing | None = model.preprocessing
    step: TokenizeSentences | None = (
        None if preprocessing is None else preprocessing.inputs.find(TokenizeSentences)
    )
    if preprocessing is None or step is None or is_array(data):
        raise ThreefoldError(
            "a stream of a hierarchical model reads text, whose sentences are found as in "
            "training; give text to a model that `threefold train` has saved, or call "
            "model(tokens, state) with the tokens of each sentence"
        )
    _refuse_text_table(data, preprocessing)
    encoder = SentenceEncoder(step.pattern, step.sentence)
    return StreamInput(Source(data, encoder, wait), SentenceReader(model))


def _refuse_text_table(data: Input, preprocessing: Preprocessing) -> None:
    path = _path(data)
    if path is None or not preprocessing.roles.texts or table_suffix(path) not in TABLE_SUFFIXES:
        return
    texts = ", ".join(preprocessing.roles.texts)
    raise ThreefoldError(
        f"{path}: a table, whose rows are texts of their own ({texts}); `threefold predict` "
        "answers each of them, a stream reads one text without an end"
    )


def _path(data: Input) -> Path | None:
    return Path(data) if isinstance(data, str | PathLike) else None


# --------------------------------------------------------------------------------- sounds


def _open_sound(model: Any, data: Input, settings: InputSettings, wait: Wait | None) -> StreamInput:
    _refuse_sound_settings(settings)
    chain = model.preprocessing.inputs
    step: ReadSound = chain.find(ReadSound)
    frames: SoundFrames | None = chain.find(SoundFrames)
    reader = SoundReader(model, step.rate if frames is None else step.rate / frames.hop)
    path = _path(data)
    sound_format = settings.sound_format
    if is_array(data):
        data, sound_format = _sample_bytes(np.frombuffer(array_bytes(data, 1, 0))), "f32le"
    elif path is not None and path.is_file() and sound_format is None:
        rate = wav_rate(path)
        if rate is not None and rate != step.rate:  # refused or resampled, as in training
            data, sound_format = _sample_bytes(step.apply(path)), "f32le"
    encoder = SoundEncoder(step.rate, sound_format, frames)
    return StreamInput(Source(data, encoder, wait), reader)


def _sample_bytes(samples: Any) -> bytes:
    """Samples as the format f32le has them."""
    return np.asarray(samples, "<f4").tobytes()


def _refuse_sound_settings(settings: InputSettings) -> None:
    if settings.columns is not None or settings.missing is not None:
        raise ThreefoldError("stream: columns and missing are for tables; this model reads sounds")
    name = settings.sound_format
    if name is not None and name not in SOUND_FORMATS:
        raise ThreefoldError(f"unknown sound_format {name!r}; {nearest(name, SOUND_FORMATS)}")


# --------------------------------------------------------------------------------- tables


def _open_rows(model: Any, data: Input, settings: InputSettings, wait: Wait | None) -> StreamInput:
    preprocessing: Preprocessing | None = model.preprocessing
    if preprocessing is not None and preprocessing.known_future:
        raise ThreefoldError(
            f"the model reads {', '.join(preprocessing.known_future)} of rows to come, which a "
            "stream does not have; use `threefold forecast MODEL FILE` with the rows so far and "
            "those to come, or train without known future inputs"
        )
    policy = _policy(model, settings.missing)
    columns = column_names(model)
    reader = RowReader(model, columns, preprocessing, policy)
    if is_array(data):
        if settings.columns is not None:
            raise ThreefoldError("stream: columns can only be chosen in a table; this is an array")
        if reader.named_series or reader.step is not None:
            raise ThreefoldError(
                "stream: an array has no column of times or of series, which the model was trained "
                "with; give a table or a DataFrame"
            )
        rows = _believed(array_bytes(data, len(columns), 0), reader)
        return StreamInput(Source(rows, ArrayEncoder(len(columns), rows=True), wait), reader)
    _refuse_binary_table(data)
    layout = _layout(model, columns, settings.columns, policy)
    return StreamInput(Source(data, RowEncoder(layout, reader.times), wait), reader)


def _believed(data: bytes, reader: RowReader) -> bytes:
    """The bytes of rows with NaN for absurd numbers, which are refused if the policy is stop."""
    rows = np.frombuffer(data, np.float64).reshape(-1, len(reader.columns))
    scaled = reader.scaled(rows)
    missing = ~((np.abs(rows) <= LARGEST_NUMBER) & (np.abs(scaled) <= reader.limit))
    if reader.policy == "stop" and missing.any():
        row, column = np.argwhere(missing)[0].tolist()
        raise MissingNumberError(row, reader.columns[column])
    return np.where(missing, np.nan, rows).tobytes()


def column_names(model: Any) -> tuple[str, ...]:
    """The names of the numbers that a model of numbers reads, in its order."""
    preprocessing = model.preprocessing
    scale = None if preprocessing is None else _scale(preprocessing)
    if scale is not None:
        return scale.columns
    return tuple(f"x{number}" for number in range(1, model.input_size + 1))


def _scale(preprocessing: Preprocessing) -> Standardise | SeriesScales | None:
    inputs = preprocessing.inputs
    return inputs.find(Standardise) or inputs.find(SeriesScales)  # type: ignore[no-any-return]


def _policy(model: Any, asked: str | None) -> str:
    """What to do with a missing number: as asked, or as the model was trained."""
    if asked is not None and asked not in POLICIES:
        raise ThreefoldError(f"missing is {asked!r}; {nearest(asked, POLICIES)}")
    preprocessing = model.preprocessing
    fill: FillMissing | None = None
    if preprocessing is not None:
        fill = preprocessing.inputs.find(FillMissing)
    if asked == "mask" and (fill is None or not fill.masked):
        raise ThreefoldError(
            "missing is 'mask', but this model has no column that says what is missing, because "
            "its training data lacked nothing or missing values were carried; use carry or stop"
        )
    trained = "stop" if fill is None or fill.policy == "refuse" else fill.policy
    return asked or trained


def _layout(
    model: Any, columns: tuple[str, ...], chosen: tuple[str, ...] | None, policy: str
) -> RowLayout:
    preprocessing: Preprocessing | None = model.preprocessing
    if preprocessing is None:
        return RowLayout(columns, refuses=policy == "stop", columns=chosen)
    roles = preprocessing.roles
    named = columns == (*roles.targets, *roles.features)
    _refuse_row_sequences(preprocessing, named and model.input_size >= len(columns))
    _check_chosen(columns, chosen)
    scale = _scale(preprocessing)
    assert scale is not None  # of a model that reads a table
    return RowLayout(
        columns,
        named,
        roles.time,
        roles.series or roles.group,
        tuple(scale.limits),
        policy == "stop",
        chosen,
        preprocessing.header,
        preprocessing.categories,
        preprocessing.decimal,
    )


def _check_chosen(columns: tuple[str, ...], chosen: tuple[str, ...] | None) -> None:
    """Refuse columns that are named twice, or that are the model's own in another order."""
    if chosen is None or chosen == columns:
        return
    if len(set(chosen)) < len(chosen):
        raise ThreefoldError(
            f"{option('columns')}: {', '.join(chosen)} names a column twice; the model reads "
            f"{', '.join(columns)}, each from a column of its own"
        )
    if set(chosen) == set(columns):
        raise ThreefoldError(
            f"{option('columns')}: {', '.join(chosen)} are the model's own columns, but it reads "
            f"them as {', '.join(columns)}; leave the option out, since columns are found by name"
        )


def _refuse_row_sequences(preprocessing: Preprocessing, streams: bool) -> None:
    """Refuse tables for models to which every row was a sequence."""
    if preprocessing.roles.features and not streams:
        raise ThreefoldError(
            "to this model every row of a table is a sequence of its own; `threefold predict` "
            "answers each of them; to stream one sequence, give its numbers as an array"
        )


def _refuse_binary_table(data: Input) -> None:
    path = _path(data)
    if path is None or not path.is_file():
        return
    suffix = table_suffix(path)
    binary = suffix in TABLE_SUFFIXES and suffix not in TEXT_TABLES
    if path.name.lower().endswith(".gz") or binary or suffix in REFUSED_SUFFIXES:
        raise ThreefoldError(
            f"{path}: a stream reads text, CSV or JSON lines; unpack or convert it, e.g. "
            "zcat FILE.csv.gz | threefold stream MODEL -"
        )
