"""Tensors as safetensors files, read with one clear message."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from threefold.errors import ThreefoldError


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A safetensors file; each tensor is stored as it stands, on its own."""
    save_file({name: owned(tensor) for name, tensor in tensors.items()}, path, dict(metadata))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file."""
    if not path.is_file():
        raise ThreefoldError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            # Copies: the file may change under its mapping, and aligned numbers compute the same.
            names = list(file.keys())
            tensors = {name: file.get_tensor(name).clone() for name in names}
            return tensors, dict(file.metadata() or {})
    except SafetensorError as error:
        raise ThreefoldError(
            f"{path}: not a safetensors file, or cut short ({error}); copy or save it again"
        ) from error
    except OSError as error:
        raise ThreefoldError(f"{path}: cannot be read ({error.strerror or error})") from error


def owned(tensor: Tensor) -> Tensor:
    """The tensor with a storage of its own, on the CPU."""
    tensor = tensor.detach().cpu()
    alone = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if alone else tensor.clone(memory_format=torch.contiguous_format)
