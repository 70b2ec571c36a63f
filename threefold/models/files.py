"""Read and write safetensors files, with one clear error message."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from threefold.errors import ThreefoldError


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file in which no two tensors share storage."""
    save_file({name: own_storage(tensor) for name, tensor in tensors.items()}, path, dict(metadata))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file."""
    if not path.is_file():
        raise ThreefoldError(f"{path}: file not found")
    try:
        with safe_open(path, framework="pt") as file:
            # Copies: the mapped file may change later, and aligned memory gives the same bits.
            names = list(file.keys())
            tensors = {name: file.get_tensor(name).clone() for name in names}
            return tensors, dict(file.metadata() or {})
    except SafetensorError as error:
        raise ThreefoldError(
            f"{path}: not a safetensors file, or truncated ({error}); copy or save it again"
        ) from error
    except OSError as error:
        raise ThreefoldError(f"{path}: cannot be read ({error.strerror or error})") from error


def own_storage(tensor: Tensor) -> Tensor:
    """The tensor on the CPU, in storage that it does not share."""
    tensor = tensor.detach().cpu()
    alone = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if alone else tensor.clone(memory_format=torch.contiguous_format)
