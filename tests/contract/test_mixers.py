"""The contract of a mixer, generated from the table: a new mixer is tested by being listed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import threefold
from tests.tolerances import assert_close
from threefold.layers.mixer import Mixer
from threefold.memory import state as states
from threefold.testing import laws
from threefold.testing.check import make_mixer

WIDTH, LENGTH = 32, 40
# Mixers that are not causal are tested in test_not_causal.py.
NAMES = tuple(name for name, entry in threefold.MIXERS.items() if entry.load().causal)
DTYPES = {"float64": torch.float64, "float32": torch.float32}
every_mixer = pytest.mark.parametrize("name", NAMES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)

# Options of the constructors that change what is computed, beside the defaults that NAMES covers.
HISTORY_VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("attention", {"groups": 2, "heads": 4, "bias": True, "positions": "sinusoidal"}),
    ("attention", {"groups": 1, "heads": 4, "head_size": 12, "positions": "relative"}),
    ("attention", {"heads": 3, "head_size": 8, "positions": "alibi"}),
    ("attention", {"positions": "learned", "max_length": 80}),
    ("attention", {"positions": "binary", "window": 1}),
    ("attention", {"heads": 4, "groups": 2, "window": 7}),
    ("attention", {"heads": 2, "window": 40, "positions": "alibi"}),
    ("local_attention", {"window": 5, "heads": 4}),
    ("transformer_xl", {"memory": 6, "heads": 4, "bias": True}),
    ("based", {"window": 5, "key_size": 3, "heads": 2}),
    ("performer", {"features": 20, "heads": 4, "positions": "none"}),
    ("performer", {"causal": False, "heads": 2}),
    ("local_attention", {"window": 5, "causal": False}),
    ("longformer", {"window": 3, "globals": 2, "heads": 4, "bias": True}),
    ("longformer", {"window": 1, "positions": "sinusoidal"}),
    ("bigbird", {"block": 2, "random": 2, "globals": 1, "heads": 2}),
    ("bigbird", {"block": 3, "random": 0, "globals": 0, "window": 5}),
    ("reformer", {"buckets": 4, "chunk": 4, "rounds": 3, "heads": 2}),
    ("linformer", {"rank": 5, "max_length": 40, "bias": True}),
    ("nystromformer", {"landmarks": 4, "taps": 5, "heads": 4}),
    ("luna", {"slots": 3, "heads": 4}),
    ("attention", {"causal": False, "heads": 4, "groups": 2}),
    ("attention", {"causal": False, "positions": "relative"}),
    ("attention", {"causal": False, "window": 5, "positions": "alibi"}),
)
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    *HISTORY_VARIANTS,
    *(
        ("linear_attention", {"feature_map": feature_map, "normalise": normalise})
        for feature_map in ("identity", "relu", "polynomial")
        for normalise in (True, False)
    ),
    *(("rnn", {"activation": name, "hidden": 12}) for name in ("relu", "sigmoid", "identity")),
    ("lstm", {"hidden": 20}),
    ("peephole_lstm", {"full": True}),
    *(
        ("gru", {"reset_after": after, "update_writes": writes})
        for after, writes in ((True, False), (False, True), (True, True))
    ),
    ("esn", {"units": 21, "leak": 0.3, "density": 0.5, "activation": "sigmoid"}),
    ("slstm", {"heads": 2}),
    ("lmu", {"hidden": 12, "order": 5, "window": 9.0, "memories": 3}),
    ("lmu", {"order": 6, "window": 20.0, "memories": 2, "recurrent": False}),
    ("lmu_fft", {"order": 5, "window": 9.0, "memories": 3, "encode_activation": "identity"}),
    ("tcn", {"hidden": 12, "levels": 2, "taps": 5}),
    ("ur_lstm", {"hidden": 20}),
    ("ur_gru", {"hidden": 12}),
    ("lipschitz_rnn", {"hidden": 12, "step": 0.1, "beta": 0.6, "gamma": 0.2, "scale": 3.0}),
    ("exp_rnn", {"hidden": 21, "init": "henaff"}),
    ("hippo_rnn", {"measure": "legt", "order": 6, "window": 20.0, "memories": 2}),
    ("hippo_rnn", {"measure": "lagt", "order": 5, "window": 9.0, "hidden": 12}),
    ("min_gru", {"positive": False, "expand": 2}),
    ("min_lstm", {"positive": False, "expand": 2}),
    ("lru", {"state_size": 12, "radius": (0.9, 0.999)}),
    ("rg_lru", {"heads": 2, "expand": 2}),
    ("rg_lru", {"scale_first": False}),
    ("long_conv", {"smooth": 3, "max_length": 80}),
    ("hyena", {"order": 3, "taps": 4, "hidden": 8, "features": 5, "max_length": 80}),
    ("ckconv", {"hidden": 6, "frequency": 10.0, "max_length": 80}),
    ("h3", {"state_size": 6, "taps": 5}),
    ("lssl", {"state_size": 6, "measure": "legt", "method": "zero_order_hold"}),
    ("s5", {"state_size": 16, "blocks": 2, "method": "bilinear", "rate": 0.5}),
    ("s4", {"state_size": 8, "rate": 2.0, "norm": True}),
    *(("s4d", {"init": name, "state_size": 8}) for name in ("inv", "legs", "real")),
    ("s4d", {"method": "bilinear", "glu": False, "norm": True, "rate": 0.5}),
    ("gla", {"taps": 3, "heads": 2}),
    ("delta_net", {"negative_eigenvalues": True, "heads": 4, "taps": 0}),
    ("gated_delta_net", {"negative_eigenvalues": True, "heads": 2, "value_heads": 4}),
    ("kda", {"heads": 3, "expand_key": 1.5, "expand_value": 0.75}),
    ("mamba", {"zero_order_hold": True, "bias": True}),
    ("mamba2", {"groups": 2, "heads": 4, "state_size": 8, "norm_groups": 1, "bias": True}),
    ("mamba2", {"state_size": 8, "delta_limit": (0.01, 0.05)}),
    ("hgrn2", {"layer": 1, "depth": 3, "expand": 8}),
    ("rwkv6", {"heads": 4, "layer": 1, "depth": 3}),
    ("rwkv7", {"heads": 4, "ranks": (4, 5, 3, 6), "layer": 1, "depth": 3}),
    ("abc", {"slots": 3, "heads": 2}),
    ("gsa", {"slots": 3, "heads": 2}),
)


def make(
    name: str, dtype: torch.dtype = torch.float64, width: int = WIDTH, **options: Any
) -> Mixer:
    """A mixer whose gates depend on the input: weights that start at zero are moved off it."""
    return make_mixer(threefold.MIXERS[name].load(), width, options).to(dtype)


def inputs(dtype: torch.dtype, rows: int = 3, length: int = LENGTH, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, length, WIDTH, generator=generator, dtype=torch.float64).to(dtype)


def is_causal(name: str, options: dict[str, Any]) -> bool:
    return bool(options.get("causal", name in NAMES))


CASES: tuple[tuple[str, dict[str, Any]], ...] = (*((n, {}) for n in NAMES), *VARIANTS)


@every_dtype
@pytest.mark.parametrize(("name", "options"), [case for case in CASES if is_causal(*case)])
def test_forms_are_equal(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    laws.forms(make(name, dtype, **options))


@every_mixer
def test_gradients_are_equal_in_all_forms(name: str) -> None:
    laws.gradients(make(name))


@every_mixer
def test_gradcheck_from_one_piece_to_the_next(name: str) -> None:
    mixer = make(name, width=16)
    torch.manual_seed(3)
    first, second = (torch.randn(1, 3, 16, dtype=torch.float64) for _ in range(2))

    def next_outputs(x: Tensor) -> Tensor:
        _, state = mixer(x, form="chunk" if "chunk" in mixer.forms else "auto")
        following: Tensor = mixer(second, state)[0]
        return following

    assert torch.autograd.gradcheck(next_outputs, (first.requires_grad_(),), fast_mode=True)


pieces = st.lists(st.integers(1, 12), min_size=2, max_size=6)


@every_dtype
@every_mixer
def test_any_cut_carries_on(name: str, dtype: torch.dtype) -> None:
    mixer = make(name, dtype)
    x = inputs(dtype, rows=2, length=72)
    with torch.no_grad():
        whole, _ = mixer(x)

    @settings(
        max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(pieces, st.data())
    def cut(lengths: list[int], data: st.DataObject) -> None:
        outputs, state, at = [], None, 0
        for length in lengths:
            form = data.draw(
                st.sampled_from([f for f in mixer.forms if f != "step" or length <= 2])
            )
            y, state = mixer(x[:, at : at + length], state, form=form)
            outputs.append(y)
            at += length
        assert_close(torch.cat(outputs, 1), whole[:, :at], "output", f"{name} cut into {lengths}")

    with torch.no_grad():
        cut()


@every_dtype
@pytest.mark.parametrize(("name", "options"), [*((n, {}) for n in NAMES), *HISTORY_VARIANTS])
def test_padding_does_not_exist(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    laws.padding(make(name, dtype, **options))


@every_mixer
def test_gradients_ignore_padding(name: str) -> None:
    laws.gradients_of_padding(make(name))


@every_mixer
def test_causal_bit_for_bit(name: str) -> None:
    mixer, is_filter = make(name, torch.float32), threefold.MIXERS[name].family == "filter"
    # A Fourier transform spreads rounding: only the step of a filter is equal bit for bit.
    laws.causality(mixer, exact=not is_filter)
    if is_filter:
        mixer.forms = ("step",)
        laws.causality(mixer, exact=True)


@every_mixer
def test_rows_do_not_see_each_other(name: str) -> None:
    laws.rows(make(name, torch.float32))


@every_mixer
def test_the_state_is_what_it_says(name: str) -> None:
    laws.state(make(name, torch.float32))


@every_mixer
def test_runs_in_bfloat16_with_a_wide_memory(name: str) -> None:
    mixer = make(name, torch.float32)
    expected, _ = mixer(inputs(torch.float32))
    narrow = copy.deepcopy(mixer).bfloat16()
    y, state = narrow(inputs(torch.float32).bfloat16())
    assert y.dtype == torch.bfloat16 and y.isfinite().all()
    memories = [t for k, t in states.leaves(state or {}) if k.startswith("memory")]
    # A history keeps the past itself; a filter either that or a memory.
    kind = threefold.MIXERS[name].family
    assert kind == "filter" or bool(memories) == (kind != "attention")
    assert all(t.dtype == torch.float32 for t in memories)
    step, _ = narrow(inputs(torch.float32).bfloat16()[:, :1], state)
    assert step.dtype == torch.bfloat16
    # bf16 keeps 8 bits: the answers resemble each other, which a swapped tensor would not.
    correlation = torch.corrcoef(torch.stack([y.float().flatten(), expected.flatten()]))[0, 1]
    assert correlation > 0.98


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if not is_causal(*case)])
def test_what_is_not_causal_has_no_state(name: str, options: dict[str, Any]) -> None:
    mixer = make(name, torch.float32, **options)
    x = inputs(torch.float32)
    y, state = mixer(x)
    assert not mixer.causal and mixer.forms == ("parallel",) and state is None
    later = torch.cat([x[:, :20], 2 * x[:, 20:] + 1], 1)
    assert not torch.equal(mixer(later)[0][:, :20], y[:, :20])
    for call in (
        lambda: mixer(x, {}),
        lambda: mixer.empty_state(2),
        lambda: mixer.state_size(8),
        lambda: mixer.step(x[:, 0]),
        lambda: mixer(x, form="chunk"),
    ):
        with pytest.raises(threefold.ThreefoldError, match=r"has no (state|step form|chunk form)"):
            call()


@every_mixer
def test_weights_round_trip(name: str) -> None:
    mixer = make(name, torch.float32)
    torch.manual_seed(9)
    other = threefold.mixer(name, width=WIDTH).eval()
    x = inputs(torch.float32)
    assert not torch.equal(other(x)[0], mixer(x)[0])
    other.load_state_dict(mixer.state_dict())
    assert torch.equal(other(x)[0], mixer(x)[0])


@pytest.mark.parametrize("width", [16, 48, 80, 128, 144])
@every_mixer
def test_width_alone_is_enough(name: str, width: int) -> None:
    mixer = threefold.mixer(name, width=width)
    y, _ = mixer(torch.randn(2, 3, width))
    assert y.shape == (2, 3, width) and y.isfinite().all()


@every_mixer
def test_declared_parameters_exist(name: str) -> None:
    mixer = threefold.mixer(
        name, width=WIDTH, **({"layer": 1, "depth": 2} if name == "hgrn2" else {})
    )
    known = {parameter.rsplit(".", 1)[-1] for parameter, _ in mixer.named_parameters()}
    assert set(mixer.no_decay) | set(mixer.slow) <= known


class TestBadInput:
    """Each message repeats what was given and what was expected."""

    @pytest.fixture(params=["gla", "mamba2"])
    def mixer(self, request: pytest.FixtureRequest) -> Mixer:
        return make(request.param, torch.float32)

    def refused(self, *parts: str) -> Any:
        return pytest.raises(threefold.ThreefoldError, match=".*".join(parts))

    def test_shapes(self, mixer: Mixer) -> None:
        with self.refused(r"\(2, 3, 31\)", "32"):
            mixer(torch.randn(2, 3, 31))
        with self.refused(r"\(2, 32\)", r"\[batch, length, 32\]"):
            mixer(torch.randn(2, 32))
        with self.refused("empty"):
            mixer(torch.randn(2, 0, 32))
        with self.refused("float64", "float32"):
            mixer(torch.randn(2, 3, 32).double())
        with self.refused("step", r"\(2, 3, 32\)"):
            mixer.step(torch.randn(2, 3, 32), mixer.empty_state(2))

    def test_form(self, mixer: Mixer) -> None:
        with self.refused("'paralel'", "parallel"):
            mixer(torch.randn(2, 3, 32), form="paralel")

    def test_states(self, mixer: Mixer) -> None:
        x = torch.randn(2, 3, 32)
        with self.refused("another batch size"):
            mixer(x, mixer.empty_state(3))
        with self.refused("another dtype"):
            mixer(x, states.transform(lambda t: t.double(), mixer.empty_state(2)))
        with self.refused("another model", "shift"):
            mixer(x, make("rwkv6", torch.float32).empty_state(2))
        with self.refused("dict", "Tensor"):
            mixer(x, torch.zeros(2))  # type: ignore[arg-type]

    def test_masks(self, mixer: Mixer) -> None:
        x = torch.randn(2, 3, 32)
        with self.refused("hole"):
            mixer(x, mask=torch.tensor([[True, False, True], [True, True, True]]))
        with self.refused(r"\(2, 4\)", r"\(2, 3\)"):
            mixer(x, mask=torch.ones(2, 4, dtype=torch.bool))
        with self.refused("float32", "bool"):
            mixer(x, mask=torch.ones(2, 3))

    def test_names_and_options(self) -> None:
        with self.refused("'gated_deltanet'", "'gated_delta_net'"):
            threefold.mixer("gated_deltanet", width=32)
        with self.refused("'head'", "'heads'"):
            threefold.mixer("gla", width=32, head=3)
        with self.refused("5 heads", "16"):
            threefold.mixer("gla", width=32, heads=5)
        with self.refused("width"):
            threefold.mixer("gla")


@pytest.mark.parametrize("name", threefold.MIXERS)
def test_an_empty_batch_has_an_empty_answer(name: str) -> None:
    mixer = threefold.mixer(name, width=WIDTH)
    y, _ = mixer(torch.zeros(0, LENGTH, WIDTH))
    assert y.shape == (0, LENGTH, WIDTH)
