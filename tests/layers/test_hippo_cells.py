"""What LMU and HiPPO-RNN carry, which forms they have, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import threefold
from tests.contract.test_mixers import inputs, make
from tests.tolerances import assert_close
from threefold.memory import state as states
from threefold.memory.hippo import LegS


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
