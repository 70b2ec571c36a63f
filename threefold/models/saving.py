"""A model as a folder: config.json, model.safetensors, tokenizer files, a model card.

The folder is replaced whole or not at all, and nothing in it is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import threefold
from threefold.data import tokenizers
from threefold.data.atomic_files import sha256_of, write_folder
from threefold.errors import ThreefoldError
from threefold.models.config import CARD, CONFIG, WEIGHTS, ModelConfig, prepare, read_config
from threefold.models.files import read_tensors, write_tensors
from threefold.models.model import Model
from threefold.models.table import build


def save(model: Model, folder: str | PathLike[str]) -> None:
    """Write the model to `folder`; an older model there is replaced, anything else is kept."""
    _check_tokenizer(model)
    write_folder(prepare(folder), lambda new: _write(model, new))


def load(
    folder: str | PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Model:
    """The model that was saved in `folder`, in eval mode; `dtype` None keeps the saved one."""
    if dtype is not None and not dtype.is_floating_point:
        raise ThreefoldError(f"load: dtype is {dtype}, expected a floating-point one")
    place = Path(folder)
    config = read_config(place)
    weights = place / WEIGHTS
    tensors, _ = read_tensors(weights)
    try:
        with torch.random.fork_rng(devices=[]):  # the caller's random numbers go on undisturbed
            model = build(config.spec)
    except ThreefoldError as error:
        raise ThreefoldError(f"{place / CONFIG}: {error}") from error
    _check_fit(unshared(model), tensors, weights)
    if sha256_of(weights) != config.sha256:
        raise ThreefoldError(
            f"{weights}: damaged, or not the weights that config.json was written with (another "
            "SHA-256); copy the folder or save the model again"
        )
    _fill(model, tensors)
    _check_parts(model, weights)
    model.tokenizer = _read_tokenizer(config.tokenizer, place)
    return model.to(device=device, dtype=dtype).eval()


def _write(model: Model, folder: Path) -> None:
    write_tensors(folder / WEIGHTS, unshared(model), {"format": "pt"})
    if hasattr(model.tokenizer, "save"):
        model.tokenizer.save(folder)
    config = ModelConfig(
        spec=model.spec,
        threefold_version=threefold.__version__,
        parameters=model.parameter_count,
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
        tokenizer=None if model.tokenizer is None else type(model.tokenizer).__name__,
        files=tuple(sorted({CARD, *(file.name for file in folder.iterdir())})),
        sha256=sha256_of(folder / WEIGHTS),
    )
    (folder / CARD).write_text(_card(config), encoding="utf-8")
    config.write(folder / CONFIG)


def unshared(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, shared ones once, under their first name."""
    first: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        first.setdefault(id(tensor), name)
    found = model.state_dict(keep_vars=True)
    return {name: found[name] for name in first.values()}


def _check_fit(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], path: Path) -> None:
    """Refuse names, shapes or kinds of numbers that the spec does not ask for."""
    for what, names in (
        ("lacks", wanted.keys() - given.keys()),
        ("has unknown", given.keys() - wanted.keys()),
    ):
        if names:
            shown = ", ".join(sorted(names)[:3]) + (", …" if len(names) > 3 else "")
            raise ThreefoldError(f"{path}: {what} {shown}; these are not the weights of this spec")
    for name, target in wanted.items():
        tensor = given[name]
        same_kind = tensor.is_floating_point() == target.is_floating_point()
        if tensor.shape != target.shape or not same_kind:
            raise ThreefoldError(
                f"{path}: {name} is {tuple(tensor.shape)} {tensor.dtype}, expected "
                f"{tuple(target.shape)} {target.dtype}; these are not the weights of this spec"
            )


def _check_parts(model: Model, path: Path) -> None:
    """Let every layer that knows what its numbers may be look at those of the file."""
    for name, part in model.named_modules():
        check = getattr(part, "check_loaded", None)
        if check is not None:
            try:
                check()
            except ThreefoldError as error:
                raise ThreefoldError(f"{path}: {name}: {error}") from error


def _fill(model: Model, tensors: Mapping[str, Tensor]) -> None:
    """Put the numbers of a file into the model, each in the dtype it was saved in."""
    wanted = unshared(model)
    model.to(tensors[next(iter(wanted))].dtype)  # buffers that are not saved follow the weights
    for name, target in wanted.items():
        target.data = tensors[name]


def _check_tokenizer(model: Model) -> None:
    """A tokenizer that could not be read back is refused before anything is written."""
    if model.tokenizer is not None and _tokenizer_class(type(model.tokenizer).__name__) is None:
        raise ThreefoldError(
            f"the tokenizer is a {type(model.tokenizer).__name__}, which could not be loaded "
            "again; use one of threefold.data.tokenizers or None"
        )


def _tokenizer_class(name: str) -> Any:
    """A tokenizer of `threefold.data.tokenizers`, never anything else."""
    found = getattr(tokenizers, name, None)
    mine = isinstance(found, type) and found.__module__ == tokenizers.__name__
    return found if mine and hasattr(found, "decode") else None


def _read_tokenizer(name: str | None, folder: Path) -> Any:
    if name is None:
        return None
    found = _tokenizer_class(name)
    if found is None:
        raise ThreefoldError(f"{folder / CONFIG}: unknown tokenizer {name!r}")
    return found.load(folder) if hasattr(found, "load") else found()


def _card(config: ModelConfig) -> str:
    """A model card: what it is and how to use it."""
    spec = config.spec
    mixers = ", ".join(f"`{name}`" for name, _ in spec.entries)
    return f"""---
library_name: threefold
---
# A {spec.kind} model of {config.parameters:,} parameters

| | |
|---|---|
| mixers | {mixers} |
| width × depth | {spec.width} × {spec.depth} |
| vocabulary | {spec.vocabulary} |
| channel mixer | `{spec.channel_entry[0]}` |
| dtype | {config.dtype} |
| tokenizer | {config.tokenizer or "none"} |
| made by | Threefold {config.threefold_version} |

```python
import threefold

model = threefold.load("path/to/this/folder")
```

`config.json` holds the whole description; `model.safetensors` the weights.
"""
