"""Gates, decays and time steps at their ends, and 100,000 identical elements: finite and exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import threefold
from tests.contract.test_mixers import NAMES, every_mixer, inputs, make
from tests.tolerances import assert_close
from threefold.layers.mixer import Mixer

# A mixer declares what it has in `gate_parameters`; attention and a reservoir have none.
GATES = {name: threefold.MIXERS[name].load().gate_parameters for name in NAMES}
CASES = [
    (name, size)
    for name, gates in GATES.items()
    for size in (50.0, 1e4)
    if gates and (size == 50.0 or not all(gate.endswith("_log") for gate in gates))
]
# e^{10⁴} is infinite in any dtype, so logarithms of rates stay within ±50, and those of time steps
# within `DELTA_RANGE`, which a loaded filter may have (binary fractions: the same in float32).
LOGARITHMS = (-50.0, 50.0)
TIME_STEPS = (-20.0, 6.75)
# Memories that only add up, erase without forgetting, or turn: an error of an angle adds up too.
NOT_DECAYING = {"performer", "based", "linear_attention", "delta_net", "abc"}
NOT_DECAYING |= {"exp_rnn", "lipschitz_rnn", "ckconv"}

# Where a quotient nearly cancels its gradient is ill-conditioned (float64 itself loses three
# digits there), so it need only be finite: Mamba-2 normalises Δ (q·k) v with Δ = 1e4, mLSTM divides
# by |z·q| with a floor of e^{−10000}.
ILL_CONDITIONED = {"mamba2", "mlstm"}


class Driver:
    """Holds gates at ±size, by a fixed pattern of elements and channels; a third are left alone."""

    def __init__(self, mixer: Mixer, size: float) -> None:
        self.size, self.clocks = size, dict.fromkeys(mixer.gate_parameters, 0)
        parameters = dict(mixer.named_parameters())
        for name in self.clocks:
            if name in parameters:
                driven = self.driven(parameters[name], 0)
                if name.endswith("_log"):
                    time_step = name in ("delta_log", "step_log")
                    driven = driven.clamp(*(TIME_STEPS if time_step else LOGARITHMS))
                with torch.no_grad():
                    parameters[name].copy_(driven)
            else:
                mixer.get_submodule(name).register_forward_hook(
                    lambda module, args, out, name=name: self.hook(name, out)
                )

    def hook(self, name: str, out: Tensor) -> Tensor:
        self.clocks[name] += out.shape[1]
        return self.driven(out, self.clocks[name] - out.shape[1])

    def driven(self, gate: Tensor, start: int) -> Tensor:
        elements = torch.arange(start, start + gate.shape[-2] if gate.dim() > 1 else start + 1)
        place = elements.unsqueeze(-1) * 7 + torch.arange(gate.shape[-1]) * 5
        signs = torch.tensor([1.0, -1.0, 0.0, -1.0, 1.0, 0.0])[(place + place // 11) % 6].to(gate)
        signs = signs.reshape(gate.shape[-2:] if gate.dim() > 1 else gate.shape)
        return torch.where(signs == 0, gate, self.size * signs)

    def rewind(self) -> None:
        self.clocks = dict.fromkeys(self.clocks, 0)


@pytest.mark.parametrize(("name", "size"), CASES)
def test_gates_at_their_ends(name: str, size: float) -> None:
    options: dict[str, Any] = {"clamp": float("inf")} if name == "abc" else {}
    results = {}
    for dtype in (torch.float64, torch.float32):
        # The same weights, rounded to float32 once: what is compared is the arithmetic.
        mixer = make(name, torch.float32, **options).to(dtype)
        driver = Driver(mixer, size)
        x = inputs(torch.float32, rows=1, length=512, seed=11).to(dtype).requires_grad_()
        for form in mixer.forms if dtype == torch.float32 else ("chunk",):
            driver.rewind()
            y, _ = mixer(x, form=form)
            wanted = {"x": x, **dict(mixer.named_parameters())}
            # Not the square of y, whose gradient vanishes where y has just been normalised.
            loss = (y * inputs(dtype, rows=1, length=512, seed=12)).mean()
            gradients = torch.autograd.grad(loss, list(wanted.values()))
            results[dtype, form] = (y, dict(zip(wanted, gradients, strict=True)))
    expected, expected_gradients = results[torch.float64, "chunk"]
    for form in mixer.forms:
        y, gradients = results[torch.float32, form]
        assert y.isfinite().all(), form
        assert_close(y, expected, "extreme", f"{name} {form}")
        for key, gradient in gradients.items():
            assert gradient.isfinite().all(), f"{form}: gradient of {key}"
        if name not in ILL_CONDITIONED:
            assert_close(gradients["x"], expected_gradients["x"], "extreme", f"{name} {form}: dx")


@every_mixer
def test_a_hundred_thousand_identical_elements(name: str) -> None:
    mixer = make(name, torch.float32, width=16)
    # What keeps everything takes the square of the length, or has filters of max_length taps.
    length = 100_000 if mixer.state_size(2) == mixer.state_size(1) else 4_096
    if threefold.MIXERS[name].family == "filter" and length == 4_096:
        length = mixer.get_submodule("filters").max_length
    x = inputs(torch.float32, rows=1, length=1)[..., :16]
    with torch.no_grad():
        actual, _ = mixer(x.expand(1, length, 16))
        expected, _ = mixer.double()(x.double().expand(1, length, 16))
    assert actual.isfinite().all()
    quantity = "long adding" if name in NOT_DECAYING else "long decaying"
    assert_close(actual, expected, quantity, name)
