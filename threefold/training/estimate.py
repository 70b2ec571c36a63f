"""What a run will take: a batch is learnt from once on the side, timed, and its memory counted."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from threefold.errors import ThreefoldError
from threefold.training.objectives import Objective
from threefold.training.seeding import seed_step, undisturbed
from threefold.training.settings import TrainingSettings

MOMENTS = {"sgd": 0, "momentum": 1, "nesterov": 1, "adagrad": 1, "muon": 1}  # others have 2


@dataclass(frozen=True)
class Estimate:
    """Of one step."""

    seconds: float
    weights: int  # bytes of weights, gradients and optimiser
    kept: int  # bytes that the backward pass needs
    elements: int

    @property
    def memory(self) -> int:
        """Bytes in all."""
        return self.weights + self.kept

    def total(self, settings: TrainingSettings) -> float:
        """Seconds of the whole run."""
        limits = [settings.time] if settings.time is not None else []
        if settings.steps is not None:
            limits.append(settings.steps * self.seconds)
        return min(limits)


def estimate(
    model: nn.Module, objective: Objective, rows: Any, settings: TrainingSettings, repeats: int = 2
) -> Estimate:
    """Forward and backward of a batch, the faster of a few times; weights stay as they are."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    times = []
    was_training = model.training
    model.train()
    with undisturbed():
        for turn in range(repeats):
            seed_step(settings.seed, 0)
            start = time.perf_counter()
            if turn == 0:
                with saved_tensors_hooks(note, lambda tensor: tensor):
                    loss = objective(model, rows, None, carry=settings.carry_state, done=0.0).loss
            else:
                loss = objective(model, rows, None, carry=settings.carry_state, done=0.0).loss
            loss.backward()  # type: ignore[no-untyped-call]
            times.append(time.perf_counter() - start)
            model.zero_grad(set_to_none=True)
    model.train(was_training)
    own = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    weights = sum(own.values())
    activations = sum(size for place, size in kept.items() if place not in own)
    copies = 2 + MOMENTS.get(settings.optimizer, 2) + bool(settings.ema)
    with torch.no_grad():
        elements = int(rows.inputs.shape[0] * rows.inputs.shape[1]) * settings.gradient_accumulation
    seconds = min(times) * settings.gradient_accumulation
    return Estimate(seconds, copies * weights, activations, elements)


def check_memory(
    model: nn.Module, objective: Objective, first: Any, batch: int, settings: TrainingSettings
) -> None:
    """Refuse batches that this machine has no room for, by what the `first` example takes alone."""
    there = machine_memory()
    one = estimate(model, objective, first, settings, repeats=1)
    needed = one.weights + batch * one.kept
    if there is not None and needed > there:
        raise ThreefoldError(
            f"a step with data.batch_size={batch:,} needs about {needed / 1e9:,.1f} GB, but this "
            f"machine has {there / 1e9:,.1f} GB; lower data.batch_size (and raise "
            "training.gradient_accumulation), data.length or the size of the model, or set "
            "training.gradient_checkpointing=true"
        )


def machine_memory() -> int | None:
    """Bytes of memory, where the system says it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
