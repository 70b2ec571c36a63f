"""Every kind of model keeps the protocol by which the rest of the library uses it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import threefold
from tests.contract.kinds import EXAMPLES, NETWORKS
from threefold import Spec, ThreefoldError
from threefold.lab.bench.measuring import costs
from threefold.models.table import KINDS
from threefold.runtime.scores.scorers import SCORERS
from threefold.tasks.table import IMAGE_KINDS, MODEL_KINDS
from threefold.training.needed_models import NEEDED_MODELS

OPTIONS: dict[str, dict[str, Any]] = {
    "forecaster": {"channels": 2, "exogenous": 1, "horizon": 3},
    "regressor": {"input_size": 3, "outputs": 2},
    **{kind: {"image": (8, 8)} for kind in IMAGE_KINDS},
    "seq2seq": {"source_vocabulary": 11},
}
STREAMING = {"language", "classifier", "hierarchical", "regressor", "tagger", "forecaster"}
STATEFUL = set(NETWORKS) - {"masked", "xlnet", *IMAGE_KINDS}
every_kind = pytest.mark.parametrize("kind", NETWORKS)


def built(kind: str) -> Any:
    mixer: Any = ("gru" if kind in STATEFUL else "attention") if KINDS[kind].has_mixers else ()
    mixer = "transformer_xl" if kind == "xlnet" else mixer
    torch.manual_seed(0)
    return threefold.build(Spec(kind, 16, 1, mixer, 17, options=OPTIONS.get(kind, {})))


@every_kind
def test_inputs_outputs_and_state_fit_each_other(kind: str) -> None:
    model = built(kind)
    inputs = model.example_inputs(2, 6)
    assert torch.equal(inputs, built(kind).example_inputs(2, 6))
    outputs = model.training_outputs(inputs)
    assert len(outputs) == 2 and outputs.requires_grad and bool(outputs.isfinite().all())
    state = model.eval().prefill(inputs)
    if kind in STATEFUL:
        model.check_state(state, 2)
        answer, _ = model.respond(model.continuation(inputs, 1), state, last=True)
        assert answer.shape[0] == 2
    cost = costs({kind: model}, [16], tokens=32, seconds=0)[kind]
    assert cost.training and cost.inference
    assert bool(cost.decode) == (kind in STATEFUL)


@every_kind
def test_a_stream_gets_the_outputs_of_single_elements(kind: str) -> None:
    model = built(kind).eval()
    assert model.streams == (kind in STREAMING) == (kind in SCORERS)
    if not model.streams:
        with pytest.raises(ThreefoldError, match=f"a {kind} model cannot read a stream"):
            model.check_streams()
        return
    model.check_streams()
    inputs = model.example_inputs(1, 5)
    with torch.no_grad():
        outputs, _ = model.respond(inputs)
        last, _ = model.respond(inputs, last=True)
        state = model.prefill(inputs[:, :4])
        continued, _ = model.respond(inputs[:, 4:], state)
    if kind == "hierarchical":  # one answer to all sentences that have ended, not one per token
        outputs, continued = outputs.unsqueeze(1), continued.unsqueeze(1)
    torch.testing.assert_close(outputs[:, -1], last)
    torch.testing.assert_close(outputs[:, -1], continued[:, -1])
    is_number = kind in ("regressor", "forecaster")
    assert torch.equal(model.interpret(last), last) == is_number


def test_every_kind_of_task_has_its_model() -> None:
    assert set(NEEDED_MODELS) == set(MODEL_KINDS) <= set(KINDS)


def test_every_kind_has_an_example() -> None:
    """Which tests of devices, autocast and precision are parametrised by."""
    assert set(EXAMPLES) == set(NETWORKS)
