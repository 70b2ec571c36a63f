"""config.json of a saved model: its spec, the version that wrote it, and its files.

Reading it does not import torch, so `threefold info` is fast.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from threefold.data.atomic_files import json_text
from threefold.data.readers import checked_path
from threefold.errors import ThreefoldError
from threefold.layers.table import check_origins
from threefold.models.spec import Spec

FORMAT = "threefold"
VERSION = 3
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
CARD = "README.md"
ALARMS = "alarms.safetensors"  # the calibration of alarms, which a stream may add
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class ModelConfig:
    """The contents of config.json."""

    spec: Spec
    threefold_version: str
    parameters: int
    dtype: str
    tokenizer: str | None
    files: tuple[str, ...]  # everything in the folder but config.json
    sha256: str  # of the weights
    plugins: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # origins of mixers
    members: int = 0  # of an ensemble; 0: one model
    adapters: int = 0  # rank of low-rank adapters that are not merged; 0: none
    checksums: Mapping[str, str] = field(
        default_factory=dict
    )  # SHA-256 of what is neither weights nor alarms

    def write(self, path: Path) -> None:
        """Write it as indented JSON."""
        values = {"format": FORMAT, "format_version": VERSION, **asdict(self)}
        values["spec"] = self.spec.to_dict()
        for name in ("plugins", "adapters", "members", "checksums"):
            if not values[name]:
                del values[name]
        path.write_text(json_text(values), encoding="utf-8")


def read_config(folder: Path) -> ModelConfig:
    """Read the config of a saved model, or raise an error that says what the folder contains."""
    path, values = folder / CONFIG, read_config_values(folder)
    if "estimator" in values:
        raise ThreefoldError(
            f"{folder}: contains a {values['estimator']}; load it with "
            f"threefold.estimators.{values['estimator']}.load"
        )
    origins = _plugins(path, values)
    try:
        check_origins(origins)
        spec = Spec.from_dict(values.get("spec"))
    except ThreefoldError as error:
        raise ThreefoldError(f"{path}: {error}") from error
    return ModelConfig(spec=spec, plugins=origins, **_fields(path, values))


def read_config_values(folder: Path) -> dict[str, Any]:
    """Read config.json of a folder written by Threefold, in a supported format version."""
    _check_folder(folder)
    path = folder / CONFIG
    values = _read_json(path)
    if values.get("format") != FORMAT:
        owner = values.get("model_type") or values.get("architectures") or "another program"
        raise ThreefoldError(
            f"{path}: written for {owner}, not by Threefold; expected a folder written by "
            "model.save (load_transformers in threefold.models.pretrained.transformers "
            "reads some folders written by transformers)"
        )
    _check_version(path, values)
    return values


def prepare_folder(folder: str | PathLike[str]) -> Path:
    """The path to save to: new, empty, or an older model, which is replaced."""
    path = checked_path("folder", folder).resolve()
    if path.exists() and not path.is_dir():
        raise ThreefoldError(f"{path}: is a file; a model is saved as a folder")
    if path.exists() and any(path.iterdir()) and not is_model_folder(path):
        raise ThreefoldError(
            f"{path}: contains files that are not part of a saved model; saving would delete them; "
            "choose another folder"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def is_model_folder(folder: Path) -> bool:
    """Whether a folder contains a saved model and nothing else."""
    try:
        values = _read_json(folder / CONFIG)
    except ThreefoldError:
        return False
    known = {CONFIG, ALARMS, *map(str, values.get("files") or ())}
    return values.get("format") == FORMAT and all(file.name in known for file in folder.iterdir())


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        leftovers = [f for f in folder.parent.glob(f".{folder.name}.*") if (f / CONFIG).is_file()]
        hint = f"; an interrupted save left {leftovers[0]}: rename it" if leftovers else ""
        raise ThreefoldError(f"{folder}: folder not found{hint}")
    if not folder.is_dir():
        raise ThreefoldError(f"{folder}: is a file, expected a folder written by model.save")
    if (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file():
        return
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise ThreefoldError(
            f"{folder}: contains {pickles[0]}, a pickle, which can run arbitrary code when loaded; "
            "Threefold reads safetensors only: convert it if you trust it"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ThreefoldError(
            f"{path}: file not found; expected a folder written by model.save or `threefold train`"
        ) from error
    except OSError as error:
        raise ThreefoldError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ThreefoldError(
            f"{path}: not valid JSON, or truncated ({error}); save the model again"
        ) from error
    if not isinstance(values, dict):
        raise ThreefoldError(f"{path}: contains a {type(values).__name__}, expected a JSON object")
    return values


def _check_version(path: Path, values: Mapping[str, Any]) -> None:
    version = values.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise ThreefoldError(f"{path}: format_version is {version!r}, expected {VERSION}")
    if version > VERSION:
        raise ThreefoldError(
            f"{path}: format {version}, written by Threefold {values.get('threefold_version')}; "
            f"this one reads {VERSION}: install a newer Threefold"
        )
    if version < VERSION:
        raise ThreefoldError(
            f"{path}: format {version}, written by an older Threefold "
            f"({values.get('threefold_version')}), which did not save how the data are prepared; "
            f"this one reads format {VERSION}: train the model again, or use the older version"
        )


def _plugins(path: Path, values: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Where registered mixers come from: class and plugin by name."""
    origins = values.get("plugins", {})
    for origin in origins.values() if isinstance(origins, dict) else [None]:
        texts = isinstance(origin, dict) and all(isinstance(v, str) for v in origin.values())
        if not texts or sorted(origin or ()) != ["class", "plugin"]:
            raise ThreefoldError(f"{path}: plugins is {origins!r}; the file was changed or damaged")
    return dict(origins)


def _fields(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields other than the spec, checked for their types."""
    types: dict[str, Any] = {
        "threefold_version": str,
        "parameters": int,
        "dtype": str,
        "tokenizer": (str, type(None)),
        "files": list,
        "sha256": str,
        "adapters": int,
        "members": int,
        "checksums": dict,
    }
    values = {"adapters": 0, "members": 0, "checksums": {}, **values}
    for name, expected in types.items():
        if not isinstance(values.get(name), expected):
            raise ThreefoldError(
                f"{path}: {name} is {values.get(name)!r}; the file was changed or damaged: save "
                "the model again"
            )
    fields = {name: values[name] for name in types}
    return {**fields, "files": tuple(map(str, fields["files"]))}
