"""A run as one description: data, model, training; from Python, a TOML file, or --set a.b=c.

[data]                      [model]                      [training]
name = "shakespeare"        mixers = ["mamba"]           steps = 2000
batch = 12                  width = 128                  learning_rate = 1e-3
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from threefold.errors import ThreefoldError, nearest
from threefold.layers.table import MIXERS
from threefold.training.schema import Section, flat
from threefold.training.settings import Seed, TrainingSettings

SIZES = {"tiny": (64, 2), "small": (128, 4), "medium": (256, 6), "large": (512, 8)}
MINUTES = 10  # of a run that says nothing of its length

Entry = str | tuple[str, dict[str, Any]]
Whole = Annotated[int, Field(ge=0)]
Threads = Annotated[int, Field(ge=0, le=1024)]  # far more of them end the process


class DataSettings(Section):
    """What to learn from; what is 0 or empty is found out from the data."""

    name: str  # a task, or a file or folder
    kind: str = ""  # of an own file: language, classifier, forecaster or seq2seq
    level: str = ""  # of text: byte, character, pair or word
    vocabulary: Annotated[int, Field(ge=16)] = 4096  # of pairs and words
    length: Whole = 0  # elements of one example
    column: str = ""  # of a table: what is to be told
    horizon: Whole = 0  # of a series: how far ahead
    rate: Whole = 0  # of sounds: samples a second
    options: dict[str, Any] = Field(default_factory=dict)  # keywords of the task
    batch: Annotated[int, Field(ge=1)] = 16  # examples of one batch, of all processes together
    # Windows and streams are of text.
    order: Literal["auto", "windows", "stream", "examples", "buckets"] = "auto"
    limit: Whole = 0  # examples of an evaluation on the way; 0: all
    seed: Seed = 0


class ModelSettings(Section):
    """The model: a size by name, or width and depth."""

    mixers: tuple[Entry, ...] = ("mamba",)
    size: Literal["tiny", "small", "medium", "large"] = "small"
    width: Whole = 0
    depth: Whole = 0
    kind: str = ""  # where the data leave a choice: seq2seq or transformer
    channel: Entry = "swiglu"
    block: Entry = "pre_norm"
    options: dict[str, Any] = Field(default_factory=dict)  # of the kind of model
    seed: Seed = 0

    @field_validator("mixers", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    @field_validator("mixers")
    @classmethod
    def _known(cls, value: tuple[Entry, ...]) -> tuple[Entry, ...]:
        for entry in value:
            name = entry if isinstance(entry, str) else entry[0]
            if name not in MIXERS:
                raise ThreefoldError(f"unknown mixer {name!r}; {nearest(name, MIXERS)}")
        if not value:
            raise ThreefoldError("no mixer is named; expected at least one of `threefold models`")
        return value

    @property
    def sizes(self) -> tuple[int, int]:
        """Width and depth."""
        width, depth = SIZES[self.size]
        return self.width or width, self.depth or depth


class RunConfig(Section):
    """A whole run."""

    data: DataSettings
    model: ModelSettings = Field(default_factory=ModelSettings)
    training: TrainingSettings = Field(
        default_factory=lambda: TrainingSettings(seconds=60 * MINUTES)
    )
    threads: Threads = 0  # of torch; 0: as many as it likes

    @classmethod
    def read(cls, values: Mapping[str, Any], changes: Iterable[str] = ()) -> RunConfig:
        """From nested values and changes such as `training.steps=100`."""
        whole: dict[str, Any] = json.loads(json.dumps(values, default=str))  # TOML has dates
        for change in changes:
            _put(whole, change)
        training = whole.get("training", {})
        if isinstance(training, dict) and not {"steps", "seconds"} & set(training):
            whole["training"] = {**training, "seconds": 60.0 * MINUTES}
        return cls(**whole)

    def to_toml(self) -> str:
        """A TOML file that `read_toml` reads back to the same."""
        values = self.model_dump(mode="json")
        lines = [f"{key} = {_toml(value)}" for key, value in values.items() if _plain(value)]
        for name, section in values.items():
            if isinstance(section, Mapping):
                lines += ["", f"[{name}]"]
                lines += [f"{k} = {_toml(v)}" for k, v in section.items() if v is not None]
        return "\n".join(lines).lstrip("\n") + "\n"


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ThreefoldError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ThreefoldError(f"{path}: not TOML ({error})") from error


def _put(whole: dict[str, Any], change: str) -> None:
    """Set one key by `a.b=c`; c is read as TOML, or else as a text."""
    path, equals, text = change.partition("=")
    names = path.strip().split(".")
    if not equals or not all(names):
        raise ThreefoldError(f"--set {change!r}: expected key=value, e.g. training.steps=100")
    _check_path(names)
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    place = whole
    for name in names[:-1]:
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            raise ThreefoldError(f"--set {change!r}: {name} is {place!r}, and has no keys inside")
    place[names[-1]] = value


def _check_path(names: list[str]) -> None:
    """Refuse a section or key that there is not, with the nearest that there is."""
    section: type[Section] = RunConfig
    for depth, name in enumerate(names):
        if name not in section.model_fields:
            known = [*section.model_fields] if depth else [*_everything(), *RunConfig.model_fields]
            given = ".".join(names[: depth + 1])
            raise ThreefoldError(f"unknown key {given!r}; {nearest(name, known)}")
        inner = section.model_fields[name].annotation
        if not (isinstance(inner, type) and issubclass(inner, Section)):
            return
        section = inner


def _everything() -> list[str]:
    return [*flat({n: dict.fromkeys(s.model_fields, 0) for n, s in _sections().items()})]


def _sections() -> dict[str, type[Section]]:
    return {"data": DataSettings, "model": ModelSettings, "training": TrainingSettings}


def _plain(value: Any) -> bool:
    return value is not None and not isinstance(value, Mapping)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items() if v is not None)
        return "{" + ", ".join(pairs) + "}"
    return repr(value)
