"""x = (1−α) x₋ + α φ(W_in u + b + W x₋ + W_fb y₋ + ν): a random reservoir, drawn or given, and run.

A series runs through it in pieces of a fixed length, so that memory does not grow with the series.
Jaeger 2001, "The echo state approach to analysing and training recurrent neural networks".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from threefold.errors import ThreefoldError, nearest
from threefold.estimators.inputs import Array, Series
from threefold.estimators.ridge_estimator import RidgeEstimator, row_major_copy
from threefold.memory import reservoir
from threefold.memory.state import State, join

# Elements whose states are held at once, whatever the length of a series.
PIECE_LENGTH = 1024
MATRICES = ("weight", "weight_in", "bias", "feedback")


class ReservoirPiece(NamedTuple):
    """A part of a series that has run through the reservoir."""

    first: int  # its first element's place in the series
    features: Tensor  # [elements, features]
    state: State  # after it

    def beyond(self, wash_out: int, targets: Series) -> tuple[Tensor, Tensor]:
        """Features and targets of those elements that are behind the wash-out."""
        skip = min(max(0, wash_out - self.first), len(self.features))
        last = self.first + len(self.features)
        return self.features[skip:], targets.piece(self.first + skip, last)


@dataclass(kw_only=True, eq=False)
class DrivenReservoir(RidgeEstimator):
    """The reservoir of an echo state network, without what learns from it."""

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
    wash_out: int = 100

    drawn = (*reservoir.Sparse._fields, "weight_in", "bias", "feedback")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.units < 1:
            raise self._bad("units", "at least 1")
        if not 0 < self.leak <= 1:
            raise self._bad("leak", "a number above 0, up to 1: 1 keeps nothing of the old state")
        for setting in ("input_scale", "bias_scale", "feedback_scale", "noise", "wash_out"):
            if not getattr(self, setting) >= 0:
                raise self._bad(setting, "0 or more")
        if self.activation not in reservoir.ACTIVATIONS:
            known = nearest(self.activation, reservoir.ACTIVATIONS)
            raise ThreefoldError(f"{self.name}: unknown activation {self.activation!r}; {known}")

    @property
    def weight(self) -> reservoir.Sparse:
        """W, by rows."""
        return reservoir.Sparse(*(self._learned(name) for name in reservoir.Sparse._fields))

    @property
    def state(self) -> State | None:
        """Where the last fit ended, a row for each of its series."""
        if "end.memory" not in self.tensors:
            return None
        return {name: self.tensors[f"end.{name}"] for name in ("memory", "output")}

    def draw(self, inputs: int, outputs: int) -> None:
        """A reservoir for so many numbers an element; the same seed draws the same."""
        uniform: dict[str, Any] = {"generator": torch.Generator().manual_seed(self.seed)}
        options = {"density": self.density, "distribution": self.distribution, **uniform}
        weight = reservoir.draw(self.units, self.units, **options)
        weight_in = reservoir.draw(self.units, inputs, density=self.input_density, **uniform)
        bias, feedback = (reservoir.draw(self.units, size, **uniform) for size in (1, outputs))
        self._set(
            reservoir.scaled(weight, self.spectral_radius),
            self.input_scale * weight_in,
            self.bias_scale * bias[:, 0],
            self.feedback_scale * feedback if self.feedback_scale > 0 else feedback[:, :0],
        )

    def use(
        self,
        weight: Array,
        weight_in: Array,
        bias: Array | None = None,
        feedback: Array | None = None,
    ) -> Self:
        """Take W [units, units], W_in [units, I], b [units] and W_fb [units, O] as they are."""
        units = len(weight)
        given = (weight, weight_in, bias, feedback)
        empty = {"bias": torch.zeros(units), "feedback": torch.zeros(units, 0)}
        made = {
            name: torch.as_tensor(empty[name] if value is None else value).detach()
            for name, value in zip(MATRICES, given, strict=True)
        }
        sizes = {"weight": (units,), "bias": ()}
        for name, tensor in made.items():
            shape = (units, *sizes.get(name, tensor.shape[1:2]))
            if tensor.shape != shape or not bool(torch.isfinite(tensor).all()):
                raise ThreefoldError(
                    f"use: {name} is {tuple(tensor.shape)}, expected {shape} of finite numbers"
                )
        self._set(*(made[name].to("cpu", torch.float64).clone() for name in MATRICES))
        self.units, self._fixed = units, True
        return self

    def _set(self, weight: Tensor, weight_in: Tensor, bias: Tensor, feedback: Tensor) -> None:
        parts = {"weight_in": weight_in, "bias": bias, "feedback": feedback}
        self.tensors = reservoir.sparse(weight)._asdict()
        self.tensors |= {name: row_major_copy(tensor) for name, tensor in parts.items()}

    def _prepare(self, inputs: int, outputs: int) -> None:
        """Draw the reservoir, unless it was given: then it must fit."""
        if not self._fixed:
            self.draw(inputs, outputs)
        self._check_size(inputs)
        if self._fed not in (0, outputs):
            raise ThreefoldError(
                f"targets of {outputs} numbers an element, expected {self._fed} as W_fb reads"
            )

    def _check_size(self, inputs: int) -> None:
        expected = self._learned("weight_in").shape[1]
        if inputs != expected:
            raise ThreefoldError(
                f"inputs of {inputs} numbers an element, expected {expected} as the reservoir reads"
            )

    @property
    def _fed(self) -> int:
        """How many outputs are fed back."""
        return self._learned("feedback").shape[1]

    def _start(self, outputs: int) -> State:
        zeros = self._learned("bias").new_zeros
        return {"memory": zeros(1, self.units), "output": zeros(1, outputs)}

    def _end(self, ends: list[State], like: Any) -> State:
        """Keep where a fit ended, and whether it was given tensors."""
        end = join(ends)
        self.tensors |= {f"end.{name}": leaf for name, leaf in end.items()}
        self._torch = isinstance(like[0] if isinstance(like, list | tuple) else like, Tensor)
        return end

    def _drive(self, inputs: Tensor, before: Tensor) -> Tensor:
        """All that comes from outside: inputs [N, I], and outputs of the element before [N, O]."""
        drive = torch.addmm(self.tensors["bias"], inputs, self.tensors["weight_in"].T)
        return drive.addmm_(before, self.tensors["feedback"].T) if self._fed else drive

    def _run(self, drive: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Drive [B, L, units] after the memory [B, units]: all states and the last."""
        return reservoir.run(drive, self.weight, memory, activation=self.activation, leak=self.leak)

    def _features(self, inputs: Tensor, states: Tensor) -> Tensor:
        """What the read-out sees."""
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
        """One piece of a series after another, known outputs fed back."""
        given = inputs or teacher
        assert given is not None
        self._check_size(inputs.size if inputs else 0)
        memory, output = state["memory"], state["output"]
        for first in range(0, given.length, PIECE_LENGTH):
            last = min(first + PIECE_LENGTH, given.length)
            u = inputs.piece(first, last) if inputs else memory.new_empty(last - first, 0)
            before = output
            if teacher is not None:
                known = teacher.piece(first, last)
                before, output = torch.cat([output, known[:-1]]), known[-1:]
            drive = self._drive(u, before)
            if noise is not None and self.noise > 0:
                even = torch.rand(drive.shape, dtype=drive.dtype, generator=noise)
                drive += self.noise * (2 * even - 1)
            states, memory = self._run(drive.unsqueeze(0), memory)
            yield ReservoirPiece(
                first, self._features(u, states[0]), {"memory": memory, "output": output}
            )

    @torch.no_grad()
    def _free(self, inputs: Tensor | None, state: State, steps: int) -> tuple[Tensor, State]:
        """Its own outputs fed back: outputs [B, steps, O], with inputs [B, steps, I] or none.

        Without feedback weights the output is the next input.
        """
        memory, output, made = state["memory"], state["output"], []
        for step in range(steps):
            own = output[:, :0] if self._fed else output
            u = own if inputs is None else inputs[:, step]
            _, memory = self._run(self._drive(u, output).unsqueeze(1), memory)
            output = self._read_out(self._features(u, memory))
            made.append(output)
        outputs = torch.stack(made, 1)
        if not bool(torch.isfinite(outputs).all()):
            raise ThreefoldError(
                f"{self.name}: running free it left all bounds within {steps} steps; regularise "
                "more, add noise while fitting, or choose a bounded activation"
            )
        return outputs, {"memory": memory, "output": output}

    def _row(self, state: State | None, row: int, rows: int, outputs: int) -> State:
        """One row of a carried state, or the empty one."""
        if state is None:
            return self._start(outputs)
        self._check_state(state, outputs, rows)
        return {name: leaf[row : row + 1] for name, leaf in state.items()}

    def _check_state(self, state: State, outputs: int, rows: int | None = None) -> None:
        given = {name: tuple(leaf.shape) for name, leaf in state.items()}
        rows = given.get("memory", (0,))[0] if rows is None else rows
        expected = {"memory": (rows, self.units), "output": (rows, outputs)}
        if given != expected:
            raise ThreefoldError(f"state is {given}, expected {expected}, as predict returned it")
