"""Decays of −50 and −∞, strengths of 0, 1, 2, zero keys, 100,000 elements: finite, exact."""

from __future__ import annotations

import pytest
import torch

from tests.laws.cases import KEY, STRUCTURES, VALUE, Inputs, make, run, with_gradients
from tests.tolerances import assert_close

LENGTH = 512
DECAYING = [s for s in STRUCTURES if "log_decay" in make(s, 2, torch.float32)]
DELTAS = [s for s in STRUCTURES if "strength" in make(s, 2, torch.float32)]
# auto is the native chunk form.
ONE_FORM = {"step": None, "chunk": 64, "parallel": None, "auto": None}


def assert_exact(structure: str, inputs: Inputs, quantity: str = "extreme") -> None:
    """Finite outputs, states and gradients; float32 as close to float64 as the tolerances say."""
    wide = {name: t.double() for name, t in inputs.items()}
    expected = with_gradients(structure, wide, "step")
    for form, chunk in ONE_FORM.items():
        out, state, gradients = with_gradients(structure, inputs, form, chunk)
        for name, actual, want in [
            ("output", out, expected[0]),
            ("state", state, expected[1]),
            *((f"gradient of {n}", g, expected[2][n]) for n, g in gradients.items()),
        ]:
            assert actual.isfinite().all(), f"{structure} {form}: {name} not finite"
            assert_close(actual, want, quantity, f"{structure} {form}: {name}")


@pytest.mark.parametrize("kind", ["strong", "mixed", "forget"])
@pytest.mark.parametrize("structure", DECAYING)
def test_strong_decays(structure: str, kind: str) -> None:
    inputs = make(structure, LENGTH, torch.float32)
    torch.manual_seed(1)
    for name in ("log_decay", "log_decay_value"):
        if name in inputs:
            mild = -torch.rand_like(inputs[name]) * 0.1
            rare = torch.rand_like(mild) < 0.2
            strong = torch.full_like(mild, -torch.inf if kind == "forget" else -50.0)
            # Strong decays followed by mild ones are where sums that cancel lose all digits.
            inputs[name] = strong.where(rare, mild) if kind != "strong" else strong
    if kind == "forget":
        for form, chunk in ONE_FORM.items():
            out, state, gradients = with_gradients(structure, inputs, form, chunk)
            expected = with_gradients(structure, {n: t.double() for n, t in inputs.items()}, "step")
            assert_close(out, expected[0], "extreme", form)
            assert_close(state, expected[1], "extreme", form)
            assert all(g.isfinite().all() for n, g in gradients.items()), form
        return
    assert_exact(structure, inputs)


@pytest.mark.parametrize("strength", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("structure", DELTAS)
def test_strengths_at_the_border(structure: str, strength: float) -> None:
    inputs = make(structure, LENGTH, torch.float32, decay=0.1)
    inputs["strength"] = torch.full_like(inputs["strength"], strength)
    assert_exact(structure, inputs)


@pytest.mark.parametrize("structure", [s for s in STRUCTURES if not s.startswith("elementwise")])
def test_keys_of_length_zero(structure: str) -> None:
    inputs = make(structure, LENGTH, torch.float32, decay=0.1)
    # In RWKV-7 the rank-one pair is made from the key, so it vanishes with it.
    for keep in ((torch.arange(LENGTH) % 3 != 0).float(), torch.zeros(LENGTH)):
        for name in {"key", "write", "read"} & inputs.keys():
            inputs[name] = inputs[name] * keep.view(1, -1, 1, 1)
        assert_exact(structure, inputs)


@pytest.mark.parametrize("size", [1e-6, 50.0, 1e4])
def test_elementwise_with_extreme_delta(size: float) -> None:
    inputs = make("elementwise_bare", LENGTH, torch.float32)
    inputs["delta"] = inputs["delta"] / 2 * size
    inputs["x"] = inputs["x"] / max(size, 1.0)
    assert_exact("elementwise_bare", inputs)


@pytest.mark.parametrize(
    "structure", ["none", "scalar", "per_key", "delta", "gated_delta_per_key", "elementwise_bare"]
)
def test_a_hundred_thousand_identical_elements(structure: str) -> None:
    inputs = identical(structure, 100_000)
    quantity = "long adding" if structure in ("none", "delta") else "long decaying"
    expected = run(structure, {n: t.double() for n, t in inputs.items()}, "chunk", 64)
    # The parallel form of a matrix memory has 100,000² scores, which fit in no machine's memory.
    whole = [("parallel", None)] if structure.startswith("elementwise") else []
    for form, chunk in [("chunk", 64), ("step", None), *whole]:
        out, state = run(structure, inputs, form, chunk)
        assert out.isfinite().all()
        assert_close(out, expected[0], quantity, f"{structure} {form} {chunk}")
        assert_close(state, expected[1], quantity, f"{structure} {form} {chunk}")


def identical(structure: str, length: int) -> Inputs:
    """The same element again and again, in one head of one row; log-decays of at most −0.01."""
    one = {name: t[:1] for name, t in make(structure, 1, torch.float32, decay=0.02).items()}
    if structure.startswith("elementwise"):
        full = make(structure, 1, torch.float32)
        one |= {"A": full["A"] - 0.5, "delta": torch.full_like(one["delta"], 0.02)}
        times = ("x", "delta", "B", "C")
        return {n: t.expand(1, length, -1) if n in times else t for n, t in one.items()}
    one = {name: t[:, :, :1] for name, t in one.items() if name != "state"}
    if "log_decay" in one:
        one["log_decay"] = one["log_decay"] - 0.01
    inputs = {name: t.expand(1, length, 1, *t.shape[3:]) for name, t in one.items()}
    return inputs | {"state": torch.zeros(1, 1, KEY, VALUE)}
