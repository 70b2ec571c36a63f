"""Estimate the time and memory of a run from the forward and backward pass of one batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from threefold.errors import ThreefoldError
from threefold.training import clock
from threefold.training.devices import computing, memory_of, move, place, synchronize
from threefold.training.evaluation import evaluate
from threefold.training.objectives import Objective
from threefold.training.seeding import preserve_random_state, seed_step
from threefold.training.settings import TrainingSettings
from threefold.training.training_data import EvaluationBatches

# Tensors per parameter that an optimiser stores; others store 2.
OPTIMIZER_MOMENTS = {"sgd": 0, "momentum": 1, "nesterov": 1, "adagrad": 1, "muon": 1}


@dataclass(frozen=True)
class StepEstimate:
    """Time and memory of one step."""

    seconds: float
    weights: int  # bytes of weights, gradients and optimiser state
    activations: int  # bytes saved for the backward pass
    elements: int

    @property
    def memory(self) -> int:
        """Bytes in total."""
        return self.weights + self.activations

    def total(self, settings: TrainingSettings) -> float:
        """Seconds of the run."""
        limits = [settings.time] if settings.time is not None else []
        if settings.steps is not None:
            limits.append(settings.steps * self.seconds)
        return min(limits)


def estimate_step(
    model: nn.Module, objective: Objective, rows: Any, settings: TrainingSettings, repeats: int = 2
) -> StepEstimate:
    """Time the forward and backward pass of a batch, best of `repeats`; weights are unchanged."""
    saved: dict[int, int] = {}  # bytes by address

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    times = []
    device = place(model, settings)
    rows = move(rows, device, settings.precision)
    was_training = model.training
    model.train(len(rows.inputs) > 1)  # batch norms have no statistics of a single example
    with preserve_random_state(), _preserved_buffers(model):
        for repeat in range(repeats):
            seed_step(settings.seed, 0)
            start = clock.now()
            hooks = saved_tensors_hooks(record, lambda tensor: tensor)
            with hooks if repeat == 0 else nullcontext(), computing(device, settings.precision):
                loss = objective(model, rows, None, carry=settings.carry_state, progress=0.0).loss
            loss.backward()  # type: ignore[no-untyped-call]
            synchronize(device)
            times.append(clock.now() - start)
            model.zero_grad(set_to_none=True)
    model.train(was_training)
    storages = [parameter.untyped_storage() for parameter in model.parameters()]
    parameters = {storage.data_ptr(): storage.nbytes() for storage in storages}
    activations = sum(size for address, size in saved.items() if address not in parameters)
    copies = 2 + OPTIMIZER_MOMENTS.get(settings.optimizer, 2) + bool(settings.ema)
    accumulation = settings.gradient_accumulation
    elements = int(rows.inputs.shape[0] * rows.inputs.shape[1]) * accumulation
    weights = copies * sum(parameters.values())
    return StepEstimate(min(times) * accumulation, weights, activations, elements)


@contextmanager
def _preserved_buffers(model: nn.Module) -> Iterator[None]:
    """Leave the running statistics of batch norms as they are."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    yield
    for name, buffer in model.named_buffers():
        buffer.copy_(before[name])


def estimate_evaluation(
    model: nn.Module, objective: Objective, batches: EvaluationBatches, repeats: int = 2
) -> float:
    """Seconds to read and evaluate all batches, from `repeats` of them after the first.

    The first batch takes longer, since it finds all caches empty; it only counts if it is alone.
    """
    times = [clock.now()]
    evaluate(
        model,
        islice(batches, repeats + 1),
        objective=objective,
        on_batch=lambda *_: times.append(clock.now()),
    )
    times = times[1:] if len(times) > 2 else times
    return (times[-1] - times[0]) / (len(times) - 1) * len(batches)


def check_memory(
    model: nn.Module, objective: Objective, first: Any, batch_size: int, settings: TrainingSettings
) -> None:
    """Refuse batches that need more memory than the device has, estimated from one example."""
    device = place(model, settings)
    available, where = memory_of(device), "this machine" if device.type == "cpu" else str(device)
    example = estimate_step(model, objective, first, settings, repeats=1)
    needed = example.weights + batch_size * example.activations
    if available is not None and needed > available:
        raise ThreefoldError(
            f"a step with data.batch_size={batch_size:,} needs about {needed / 1e9:,.1f} GB, but "
            f"{where} has {available / 1e9:,.1f} GB; lower data.batch_size (and raise "
            "training.gradient_accumulation), data.length or the size of the model, or set "
            "training.gradient_checkpointing=true"
        )
