"""LMU and HiPPO-RNN as published: each against its equations with the paper's own matrices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import threefold
from tests.contract.test_mixers import inputs, make
from tests.tolerances import assert_close
from threefold.memory import state as states
from threefold.memory.discretisation import discretise
from threefold.memory.hippo import LagT, LegS, LegT

ORDER, WINDOW = 6, 20.0
ONE = torch.ones((), dtype=torch.float64)


def voelker() -> tuple[Tensor, Tensor]:
    """A and B of Voelker et al. 2019, equations 2 and 3."""
    i, j = torch.meshgrid(*[torch.arange(ORDER, dtype=torch.float64)] * 2, indexing="ij")
    sign = torch.where(i < j, -torch.ones_like(i), (-1.0) ** (i - j + 1))
    n = torch.arange(ORDER, dtype=torch.float64)
    return (2 * i + 1) * sign / WINDOW, (2 * n + 1) * (-1.0) ** n / WINDOW


def to_voelker() -> Tensor:
    """The paper's coefficient n is ours times this."""
    n = torch.arange(ORDER, dtype=torch.float64)
    return (-1.0) ** n * torch.sqrt(2 * n + 1)


@pytest.mark.parametrize("recurrent", [True, False])
def test_lmu(recurrent: bool) -> None:
    mixer: Any = make("lmu", order=ORDER, window=WINDOW, recurrent=recurrent)
    A, B = discretise(*voelker(), ONE, "zero_order_hold")
    scale = to_voelker()
    none = torch.zeros(1)
    units = dict(mixer.units.named_parameters()) if recurrent else {}
    hidden, memory = torch.zeros(3, 32).double(), torch.zeros(3, ORDER).double()
    outputs = []
    for x in inputs(torch.float64).unbind(1):
        u = mixer.encode(x).squeeze(-1)
        u = u + (hidden * units.get("from_hidden", none)).sum(-1)
        u = u + (memory / scale * units.get("from_memory", none)).sum(-1)
        memory = memory @ A.mT + u.unsqueeze(-1) * B
        seen = (memory / scale) @ mixer.read.mT
        if recurrent:
            seen = seen + hidden @ units["recurrent"].mT
        hidden = torch.tanh(mixer.input(x) + seen)
        outputs.append(hidden)
    for form in mixer.forms:
        assert_close(mixer(inputs(torch.float64), form=form)[0], torch.stack(outputs, 1), what=form)


@pytest.mark.parametrize("measure", ["legs", "legt", "lagt"])
def test_hippo_rnn(measure: str) -> None:
    mixer: Any = make("hippo_rnn", order=ORDER, window=WINDOW, measure=measure)
    A, B = {"legs": LegS(ORDER), "legt": LegT(ORDER, WINDOW), "lagt": LagT(ORDER, WINDOW)}[
        measure
    ].matrices()
    identity = torch.eye(ORDER, dtype=torch.float64)
    hidden, memory = torch.zeros(3, 32).double(), torch.zeros(3, ORDER).double()
    outputs = []
    for t, x in enumerate(inputs(torch.float64).unbind(1), 1):
        both = mixer.input(x) + hidden @ mixer.recurrent[0].mT + memory @ mixer.read.mT
        candidate, gate = both.chunk(2, -1)
        gate = torch.sigmoid(gate)
        hidden = (1 - gate) * hidden + gate * torch.tanh(candidate)
        step = A / t if measure == "legs" else A
        push = (B / t if measure == "legs" else B) * (hidden @ mixer.say.mT)
        memory = torch.linalg.solve(
            identity - step / 2, (memory @ (identity + step / 2).mT + push).mT
        ).mT
        outputs.append(hidden)
    y, state = mixer(inputs(torch.float64), form="chunk")
    assert_close(y, torch.stack(outputs, 1))
    assert_close(state["memory"]["projection"][:, 0], memory, "state")


def test_the_projection_of_hippo_rnn_is_that_of_what_it_said() -> None:
    mixer: Any = make("hippo_rnn", order=16)
    y, state = mixer(inputs(torch.float64))
    said = (y @ mixer.say.mT).squeeze(-1)
    assert_close(state["memory"]["projection"][:, 0], LegS(16).project(said)[:, -1], "state")
    assert (state["position"] == 40).all()


def test_forms_are_declared_as_they_are() -> None:
    recurrent, linear = make("lmu"), make("lmu", recurrent=False)
    assert recurrent.forms == ("step", "chunk") and linear.forms == ("step", "chunk", "parallel")
    assert "hidden" not in linear.empty_state(1)["memory"]
    with pytest.raises(threefold.ThreefoldError, match=r"no parallel form.*recurrent=False"):
        recurrent(inputs(torch.float64), form="parallel")


def test_rows_at_different_places_have_their_own_time() -> None:
    mixer = make("hippo_rnn", order=8)
    _, early = mixer(inputs(torch.float64, rows=1, length=3))
    _, late = mixer(inputs(torch.float64, rows=1, length=70, seed=2))
    x = inputs(torch.float64, rows=2, length=5, seed=4)
    together, _ = mixer(x, states.join([early, late]))
    assert_close(together[:1], mixer(x[:1], early)[0])
    assert_close(together[1:], mixer(x[1:], late)[0])


def test_wrong_input_is_refused() -> None:
    for name in ("lmu", "hippo_rnn"):
        for options in ({"order": 0}, {"window": 0.5}, {"memories": 0}, {"window": float("inf")}):
            with pytest.raises(threefold.ThreefoldError, match=r"order=.*window=.*at least 1"):
                threefold.mixer(name, width=16, **options)
    with pytest.raises(threefold.ThreefoldError, match=r"unknown measure 'legz'.*legt"):
        threefold.mixer("hippo_rnn", width=16, measure="legz")
