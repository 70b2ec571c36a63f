"""Models with narrow weights: what is stored so, how they compute, and their files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import threefold
from tests.tolerances import assert_close
from threefold.cli.app import main
from threefold.errors import ThreefoldError
from threefold.layers.linear import Encoded, encode_rows
from threefold.models.model import Model
from threefold.models.narrow_weights import NARROW, narrow_modules, narrow_weights
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.training.evaluations.narrow import evaluate_narrow

CAUSAL = [name for name, entry in threefold.MIXERS.items() if entry.load().causal]


def language_model(mixer: str) -> Model:
    torch.manual_seed(0)
    return build(Spec("language", width=32, depth=1, mixers=mixer, vocabulary=64)).eval()


def widened(model: Model) -> Model:
    """The ordinary model with the weights that the narrow ones stand for."""
    ordinary = build(model.spec).eval()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, module in model.named_modules():
        if isinstance(module, Encoded):
            del weights[f"{name}.codes"], weights[f"{name}.row_scale"]
            weights[f"{name}.weight"] = module.weight
    ordinary.load_state_dict(weights)
    return ordinary


@pytest.mark.parametrize("mixer", CAUSAL)
@pytest.mark.parametrize("weights", NARROW)
def test_computes_what_the_stored_weights_say(mixer: str, weights: str) -> None:
    """All forms of a narrow model equal the ordinary model with the same, rounded weights."""
    model = language_model(mixer)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    narrow = threefold.quantize(model, weights)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert narrow_weights(narrow) == weights and narrow_weights(model) is None
    assert narrow.parameter_count == model.parameter_count
    expected, tokens = widened(narrow), torch.randint(64, (2, 12))
    with torch.no_grad():
        for form in expected.forms:
            one, other = narrow(tokens, form=form), expected(tokens, form=form)
            assert_close(one[0], other[0])
        logits, state = one
        plain, ordinary = other
        for _ in range(4):  # the recorded step
            token = torch.randint(64, (2,))
            logits, state = narrow.step(token, state)
            plain, ordinary = expected.step(token, ordinary)
            assert_close(logits, plain)
    recorded = {name for name, part in expected.named_modules() if getattr(part, "programs", None)}
    programs = {name for name, part in narrow.named_modules() if getattr(part, "programs", None)}
    assert programs == recorded  # as fast a step as that of the ordinary model


def test_rows_are_rounded_to_the_nearest_code() -> None:
    weight = torch.randn(9, 40) * torch.logspace(-6, 6, 9).unsqueeze(1)
    weight[3] = 0
    codes, scale = encode_rows(weight)
    assert codes.abs().max(1).values.tolist() == [127, 127, 127, 0, *[127] * 5]
    error = (codes * scale.unsqueeze(1) - weight).abs()
    assert (error <= scale.unsqueeze(1) / 2 * 1.0001).all()


def test_norms_decays_and_recurrent_matrices_stay() -> None:
    narrow = threefold.quantize(language_model("mamba"), "int8")
    kept = [name for name, _ in narrow.named_parameters()]
    assert any("delta" in name for name in kept) and any("norm" in name for name in kept)
    names = {name.rsplit(".", 1)[-1] for name in narrow_modules(language_model("mamba"))}
    assert "embedding" in names and "out" in names and not {"delta", "select"} & names
    stored = sum(t.numel() * t.element_size() for t in narrow.state_dict().values())
    before = sum(
        t.numel() * t.element_size() for t in language_model("mamba").state_dict().values()
    )
    assert stored < 0.5 * before


@pytest.mark.parametrize("weights", NARROW)
def test_saved_and_loaded_in_another_process(tmp_path: Path, weights: str) -> None:
    narrow = threefold.quantize(language_model("gla"), weights)
    narrow.save(tmp_path / "model")
    tokens = torch.arange(10).unsqueeze(0)
    with torch.no_grad():
        expected = narrow(tokens)[0]
    script = (
        "import sys, torch, threefold\n"
        "model = threefold.load(sys.argv[1])\n"
        "with torch.no_grad(): print(model(torch.arange(10).unsqueeze(0))[0].double().sum().item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "model")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == expected.double().sum().item()
    again = threefold.load(tmp_path / "model")
    for name, tensor in narrow.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    written = threefold.generate(again, torch.arange(5), max_tokens=6, temperature=0)
    ordinary = threefold.generate(widened(narrow), torch.arange(5), max_tokens=6, temperature=0)
    assert torch.equal(written.tokens, ordinary.tokens)


def test_what_cannot_be_narrowed_is_refused() -> None:
    model = language_model("gru")
    with pytest.raises(ThreefoldError, match="unknown weights 'int4'"):
        threefold.quantize(model, "int4")
    with pytest.raises(ThreefoldError, match="stored in int8 already"):
        threefold.quantize(threefold.quantize(model, "int8"), "bfloat16")
    with pytest.raises(ThreefoldError, match="expected a model"):
        threefold.quantize("runs/mine")  # type: ignore[type-var]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small language model that has learned something."""
    folder = tmp_path_factory.mktemp("narrow")
    text = folder / "tale.txt"
    text.write_text("the cat sat on the mat and the dog sat on the rug. " * 200)
    run = threefold.train(
        text, mixers="gla", steps=40, folder=folder / "run", settings={"model.width": 32}
    )
    assert run.folder is not None
    return Path(run.folder)


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as left:
        main(list(map(str, arguments)))
    printed = capsys.readouterr()
    return printed.out + printed.err if left.value.code in (0, None) else f"failed: {printed.err}"


def test_commands_use_narrow_weights(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = command(capsys, "evaluate", trained, "--weights", "int8")
    assert "weights in int8: the loss is" in printed
    evaluation = evaluate_narrow(trained, "int8")
    ordinary = threefold.evaluate(trained)
    assert evaluation["weights"]["loss_as_trained"] == ordinary["loss"]
    assert 0 < abs(evaluation["weights"]["change"]) < 0.02
    state, other = tmp_path / "state", tmp_path / "other"
    options = ("--max-tokens", 8, "--temperature", 0, "--weights", "int8")
    first = command(capsys, "generate", trained, "the cat", *options, "--save-state", state)
    whole = command(capsys, "generate", trained, "the cat", *options[:1], 16, *options[2:])
    after = command(capsys, "generate", trained, "--state", state, *options)
    assert not first.startswith("failed") and whole.startswith(first.splitlines()[0])
    assert after.strip() and whole.strip().endswith(after.strip().splitlines()[-1])
    assert "failed" in command(capsys, "generate", trained, "--state", state)  # of other weights
    assert "unknown weights 'int4'" in command(
        capsys, "generate", trained, "a", "--weights", "int4"
    )
    (tmp_path / "more.txt").write_text("the dog sat")
    streamed = command(
        *(capsys, "stream", trained, tmp_path / "more.txt", "--weights", "int8"),
        *("--state", other, "--output", tmp_path / "scores.csv"),
    )
    assert not streamed.startswith("failed"), streamed
