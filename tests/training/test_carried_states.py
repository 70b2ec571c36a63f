"""Training on long stretches: the state is carried, starts anew elsewhere, and may stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import threefold
from tests.tolerances import assert_close
from threefold.data.loaders import TokenStream
from threefold.data.stretches import StretchPlaces
from threefold.errors import ThreefoldError
from threefold.models.stream_limits import stream_notes
from threefold.training.config import RunConfig
from threefold.training.objectives import ForecastObjective
from threefold.training.preparation import prepare
from threefold.training.stream_errors import FRESH, stream_errors
from threefold.training.training_data import open_data

BOUNDS = [(0, 100), (100, 112), (200, 203)]
SMALL = {"model.width": 16, "model.depth": 1, "data.length": 16}


def series(rows: int = 1500) -> dict[str, Any]:
    random = np.random.default_rng(0)
    y = np.zeros(rows)
    for t in range(1, rows):
        y[t] = 0.9 * y[t - 1] + random.standard_normal()
    return {"y": y}


def test_stretches_follow_each_other_until_they_start_anew() -> None:
    places = StretchPlaces(BOUNDS, batch_size=6, length=4, batches=5, seed=1)
    before, began = None, np.zeros(6, int)
    for step in range(60):
        first, starts = places(step)
        assert np.array_equal(first, places(step)[0])  # addressed by step
        for begin in first:
            assert any(low <= begin and begin + 4 <= high for low, high in BOUNDS[:2])
        if before is not None:
            assert np.array_equal(first[~starts], before[~starts] + 4)
        before, began = first, began + starts
    assert starts.sum() < 6 and bool((began >= 60 // 5).all())
    sequences = {int(begin >= 100) for step in range(60) for begin in places(step)[0]}
    assert sequences == {0, 1}


def test_too_short_sequences_are_refused() -> None:
    with pytest.raises(ThreefoldError, match="longest has 12 elements, expected at least 20"):
        StretchPlaces([(0, 12)], 2, 20, 5)


def test_lanes_of_a_text_restart_at_different_steps() -> None:
    tokens = np.arange(10_000) % 256
    stream = TokenStream(tokens, 4, 8, reset_every=6)
    starts = torch.stack([stream(step).starts for step in range(1, 13)])
    assert starts.sum(0).tolist() == [2, 2, 2, 2] and int(starts.sum(1).max()) == 1
    assert not TokenStream(tokens, 4, 8)(6).starts.any()


def carried_run(mixer: str = "gru") -> Any:
    config = RunConfig(
        data={"name": "columns", "target": "y", "horizon": 3, "length": 16, "batch_size": 4},
        model={"mixers": (mixer,), "width": 16, "depth": 1},
        training={"steps": 3, "carry_state": True, "reset_every": 4},
    )
    return prepare(config, open_data(config.data, source=series()))


def test_the_state_of_a_forecaster_is_carried_and_reset() -> None:
    prepared = carried_run()
    model, objective = prepared.model.train(), ForecastObjective(lambda a, b: (a - b).abs())
    torch.nn.init.normal_(model.head.weight)
    batches = [prepared.batches(step) for step in range(2)]
    goes_on = ~batches[1].starts
    assert bool(goes_on.any()) and bool(batches[1].starts.any())
    first = objective(model, batches[0], None, carry=True)
    second = objective(model, batches[1], first.state, carry=True)
    row = int(goes_on.int().argmax())
    uncut = torch.cat([b.inputs[row : row + 1] for b in batches], 1)
    expected = model.point_forecast(model.respond(uncut)[0])[0, -1]
    assert_close(second.outputs[row], expected[:, 0], "output")
    row = int(batches[1].starts.int().argmax())
    fresh = model.point_forecast(model.respond(batches[1].inputs[row : row + 1])[0])[0, -1]
    assert_close(second.outputs[row], fresh[:, 0], "output")
    model.eval()
    assert objective(model, batches[0], None, carry=True).state is None  # judged from windows


def test_streams_carry_the_state_as_training_did(tmp_path: Any) -> None:
    settings = {**SMALL, "training.carry_state": True, "training.reset_every": 8}
    run = threefold.train(
        series(), target="y", horizon=2, steps=20, mixers="gru", settings=settings,
        folder=tmp_path / "run",
    )  # fmt: skip
    carried = run.summary["carried_state"]
    assert carried["used_by_streams"] == (carried["error_beside_windows"] <= 1.02)
    model = threefold.load(tmp_path / "run")
    assert model.preprocessing.carried == carried["used_by_streams"]
    rows = series(200)["y"][:, None]
    default, whole, windows = (
        [score for part in threefold.stream(model, rows, context=context)
         for score in part.columns["y+1"]]
        for context in (None, "all", 16)
    )  # fmt: skip
    assert default == (whole if carried["used_by_streams"] else windows)
    assert whole != windows


@pytest.mark.parametrize(
    ("mixers", "what"),
    [("gru", ""), ("mamba", ""), ("gla", ""), ("local_attention", ""),
     ("linear_attention", "adds up"), ("delta_net", "nothing fades"),
     ("attention", "keeps every element"), ("hyena", "keeps every element")],
)  # fmt: skip
def test_what_grows_along_a_stream_is_told(mixers: str, what: str) -> None:
    spec = threefold.Spec("language", 32, 2, mixers=("gru", mixers))
    notes = stream_notes(threefold.build(spec))
    assert len(notes) == bool(what)
    assert all(note.startswith(f"{mixers} ") and what in note for note in notes)


def test_learned_positions_are_told() -> None:
    options = {"positions": "learned", "max_length": 64}
    notes = stream_notes(
        threefold.build(threefold.Spec("language", 32, 1, ("gru",), options=options))
    )
    assert notes == ["learned positions end at max_length"]


def test_errors_along_a_stream_are_those_of_one_pass(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(np.random.default_rng(0).choice(list("abcd "), 9000)))
    settings = {**SMALL, "data.tokenizer": "byte"}
    run = threefold.train(path, kind="language", steps=3, mixers="gru", settings=settings)
    errors = stream_errors(run.model, run.data.task, "train")
    stream = torch.from_numpy(np.asarray(run.data.task.corpus().tokens["train"], np.int64))
    with torch.no_grad():
        logits = run.model.eval()(stream[None, :-1])[0][0].double().log_softmax(-1)
        place = FRESH + 7
        far = 5 * FRESH + 7
        short = run.model(stream[None, 4 * FRESH : far])[0][0, -1].double().log_softmax(-1)
    for number, nats, chosen in ((place, logits[place - 1], "carried"), (far, short, "fresh")):
        expected = -nats[stream[number]] / np.log(2)
        measured = getattr(errors, chosen)[errors.positions == number]
        # The model computes in float32, in rows of other lengths.
        assert_close(torch.from_numpy(measured)[0].float(), expected.float(), "output")
    assert errors.unit == "bits_per_byte" and len(errors.positions) == len(errors.fresh)
    evaluation = threefold.evaluate(run, split="train", by_position=True)
    lines = evaluation["by_position"]["lines"]
    assert lines[0]["begin"] <= 200 and "Errors along a stream" in evaluation.page()
    assert "elements of the stream" in repr(evaluation)


def test_other_kinds_have_no_errors_by_position() -> None:
    run = threefold.train(
        (np.random.rand(40, 8, 1), np.arange(40) % 2),
        steps=1,
        mixers="gru",
        settings={"model.width": 16},
    )
    with pytest.raises(ThreefoldError, match="need a language model or a forecaster"):
        threefold.evaluate(run, by_position=True)
