"""Mixers and tasks of another package, through the command line and in fresh processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import threefold
from threefold import ThreefoldError
from threefold.layers.gru import GRU
from threefold.layers.table import MIXERS, Entry
from threefold.plugins import VARIABLE, Registry, load_plugin
from threefold.tasks.table import TASKS

PLUGINS = Path(__file__).parent.parent / "plugins"
TINY = ["--set", "model.width=16", "--set", "model.depth=1", "--set", "data.batch_size=8"]


def call(place: Path, *arguments: str, path: Path | None = PLUGINS, **env: str) -> Any:
    """A command in a fresh process, which finds other packages by PYTHONPATH alone."""
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", VARIABLE)}
    clean |= env | ({} if path is None else {"PYTHONPATH": str(path)})
    command = [sys.executable, "-m", "threefold", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=place, env=clean)


def good(place: Path, *arguments: str, **more: Any) -> str:
    done = call(place, *arguments, **more)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_a_mixer_of_another_package_is_raced(tmp_path: Path) -> None:
    small = ["--width", "16", "--depth", "1", "--seeds", "2", "--set", "data.length=16"]
    race = ["compare", "recall", "--mixers", "leaky_mean,gru", "--time", "20steps", *small]
    out = json.loads(good(tmp_path, *race, "--plugin", "leaky_plugin", "--folder", "r", "--json"))
    assert {c["name"] for c in out["contenders"]} == {"leaky_mean", "gru"}
    assert "--plugin leaky_plugin" in out["subject"]["command"]
    refused = call(tmp_path, *race, path=None)
    assert refused.returncode == 2 and "unknown mixer 'leaky_mean'" in refused.stderr
    assert "--plugin MODULE" in refused.stderr


def test_a_model_of_another_package_is_saved_and_loaded(tmp_path: Path) -> None:
    plugin = ["--plugin", "leaky_plugin"]
    train = ["train", "levels", "--mixers", "leaky_mean", "--steps", "8", *TINY, "--folder", "run"]
    good(tmp_path, *train, *plugin)
    saved = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    expected = {"class": "leaky_plugin.mixers:LeakyMean", "plugin": "leaky_plugin"}
    assert saved["plugins"] == {"leaky_mean": expected}
    # Child processes of a process that named the plugin inherit it.
    scores = json.loads(good(tmp_path, "evaluate", "run", "--json", **{VARIABLE: "leaky_plugin"}))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert scores["accuracy"] == summary["test"]["metric"]
    # Although Python could find the package, nothing is imported unless the user names it.
    for command, message in (
        (("info", "run/model"), "needs the mixer 'leaky_mean' (leaky_plugin.mixers:LeakyMean)"),
        (("resume", "run"), "needs the plugin leaky_plugin, which is not imported"),
    ):
        refused = call(tmp_path, *command)
        assert refused.returncode == 2 and "pass --plugin leaky_plugin" in refused.stderr
        assert message in refused.stderr
    code = "import threefold, leaky_plugin; print(threefold.load('run').name)"
    env = {**os.environ, "PYTHONPATH": str(PLUGINS)}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=env)


def test_a_file_is_a_plugin(tmp_path: Path) -> None:
    source = (PLUGINS / "leaky_plugin" / "mixers.py").read_text()
    (tmp_path / "my_mixer.py").write_text(source)
    for plugin in ("my_mixer.py", "my_mixer"):
        shown = json.loads(
            good(tmp_path, "mixers", "leaky_mean", "--json", "--plugin", plugin, path=None)
        )
        assert shown["class"] == "my_mixer.LeakyMean" and shown["title"] == "Leaky mean"
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "script.py").write_text("import sys; sys.exit(0)")
    for name, message in (
        ("script.py", "script.py: called sys.exit(0) while it was imported"),
        ("broken.py", "broken.py: failed while it was imported (ZeroDivisionError"),
        ("nowhere", "plugin nowhere: cannot be imported (No module named 'nowhere')"),
        ("nowhere.py", "nowhere.py: file not found"),
    ):
        with pytest.raises(ThreefoldError, match=re.escape(message)):
            load_plugin(str(tmp_path / name) if name.endswith(".py") else name)


def test_installed_packages_provide_entry_points(tmp_path: Path) -> None:
    (tmp_path / "leaky_plugin").symlink_to(PLUGINS / "leaky_plugin")
    info = tmp_path / "leaky-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: leaky\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[threefold.mixers]\nother_mean = leaky_plugin.mixers:LeakyMean\nbad = nowhere:Mixer\n"
        "[threefold.tasks]\nother_levels = leaky_plugin.tasks:levels\n"
    )
    done = call(tmp_path, "mixers", "other_mean", "--json", path=tmp_path)
    assert json.loads(done.stdout)["class"] == "leaky_plugin.mixers.LeakyMean"
    assert "entry point bad = 'nowhere:Mixer'" in done.stderr
    train = ["train", "other_levels", "--mixers", "other_mean", "--steps", "2", *TINY]
    good(tmp_path, *train, "--folder", "run", path=tmp_path)
    assert json.loads(good(tmp_path, "evaluate", "run", "--json", path=tmp_path))["n"] == 20


@pytest.fixture
def registries() -> Any:
    """Undo what a test registers."""
    before = dict(MIXERS), dict(TASKS)
    yield
    for table, old in zip((MIXERS, TASKS), before, strict=True):
        for name in set(dict.keys(table)) - set(old):
            del table[name]


class Mine(GRU):
    """A gated unit of my own."""


def test_names_in_python(tmp_path: Path, registries: Any) -> None:
    threefold.register_mixer("mine", Mine, equation="h = …")
    threefold.register_mixer("mine", Mine)  # the same class again, as a notebook does
    assert isinstance(threefold.mixer("mine", width=16), Mine)
    wrapped = ("bidirectional", {"mixer": "mine"})
    spec = threefold.Spec("tagger", 16, 2, (wrapped, "gla"))
    torch.manual_seed(0)
    model = threefold.build(spec).eval()
    model.save(tmp_path / "m")
    x = torch.randint(256, (2, 5))
    assert torch.equal(threefold.load(tmp_path / "m")(x)[0], model(x)[0])
    del MIXERS["mine"]
    with pytest.raises(ThreefoldError, match=r"needs the mixer 'mine' \(.*:Mine\)"):
        threefold.load(tmp_path / "m")
    threefold.register_mixer("mine", GRU)
    with pytest.raises(ThreefoldError, match=r"of .*:Mine, but this name is that of .*:GRU"):
        threefold.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("name", "cls", "message"),
    [
        ("gru", Mine, "the name is taken by a mixer of Threefold"),
        ("my+mixer", Mine, "expected a name of letters"),
        ("mine", torch.nn.GRU, "expected a class that derives from"),
    ],
)
def test_bad_mixers_are_refused(name: str, cls: Any, message: str) -> None:
    with pytest.raises(ThreefoldError, match=message):
        threefold.register_mixer(name, cls)


def sums() -> threefold.Task[Any]:
    x = np.random.default_rng(0).normal(size=(60, 9))
    return threefold.Task.from_arrays(x, x.sum(1))


def test_tasks_are_registered(registries: Any) -> None:
    threefold.register_task("sums", sums)
    assert TASKS["sums"].kind == "regressor" and TASKS["sums"].plugin == __name__
    run = threefold.train("sums", mixers="gru", size="tiny", steps=2)
    assert run.summary["task"] == "sums" and run.summary["metric"] == "absolute_error"
    with pytest.raises(ThreefoldError, match="the name is taken by 'Multi-query"):
        threefold.register_task("recall", sums)
    with pytest.raises(ThreefoldError, match="expected a function"):
        threefold.register_task("mine", 3)  # type: ignore[arg-type]


def test_a_registry_asks_plugins_only_for_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "no_such_module")
    table: Registry[Entry] = Registry({"gru": MIXERS["gru"]}, "threefold.none", lambda *_: None)
    assert "gru" in table
    with pytest.raises(ThreefoldError, match="plugin no_such_module: cannot be imported"):
        _ = "mine" in table
    with pytest.raises(ThreefoldError, match="plugin no_such_module"):
        load_plugin("no_such_module")
