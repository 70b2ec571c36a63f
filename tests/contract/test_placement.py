"""The dtype of activations belongs to a module, not to its first weight."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import threefold
from tests.contract.kinds import EXAMPLES
from tests.tolerances import relative_error
from threefold.errors import ThreefoldError
from threefold.layers.linear import Linear
from threefold.memory import state as states


@pytest.mark.parametrize("name", ["mamba", "attention", "rwkv7", "gru"])
def test_narrow_weights_leave_activations_and_states_alone(name: str) -> None:
    torch.manual_seed(0)
    mixer, x = threefold.mixer(name, width=32).eval(), torch.randn(2, 5, 32)
    with torch.no_grad():
        expected, wide = mixer(x)
        for part in mixer.modules():
            if isinstance(part, Linear):
                part.to(torch.bfloat16)
        actual, narrow = mixer(x)
        stepped, _ = mixer.step(x[:, 0], mixer.empty_state(2))
    assert (mixer.dtype, actual.dtype, stepped.dtype) == (torch.float32,) * 3
    assert 0 < relative_error(actual, expected) < 0.05
    dtypes = {path: leaf.dtype for path, leaf in states.leaves(narrow)}
    assert dtypes == {path: leaf.dtype for path, leaf in states.leaves(wide)}


def test_conversions_of_the_whole_module_change_it() -> None:
    mixer = threefold.mixer("fnet", width=16)  # it has no weights at all
    assert mixer.bfloat16().dtype == torch.bfloat16
    assert mixer.double()(torch.randn(1, 3, 16).double())[0].dtype == torch.float64
    with pytest.raises(ThreefoldError, match=r"x is torch.float32, the weights are torch.float64"):
        mixer(torch.randn(1, 3, 16))


def test_a_saved_model_has_its_dtype(tmp_path: Path) -> None:
    model = EXAMPLES["language"].build()
    model.embedding.to(torch.bfloat16)  # the first weight, stored narrower
    model.save(tmp_path / "model")
    loaded = threefold.load(tmp_path / "model")
    assert loaded.dtype == torch.float32
    assert next(loaded.parameters()).dtype == torch.bfloat16
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "dtype": "int8"}))
    with pytest.raises(ThreefoldError, match="dtype is 'int8'"):
        threefold.load(tmp_path / "model")
