"""States as files: the same bits in another process, refused for another model."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import threefold
from threefold import LanguageModel, Spec, ThreefoldError
from threefold.memory import state as states
from threefold.runtime.state_files import fork_state, read_state

SPEC = Spec("language", 32, 12, ("mamba", "gla"), vocabulary=61, channel="rwkv")

# For each folder on the command line: load its model and state, and save the next logits.
NEXT_LOGITS = """
import sys, torch, threefold
from safetensors.torch import save_file
torch.set_num_threads(int(sys.argv[1]))
for folder in sys.argv[2:]:
    model = threefold.load(folder + "/model")
    state = threefold.load_state(folder + "/state.safetensors", model)
    with torch.no_grad():
        logits, after = model(torch.arange(6).view(2, 3), state)
        step, _ = model.step(torch.tensor([4, 5]), after)
    save_file({"logits": logits, "step": step}, folder + "/out.safetensors")
"""


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    torch.manual_seed(0)
    model: LanguageModel = threefold.build(SPEC)
    return model.eval()


@pytest.fixture
def state(model: LanguageModel) -> states.State:
    with torch.no_grad():
        return model(torch.arange(20).view(2, 10))[1]


@pytest.fixture
def path(model: LanguageModel, state: states.State, tmp_path: Path) -> Path:
    threefold.save_state(tmp_path / "s.safetensors", state, model)
    return tmp_path / "s.safetensors"


def test_another_process_continues_bit_for_bit(tmp_path: Path) -> None:
    specs = {"hybrid": SPEC}
    specs |= {
        name: Spec("language", 32, 2, (name,), vocabulary=61)
        for name, entry in threefold.MIXERS.items()
        if entry.load().causal
    }
    expected: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for name, spec in specs.items():
        torch.manual_seed(0)
        model = threefold.build(spec).eval()
        (tmp_path / name).mkdir()
        model.save(tmp_path / name / "model")
        with torch.no_grad():
            _, state = model(torch.arange(20).view(2, 10))
            threefold.save_state(tmp_path / name / "state.safetensors", state, model)
            logits, after = model(torch.arange(6).view(2, 3), state)
            expected[name] = logits, model.step(torch.tensor([4, 5]), after)[0]
    folders = [str(tmp_path / name) for name in specs]
    threads = str(torch.get_num_threads())
    subprocess.run([sys.executable, "-c", NEXT_LOGITS, threads, *folders], check=True)
    for name, (logits, step) in expected.items():
        outputs = load_file(tmp_path / name / "out.safetensors")
        assert torch.equal(outputs["logits"], logits), name
        assert torch.equal(outputs["step"], step), name


def test_the_same_tree_is_loaded(model: LanguageModel, state: states.State, path: Path) -> None:
    again = threefold.load_state(path, model)
    names = [name for name, _ in states.leaves(state)]
    assert [name for name, _ in states.leaves(again)] == names  # layer 10 after layer 9
    for (name, a), (_, b) in zip(states.leaves(again), states.leaves(state), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b), name
    assert os.listdir(path.parent) == [path.name]


def test_rows_of_a_wider_state_and_gradients_do_not_matter(
    model: LanguageModel, tmp_path: Path
) -> None:
    _, state = model(torch.arange(20).view(4, 5))
    view = states.transform(lambda leaf: leaf[1:3], state)
    threefold.save_state(tmp_path / "s", view, model)
    again = threefold.load_state(tmp_path / "s", model)
    for (_, a), (_, b) in zip(states.leaves(again), states.leaves(view), strict=True):
        assert torch.equal(a, b)
        assert not a.requires_grad


def test_the_header(model: LanguageModel, state: states.State, path: Path) -> None:
    with safe_open(path, "pt") as file:
        header = file.metadata()
    assert header["digest"] == SPEC.digest
    assert Spec.from_json(header["spec"]) == SPEC
    assert header["threefold_version"] == threefold.__version__
    assert read_state(path).position is None
    threefold.save_state(path, state, model, position=10)
    assert read_state(path).position == [10, 10]
    threefold.save_state(path, state, model, position=[7, 10])
    assert read_state(path).position == [7, 10]
    for wrong in ([1], -1, "3", [1, 2.5]):
        with pytest.raises(ThreefoldError, match=r"position is .*, expected"):
            threefold.save_state(path, state, model, position=wrong)


def test_another_spec_is_refused_with_what_differs(path: Path) -> None:
    other = threefold.build(Spec(**{**SPEC.to_dict(), "width": 48, "mixers": "gla"}))
    with pytest.raises(ThreefoldError, match="state of another model") as caught:
        threefold.load_state(path, other)
    assert "width: 32 and 48" in str(caught.value)
    assert "mixers: ['mamba', 'gla'] and ['gla']" in str(caught.value)
    assert "depth" not in str(caught.value)


def test_another_dtype_and_batch_are_refused(model: LanguageModel, path: Path) -> None:
    with pytest.raises(ThreefoldError, match="another dtype"):
        threefold.load_state(path, threefold.build(SPEC).double())
    state = threefold.load_state(path, model)
    with pytest.raises(ThreefoldError, match="another batch size"):
        model(torch.zeros(3, 1, dtype=torch.int64), state)


def test_only_states_of_the_model_are_saved(model: LanguageModel, path: Path) -> None:
    before = path.read_bytes()
    for wrong in ({}, None, {"0": {}}, threefold.mixer("gla", width=32).empty_state(2)):
        with pytest.raises(ThreefoldError, match=r"state of another model|state must be a dict"):
            threefold.save_state(path, wrong, model)
    assert path.read_bytes() == before


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 4
    path.write_bytes(bytes(data))


def change_header(path: Path, **changes: str | None) -> None:
    """Replace fields of the header, keeping the tensors; None removes a field."""
    with safe_open(path, "pt") as file:
        header = {**file.metadata(), **changes}
    tensors = load_file(path)
    save_file(tensors, path, {key: value for key, value in header.items() if value is not None})


FAULTS: dict[str, tuple[Any, str]] = {
    "gone": (os.unlink, "file not found"),
    "cut": (cut, "not a safetensors file, or truncated"),
    "empty": (lambda p: p.write_bytes(b""), "not a safetensors file"),
    "foreign": (lambda p: p.write_bytes(b"PK\x03\x04" * 50), "not a safetensors file"),
    "weights": (lambda p: save_file({"a": torch.zeros(2)}, p), "but not a state; expected a file"),
    "flipped": (flip, "damaged"),
    "newer": (lambda p: change_header(p, format_version="4"), "format 4.* install a newer"),
    "older": (
        lambda p: change_header(p, format_version="1"),
        "written by an older version of Threefold",
    ),
    "changed position": (lambda p: change_header(p, position="[3, 3]"), "damaged"),
    "changed weights": (lambda p: change_header(p, weights="0" * 64), "damaged"),
    "no weights": (lambda p: change_header(p, weights=None), "header is not valid"),
    "no spec": (lambda p: change_header(p, spec=None), "header is not valid"),
    "bad spec": (lambda p: change_header(p, spec="{"), "header is not valid .*not JSON"),
    "bad position": (lambda p: change_header(p, position="["), "header is not valid"),
    "changed spec": (
        lambda p: change_header(p, spec=SPEC.to_json().replace('"depth":12', '"depth":11')),
        "damaged",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damage_is_reported(model: LanguageModel, path: Path, fault: str) -> None:
    damage, message = FAULTS[fault]
    damage(path)
    with pytest.raises(ThreefoldError, match=message) as caught:
        threefold.load_state(path, model)
    assert str(path) in str(caught.value)


def test_a_folder_is_not_a_state_file(
    model: LanguageModel, state: states.State, tmp_path: Path
) -> None:
    with pytest.raises(ThreefoldError, match="file not found"):
        threefold.load_state(tmp_path, model)
    (tmp_path / "s").mkdir()
    for path in (tmp_path / "s", tmp_path / "nowhere" / "s"):
        with pytest.raises(ThreefoldError, match="cannot be written"):
            threefold.save_state(path, state, model)
    assert os.listdir(tmp_path) == ["s"]


def test_a_failed_save_leaves_the_old_state(
    model: LanguageModel, state: states.State, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("runtime.state_files.write_tensors", "data.atomic_files.sync"):
        with monkeypatch.context() as patch:
            patch.setattr(f"threefold.{name}", fail)
            with pytest.raises(ThreefoldError, match=r"cannot be written .No space left"):
                threefold.save_state(path, state, model)
        assert path.read_bytes() == before
        assert os.listdir(path.parent) == [path.name]


def test_a_state_of_other_weights_is_refused(path: Path) -> None:
    torch.manual_seed(1)
    other = threefold.build(SPEC)
    with pytest.raises(ThreefoldError, match=r"computed with other weights.*check_weights=False"):
        threefold.load_state(path, other)
    with pytest.raises(ThreefoldError, match="computed with other weights"):
        threefold.Session.load(path, other)
    loaded = threefold.load_state(path, other, check_weights=False)
    for (_, a), (_, b) in zip(
        states.leaves(loaded), states.leaves(read_state(path).state), strict=True
    ):
        assert torch.equal(a, b)


def test_one_changed_weight_is_noticed_and_a_fork_keeps_the_fingerprint(
    model: LanguageModel, path: Path
) -> None:
    fork_state(path, path.with_name("row"), rows=[1])
    session = threefold.Session.load(path.with_name("row"), model)
    assert session.state_bytes > 0
    changed = copy.deepcopy(model)
    with torch.no_grad():
        next(changed.parameters())[-1, -1] += 1e-3
    with pytest.raises(ThreefoldError, match="computed with other weights"):
        threefold.Session.load(path.with_name("row"), changed)
    threefold.Session.load(path.with_name("row"), changed, check_weights=False)
