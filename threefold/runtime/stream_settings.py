"""What a stream computes: the settings that a user asks for, and those that follow from a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from threefold.data.preprocessing.media import ReadSound, SoundFrames
from threefold.errors import ThreefoldError, option
from threefold.memory.forms import CHUNK_LENGTH
from threefold.runtime.sampling import is_integer
from threefold.runtime.scores.scorers import default_mode
from threefold.runtime.stream_sources import InputSettings

LARGEST_CHUNK = 512  # elements
CHUNK_OUTPUTS = 1 << 22  # numbers in the outputs of a chunk, at most
SENTENCES = 16  # of a chunk
ROWS_PER_SECOND = 10  # of the output for sounds
ALL = "all"
LARGEST_RATE = 0.5  # of alarms


@dataclass(frozen=True)
class StreamSettings:
    """What a stream computes; a resumed stream keeps the settings that it was started with."""

    mode: str  # likelihood, predict or anomaly
    chunk_size: int  # elements computed together
    group_size: int  # elements per row of the output
    top_k: int  # tokens or classes listed by `predict`
    window: int | None  # elements over which anomaly scores are averaged
    context: int | str  # elements of the past that a forecast reads, or all
    columns: tuple[str, ...] | None  # of a table
    missing: str | None  # carry, mask or stop; None: as the model was trained
    sound_format: str | None  # of samples without a header
    alarm: float | None = None  # share of clean elements that may have an alarm
    calibrate: str | None = None  # name of the clean stretch that was read for it

    def __post_init__(self) -> None:
        for name in ("chunk_size", "group_size", "top_k", "window", "context"):
            value = getattr(self, name)
            unset = (name == "window" and value is None) or (name == "context" and value == ALL)
            if not unset and (not is_integer(value) or value < 1):
                raise ThreefoldError(f"stream: {name} is {value!r}, expected 1 or more")
        self._check_alarm()

    def _check_alarm(self) -> None:
        alarm = self.alarm
        if alarm is not None and not (isinstance(alarm, float) and 0 < alarm <= LARGEST_RATE):
            raise ThreefoldError(
                f"stream: alarm is {alarm!r}, expected a rate above 0 and at most {LARGEST_RATE}, "
                "such as 0.001: the share of clean elements that may have an alarm"
            )
        for name in ("window", "alarm"):
            value = getattr(self, name)
            if value is not None and self.mode != "anomaly":
                raise ThreefoldError(
                    f"stream: {name} is {value}, but the mode is {self.mode}; it acts on the "
                    f"scores of {option('mode', 'anomaly')}"
                )
        if self.calibrate is not None and alarm is None:
            raise ThreefoldError(
                "stream: a clean stretch is given to calibrate, but no rate of alarms; add "
                f"{option('alarm', '0.001')}"
            )

    @property
    def inputs(self) -> InputSettings:
        """The settings of the input."""
        return InputSettings(self.columns, self.missing, self.sound_format)


def choose_settings(model: Any, requested: Mapping[str, Any]) -> StreamSettings:
    """The settings of a new stream; requested: None for the default."""
    chosen = _without_none(requested)
    if "alarm" in chosen:
        chosen.setdefault("mode", "anomaly")
    return StreamSettings(**{**_defaults(model), **chosen})


def _without_none(requested: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for; a clean stretch by its name, which a state file can hold."""
    chosen = {name: value for name, value in requested.items() if value is not None}
    if "calibrate" in chosen:
        chosen["calibrate"] = source_name(chosen["calibrate"])
    return chosen


def source_name(source: Any) -> str:
    """The path of a source, or "data"."""
    return str(source) if isinstance(source, str | PathLike) else "data"


def saved_settings(
    saved: Mapping[str, Any], requested: Mapping[str, Any], path: Any
) -> StreamSettings:
    """Return the settings of a saved stream; refuse a request for others."""
    columns = saved["columns"]
    settings = StreamSettings(**{**saved, "columns": None if columns is None else tuple(columns)})
    for name, value in _without_none(requested).items():
        before = getattr(settings, name)
        if value != before:
            raise ThreefoldError(
                f"{path}: the stream was started with {name} {before!r}, but now {name} is "
                f"{value!r}; leave it out, or start again with another state file"
            )
    return settings


def plan_chunk_size(model: Any) -> int:
    """Choose the number of elements per chunk: large, while their outputs take little memory."""
    outputs: int = model.spec.vocabulary  # numbers per element
    if model.input_size:
        head = model.head[-1] if hasattr(model.head, "__getitem__") else model.head
        outputs = head.out_features
    return max(
        CHUNK_LENGTH, min(LARGEST_CHUNK, CHUNK_OUTPUTS // outputs) // CHUNK_LENGTH * CHUNK_LENGTH
    )


def _defaults(model: Any) -> dict[str, Any]:
    preprocessing = model.preprocessing
    sound = None if preprocessing is None else preprocessing.inputs.find(ReadSound)
    frames = None if preprocessing is None else preprocessing.inputs.find(SoundFrames)
    rate = 0 if sound is None else sound.rate // (1 if frames is None else frames.hop)
    windowed = preprocessing is not None and not preprocessing.carried
    context = preprocessing.context if windowed else None
    return {
        "mode": default_mode(model),
        "chunk_size": SENTENCES if model.kind == "hierarchical" else plan_chunk_size(model),
        "group_size": max(1, rate // ROWS_PER_SECOND),
        "top_k": 1,
        "window": None,
        "context": context or ALL,
        "columns": None,
        "missing": None,
        "sound_format": None,
    }
