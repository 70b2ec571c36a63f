"""The public names: few, pinned, documented and typed."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from mypy import api

import threefold

# A name is added or removed here on purpose, with a line in CHANGELOG.md.
PUBLIC = [
    "Captioner",
    "Classifier",
    "EchoStateNetwork",
    "ExtremeLearningMachine",
    "Forecaster",
    "LanguageModel",
    "MIXERS",
    "MaskedLanguageModel",
    "Regressor",
    "Seq2Seq",
    "Session",
    "Spec",
    "Tagger",
    "Task",
    "ThreefoldError",
    "Transformer",
    "VisionTransformer",
    "WordVectors",
    "XLNet",
    "__version__",
    "attention",
    "attention_weights",
    "build",
    "compare",
    "evaluate",
    "generate",
    "linear_recurrence",
    "load",
    "load_state",
    "long_convolution",
    "mixer",
    "predict",
    "quantize",
    "register_mixer",
    "register_task",
    "save_state",
    "selective_scan",
    "stream",
    "testing",
    "train",
]
MOST = 40
# Values, not functions or classes: documented where they are defined.
VALUES = {"MIXERS": dict, "__version__": str, "testing": ModuleType}

CALLABLES = [name for name in PUBLIC if name not in VALUES]


def undocumented(value: object) -> bool:
    own = value.__dict__.get("__doc__") if inspect.isclass(value) else getattr(value, "__doc__", "")
    return not (own or "").strip()


def untyped(function: object) -> list[str]:
    """Parameters, and the return value, without a type."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    missing = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.annotation is parameter.empty and name != "self"
    ]
    if signature.return_annotation is signature.empty and not inspect.isclass(function):
        missing.append("return")
    return missing


def test_list_is_pinned_and_short() -> None:
    assert sorted(threefold.__all__) == sorted(PUBLIC)
    assert len(PUBLIC) <= MOST


def test_dir_shows_the_public_names() -> None:
    assert sorted(dir(threefold)) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_name_resolves(name: str) -> None:
    value = getattr(threefold, name)
    if name in VALUES:
        assert isinstance(value, VALUES[name])


@pytest.mark.parametrize("name", CALLABLES)
def test_documented_and_typed(name: str) -> None:
    value = getattr(threefold, name)
    assert not undocumented(value), f"{name} has no docstring"
    if inspect.isclass(value) and issubclass(value, Exception):
        return
    assert untyped(value) == [], name


USE = """
import torch, threefold
model = threefold.build(threefold.Spec("language", width=64, depth=2, mixers=("gla", "mamba2")))
logits, state = model(torch.randint(256, (1, 10)), last=True)
threefold.save_state("s", state, model, position=10)
state = threefold.load_state("s", threefold.load("m"))
print(threefold.generate(model, [1], max_tokens=3).rows(), threefold.Session(model, seed=0))
print(threefold.compare("recall", "gru,mamba", time="90s").sentence)
"""


def test_public_names_fit_together(tmp_path: Path) -> None:
    """What README shows passes a type checker."""
    (tmp_path / "use.py").write_text(USE)
    settings = Path(__file__).parent.parent / "pyproject.toml"
    out, _, status = api.run([f"--config-file={settings}", str(tmp_path / "use.py")])
    assert status == 0, out


@pytest.mark.parametrize("name", ["classical", "data", "estimators", "runtime", "training"])
def test_packages_are_found_without_an_import_of_their_own(name: str) -> None:
    code = f"import threefold; print(threefold.{name}.__name__)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.strip() == f"threefold.{name}", answer.stderr


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = threefold.nothing


def test_type_checkers_know_every_name(tmp_path: Path) -> None:
    names = [*PUBLIC, "nothing"]
    lines = ["import threefold", *(f"reveal_type(threefold.{name})" for name in names)]
    (tmp_path / "names.py").write_text("\n".join(lines) + "\n")
    settings = Path(__file__).parent.parent / "pyproject.toml"  # and so the cache of `make check`
    out, errors, _ = api.run([f"--config-file={settings}", str(tmp_path / "names.py")])
    assert 'has no attribute "nothing"' in out, errors
    kinds = dict(re.findall(r'names\.py:(\d+): note: Revealed type is "(.*)"', out))
    assert len(kinds) == len(names)
    for number, name in enumerate(PUBLIC, 2):
        assert kinds[str(number)] not in ("Any", "object", "builtins.object"), name


def test_import_is_lazy() -> None:
    code = "import sys, threefold; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_checkers_fail() -> None:
    def plain(a, b: int):  # type: ignore[no-untyped-def]
        pass

    assert undocumented(plain)
    assert untyped(plain) == ["a", "return"]
