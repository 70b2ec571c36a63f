"""x = (1−α) x₋ + α φ(W_in u + b + W x₋ + W_fb y₋ + ν): a random or given reservoir.

A series is processed in pieces of a fixed length, so that memory does not grow with its length.
Jaeger 2001, "The echo state approach to analysing and training recurrent neural networks".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from threefold.errors import ThreefoldError, nearest
from threefold.estimators.inputs import Array, Series
from threefold.estimators.reservoir_estimator import (
    ReservoirEstimator,
    ReservoirPiece,
    piece_ends,
)
from threefold.estimators.ridge_estimator import row_major_copy
from threefold.memory import reservoir
from threefold.memory.spectrum import random_matrix, scale_to_radius
from threefold.memory.state import State

MATRICES = ("weight", "weight_in", "bias", "feedback")


@dataclass(kw_only=True, eq=False)
class DrivenReservoir(ReservoirEstimator):
    """The reservoir of an echo state network, without fit and predict."""

    units: int = 500
    spectral_radius: float = 0.9
    density: float = 0.1
    leak: float = 1.0
    input_scale: float = 1.0
    input_density: float = 1.0
    bias_scale: float = 0.0
    feedback_scale: float = 0.0
    activation: str = "tanh"
    distribution: str = "uniform"
    noise: float = 0.0
    squares: bool = False
    direct: bool = True

    drawn = (*reservoir.Sparse._fields, "weight_in", "bias", "feedback")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.units < 1:
            raise self._bad("units", "at least 1")
        if not 0 < self.leak <= 1:
            raise self._bad(
                "leak", "a number above 0 and at most 1 (1 keeps nothing of the old state)"
            )
        for setting in ("input_scale", "bias_scale", "feedback_scale", "noise"):
            if not getattr(self, setting) >= 0:
                raise self._bad(setting, "0 or more")
        if self.activation not in reservoir.ACTIVATIONS:
            known = nearest(str(self.activation), reservoir.ACTIVATIONS)
            raise ThreefoldError(f"{self.name}: unknown activation {self.activation!r}; {known}")

    @property
    def weight(self) -> reservoir.Sparse:
        """W as a sparse matrix, row by row."""
        return reservoir.Sparse(*(self._learned(name) for name in reservoir.Sparse._fields))

    def draw(self, inputs: int, outputs: int) -> None:
        """Draw a reservoir for the given sizes; the same seed gives the same reservoir."""
        uniform: dict[str, Any] = {"generator": torch.Generator().manual_seed(self.seed)}
        options = {"density": self.density, "distribution": self.distribution, **uniform}
        weight = random_matrix(self.units, self.units, **options)
        weight_in = random_matrix(self.units, inputs, density=self.input_density, **uniform)
        bias, feedback = (random_matrix(self.units, size, **uniform) for size in (1, outputs))
        self._set(
            scale_to_radius(weight, self.spectral_radius),
            self.input_scale * weight_in,
            self.bias_scale * bias[:, 0],
            self.feedback_scale * feedback if self.feedback_scale > 0 else feedback[:, :0],
        )

    def set_weights(
        self,
        weight: Array,
        weight_in: Array,
        bias: Array | None = None,
        feedback: Array | None = None,
    ) -> Self:
        """Set W [units, units], W_in [units, I], b [units] and W_fb [units, O]."""
        units = len(weight)
        values = (weight, weight_in, bias, feedback)
        empty = {"bias": torch.zeros(units), "feedback": torch.zeros(units, 0)}
        tensors = {
            name: torch.as_tensor(empty[name] if value is None else value).detach()
            for name, value in zip(MATRICES, values, strict=True)
        }
        sizes = {"weight": (units,), "bias": ()}
        for name, tensor in tensors.items():
            shape = (units, *sizes.get(name, tensor.shape[1:2]))
            if tensor.shape != shape or not bool(torch.isfinite(tensor).all()):
                raise ThreefoldError(
                    f"set_weights: {name} is {tuple(tensor.shape)}, expected {shape}, all finite"
                )
        self._set(*(tensors[name].to("cpu", torch.float64).clone() for name in MATRICES))
        self.units, self._fixed = units, True
        return self

    def _set(self, weight: Tensor, weight_in: Tensor, bias: Tensor, feedback: Tensor) -> None:
        parts = {"weight_in": weight_in, "bias": bias, "feedback": feedback}
        self.tensors = reservoir.sparse(weight)._asdict()
        self.tensors |= {name: row_major_copy(tensor) for name, tensor in parts.items()}

    def _prepare(self, inputs: int, outputs: int) -> None:
        """Draw the reservoir, unless its weights were set; then check their sizes."""
        if not self._fixed:
            self.draw(inputs, outputs)
        self._check_size(inputs)
        if self._feedback_size not in (0, outputs):
            raise ThreefoldError(
                f"targets with {outputs} numbers per element, expected "
                f"{self._feedback_size}, the size of W_fb"
            )

    @property
    def _feedback_size(self) -> int:
        """Number of outputs that are fed back."""
        return self._learned("feedback").shape[1]

    def _state_shapes(self, outputs: int) -> dict[str, tuple[int, ...]]:
        return {"memory": (self.units,), "output": (outputs,)}

    def _drive(self, inputs: Tensor, before: Tensor) -> Tensor:
        """W_in u + b + W_fb y₋ for inputs [N, I] and previous outputs [N, O]."""
        drive = torch.addmm(self.tensors["bias"], inputs, self.tensors["weight_in"].T)
        return drive.addmm_(before, self.tensors["feedback"].T) if self._feedback_size else drive

    def _run(self, drive: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """All states, and the last, for a drive [B, L, units] and initial states [B, units]."""
        return reservoir.run(drive, self.weight, memory, activation=self.activation, leak=self.leak)

    def _features(self, inputs: Tensor, states: Tensor) -> Tensor:
        """The input of the read-out."""
        parts = [inputs] if self.direct and inputs.shape[1] else []
        parts += [states, states.square()] if self.squares else [states]
        return torch.cat(parts, 1) if len(parts) > 1 else states

    @torch.no_grad()
    def _pieces(
        self,
        inputs: Series | None,
        teacher: Series | None,
        state: State,
        noise: torch.Generator | None = None,
    ) -> Iterator[ReservoirPiece]:
        """Run a series piece by piece; the outputs fed back are those of the teacher."""
        driver = inputs or teacher
        assert driver is not None
        self._check_size(inputs.size if inputs else 0)
        memory, output = state["memory"], state["output"]
        for first, last in piece_ends(driver.length):
            u = inputs.read(first, last) if inputs else memory.new_empty(last - first, 0)
            before = output
            if teacher is not None:
                known = teacher.read(first, last)
                before, output = torch.cat([output, known[:-1]]), known[-1:]
            drive = self._drive(u, before)
            if noise is not None and self.noise > 0:
                uniform = torch.rand(drive.shape, dtype=drive.dtype, generator=noise)
                drive += self.noise * (2 * uniform - 1)
            states, memory = self._run(drive.unsqueeze(0), memory)
            yield ReservoirPiece(
                first, self._features(u, states[0]), {"memory": memory, "output": output}
            )

    @torch.no_grad()
    def _run_free(self, inputs: Tensor | None, state: State, steps: int) -> tuple[Tensor, State]:
        """Feed its own outputs back: outputs [B, steps, O], with inputs [B, steps, I] or none.

        Without feedback weights the output is the next input.
        """
        memory, output, results = state["memory"], state["output"], []
        for step in range(steps):
            own = output[:, :0] if self._feedback_size else output
            u = own if inputs is None else inputs[:, step]
            _, memory = self._run(self._drive(u, output).unsqueeze(1), memory)
            output = self._read_out(self._features(u, memory))
            results.append(output)
        outputs = torch.stack(results, 1)
        if not bool(torch.isfinite(outputs).all()):
            raise ThreefoldError(
                f"{self.name}: the free run diverged within {steps} steps; raise the "
                "regularisation, add noise while fitting, or choose a bounded activation"
            )
        return outputs, {"memory": memory, "output": output}
