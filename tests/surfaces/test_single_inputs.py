"""Inputs as people type them: a row as a mapping, the name of a file, columns in any order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import threefold
from threefold.errors import ThreefoldError

QUICK = {"mixers": "gru", "size": "tiny", "steps": 2}


def test_one_row_is_a_mapping_of_its_cells() -> None:
    x = np.random.default_rng(0).random((60, 2))
    table = {"id": list(range(501, 561)), "a": x[:, 0], "b": x[:, 1], "y": x @ [2.0, 1.0]}
    model = threefold.train(table, target="y", kind="regressor", **QUICK).model
    assert model.preprocessing.roles.features == ("a", "b")  # not id, which numbers the rows
    rows = [{"a": 0.5, "b": 0.25}, {"a": 0.1, "b": 0.9}]
    alone = [model.predict(row)[0]["value"] for row in rows]
    assert [answer["value"] for answer in model.predict(rows)] == pytest.approx(alone, rel=1e-5)
    columns = model.predict({"a": [0.5, 0.1], "b": [0.25, 0.9]})
    assert [answer["value"] for answer in columns] == pytest.approx(alone, rel=1e-5)
    narrow = model.predict(torch.tensor([[0.5, 0.25]], dtype=torch.bfloat16))
    assert narrow[0]["value"] == pytest.approx(alone[0], rel=1e-5)


def test_a_file_is_not_taken_for_a_text(tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text("text\na great film\nan awful film\n")
    texts = [f"a {word} film" for word in ("great", "awful")] * 20
    table = {"text": texts, "label": ["good", "bad"] * 20}
    model = threefold.train(table, target="label", **QUICK).model
    with pytest.raises(ThreefoldError, match=r"is a file; to read it, give pathlib\.Path"):
        model.predict(str(path))
    assert len(model.predict({"text": "a film"})) == 1


def test_columns_of_a_stream_are_not_exchanged() -> None:
    rows = np.arange(120.0)
    table = {"flow": 1000 + np.sin(rows / 3), "valve": np.cos(rows / 5)}
    run = threefold.train(table, target="flow", horizon=1, **QUICK, settings={"data.length": 8})
    for columns, message in (
        (("valve", "flow"), "own columns, but it reads them as flow, valve"),
        (("flow", "flow"), "names a column twice"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            list(threefold.stream(run.model, b"flow,valve\n1000,0.5\n", columns=columns))
    with pytest.raises(ThreefoldError, match="how far a model forecasts is fixed"):
        threefold.evaluate(run, settings=["data.horizon=3"])


def test_arguments_of_another_kind_are_named() -> None:
    with pytest.raises(ThreefoldError, match="the model is 'folder', expected one"):
        threefold.generate("folder", "a", max_tokens=1)  # type: ignore[call-overload]
    with pytest.raises(ThreefoldError, match="width is 1000000000000, expected at most"):
        threefold.mixer("gla", width=10**12)
    with pytest.raises(ThreefoldError, match="a mixer is None, expected a name"):
        threefold.mixer(None, width=16)  # type: ignore[arg-type]
