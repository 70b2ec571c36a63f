"""Filters: forms, matrix powers written out, scipy's responses, sampling rates, bad input."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import threefold
from tests.tolerances import assert_close, relative_error
from threefold.errors import ThreefoldError
from threefold.layers.state_space_mixer import FilterMixer, set_rate
from threefold.memory.discretisation import METHODS, discretise
from threefold.memory.dplr import DPLR
from threefold.memory.filter import Filter, diagonal_filter, state_space
from threefold.memory.hippo import LegS, normal_plus_low_rank

CHANNELS = 3


def dense(size: int, method: str = "bilinear", dtype: torch.dtype = torch.float64) -> Filter:
    A, B = LegS(size).matrices()
    C = torch.randn(CHANNELS, size, dtype=dtype)
    skip = torch.randn(CHANNELS, dtype=dtype)
    delta = torch.tensor([0.002, 0.03, 0.1])
    return state_space(A, B, C, skip, delta=delta, method=method)


def diagonal(size: int, method: str = "bilinear", dtype: torch.dtype = torch.float64) -> Filter:
    poles, _, B = normal_plus_low_rank(size)
    C = torch.randn(CHANNELS, size // 2, dtype=torch.complex128)
    delta = torch.tensor([0.002, 0.03, 0.1], dtype=torch.float64)
    return diagonal_filter(poles, B, C, delta, method=method, dtype=dtype)


def low_rank(size: int, method: str = "bilinear", dtype: torch.dtype = torch.float64) -> Filter:
    C = torch.randn(CHANNELS, size // 2, dtype=torch.complex128)
    delta = torch.tensor([0.002, 0.03, 0.1], dtype=torch.float64)
    return DPLR(*normal_plus_low_rank(size), C, delta).filter(dtype)


Maker = Callable[..., Filter]
every_kind = pytest.mark.parametrize("make", [dense, diagonal, low_rank])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@every_kind
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 200, 257])
def test_forms_are_equal(make: Maker, length: int) -> None:
    system = make(8)
    x = torch.randn(2, length, CHANNELS, dtype=torch.float64)
    state = torch.randn(2, *system.write.shape, dtype=torch.float64)
    lengths = torch.tensor([length // 3, length])
    for given in (None, lengths):
        expected, after = system.run(x, state, form="step", lengths=given)
        for form in ("chunk", "parallel"):
            y, last = system.run(x, state, form=form, lengths=given)
            short = length if given is None else length // 3
            assert_close(y[0, :short], expected[0, :short], "output", form)
            assert_close(y[1], expected[1], "output", form)
            assert_close(last, after, "state", form)


def test_the_read_out_may_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = threefold.mixer("s4d", width=16, state_size=4).double().eval()
    x = torch.randn(2, 50, 16, dtype=torch.float64)
    whole, _ = mixer(x)
    monkeypatch.setattr("threefold.layers.state_space_mixer.PIECE", 7)
    assert_close(mixer(x)[0], whole)


def test_pieces_carry_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a sequence is longer than one Fourier transform: outputs, states and gradients."""
    monkeypatch.setattr("threefold.memory.forms.TRANSFORM_LENGTH", 50)
    system = diagonal(8)
    x = torch.randn(2, 130, CHANNELS, dtype=torch.float64, requires_grad=True)
    state = torch.randn(2, *system.write.shape, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 130, CHANNELS, dtype=torch.float64)
    for lengths in (None, torch.tensor([43, 130]), torch.tensor([0, 101])):
        ends = torch.tensor([130, 130]) if lengths is None else lengths
        seen = weight * (torch.arange(130) < ends[:, None]).unsqueeze(-1)
        found = []
        for form in ("step", "chunk"):
            y, last = system.run(x, state, form=form, lengths=lengths)
            loss = (y * seen).sum() + last.square().sum()
            found.append((y * (seen != 0), last, *torch.autograd.grad(loss, [x, state])))
        for a, b in zip(found[1], found[0], strict=True):
            assert_close(a, b)


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-9), (torch.float32, 1e-4)], ids=["float64", "float32"]
)
def test_s4_is_equal_over_random_cuts_of_4096_elements(dtype: torch.dtype, limit: float) -> None:
    system = low_rank(64, dtype=dtype)
    x = torch.randn(1, 4096, CHANNELS, dtype=dtype)
    expected, after = system.run(x, form="step")
    generator = torch.Generator().manual_seed(3)
    for form in ("chunk", "parallel"):
        y, last = system.run(x, form=form)
        assert relative_error(y, expected) < limit
        assert relative_error(last, after) < limit
        cuts = torch.randperm(4095, generator=generator)[:6].add(1).sort().values.tolist()
        state, outputs = None, []
        for begin, end in zip([0, *cuts], [*cuts, 4096], strict=True):
            y, state = system.run(x[:, begin:end], state, form=form)
            outputs.append(y)
        assert relative_error(torch.cat(outputs, 1), expected) < limit


@pytest.mark.parametrize("method", METHODS)
def test_taps_are_matrix_powers_written_out(method: str) -> None:
    system, length = dense(4, method), 32
    A, B = LegS(4).matrices()
    for channel, delta in enumerate([0.002, 0.03, 0.1]):
        step = torch.tensor(delta).double()
        transition, write = discretise(A, B, step, method)
        if method == "bilinear":
            inverse = torch.linalg.inv(torch.eye(4, dtype=A.dtype) - step / 2 * A)
            assert_close(transition, inverse @ (torch.eye(4, dtype=A.dtype) + step / 2 * A))
            assert_close(write, step * inverse @ B)
        else:
            assert_close(transition, torch.linalg.matrix_exp(step * A))
            identity = torch.eye(4, dtype=A.dtype)
            assert_close(write, torch.linalg.inv(A) @ (transition - identity) @ B)
        read = system.read[channel]
        written = [read @ torch.linalg.matrix_power(transition, t) @ write for t in range(length)]
        assert_close(system.taps(length)[channel], torch.stack(written))


def test_s4_has_the_taps_of_legs() -> None:
    """Normal plus low rank in another basis is the same filter as the matrix itself."""
    size, delta = 4, torch.tensor([0.05], dtype=torch.float64)
    A, B = LegS(size).matrices()
    poles, P, turned = normal_plus_low_rank(size)
    # C = Bᵀ is Bᴴ in every basis.
    C = B.unsqueeze(0)
    system = DPLR(poles, P, turned, turned.conj().unsqueeze(0), delta).filter(torch.float64)
    for length in (31, 32):
        assert_close(
            system.taps(length), state_space(A, B, C, delta=delta, method="bilinear").taps(length)
        )


@pytest.mark.parametrize("method", METHODS)
def test_taps_are_those_of_scipy(method: str) -> None:
    signal = pytest.importorskip("scipy.signal")
    A, B = (matrix.numpy() for matrix in LegS(8).matrices())
    system, name = dense(8, method), {"bilinear": "bilinear", "zero_order_hold": "zoh"}[method]
    for channel, delta in enumerate([0.002, 0.03, 0.1]):
        C = system.read[channel : channel + 1]
        A_, B_, _, _, _ = signal.cont2discrete(
            (A, B[:, None], C.numpy(), np.zeros((1, 1))), delta, name
        )
        # Ours writes the current element before it reads: y_t = C s_{t+1}.
        _, response = signal.dimpulse((A_, B_, C.numpy(), np.zeros((1, 1)), delta), n=65)
        expected = torch.from_numpy(np.array(response[0][1:, 0]))
        # Both round Δ = 0.002 … as float32 and float64 do.
        assert relative_error(system.taps(64)[channel], expected) < 1e-6


def test_half_the_rate_hears_the_same_signal() -> None:
    mixer = threefold.mixer("s4d", width=16, state_size=16, init="lin").double().eval()
    assert isinstance(mixer, FilterMixer)
    time = torch.arange(2000, dtype=torch.float64) / 2000
    sound = torch.sin(2 * math.pi * 3 * time).view(1, -1, 1).expand(1, -1, 16)
    fast, _ = mixer.filter().run(sound)
    mixer.rate = 0.5
    slow, _ = mixer.filter().run(sound[:, 1::2])
    assert relative_error(slow, fast[:, 1::2]) < 0.05
    mixer.rate = 1.0
    other, _ = mixer.filter().run(sound[:, 1::2])
    assert relative_error(other, fast[:, 1::2]) > 0.1


class TestRates:
    """`set_rate` reaches every filter of a model, and refuses models without a time scale."""

    def model(self, *mixers: str, channel: str = "swiglu") -> Any:
        spec = threefold.Spec(
            "language", width=16, depth=len(mixers), mixers=mixers, vocabulary=8, channel=channel
        )
        return threefold.build(spec).eval()

    def test_all_filters_are_told(self) -> None:
        model = self.model("lssl", "s4", "s4d", "s5")
        tokens = torch.arange(8).view(1, 8)
        before = model(tokens)[0]
        set_rate(model, 0.5)
        assert [block.mixer.rate for block in model.stack.blocks] == [0.5] * 4
        assert relative_error(model(tokens)[0], before) > 1e-3
        set_rate(model, 1.0)
        assert torch.equal(model(tokens)[0], before)

    def test_both_directions_are_told(self) -> None:
        mixer: Any = threefold.mixer("bidirectional", width=16, mixer="s4d")
        set_rate(mixer, 2.0)
        assert mixer.ahead.rate == mixer.back.rate == 2.0

    @pytest.mark.parametrize("other", ["lstm", "attention", "gla", "h3", "hyena"])
    def test_what_has_no_rate_is_refused(self, other: str) -> None:
        model = self.model("s4d", other)
        name = type(model.stack.blocks[1].mixer).__name__
        with pytest.raises(ThreefoldError, match=rf"set_rate: {name} has no sampling rate.*s4d"):
            set_rate(model, 0.5)
        assert model.stack.blocks[0].mixer.rate == 1.0

    def test_rates_that_are_none(self) -> None:
        with pytest.raises(ThreefoldError, match=r"set_rate: rate=0.*positive"):
            set_rate(self.model("s4d"), 0)
        with pytest.raises(ThreefoldError, match=r"set_rate: \w+ has no sampling rate"):
            set_rate(self.model("s4d", channel="rwkv"), 0.5)
        both = torch.nn.Sequential(*(threefold.mixer(name, width=16) for name in ("s4d", "fnet")))
        with pytest.raises(ThreefoldError, match="set_rate: FNet has no sampling rate"):
            set_rate(both, 0.5)
        with pytest.raises(ThreefoldError, match="the model has no sampling rate"):
            set_rate(torch.nn.Linear(2, 2), 0.5)


def test_a_short_call_is_causal_and_rows_are_alone() -> None:
    system = dense(8)
    x = torch.randn(3, 100, CHANNELS, dtype=torch.float64)
    changed = x.clone()
    changed[1], changed[:, 70:] = 5.0, 1.0
    (y, _), (other, _) = system.run(x, form="chunk"), system.run(changed, form="chunk")
    assert torch.equal(y[[0, 2], :70], other[[0, 2], :70])


class TestBadInput:
    def refused(self, *parts: str) -> Any:
        return pytest.raises(ThreefoldError, match=".*".join(parts))

    @pytest.mark.parametrize("name", ["s4", "s4d", "s5", "h3"])
    def test_odd_states(self, name: str) -> None:
        for size in (7, 1, 0):
            with self.refused(f"state_size={size}", "even", "pairs"):
                threefold.mixer(name, width=16, state_size=size)

    @pytest.mark.parametrize("name", ["lssl", "s4", "s4d", "s5", "h3"])
    def test_ranges(self, name: str) -> None:
        option = "step_range" if name == "h3" else "delta_range"
        for low, high in ((0.1, 0.01), (0.0, 0.1), (-1.0, 0.1), (0.1, 1e4), (math.nan, 0.1)):
            with self.refused(option, "expected"):
                threefold.mixer(name, width=16, **{option: (low, high)})
        if name != "h3":
            for rate in (0, -1.0, math.inf, math.nan):
                with self.refused(f"rate={rate}", "positive"):
                    threefold.mixer(name, width=16, rate=rate)

    @pytest.mark.parametrize("name", ["lssl", "s4", "s4d", "s5", "h3"])
    def test_files_that_no_filter_can_have(self, name: str, tmp_path: Path) -> None:
        spec = threefold.Spec("language", width=16, depth=1, mixers=(name,), vocabulary=8)
        steps = "step_log" if name == "h3" else "delta_log"
        wrong: dict[str, tuple[float, str]] = {steps: (50.0, "Δ goes from")}
        if name == "lssl":
            # An A that is finite but unstable.
            wrong["A"] = (1.0, "not stable.*real part")
        else:
            wrong["decay_log"] = (math.inf, "not stable")
        for key, (value, message) in wrong.items():
            model = threefold.build(spec)
            mixer = model.get_submodule("stack.blocks.0.mixer")
            weights = {k: v.clone() for k, v in mixer.state_dict().items()}
            weights[key].fill_(value)
            with self.refused(type(mixer).__name__, message):
                mixer.load_state_dict(weights)
            with torch.no_grad():
                mixer.get_parameter(key).fill_(value)
            model.save(tmp_path / key)
            with self.refused("safetensors", "mixer", message):
                threefold.load(tmp_path / key)

    def test_filters_longer_than_declared(self, tmp_path: Path) -> None:
        """A file of filters with more taps than the spec says, and more elements than taps."""
        long, short = (
            threefold.Spec(
                "language",
                width=16,
                depth=1,
                mixers=(("long_conv", {"max_length": length}),),
                vocabulary=8,
            )
            for length in (32, 16)
        )
        threefold.build(long).save(tmp_path)
        config = tmp_path / "config.json"
        text = config.read_text(encoding="utf-8").replace('"max_length": 32', '"max_length": 16')
        config.write_text(text, encoding="utf-8")
        with self.refused(r"\(16, 32\)", r"\(16, 16\)", "not the weights of this spec"):
            threefold.load(tmp_path)
        with self.refused("17 elements", "max_length=16"):
            threefold.build(short)(torch.zeros(1, 17, dtype=torch.int64))

    def test_systems(self) -> None:
        A, B = LegS(4).matrices()
        C = torch.randn(2, 4, dtype=torch.float64)
        with self.refused("not stable", "real part", "above 0"):
            state_space(-A, B, C)
        with self.refused("Δ goes from", "-1"):
            state_space(A, B, C, delta=-1.0)
        with self.refused(r"\(3, 3\)", r"\[N, N\]"):
            state_space(A[:3, :3], B, C)
        with self.refused("'bilinaer'", "bilinear"):
            state_space(A, B, C, method="bilinaer")
        with self.refused(r"\(1, 3, 5\)", "2"):
            state_space(A, B, C).run(torch.zeros(1, 3, 5))
