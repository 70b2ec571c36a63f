"""The configuration of a run: data, model, training; from Python, a TOML file, or --set a.b=c.

[data]                      [model]                      [training]
name = "shakespeare"        mixers = ["mamba"]           steps = 2000
batch_size = 12             width = 128                  learning_rate = 1e-3
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from threefold.errors import ThreefoldError
from threefold.layers.table import mixer_entry, registered_in
from threefold.models.table import KINDS
from threefold.tasks.table import TASKS
from threefold.training.overrides import apply_overrides
from threefold.training.schema import Section
from threefold.training.settings import Count, Seed, TrainingSettings

SIZES = {"tiny": (64, 2), "small": (128, 4), "medium": (256, 6), "large": (512, 8)}
DEFAULT_TIME = 600.0  # seconds of a run that is given neither steps nor a time
# Goes up when settings are renamed, so that an older run is refused in words.
FORMAT_VERSION = 2

Entry = str | tuple[str, dict[str, Any]]
Threads = Annotated[int, Field(ge=1, le=1024)]  # many more of them end the process


class DataSettings(Section):
    """What to learn from. What is not given is chosen from the data."""

    name: str
    """A task of `threefold tasks`, or the path of your own file or folder."""
    kind: str | None = None
    """What to train, e.g. classifier, forecaster or xlnet; images: vision, convolutional, swin."""
    tokenizer: Literal["byte", "character", "bpe", "word"] | None = None
    """How text is cut into tokens; default: byte, or what the task declares."""
    vocabulary: Annotated[int, Field(ge=16)] | None = None
    """Size of the vocabulary of bpe and word tokenizers; default: 4096."""
    length: Count | None = None
    """Elements per example; longer rows are cut. Default: text 256, series by season, rows 4096."""
    target: str | None = None
    """Tables: the column to predict; forecasters: several, separated by commas."""
    features: str | None = None
    """Tables: the columns to read, separated by commas; default: all that can be read."""
    time_column: str | None = None
    """Tables: the column of the time stamps; default: the one that contains times."""
    group_column: str | None = None
    """Tables: rows with the same value of this column are one sequence."""
    series_column: str | None = None
    """Tables: rows with the same value of this column are one time series."""
    horizon: Count | None = None
    """Series: number of steps to forecast; default: an eighth of the length."""
    known_future: str | None = None
    """Series: features whose values are known for the rows to forecast, separated by commas."""
    resample: str | None = None
    """Series: the step to which rows are averaged, e.g. 15m, 1h, 1d; default: as recorded."""
    day_first: bool | None = None
    """Dates such as 01/02/2024: whether the day comes first; default: if that is clear."""
    missing: Literal["mask", "carry", "refuse"] | None = None
    """Missing numbers: filled and marked, filled with the last one, or refused; default: mask."""
    header: bool | None = None
    """Tables: whether the first line has the names of the columns; default: if that is clear."""
    decimal: Literal[".", ","] | None = None
    """Tables: the decimal sign of numbers; default: as the cells show."""
    sampling_rate: Count | None = None
    """Sounds: samples per second to resample to; default: as recorded."""
    sound_inputs: Literal["frames", "samples"] | None = None
    """Sounds: cepstral coefficients every 10 ms, or samples; default: frames of long sounds."""
    image_size: str | None = None
    """Images: WIDTHxHEIGHT to scale to; default: as they are."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the task; `threefold tasks NAME` lists them."""
    batch_size: Count = 16
    """Examples per batch, over all processes together."""
    batching: Literal["auto", "windows", "stream", "documents", "examples", "buckets"] = "auto"
    """Text: windows, stream or documents; else shuffled examples, or buckets of similar length."""
    eval_examples: Count | None = None
    """Number of examples for evaluations during training; default: the whole split."""
    pretrain: bool | None = None
    """Tables: first learn to predict the next element, also from the rows without a label."""
    seed: Seed = 0
    """Seed of the order of the data."""


class ModelSettings(Section):
    """The model: a size by name, or width and depth."""

    mixers: tuple[Entry, ...] = ("mamba",)
    """Mixers of the blocks, repeated over the depth; several make a hybrid."""
    size: Literal["tiny", "small", "medium", "large"] = "small"
    """Width × depth: tiny 64 × 2, small 128 × 4, medium 256 × 6, large 512 × 8; images: other."""
    width: Count | None = None
    """Model width; default: from the size."""
    depth: Count | None = None
    """Number of blocks; default: from the size."""
    kind: Literal["seq2seq", "transformer"] | None = None
    """Seq2seq data only: which encoder–decoder; default: seq2seq."""
    channel: Entry = "swiglu"
    """Feed-forward part of a block: swiglu, mlp, rwkv, rwkv7 or none."""
    block: Entry = "pre_norm"
    """Residual wiring of a block: pre_norm, post_norm, deep_norm or plain."""
    embedding: str | None = None
    """Text: a file of word vectors to start from; the model reads words, and has their width."""
    from_model: str | None = None
    """A saved model or a run to start from: its blocks, tokenizer, columns and scaling are kept."""
    adapters: Count | None = None
    """Rank of low-rank adapters, e.g. 8: only these and the head are trained; needs from_model."""
    adapter_alpha: Annotated[float, Field(gt=0)] | None = None
    """Adapters are multiplied by this number divided by their rank; default: twice the rank."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the kind of model, e.g. {dropout = 0.1}; docs/guide.md names the most used."""
    seed: Seed = 0
    """Seed of the initial weights."""

    @field_validator("mixers", mode="before")
    @classmethod
    def _read_hybrid(cls, value: Any) -> Any:
        if isinstance(value, Mapping):  # [model.mixers.mamba] of a TOML file
            return tuple((name, dict(options)) for name, options in value.items())
        if not isinstance(value, str):
            return value
        names = _names(value, ",")
        if len(names) == 1 and "," in value:
            raise ThreefoldError(f"model.mixers is {value!r}; did you mean {names[0]!r}?")
        if "," in value:
            raise ThreefoldError(
                f"model.mixers is {value!r}: a,b are two models, and one run trains one model; "
                f"write {'+'.join(names)} for a hybrid, or race them with "
                f"`threefold compare DATA --mixers {','.join(names)}`"
            )
        return tuple(_names(value, "+"))

    @field_validator("mixers")
    @classmethod
    def _check_names(cls, value: tuple[Entry, ...]) -> tuple[Entry, ...]:
        for entry in value:
            name = entry if isinstance(entry, str) else entry[0]
            mixer_entry(name)
        return value

    def sizes_of(self, kind: str) -> tuple[int, int]:
        """Width and depth of a kind of model."""
        width, depth = (KINDS[kind].sizes or SIZES)[self.size]
        return self.width or width, self.depth or depth

    def mixers_of(self, kind: str) -> tuple[Entry, ...]:
        """The mixers of a kind of model; the default is for those that are made of mixers."""
        if not KINDS[kind].has_mixers and "mixers" not in self.model_fields_set:
            return ()
        if KINDS[kind].has_mixers and not self.mixers:
            raise ThreefoldError("model.mixers is empty; expected at least one mixer, e.g. mamba")
        return self.mixers


class RunConfig(Section):
    """The complete configuration of a run."""

    data: DataSettings
    model: ModelSettings = Field(default_factory=ModelSettings)
    training: TrainingSettings = Field(default_factory=lambda: TrainingSettings(time=DEFAULT_TIME))
    threads: Threads | None = None
    """Number of threads; default: torch's choice."""

    @classmethod
    def read(cls, values: Mapping[str, Any], overrides: Iterable[str] = ()) -> RunConfig:
        """From nested values and overrides such as `training.steps=100`."""
        plain: dict[str, Any] = json.loads(json.dumps(values, default=str))  # TOML has dates
        for note in ("format_version", "plugins", "data_path", "chosen"):
            plain.pop(note, None)
        plain = apply_overrides(cls, plain, overrides)
        model, data = plain.get("model"), plain.get("data")
        if isinstance(model, dict) and model.get("embedding") and isinstance(data, dict):
            data.setdefault("tokenizer", "word")
        if isinstance(data, dict) and not _has_mixers(data):
            plain["model"] = {"mixers": (), **(model or {})}
        if isinstance(data, dict) and data.get("kind") == "xlnet":
            plain.setdefault("model", {}).setdefault("mixers", ["transformer_xl"])
        training = plain.get("training", {})
        if isinstance(training, dict) and not {"steps", "time"} & set(training):
            plain["training"] = {**training, "time": DEFAULT_TIME}
        return cls(**plain)

    @property
    def plugins(self) -> list[str]:
        """The plugins that register the mixers and the task of this run."""
        mixers = registered_in(self.model.model_dump(mode="json")).values()
        task = TASKS.get(self.data.name)
        names = [entry.plugin for entry in mixers] + ([] if task is None else [task.plugin])
        return list(dict.fromkeys(filter(None, names)))

    def to_toml(self, chosen: Mapping[str, str] | None = None) -> str:
        """A TOML file that `read_toml` reads back to the same configuration.

        chosen: reasons of settings that the user did not give, by their full names.
        """
        sections = self.model_dump(mode="json")
        values: dict[str, Any] = {"format_version": FORMAT_VERSION}
        if plugins := self.plugins:
            values["plugins"] = plugins
        values |= sections
        lines = [f"{key} = {_toml(value)}" for key, value in values.items() if _is_plain(value)]
        for name, section in values.items():
            if isinstance(section, Mapping):
                lines += ["", f"[{name}]"]
                lines += [f"{k} = {_toml(v)}" for k, v in section.items() if v is not None]
        if chosen:
            lines += ["", "[chosen]  # not given: the reasons"]
            lines += [f"{json.dumps(key)} = {_toml(reason)}" for key, reason in chosen.items()]
        return "\n".join(lines).lstrip("\n") + "\n"


def read_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ThreefoldError(f"{path}: file not found") from error
    except OSError as error:
        raise ThreefoldError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ThreefoldError(f"{path}: not TOML ({error})") from error


def _has_mixers(data: Mapping[str, Any]) -> bool:
    """Whether the kind of model that the data are for is made of mixers."""
    task = TASKS.get(str(data.get("name")))
    kind = KINDS.get(str(data.get("kind") or (task and task.kind)))
    return kind is None or kind.has_mixers


def _names(text: str, separator: str) -> list[str]:
    return [name for part in text.split(separator) if (name := part.strip())]


def _is_plain(value: Any) -> bool:
    return value is not None and not isinstance(value, Mapping)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON leaves DEL as it is, and TOML does not allow it.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items() if v is not None)
        return "{" + ", ".join(pairs) + "}"
    return repr(value)
