"""A model as a folder: config.json, model.safetensors, tokenizer files, a model card.

The folder is replaced as a whole or not at all, and no pickle is ever read.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import threefold
from threefold.data import tokenizers
from threefold.data.atomic_files import sha256_of, write_folder
from threefold.data.preprocessing import Preprocessing
from threefold.data.readers import checked_path
from threefold.errors import ThreefoldError, option
from threefold.layers.table import registered_in
from threefold.models.adapters import adapter_rank, restore_adapters
from threefold.models.alarm_calibration import AlarmCalibration
from threefold.models.calibration import Calibration
from threefold.models.config import (
    ALARMS,
    CARD,
    CONFIG,
    WEIGHTS,
    ModelConfig,
    prepare_folder,
    read_config,
)
from threefold.models.ensemble import build_members, member_count
from threefold.models.files import read_tensors, write_tensors
from threefold.models.model import Model
from threefold.models.narrow_weights import restore_codes

RUN_MODEL = "model"  # the model's folder inside the folder of a run
RACE_MODEL = "best"  # the best model's folder inside the folder of a race
RACE_PLAN = "race.json"  # marks the folder of a race
RUN_FILES = ("run.json", "config.toml", "checkpoints")  # each marks the folder of a run


class OpenedModel(NamedTuple):
    """A loaded model with its tokenizer and the checksum of its weights."""

    model: Model
    tokenizer: Any  # None if the model was saved without one
    folder: Path
    sha256: str  # checksum of the weights; a saved state belongs to these weights


def save(model: Model, folder: str | PathLike[str]) -> None:
    """Write the model to `folder`, replacing an older model; other files there are refused."""
    _check_tokenizer(model)
    write_folder(prepare_folder(folder), lambda new: _write(model, new))


def load(
    folder: str | PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Model:
    """Load a saved model, or that of a run or a race, in eval mode; dtype=None: as saved."""
    if dtype is not None and not dtype.is_floating_point:
        raise ThreefoldError(f"load: dtype is {dtype}, expected a floating-point dtype")
    path = find_model_folder(checked_path("folder", folder))
    config = read_config(path)
    weights = path / WEIGHTS
    try:
        with torch.random.fork_rng(devices=[]):  # leaves the global generator untouched
            model = build_members(config.spec, config.members)
    except ThreefoldError as error:
        raise ThreefoldError(f"{path / CONFIG}: {error}") from error
    tensors = read_weights(path, config, model)
    model.to(_saved_dtype(config, path))
    for name, target in unique_tensors(model).items():
        target.data = tensors[name]  # each in its own dtype
    _check_loaded(model, weights)
    check_files(config, path)
    model.tokenizer = _read_tokenizer(config.tokenizer, path)
    model.preprocessing = Preprocessing.read(path)
    model.calibration = Calibration.read(path)
    model.alarms = AlarmCalibration.read(path)
    return model.to(device=device, dtype=dtype).eval()


def check_files(config: ModelConfig, folder: Path) -> None:
    """Refuse a folder without what its answers depend on, such as scaling, or with another's."""
    for name in config.files:
        if name != CARD and not (folder / name).exists():
            raise ThreefoldError(
                f"{folder}: {name} is missing, which was saved with this model; copy the whole "
                "folder again"
            )
    for name, checksum in config.checksums.items():
        if not (folder / name).is_file() or sha256_of(folder / name) != checksum:
            raise ThreefoldError(
                f"{folder / name}: damaged, or of another model (SHA-256 differs from that in "
                f"{CONFIG}); copy the whole folder again"
            )


def open_model(path: str | PathLike[str]) -> OpenedModel:
    """Load a model, or that of a run or a race, in eval mode with its tokenizer."""
    folder = find_model_folder(checked_path("model", path))
    model = load(folder)
    tokenizer = model.tokenizer
    if tokenizer is not None and tokenizer.vocabulary > model.spec.vocabulary:
        raise ThreefoldError(
            f"{folder}: the tokenizer has {tokenizer.vocabulary} tokens, but the model has only "
            f"{model.spec.vocabulary}; save the model with the tokenizer that it was trained with"
        )
    return OpenedModel(model, tokenizer, folder, read_config(folder).sha256)


def find_model_folder(path: Path) -> Path:
    """The model folder: `path` itself, that of a run, or the best one of a race."""
    if (path / CONFIG).is_file() or not path.is_dir():
        return path
    if (path / RUN_MODEL).is_dir():
        return path / RUN_MODEL
    if (path / RACE_MODEL / CONFIG).is_file():
        return path / RACE_MODEL
    if (path / RACE_PLAN).is_file():
        raise ThreefoldError(
            f"{path}: this race has no best model yet, because it has not finished; continue it "
            f"with what started it and {option('folder', str(path))}"
        )
    if any((path / name).exists() for name in RUN_FILES):
        raise ThreefoldError(
            f"{path}: this run has not saved its model yet, because it has not finished; "
            f"continue it with: threefold resume {path}"
        )
    return path  # `load` reports what is wrong with it


def _write(model: Model, folder: Path) -> None:
    write_tensors(folder / WEIGHTS, unique_tensors(model), {"format": "pt"})
    if hasattr(model.tokenizer, "save"):
        model.tokenizer.save(folder)
    if model.preprocessing is not None:
        model.preprocessing.write(folder)
    if model.calibration is not None:
        model.calibration.write(folder)
    if model.alarms is not None:
        model.alarms.write(folder)
    names = sorted(file.name for file in folder.iterdir())
    others = [name for name in names if name not in (WEIGHTS, ALARMS)]
    config = ModelConfig(
        spec=model.spec,
        threefold_version=threefold.__version__,
        parameters=model.parameter_count,
        dtype=str(model.dtype).removeprefix("torch."),
        tokenizer=None if model.tokenizer is None else type(model.tokenizer).__name__,
        files=tuple(sorted({CARD, *names})),
        sha256=sha256_of(folder / WEIGHTS),
        plugins={n: e.origin for n, e in registered_in(model.spec.to_dict()).items()},
        adapters=adapter_rank(model),
        members=member_count(model),
        checksums={name: sha256_of(folder / name) for name in others},
    )
    (folder / CARD).write_text(_card(config), encoding="utf-8")
    config.write(folder / CONFIG)


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; a shared tensor only once, under its first name."""
    first: dict[int, str] = {}
    tensors = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        first.setdefault(id(tensor), name)
    return {name: tensors[name] for name in first.values()}


def read_weights(folder: Path, config: ModelConfig, model: nn.Module) -> dict[str, Tensor]:
    """The weights in a model folder, which must be those of `model` and of the config."""
    weights = folder / WEIGHTS
    tensors, _ = read_tensors(weights)
    restore_codes(model, tensors)
    restore_adapters(model, tensors)
    _check_match(unique_tensors(model), tensors, weights)
    if sha256_of(weights) != config.sha256:
        raise ThreefoldError(
            f"{weights}: damaged, or not the weights that config.json describes (SHA-256 "
            "differs); copy the folder or save the model again"
        )
    return tensors


def _check_match(expected: Mapping[str, Tensor], loaded: Mapping[str, Tensor], path: Path) -> None:
    """Raise an error if names, shapes or dtypes differ from those of the spec."""
    older = ", or an older version saved them, whose layers had no such parameters (see CHANGELOG)"
    for what, names, reason in (
        ("lacks", expected.keys() - loaded.keys(), older),
        ("has unknown", loaded.keys() - expected.keys(), ""),
    ):
        if names:
            shown = ", ".join(sorted(names)[:3]) + (", …" if len(names) > 3 else "")
            raise ThreefoldError(
                f"{path}: {what} {shown}; these are not the weights of this spec{reason}"
            )
    for name, target in expected.items():
        tensor = loaded[name]
        same_kind = tensor.is_floating_point() == target.is_floating_point()
        if tensor.shape != target.shape or not same_kind:
            raise ThreefoldError(
                f"{path}: {name} is {tuple(tensor.shape)} {tensor.dtype}, expected "
                f"{tuple(target.shape)} {target.dtype}; these are not the weights of this spec"
            )


def _check_loaded(model: Model, path: Path) -> None:
    """Call `check_loaded` of every layer that has one."""
    for name, part in model.named_modules():
        check = getattr(part, "check_loaded", None)
        if check is not None:
            try:
                check()
            except ThreefoldError as error:
                raise ThreefoldError(f"{path}: {name}: {error}") from error


def _saved_dtype(config: ModelConfig, folder: Path) -> torch.dtype:
    """The dtype of the model's activations, and of buffers that are not saved."""
    dtype = getattr(torch, config.dtype, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ThreefoldError(
            f"{folder / CONFIG}: dtype is {config.dtype!r}; the file was changed or damaged: save "
            "the model again"
        )
    return dtype


def _check_tokenizer(model: Model) -> None:
    """Raise an error, before anything is written, if the tokenizer could not be loaded again."""
    if model.tokenizer is not None and _tokenizer_class(type(model.tokenizer).__name__) is None:
        raise ThreefoldError(
            f"the tokenizer is a {type(model.tokenizer).__name__}, which cannot be loaded "
            "again; use one of threefold.data.tokenizers or None"
        )


def _tokenizer_class(name: str) -> Any:
    """A tokenizer class of `threefold.data.tokenizers` only; None for any other name."""
    cls = getattr(tokenizers, name, None)
    local = isinstance(cls, type) and cls.__module__ == tokenizers.__name__
    return cls if local and hasattr(cls, "decode") else None


def _read_tokenizer(name: str | None, folder: Path) -> Any:
    if name is None:
        return None
    cls = _tokenizer_class(name)
    if cls is None:
        raise ThreefoldError(f"{folder / CONFIG}: unknown tokenizer {name!r}")
    return cls.load(folder) if hasattr(cls, "load") else cls()


def _card(config: ModelConfig) -> str:
    """The model card: what the model is and how to load it."""
    spec = config.spec
    facts = {
        "mixers": ", ".join(f"`{name}`" for name, _ in spec.entries),
        "network": spec.option("network", ""),
        "method": spec.option("method", ""),
        "width × depth": "" if spec.kind == "simple" else f"{spec.width} × {spec.depth}",
        "vocabulary": spec.vocabulary if spec.entries else "",
        "channel mixer": f"`{spec.channel_entry[0]}`" if spec.entries else "",
        "dtype": config.dtype,
        "ensemble": f"{config.members} models, whose answers are averaged"
        if config.members
        else "",
        "adapters": f"rank {config.adapters}, not merged" if config.adapters else "",
        "tokenizer": config.tokenizer or "none",
        "written by": f"Threefold {config.threefold_version}",
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items() if value)
    return f"""---
library_name: threefold
---
# A {spec.kind} model of {config.parameters:,} parameters

| | |
|---|---|
{rows}

```python
import threefold

model = threefold.load("path/to/this/folder")
```

`config.json` contains the complete description, `model.safetensors` the weights.
"""
