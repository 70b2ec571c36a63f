"""W, b = argmin mean loss(W z + b, y) + λ ‖W‖²: a new head starts from a linear readout.

z are the pooled features of the training examples without their mean: what distinguishes texts may
be small beside what they have in common, and a head with random weights would need many steps to
find it, which change the features meanwhile.  Each feature has its own scale, or all have one, so
that large ones count more; that and λ are chosen by the held-out loss of four folds.
Kumar et al. 2022, "Fine-Tuning can Distort Pretrained Features and Underperform
Out-of-Distribution" (a linear probe, then fine-tuning).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.models.classifier import PooledModel
from threefold.models.model import Model
from threefold.training.devices import device_of, move
from threefold.training.training_data import TrainingData

MOST_EXAMPLES = 2_000
BATCH = 32
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
FOLDS = 4
ITERATIONS = 60
Readout = tuple[Tensor, Tensor]  # weights [outputs, width], offsets [outputs]


def start_head(model: Model, data: TrainingData) -> int:
    """Fit the head of a model with one output for a sequence; returns from how many examples.

    0: the head stays as it is, since it reads pairs or has a hidden layer.
    """
    if not isinstance(model, PooledModel) or model.paired or model.spec.option("hidden"):
        return 0
    features, targets = _features(model, data)
    weight, offset = choose_readout(features, targets, model.spec.option(model.outputs_option))
    last = model.head[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight.copy_(weight)
        last.bias.copy_(offset)
    return len(features)


def choose_readout(features: Tensor, targets: Tensor, outputs: int) -> Readout:
    """The readout whose scale and strength have the least held-out loss."""
    mean, deviation = features.mean(0), features.std(0).clamp(min=1e-6)
    common = deviation.square().mean().sqrt().expand_as(deviation)
    tried = [(scale, strength) for scale in (deviation, common) for strength in STRENGTHS]
    scale, strength = tried[-1]
    if len(features) >= 2 * FOLDS:
        centred = features - mean
        scale, strength = min(
            tried, key=lambda one: _held_out(centred / one[0], targets, outputs, one[1])
        )
    weight, offset = _fit((features - mean) / scale, targets, outputs, strength)
    return weight / scale, offset - (weight / scale) @ mean


def _held_out(features: Tensor, targets: Tensor, outputs: int, strength: float) -> float:
    """The loss of examples that the readout was not fitted to, in turn."""
    fold, total = torch.arange(len(features)) % FOLDS, 0.0
    for number in range(FOLDS):
        inside = fold != number
        weight, offset = _fit(features[inside], targets[inside], outputs, strength)
        answers = features[~inside] @ weight.T + offset
        total += float(_loss(targets)(answers, targets[~inside])) * int((~inside).sum())
    return total


def _loss(targets: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    if targets.is_floating_point():
        return lambda answers, wanted: F.mse_loss(answers, wanted.reshape(answers.shape))
    return F.cross_entropy


def _fit(features: Tensor, targets: Tensor, outputs: int, strength: float) -> Readout:
    """The minimum of a smooth convex function, by L-BFGS."""
    weight = torch.zeros(outputs, features.shape[1], dtype=torch.float64, requires_grad=True)
    offset = torch.zeros(outputs, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, offset], max_iter=ITERATIONS, line_search_fn="strong_wolfe"
    )
    loss = _loss(targets)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(features @ weight.T + offset, targets) + strength * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach(), offset.detach()


def _features(model: PooledModel, data: TrainingData) -> tuple[Tensor, Tensor]:
    """Pooled vectors and targets of training examples, evenly spread over them."""
    size, was_training, parts = data.task.size("train"), model.training, []
    chosen = np.unique(np.linspace(0, size - 1, min(size, MOST_EXAMPLES)).astype(np.int64))
    model.eval()
    with torch.no_grad():
        for first in range(0, len(chosen), BATCH):
            rows = move(data.task.rows("train", chosen[first : first + BATCH]), device_of(model))
            vectors, _ = model.encode(rows.inputs, mask=rows.mask)
            parts.append((vectors.double().cpu(), rows.targets.cpu()))
    model.train(was_training)
    features, targets = (torch.cat(part) for part in zip(*parts, strict=True))
    return features, targets.double() if targets.is_floating_point() else targets
