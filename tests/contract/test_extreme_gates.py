"""Gates at ±1e4 and 100,000 identical elements: every mixer stays finite and exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import threefold
from tests.contract.test_mixers import every_mixer, inputs, make
from tests.tolerances import assert_close
from threefold.layers.mixer import Mixer

# Modules and parameters whose outputs are the pre-activations of gates, decays and strengths.
GATES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("rnn", "lstm", "peephole_lstm", "coupled_lstm", "gru"), ("input",)),
    "esn": (),
    "slstm": ("gates", "write"),
    **dict.fromkeys(("lmu", "hippo_rnn"), ("input",)),
    "min_gru": ("update",),
    "min_lstm": ("forget", "write"),
    "lru": (),
    "rg_lru": ("forget", "write"),
    "attention": (),
    "local_attention": (),
    "transformer_xl": (),
    "performer": (),
    "based": (),
    **dict.fromkeys(("long_conv", "h3", "hyena"), ()),
    **dict.fromkeys(("lssl", "s4", "s4d", "s5"), ()),
    "linear_attention": (),
    "delta_net": ("strength",),
    "gated_rfa": ("forget",),
    "abc": ("slot",),
    "decaying_fast_weights": ("forget_key", "forget_value"),
    "retnet": (),
    "mamba": ("delta",),
    "gla": ("forget",),
    "rwkv6": ("decay_bias",),
    "hgrn2": ("forget",),
    "mlstm": ("gates",),
    "mamba2": ("delta_bias",),
    "gsa": ("forget",),
    "gated_delta_net": ("delta", "strength"),
    "rwkv7": ("decay_bias", "rate_bias"),
    "kda": ("delta", "strength"),
}
# Memories that only add up, or erase without forgetting.
NOT_DECAYING = {"performer", "based", "linear_attention", "delta_net", "abc"}

# Where a quotient nearly cancels its gradient is ill-conditioned (float64 itself loses three
# digits there), so it need only be finite: Mamba-2 normalises Δ (q·k) v with Δ = 1e4, mLSTM divides
# by |z·q| with a floor of e^{−10000}.
ILL_CONDITIONED = {"mamba2", "mlstm"}


class Driver:
    """Holds gates at ±size, by a fixed pattern of elements and channels; a third are left alone."""

    def __init__(self, mixer: Mixer, size: float) -> None:
        self.size, self.clocks = size, dict.fromkeys(GATES[type_name(mixer)], 0)
        for name in self.clocks:
            target = getattr(mixer, name)
            if isinstance(target, nn.Parameter):
                with torch.no_grad():
                    target.copy_(self.driven(target, 0))
            else:
                target.register_forward_hook(
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


def type_name(mixer: Mixer) -> str:
    return next(n for n, entry in threefold.MIXERS.items() if entry.load() is type(mixer))


@every_mixer
@pytest.mark.parametrize("size", [50.0, 1e4])
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
