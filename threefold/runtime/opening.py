"""The model in a folder: a saved model, or a run, which holds one under `model`."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from threefold.errors import ThreefoldError
from threefold.models.config import CONFIG, read_config
from threefold.models.model import Model
from threefold.models.saving import load

MODEL = "model"  # in the folder of a run
RUN_FILES = ("run.json", "config.toml", "checkpoints")


class Opened(NamedTuple):
    """A model that is ready to work."""

    model: Model
    tokenizer: Any  # None for a model of numbers
    folder: Path
    sha256: str  # of the weights: a state belongs to these


def open_model(path: str | PathLike[str]) -> Opened:
    """The model of a folder that `model.save` or a run made, in eval mode, with its tokenizer."""
    folder = resolve(Path(path))
    model = load(folder)
    tokenizer = model.tokenizer
    if tokenizer is not None and tokenizer.vocabulary > model.spec.vocabulary:
        raise ThreefoldError(
            f"{folder}: the tokenizer has {tokenizer.vocabulary} tokens, the model "
            f"{model.spec.vocabulary}; save the model with the tokenizer that it was trained with"
        )
    return Opened(model, tokenizer, folder, read_config(folder).sha256)


def resolve(path: Path) -> Path:
    """The folder of the model itself."""
    if (path / CONFIG).is_file() or not path.is_dir():
        return path
    if (path / MODEL).is_dir():
        return path / MODEL
    if any((path / name).exists() for name in RUN_FILES):
        raise ThreefoldError(
            f"{path}: a run that has not saved its model yet; it does so at its end: let it go on"
        )
    return path  # what is wrong with it is said where it is read
