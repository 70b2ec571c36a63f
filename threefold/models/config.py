"""config.json of a saved model: what it is, who wrote it, and which files belong to it.

Reading it needs no torch, so `threefold info` answers at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from threefold.errors import ThreefoldError
from threefold.models.spec import Spec

FORMAT = "threefold"
VERSION = 2
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
CARD = "README.md"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class ModelConfig:
    """What config.json says."""

    spec: Spec
    threefold_version: str
    parameters: int
    dtype: str
    tokenizer: str | None
    files: tuple[str, ...]  # everything in the folder but config.json
    sha256: str  # of the weights

    def write(self, path: Path) -> None:
        """As JSON, for people too."""
        values = {"format": FORMAT, "format_version": VERSION, **asdict(self)}
        values["spec"] = self.spec.to_dict()
        path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def read_config(folder: Path) -> ModelConfig:
    """The config of a saved model; anything else is refused with what was found instead."""
    path, values = folder / CONFIG, read_values(folder)
    if "estimator" in values:
        raise ThreefoldError(
            f"{folder}: holds a {values['estimator']}; load it with "
            f"threefold.{values['estimator']}.load"
        )
    try:
        spec = Spec.from_dict(values.get("spec"))
    except ThreefoldError as error:
        raise ThreefoldError(f"{path}: {error}") from error
    return ModelConfig(spec=spec, **_fields(path, values))


def read_values(folder: Path) -> dict[str, Any]:
    """config.json of a folder that Threefold wrote, in a version that can be read."""
    _check_folder(folder)
    path = folder / CONFIG
    values = _read_json(path)
    if values.get("format") != FORMAT:
        owner = values.get("model_type") or values.get("architectures") or "another program"
        raise ThreefoldError(
            f"{path}: written for {owner}, not by Threefold; expected a folder made by model.save "
            "(load_transformers in threefold.models.pretrained.transformers "
            "reads some folders written by transformers)"
        )
    _check_version(path, values)
    return values


def prepare(folder: str | PathLike[str]) -> Path:
    """The place to save to: free, or held by an older model, which is replaced."""
    place = Path(folder).resolve()
    if place.exists() and not place.is_dir():
        raise ThreefoldError(f"{place}: a file; a model is saved as a folder")
    if place.exists() and any(place.iterdir()) and not is_model(place):
        raise ThreefoldError(
            f"{place}: holds files that are not part of a saved model, which saving would delete; "
            "choose another folder"
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def is_model(folder: Path) -> bool:
    """Whether a folder holds a saved model and nothing else."""
    try:
        values = _read_json(folder / CONFIG)
    except ThreefoldError:
        return False
    known = {CONFIG, *map(str, values.get("files") or ())}
    return values.get("format") == FORMAT and all(file.name in known for file in folder.iterdir())


def _check_folder(folder: Path) -> None:
    if not folder.exists():
        left = [f for f in folder.parent.glob(f".{folder.name}.*") if (f / CONFIG).is_file()]
        hint = f"; an interrupted save left {left[0]}: rename it" if left else ""
        raise ThreefoldError(f"{folder}: there is no such folder{hint}")
    if not folder.is_dir():
        raise ThreefoldError(f"{folder}: a file; expected a folder made by model.save")
    if (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file():
        return
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
    if pickles:
        raise ThreefoldError(
            f"{folder}: holds {pickles[0]}, a pickle, which can run any code when it is opened; "
            "Threefold reads safetensors only: convert it where you trust it"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ThreefoldError(
            f"{path}: there is no such file; expected a folder made by model.save"
        ) from error
    except OSError as error:
        raise ThreefoldError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ThreefoldError(f"{path}: not JSON, or cut short ({error}); save it again") from error
    if not isinstance(values, dict):
        raise ThreefoldError(f"{path}: holds a {type(values).__name__}, expected an object")
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
            f"({values.get('threefold_version')}), in which settings had other names; this one "
            f"reads format {VERSION}: train the model again, or use the older version"
        )


def _fields(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields beside the spec, with the types they must have."""
    types: dict[str, Any] = {
        "threefold_version": str,
        "parameters": int,
        "dtype": str,
        "tokenizer": (str, type(None)),
        "files": list,
        "sha256": str,
    }
    for name, expected in types.items():
        if not isinstance(values.get(name), expected):
            raise ThreefoldError(
                f"{path}: {name} is {values.get(name)!r}; the file was changed or damaged: save it "
                "again"
            )
    found = {name: values[name] for name in types}
    return {**found, "files": tuple(map(str, found["files"]))}
