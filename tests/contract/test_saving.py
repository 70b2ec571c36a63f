"""Models as folders: the same model comes back, a save is whole or nothing, damage is told."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import threefold
from threefold import LanguageModel, Spec, ThreefoldError
from threefold.cli.info import describe_model
from threefold.data import atomic_files
from threefold.data.preprocessing import Chain, Preprocessing
from threefold.data.preprocessing.numbers import Standardise
from threefold.data.tokenizers import ByteTokenizer
from threefold.models import config
from threefold.models.calibration import Calibration

SPEC = Spec("language", 32, 2, ("mamba", ("gla", {"heads": 2})), vocabulary=61)


@pytest.fixture
def model() -> LanguageModel:
    torch.manual_seed(0)
    made: LanguageModel = threefold.build(SPEC)
    return made


@pytest.fixture
def folder(model: LanguageModel, tmp_path: Path) -> Path:
    model.save(tmp_path / "model")
    return tmp_path / "model"


def logits(model: LanguageModel) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(torch.arange(61).view(1, -1))[0]


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_same_model_comes_back(tie: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    model = threefold.build(Spec(**{**SPEC.to_dict(), "options": {"tie": tie}})).to(dtype)
    model.save(tmp_path / "new" / "model")
    torch.manual_seed(7)
    expected_draw = torch.rand(())
    torch.manual_seed(7)
    again = threefold.load(tmp_path / "new" / "model")
    assert torch.equal(torch.rand(()), expected_draw)  # loading draws nothing of the caller's
    assert type(again) is LanguageModel
    assert again.spec == model.spec
    assert not again.training
    assert again.parameter_count == model.parameter_count
    for (name, a), (_, b) in zip(
        again.state_dict().items(), model.state_dict().items(), strict=True
    ):
        assert a.dtype == b.dtype
        assert torch.equal(a, b), name
    assert torch.equal(logits(again), logits(model))
    assert (again.head is None) == tie


def test_the_folder(model: LanguageModel, folder: Path) -> None:
    assert sorted(os.listdir(folder)) == ["README.md", "config.json", "model.safetensors"]
    assert os.listdir(folder.parent) == ["model"]
    values = json.loads((folder / "config.json").read_text())
    assert Spec.from_dict(values["spec"]) == SPEC
    assert values["format_version"] == config.VERSION
    assert values["threefold_version"] == threefold.__version__
    assert values["parameters"] == model.parameter_count
    stored = load_file(folder / "model.safetensors")
    assert sum(t.numel() for t in stored.values()) == model.parameter_count  # tied weights once
    assert f"{model.parameter_count:,} parameters" in (folder / "README.md").read_text()


def test_shared_tensors_are_stored_once_and_stay_shared(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def share(made: LanguageModel) -> LanguageModel:
        made.extra = made.norm
        return made

    share(model).save(tmp_path / "m")
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert sum(t.numel() for t in stored.values()) == model.parameter_count
    monkeypatch.setattr(
        "threefold.models.ensemble.build", lambda spec: share(threefold.build(spec))
    )
    again = threefold.load(tmp_path / "m")
    assert again.extra.weight is again.norm.weight
    assert torch.equal(logits(again), logits(model))


def test_dtype_and_device_on_loading(folder: Path) -> None:
    assert threefold.load(folder, dtype=torch.float64, device="cpu").norm.weight.dtype == (
        torch.float64
    )
    with pytest.raises(ThreefoldError, match=r"dtype is torch\.int64, expected a floating-point"):
        threefold.load(folder, dtype=torch.int64)


def test_tokenizers_come_back(model: LanguageModel, tmp_path: Path) -> None:
    model.tokenizer = ByteTokenizer()
    model.save(tmp_path / "m")
    assert isinstance(threefold.load(tmp_path / "m").tokenizer, ByteTokenizer)
    model.tokenizer = object()
    with pytest.raises(ThreefoldError, match="tokenizer is a object, which cannot be loaded"):
        model.save(tmp_path / "other")
    assert os.listdir(tmp_path) == ["m"]
    edit(tmp_path / "m", tokenizer="system")
    with pytest.raises(ThreefoldError, match="unknown tokenizer 'system'"):
        threefold.load(tmp_path / "m")


@pytest.mark.parametrize("exchange", [True, False])
def test_a_model_is_replaced_whole(
    model: LanguageModel, folder: Path, exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:  # a file system that cannot
        monkeypatch.setattr(atomic_files, "_exchange", lambda one, other: False)
    old = logits(threefold.load(folder))
    with torch.no_grad():
        model.norm.weight.mul_(2)
    model.save(folder)
    assert torch.equal(logits(threefold.load(folder)), logits(model))
    assert not torch.equal(logits(model), old)
    assert os.listdir(folder.parent) == ["model"]


def test_a_failed_save_leaves_the_old_model(
    model: LanguageModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = logits(threefold.load(folder))
    with torch.no_grad():
        model.norm.weight.mul_(2)

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("write_tensors", "sha256_of", "_card"):
        with monkeypatch.context() as patch:
            patch.setattr(f"threefold.models.saving.{name}", fail)
            with pytest.raises(ThreefoldError, match=r"model: cannot be written \(No space left"):
                model.save(folder)
        assert os.listdir(folder.parent) == ["model"]
        assert torch.equal(logits(threefold.load(folder)), old)


def test_everything_is_on_the_disk_before_it_takes_its_name(
    model: LanguageModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync, take = atomic_files.sync, atomic_files._replace_folder
    monkeypatch.setattr(atomic_files, "sync", lambda p: (synced.append(p.name), sync(p))[1])
    monkeypatch.setattr(
        atomic_files, "_replace_folder", lambda a, b: (synced.append("rename"), take(a, b))[1]
    )
    model.save(folder)
    *contents, new, rename, parent = synced
    assert sorted(contents) == ["README.md", "config.json", "model.safetensors"]
    assert new.startswith(".model.")
    assert (rename, parent) == ("rename", folder.parent.name)


def test_what_is_not_a_model_is_never_replaced(model: LanguageModel, folder: Path) -> None:
    other = folder.parent / "notes"
    other.mkdir()
    model.save(other)  # an empty folder is fine
    (folder / "log.txt").write_text("mine")
    with pytest.raises(ThreefoldError, match="not part of a saved model"):
        model.save(folder)
    assert (folder / "log.txt").read_text() == "mine"
    (other / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ThreefoldError, match="not part of a saved model"):
        model.save(other)
    with pytest.raises(ThreefoldError, match=r"log\.txt: is a file; a model is saved as a folder"):
        model.save(folder / "log.txt")


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def spec_with(**changes: Any) -> dict[str, Any]:
    return {**SPEC.to_dict(), **changes}


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def rewrite(folder: Path, change: Any) -> None:
    """Other weights, in a file that is right in itself."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-9] ^= 4
    path.write_bytes(bytes(data))


def to_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))


FAULTS: dict[str, tuple[Any, str]] = {
    "no folder": (shutil.rmtree, r"model: folder not found"),
    "no config": (lambda f: (f / "config.json").unlink(), r"config\.json: file not found"),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        r"model\.safetensors: file not found",
    ),
    "cut config": (
        lambda f: cut(f / "config.json", 40),
        r"config\.json: not valid JSON, or truncated",
    ),
    "bytes as config": (
        lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"),
        r"config\.json: not valid JSON",
    ),
    "list as config": (lambda f: (f / "config.json").write_text("[]"), "contains a list"),
    "deep config": (lambda f: (f / "config.json").write_text("[" * 10**5), "not valid JSON"),
    "foreign config": (
        lambda f: (f / "config.json").write_text('{"model_type": "llama"}'),
        "written for llama, not by Threefold",
    ),
    "newer": (
        lambda f: edit(f, format_version=config.VERSION + 1),
        f"format {config.VERSION + 1}, .* install a newer Threefold",
    ),
    "no version": (
        lambda f: edit(f, format_version="x"),
        f"format_version is 'x', expected {config.VERSION}",
    ),
    "older": (lambda f: edit(f, format_version=1), "format 1, written by an older Threefold"),
    "no spec": (lambda f: edit(f, spec=None), r"config\.json: a spec is a dict"),
    "unknown mixer": (
        lambda f: edit(f, spec=spec_with(mixers=["mambo"])),
        r"config\.json: unknown mixer 'mambo'; did you mean 'mamba'",
    ),
    "unknown kind": (
        lambda f: edit(f, spec=spec_with(kind="poem")),
        r"config\.json: unknown kind 'poem'",
    ),
    "bad option": (
        lambda f: edit(f, spec=spec_with(mixers=[["gla", {"heads": 5}]])),
        r"config\.json: mixer 'gla' with width=32, heads=5",
    ),
    "lost field": (lambda f: edit(f, sha256=None), "sha256 is None; the file was changed"),
    "cut weights": (
        lambda f: cut(f / "model.safetensors", 5000),
        "not a safetensors file, or trunc",
    ),
    "empty weights": (
        lambda f: cut(f / "model.safetensors", 0),
        "not a safetensors file, or trunc",
    ),
    "foreign weights": (
        lambda f: (f / "model.safetensors").write_bytes(pickle.dumps([1] * 99)),
        "not a safetensors file",
    ),
    "damaged weights": (lambda f: flip(f / "model.safetensors"), "damaged, .*SHA-256 differs"),
    "missing tensor": (
        lambda f: rewrite(f, lambda t: t.pop("norm.weight")),
        r"model\.safetensors: lacks norm\.weight",
    ),
    "unknown tensor": (
        lambda f: rewrite(f, lambda t: t.update(extra=torch.zeros(1))),
        "has unknown extra",
    ),
    "wrong shape": (
        lambda f: rewrite(f, lambda t: t.update({"norm.weight": torch.ones(31)})),
        r"norm\.weight is \(31,\) torch\.float32, expected \(32,\)",
    ),
    "wrong numbers": (
        lambda f: rewrite(f, lambda t: t.update({"norm.weight": torch.ones(32).long()})),
        r"norm\.weight is \(32,\) torch\.int64",
    ),
    "other spec": (lambda f: edit(f, spec=spec_with(width=48)), r"is \(61, 32\) .* \(61, 48\)"),
    "pickle": (to_pickle, r"pytorch_model\.bin, a pickle, which can run arbitrary code"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damage_is_told(folder: Path, fault: str) -> None:
    damage, message = FAULTS[fault]
    damage(folder)
    with pytest.raises(ThreefoldError, match=message) as caught:
        threefold.load(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_is_no_folder(folder: Path) -> None:
    with pytest.raises(
        ThreefoldError, match=r"is a file, expected a folder written by model\.save"
    ):
        threefold.load(folder / "config.json")


def test_an_interrupted_replacement_is_pointed_out(folder: Path) -> None:
    folder.rename(folder.parent / ".model.0badcafe")
    with pytest.raises(ThreefoldError, match=r"an interrupted save left .*\.model\.0badcafe"):
        threefold.load(folder)


def test_nothing_is_unpickled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    threefold.load(folder)


def test_info_needs_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    found = config.read_config(folder)
    assert (found.spec, found.tokenizer, found.dtype) == (SPEC, None, "float32")


def test_a_folder_with_the_file_of_another_model_is_refused(tmp_path: Path) -> None:
    for mean in (0.0, 1.0):
        model = threefold.build(Spec("forecaster", 8, 1, "gru", options={"horizon": 1}))
        scale = Chain((Standardise(("a",), (mean,), (1.0,)),))
        model.preprocessing = Preprocessing("forecaster", "series", scale, outputs=scale)
        model.save(tmp_path / f"{mean:.0f}")
    shutil.copy(tmp_path / "0" / "preprocessing.json", tmp_path / "1")
    message = r"preprocessing\.json: damaged, or of another model \(SHA-256"
    with pytest.raises(ThreefoldError, match=message):
        threefold.load(tmp_path / "1")
    with pytest.raises(ThreefoldError, match=message):
        describe_model(tmp_path / "1")
    config = json.loads((tmp_path / "1" / "config.json").read_text())
    assert set(config["checksums"]) == {"preprocessing.json"}
    edit(tmp_path / "1", checksums={})  # as older versions wrote it
    assert threefold.load(tmp_path / "1").preprocessing is not None


def test_a_folder_that_lost_a_file_is_refused(tmp_path: Path) -> None:
    model = threefold.build(Spec("forecaster", 8, 1, "gru", options={"channels": 1, "horizon": 1}))
    truth = np.random.default_rng(0).normal(size=(40, 1, 1))
    quantiles = np.broadcast_to([-1.0, 0.0, 1.0], (40, 1, 1, 3))
    model.calibration = Calibration.fit(quantiles, truth, (0.1, 0.5, 0.9))
    model.save(tmp_path / "m")
    threefold.load(tmp_path / "m")
    (tmp_path / "m" / "calibration.safetensors").unlink()
    with pytest.raises(ThreefoldError, match=r"m: calibration\.safetensors is missing, which was"):
        threefold.load(tmp_path / "m")
