"""`check_mixer` passes a right mixer, and names the law that a broken one breaks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import threefold
from threefold.errors import ThreefoldError
from threefold.layers.mixer import Mixer
from threefold.layers.precision import upcast
from threefold.memory.state import State
from threefold.testing import ContractError, check_mixer


class Mean(Mixer):
    """y = V h,  h = (h₋ + W x) / 2: right, in two forms."""

    forms = ("step", "chunk")

    def __init__(self, width: int, *, scale: float = 1.0) -> None:
        super().__init__(width)
        self.scale = scale
        self.read, self.write = nn.Linear(width, width), nn.Linear(width, width)
        self.carries(memory=(width,))

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        inputs, memory, outputs = upcast(self.read(x)), state["memory"], []
        for t in range(x.shape[1]):
            after = (memory + self.scale * inputs[:, t]) / 2
            real = None if lengths is None else (t < lengths).unsqueeze(1)
            memory = after if real is None else torch.where(real, after, memory)
            outputs.append(memory)
        y = torch.stack(outputs, 1).to(self.read.weight.dtype)
        return self.write(y), {"memory": memory}


class LooksAhead(Mean):
    def mix(self, x: Tensor, state: State, form: str, lengths: Any) -> tuple[Tensor, State]:
        y, after = super().mix(x, state, form, lengths)
        return y + y[:, -1:], after


class Forgets(Mean):
    def mix(self, x: Tensor, state: State, form: str, lengths: Any) -> tuple[Tensor, State]:
        return super().mix(x, {"memory": torch.zeros_like(state["memory"])}, form, lengths)


class SeesRows(Mean):
    def mix(self, x: Tensor, state: State, form: str, lengths: Any) -> tuple[Tensor, State]:
        return super().mix(x + x.mean(0, keepdim=True), state, form, lengths)


class OtherChunk(Mean):
    def mix(self, x: Tensor, state: State, form: str, lengths: Any) -> tuple[Tensor, State]:
        y, after = super().mix(x, state, form, lengths)
        return (1.001 * y if form == "chunk" else y), after


class IgnoresLengths(Mean):
    def mix(self, x: Tensor, state: State, form: str, lengths: Any) -> tuple[Tensor, State]:
        return super().mix(x, state, form, None)


class ChangesStates(Mean):
    def mix(self, x: Tensor, state: State, form: str, lengths: Any) -> tuple[Tensor, State]:
        result = super().mix(x, {"memory": state["memory"].clone()}, form, lengths)
        with torch.no_grad():
            state["memory"].add_(1.0)
        return result


class Detaches(Mean):
    def mix(self, x: Tensor, state: State, form: str, lengths: Any) -> tuple[Tensor, State]:
        memory = state["memory"].detach() if form == "chunk" else state["memory"]
        return super().mix(x, {"memory": memory}, form, lengths)


class WrongSize(Mean):
    def state_size(self, length: int) -> int:
        return 1


class Narrow(Mean):
    def mix(self, x: Tensor, state: State, form: str, lengths: Any) -> tuple[Tensor, State]:
        y, after = super().mix(x, state, form, lengths)
        return y[..., :3], after


class NoState(Mean):
    def mix(self, x: Tensor, state: State, form: str, lengths: Any) -> tuple[Tensor, State]:
        return super().mix(x, state, form, lengths)[0], {}


class OutputAlone(Mean):
    def mix(self, x: Tensor, state: State, form: str, lengths: Any) -> Any:
        return super().mix(x, state, form, lengths)[0]


class ReadsWeights(Mean):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.bypassed = nn.Linear(width, width, bias=False)

    def mix(self, x: Tensor, state: State, form: str, lengths: Any) -> tuple[Tensor, State]:
        y, after = super().mix(x, state, form, lengths)
        return y + F.linear(x, self.bypassed.weight), after


class Single(Mean):
    def mix(self, x: Tensor, state: State, form: str, lengths: Any) -> tuple[Tensor, State]:
        y, after = super().mix(x, state, form, lengths)
        return y.float(), after


class HidesNaN(Mean):
    def mix(self, x: Tensor, state: State, form: str, lengths: Any) -> tuple[Tensor, State]:
        return super().mix(x.nan_to_num(0.0), state, form, lengths)


class Fails(Mean):
    def mix(self, x: Tensor, state: State, form: str, lengths: Any) -> tuple[Tensor, State]:
        raise RuntimeError("out of order")


def test_only_classes_of_mixers_are_checked() -> None:
    with pytest.raises(ThreefoldError, match="given <class 'int'>, expected a class that derives"):
        check_mixer(int)  # type: ignore[arg-type]


def test_right_mixers_pass() -> None:
    check_mixer(Mean)
    check_mixer(Mean, width=16, scale=0.5)
    for name in ("gla", "attention", "s4d", "fnet", "bidirectional"):
        check_mixer(threefold.MIXERS[name].load())


@pytest.mark.parametrize(
    ("cls", "law"),
    [
        (ReadsWeights, "calls: bypassed: never called; write self.bypassed(x)"),
        (Single, "results: step: y is torch.float32, but x and the mixer are torch.float64"),
        (HidesNaN, "not finite: step: NaN in an input is hidden by finite outputs"),
        (LooksAhead, "causality: chunk: outputs 1 to 19 after elements 20 to 40 changed: relative"),
        (Forgets, "continuation: cut into [1, 39]: relative error"),
        (SeesRows, "rows: step: a row after the other rows changed: they differ by up to"),
        (OtherChunk, "forms: chunk and step: relative error 1.00e-03 above 1e-10"),
        (IgnoresLengths, "padding: "),
        (ChangesStates, "state: "),
        (Detaches, "gradients: chunk: gradient of"),
        (WrongSize, "state: state_size(40) is 1 bytes, the state holds 256"),
        (Fails, "results: RuntimeError: out of order"),
        (Narrow, "results: step: y is a tensor (2, 1, 3), expected (2, 1, 32), the shape of x"),
        (NoState, "given leaves [], expected ['memory']"),
        (OutputAlone, "results: step: mix returned a tensor (2, 1, 32), expected (y, state)"),
    ],
)
def test_broken_mixers_are_told_which_law_they_break(cls: type[Mixer], law: str) -> None:
    with pytest.raises(ContractError) as refused:
        check_mixer(cls)
    assert law in str(refused.value), refused.value
    assert isinstance(refused.value, (AssertionError, threefold.ThreefoldError))
