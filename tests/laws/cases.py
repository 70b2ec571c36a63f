"""Inputs for each structure of the linear memory, with transitions of norm ≤ 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from threefold.memory.linear.recurrence import linear_recurrence
from threefold.memory.linear.selective import selective_scan

BATCH, HEADS, KEY, VALUE = 2, 4, 5, 6
CHANNELS, STATE = 7, 3

Inputs = dict[str, Tensor]
STRUCTURES = (
    "none",
    "fixed",
    "scalar",
    "per_key",
    "two_sided",
    "value_side",
    "bonus_none",
    "bonus_scalar",
    "bonus_per_key",
    "delta",
    "gated_delta",
    "gated_delta_fixed",
    "gated_delta_per_key",
    "rank_one",
    "rank_one_scalar",
    "rank_one_per_key",
    "grouped",
    "grouped_delta",
    "elementwise",
    "elementwise_bare",
)


def make(structure: str, length: int, dtype: torch.dtype, *, decay: float = 2.0) -> Inputs:
    """Random inputs of the structure, `state` included; log-decays between 0 and −decay."""
    torch.manual_seed(STRUCTURES.index(structure))
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64)  # noqa: E731
    uniform = lambda *shape: torch.rand(*shape, dtype=torch.float64)  # noqa: E731
    if structure.startswith("elementwise"):
        return _cast(_elementwise(structure, length, decay, draw, uniform), dtype)
    groups = HEADS // 2 if structure.startswith("grouped") else HEADS
    inputs = {
        "query": F.normalize(draw(BATCH, length, groups, KEY), dim=-1),
        "key": F.normalize(draw(BATCH, length, groups, KEY), dim=-1),
        "value": draw(BATCH, length, HEADS, VALUE),
        "state": draw(BATCH, HEADS, KEY, VALUE),
    }
    if "fixed" in structure:
        inputs["log_decay"] = -decay * uniform(HEADS)
    if "scalar" in structure or structure in ("gated_delta", "grouped"):
        inputs["log_decay"] = -decay * uniform(BATCH, length, HEADS)
    if "per_key" in structure or structure == "two_sided":
        inputs["log_decay"] = -decay * uniform(BATCH, length, HEADS, KEY)
    if structure in ("two_sided", "value_side"):
        inputs["log_decay_value"] = -decay * uniform(BATCH, length, HEADS, VALUE)
    if "bonus" in structure:
        inputs["bonus"] = draw(HEADS, KEY)
    if "delta" in structure:
        inputs["strength"] = 2 * uniform(BATCH, length, HEADS)
    if "rank_one" in structure:
        # Diag(w) − κ (κ⊙ρ)ᵀ with κ of length 1 and w ≥ ρ keeps the norm at 1 in RWKV-7's way.
        kappa = F.normalize(draw(BATCH, length, HEADS, KEY), dim=-1)
        inputs["write"] = -kappa
        inputs["read"] = kappa * uniform(BATCH, length, HEADS, 1)
    return _cast(inputs, dtype)


def _elementwise(
    structure: str, length: int, decay: float, draw: Callable[..., Tensor], uniform: Any
) -> Inputs:
    inputs = {
        "x": draw(BATCH, length, CHANNELS),
        "delta": uniform(BATCH, length, CHANNELS) * decay,
        "A": -uniform(CHANNELS, STATE),
        "B": draw(BATCH, length, STATE),
        "C": draw(BATCH, length, STATE),
        "state": draw(BATCH, CHANNELS, STATE),
    }
    if structure == "elementwise":
        inputs |= {
            "D": draw(CHANNELS),
            "gate": draw(BATCH, length, CHANNELS),
            "delta_bias": draw(CHANNELS),
        }
    return inputs


def _cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return {name: tensor.to(dtype) for name, tensor in inputs.items()}


def run(
    structure: str, inputs: Inputs, form: str, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Run the structure's public function."""
    if structure.startswith("elementwise"):
        return selective_scan(**inputs, softplus=structure == "elementwise", form=form)
    given: dict[str, Any] = dict(inputs)
    if "write" in given:
        given["rank_one"] = (given.pop("write"), given.pop("read"))
    return linear_recurrence(**given, form=form, chunk=chunk)


def with_gradients(
    structure: str, inputs: Inputs, form: str, chunk: int | None = None
) -> tuple[Tensor, Tensor, Inputs]:
    """Output, final state, and gradients of a fixed random functional of both."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    out, state = run(structure, leaves, form, chunk)
    generator = torch.Generator().manual_seed(0)

    def weigh(t: Tensor) -> Tensor:
        return (t * torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)).sum()

    gradients = torch.autograd.grad(weigh(out) + weigh(state), list(leaves.values()))
    return out.detach(), state.detach(), dict(zip(leaves, gradients, strict=True))
