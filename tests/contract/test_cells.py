"""Cells as published: each against its equations written out, and what their options do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import threefold
from tests.contract.test_mixers import inputs, make
from tests.tolerances import assert_close
from threefold.layers.cell_mixer import CellMixer

σ, tanh = torch.sigmoid, torch.tanh
CELLS = ("rnn", "lstm", "peephole_lstm", "coupled_lstm", "gru", "ur_lstm", "ur_gru")
every_cell = pytest.mark.parametrize("name", CELLS)


def gates(mixer: Any, x: Tensor, h: Tensor) -> list[Tensor]:
    """W x + b + U h₋, gate by gate."""
    return list((mixer.input(x) + h @ mixer.recurrent[0].T).chunk(mixer.cell.gates, -1))


def along(mixer: Any, update: Any, *start: Tensor) -> Tensor:
    """The first state after each element of the test's input, by `update(x, *states)`."""
    outputs, carried = [], start
    for x in inputs(torch.float64).unbind(1):
        carried = update(x, *carried)
        outputs.append(carried[0])
    return torch.stack(outputs, 1)


def zeros(mixer: Any) -> Tensor:
    return torch.zeros(3, mixer.width, dtype=torch.float64)


def test_rnn() -> None:
    mixer: Any = make("rnn")
    hidden = along(mixer, lambda x, h: (tanh(gates(mixer, x, h)[0]),), zeros(mixer))
    assert_close(mixer(inputs(torch.float64))[0], mixer.out(hidden))


def test_lstm_with_and_without_peepholes() -> None:
    for name in ("lstm", "peephole_lstm"):
        mixer: Any = make(name)
        p = mixer.peephole if name == "peephole_lstm" else torch.zeros(3, 32)

        def update(x: Tensor, h: Tensor, c: Tensor, m: Any = mixer, p: Any = p) -> Any:
            i, f, g, o = gates(m, x, h)
            new = σ(f + p[1] * c) * c + σ(i + p[0] * c) * tanh(g)
            return σ(o + p[2] * new) * tanh(new), new

        assert_close(mixer(inputs(torch.float64))[0], along(mixer, update, *[zeros(mixer)] * 2))


def test_full_peepholes_on_the_diagonal_are_diagonal_ones() -> None:
    full, diagonal = make("peephole_lstm", full=True), make("peephole_lstm")
    weights = diagonal.state_dict() | {"peephole": diagonal.peephole.detach().diag_embed()}
    full.load_state_dict(weights)
    assert_close(full(inputs(torch.float64))[0], diagonal(inputs(torch.float64))[0])


def test_coupled_lstm() -> None:
    mixer: Any = make("coupled_lstm")

    def update(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        f, g, o = gates(mixer, x, h)
        c = σ(f) * c + (1 - σ(f)) * tanh(g)
        return σ(o) * tanh(c), c

    assert_close(mixer(inputs(torch.float64))[0], along(mixer, update, *[zeros(mixer)] * 2))


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_gru_in_its_conventions(after: bool, writes: bool) -> None:
    mixer: Any = make("gru", reset_after=after, update_writes=writes)
    matrix = mixer.recurrent[0, 64:]

    def update(x: Tensor, h: Tensor) -> tuple[Tensor]:
        r, z, _ = (σ(gate) for gate in gates(mixer, x, h))
        candidate = mixer.input(x)[:, 64:]
        if after:
            candidate = tanh(candidate + r * (h @ matrix.T + mixer.inner_bias[0]))
        else:
            candidate = tanh(candidate + (r * h) @ matrix.T)
        kept = 1 - z if writes else z
        return (kept * h + (1 - kept) * candidate,)

    assert_close(mixer(inputs(torch.float64))[0], along(mixer, update, zeros(mixer)))


def test_slstm_is_the_unstabilised_recurrence() -> None:
    mixer: Any = make("slstm")
    heads, x = mixer.heads, inputs(torch.float64)
    convolved, _ = mixer.conv(x, torch.zeros(3, 3, 32, dtype=torch.float64), None)
    (z, o), (i, f) = mixer._in_gates(mixer.write(x)), mixer._in_gates(mixer.gates(convolved))
    h = c = n = zeros(mixer)
    expected = []
    for t in range(x.shape[1]):
        parts = torch.einsum("bns,nos->bno", h.view(3, heads, -1), mixer.recurrent)
        u = parts.view(3, heads, 4, -1).transpose(1, 2).reshape(3, 4, 32).unbind(1)
        write, keep = torch.exp(i[:, t] + u[1]), σ(f[:, t] + u[2])
        c, n = keep * c + write * tanh(z[:, t] + u[0]), keep * n + write
        h = σ(o[:, t] + u[3]) * c / n
        expected.append(h)
    out = mixer.norm(torch.stack(expected, 1).unflatten(-1, (heads, -1))) * mixer.norm_weight
    assert_close(mixer(x)[0], out.flatten(-2))


@pytest.mark.parametrize("positive", [False, True])
def test_minimal_ones(positive: bool) -> None:
    def squash(x: Tensor) -> Tensor:
        return torch.where(x >= 0, x + 0.5, σ(x)) if positive else x

    gru: Any = make("min_gru", positive=positive)

    def update_gru(x: Tensor, h: Tensor) -> tuple[Tensor]:
        z = σ(gru.update(x))
        return ((1 - z) * h + z * squash(gru.candidate(x)),)

    assert_close(gru(inputs(torch.float64))[0], gru.out(along(gru, update_gru, zeros(gru))))
    lstm: Any = make("min_lstm", positive=positive)

    def update_lstm(x: Tensor, h: Tensor) -> tuple[Tensor]:
        f, i = σ(lstm.forget(x)), σ(lstm.write(x))
        return ((f * h + i * squash(lstm.candidate(x))) / (f + i),)

    assert_close(lstm(inputs(torch.float64))[0], lstm.out(along(lstm, update_lstm, zeros(lstm))))


def test_lru_in_complex_numbers() -> None:
    mixer: Any = make("lru")
    decay = torch.exp(torch.complex(-mixer.decay_log.exp(), mixer.angle_log.exp()))
    x = inputs(torch.float64)
    write = torch.complex(*mixer.input(x).chunk(2, -1)) * mixer.scale_log.exp()
    h, expected = torch.zeros(3, 32, dtype=torch.complex128), []
    for b in write.unbind(1):
        h = decay * h + b
        expected.append(torch.cat([h.real, h.imag], -1))
    y, state = mixer(x)
    assert_close(y, mixer.out(torch.stack(expected, 1)) + mixer.skip * x)
    assert_close(state["memory"], torch.view_as_real(h), "state")
    assert decay.abs().max() < 1


@pytest.mark.parametrize("scale_first", [True, False])
def test_rg_lru(scale_first: bool) -> None:
    mixer: Any = make("rg_lru", scale_first=scale_first)
    x = inputs(torch.float64)
    u, _ = mixer.conv(mixer.input(x), torch.zeros(3, 3, 32, dtype=torch.float64), None)
    a = σ(-mixer.rate) ** (8 * σ(mixer.forget(u)))
    h, expected = zeros(mixer), []
    for t in range(x.shape[1]):
        scale = (1 - a[:, t] ** 2).sqrt() if t or scale_first else 1.0
        h = a[:, t] * h + scale * σ(mixer.write(u))[:, t] * u[:, t]
        expected.append(h)
    gate = torch.nn.functional.gelu(mixer.gate(x), approximate="tanh")
    assert_close(mixer(x)[0], mixer.out(torch.stack(expected, 1) * gate))
    decays = σ(-threefold.mixer("rg_lru", width=512).rate) ** 8
    assert decays.min() >= 0.9 and decays.max() <= 0.9991


@every_cell
def test_beginnings(name: str) -> None:
    size = 24
    for initial in ("orthogonal", "identity", "uniform"):
        mixer: Any = threefold.mixer(name, width=32, hidden=size, init=initial)
        for matrix in mixer.recurrent.detach().view(-1, size, size):
            if initial == "identity":
                assert torch.equal(matrix, torch.eye(size))
            square = torch.allclose(matrix @ matrix.T, torch.eye(size), atol=1e-5)
            assert square == (initial != "uniform")
            assert initial != "uniform" or matrix.abs().max() <= size**-0.5


@pytest.mark.parametrize("name", ["lstm", "peephole_lstm", "coupled_lstm"])
def test_forget_bias(name: str) -> None:
    place = 0 if name == "coupled_lstm" else 1
    biases = threefold.mixer(name, width=16, forget_bias=2.5).input.bias.detach().view(-1, 16)
    assert (biases[place] == 2.5).all() and biases.count_nonzero() == 16


@every_cell
def test_dropout_is_locked_over_time_and_absent_outside_training(name: str) -> None:
    torch.manual_seed(0)
    mixer: Any = threefold.mixer(name, width=32, dropout=0.5, recurrent_dropout=0.5).double()
    still = threefold.mixer(name, width=32).double()
    still.load_state_dict(mixer.state_dict())
    x = inputs(torch.float64)
    assert torch.equal(mixer.eval()(x)[0], still(x)[0])
    seen: list[Tensor] = []
    mixer.input.register_forward_hook(lambda module, given, out: seen.append(given[0]))
    mixer.train()(x)
    dropped = seen[0] == 0
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert 0.2 < dropped[:, 0].double().mean() < 0.8 and not torch.equal(dropped[0], dropped[1])
    assert torch.equal(seen[0][~dropped], 2 * x[~dropped])


def test_recurrent_dropout_hides_what_the_matrices_see() -> None:
    torch.manual_seed(0)
    mixer: Any = threefold.mixer("rnn", width=32, activation="identity", recurrent_dropout=0.5)
    mixer.double().train()
    start = {"memory": {"hidden": torch.ones(1, 32, dtype=torch.float64).requires_grad_()}}
    _, after = mixer(torch.zeros(1, 2, 32, dtype=torch.float64), start)
    hidden = after["memory"]["hidden"]
    (gradient,) = torch.autograd.grad(hidden.square().sum(), start["memory"]["hidden"])
    assert 4 < (gradient == 0).sum() < 28


@every_cell
def test_parallel_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(threefold.ThreefoldError, match=r"no parallel form.*nonlinear.*chunk"):
        threefold.mixer(name, width=16)(torch.zeros(1, 2, 16), form="parallel")


def test_bad_options() -> None:
    for options, message in (
        ({"init": "orthagonal"}, "'orthogonal'"),
        ({"hidden": 0}, "hidden=0"),
        ({"dropout": 1.0}, r"dropout is 1\.0"),
        ({"activation": "tanhh"}, "'tanh'"),
    ):
        with pytest.raises(threefold.ThreefoldError, match=message):
            threefold.mixer("rnn", width=16, **options)
    with pytest.raises(threefold.ThreefoldError, match="radius"):
        threefold.mixer("lru", width=16, radius=(0.9, 0.5))
    assert issubclass(type(threefold.mixer("gru", width=16)), CellMixer)
