"""Where and how precisely a run computes: `training.device` and `training.precision`.

The model is moved once, every batch when it is used. bfloat16 is autocast: weights, optimizer,
recurrent memory and loss stay in float32.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from threefold.errors import ThreefoldError

if TYPE_CHECKING:
    from threefold.training.settings import TrainingSettings


def choose_device(name: str) -> torch.device:
    """The device that a setting names; `auto` is the first CUDA device, or the CPU without one.

    Of several processes on one machine, each has the CUDA device of its own number.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    own = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", own) if name in ("auto", "cuda") else torch.device(name)
    if device.index is None or device.index >= count:
        there = f"{count} CUDA devices" if count else "no CUDA device"
        raise ThreefoldError(
            f"training.device is {name!r}, which needs {device}, but torch {torch.__version__} "
            f"finds {there} here; set training.device=cpu"
        )
    return device


def place(model: nn.Module, settings: TrainingSettings) -> torch.device:
    """Move a model to the device of the settings, in their precision; returns the device.

    With `auto`, a model that is already on another device than the CPU stays there.
    """
    device = device_of(model)
    if settings.device != "auto" or device.type == "cpu":
        device = choose_device(settings.device)
        model.to(device)
    if settings.precision == "float64":
        model.double()
    return device


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's weights."""
    weight = next(model.parameters(), None)
    return torch.device("cpu") if weight is None else weight.device


def precision_of(model: nn.Module) -> str:
    """float64 for a model in float64, float32 for all others."""
    weight = next(model.parameters(), None)
    is_double = weight is not None and weight.dtype == torch.float64
    return "float64" if is_double else "float32"


def move(rows: Any, device: torch.device, precision: str = "float32") -> Any:
    """A batch on a device, its numbers in float64 if that is the precision."""
    to = getattr(rows, "to", None)
    return rows if to is None else to(device, torch.float64 if precision == "float64" else None)


def computing(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Autocast for the precision bfloat16, nothing for the others."""
    if precision == "bfloat16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def synchronize(device: torch.device) -> None:
    """Wait until everything on the device is computed, before reading the clock."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory_of(device: torch.device) -> int | None:
    """Bytes of the device's memory, where the system reports it."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
