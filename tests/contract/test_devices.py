"""Models, batches, positions, masks and states live on one device; no tensor of the CPU strays in.

Without an accelerator this is shown on torch's meta device and on the device of `other_device.py`,
which refuses tensors of the CPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import threefold
from tests.contract.kinds import EXAMPLES, Example, language, mean_loss, mixer_example, text
from tests.other_device import OtherTensor, StrayTensorError, lives_there, move_there, other_device
from tests.tolerances import assert_close
from threefold.layers.mixer import Mixer
from threefold.memory import state as states
from threefold.runtime.forecasting import rollout
from threefold.training.evaluation import evaluate
from threefold.training.objectives import objective_of
from threefold.training.settings import TrainingSettings
from threefold.training.trainer import Trainer

WIDTH = 16


def _mixer(name: str) -> tuple[Mixer, Tensor]:
    torch.manual_seed(0)
    return threefold.mixer(name, width=WIDTH), torch.randn(2, 5, WIDTH)


@pytest.mark.parametrize("name", threefold.MIXERS)
def test_mixers_on_meta(name: str) -> None:
    with torch.device("meta"):
        mixer, x = _mixer(name)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            y, state = mixer(x)
            assert (y.is_meta, y.shape) == (True, x.shape)
            for _ in range(2 * mixer.causal):
                y, state = mixer.step(x[:, 0], state)
                assert (y.is_meta, y.shape) == (True, (2, WIDTH))
                assert all(leaf.is_meta for _, leaf in states.leaves(state))


# The shapes inside a hierarchical model depend on its tokens, which have no values there.
@pytest.mark.parametrize("kind", [kind for kind in EXAMPLES if kind != "hierarchical"])
def test_kinds_on_meta(kind: str) -> None:
    example = EXAMPLES[kind]
    with torch.device("meta"):
        model = threefold.build(example.spec)
    rows = example.rows()
    if kind in ("seq2seq", "transformer", "captioner"):
        state = model.encode(rows.source.to("meta"))
        outputs, state = model(rows.inputs.to("meta"), state)
    else:
        series = rows.inputs[..., :2] if kind == "forecaster" else rows.inputs
        more = {"exogenous": rows.inputs[..., 2:].to("meta")} if kind == "forecaster" else {}
        outputs, _ = model(series.to("meta"), **more)
    assert outputs.is_meta


@pytest.mark.parametrize("name", threefold.MIXERS)
def test_mixers_meet_no_stray_tensor(name: str) -> None:
    mixer, x = _mixer(name)
    mask = torch.arange(5) < torch.tensor([[5], [2]])
    expected, _ = mixer(x, mask=mask)
    with other_device() as device:
        mixer.to(device)
        assert lives_there(mixer)
        x, mask = x.to(device), mask.to(device)
        y, state = mixer(x, mask=mask)
        if y.requires_grad:
            y.square().sum().backward()
        assert all(p.grad is None or isinstance(p.grad, OtherTensor) for p in mixer.parameters())
        assert_close(y.detach().cpu(), expected, what=name)
        if mixer.causal:
            with torch.no_grad():
                y, state = mixer(x, state)
                for _ in range(2):
                    y, state = mixer.step(x[:, 0], state)
            y, state = mixer.step(x[:, 0], state)
            assert all(isinstance(leaf, OtherTensor) for _, leaf in states.leaves(state))


@pytest.mark.parametrize("kind", EXAMPLES)
def test_kinds_train_and_evaluate_there(kind: str) -> None:
    example = EXAMPLES[kind]
    settings = TrainingSettings(steps=2, warmup_fraction=0.0, ema=0.5)
    losses = []
    for elsewhere in (False, True):
        with other_device():
            model = example.build()
            if elsewhere:
                move_there(model)
            trainer = Trainer(model, lambda step: example.rows(), settings, objective_of(model))
            assert trainer.step()
            assert trainer.step()
            scores = evaluate(model, [example.rows()])
            assert lives_there(model) == elsewhere
        losses.append([*trainer.result.losses, scores.loss])
    assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]), "gradient", kind)


def test_a_carried_state_stays_there() -> None:
    example = Example(language("gla"), lambda: text(padded=False))
    with other_device() as device:
        model = example.build().to(device)
        settings = TrainingSettings(steps=2, carry_state=True)
        trainer = Trainer(model, lambda step: example.rows(), settings, objective_of(model))
        trainer.step()
        trainer.step()
        assert all(isinstance(leaf, OtherTensor) for _, leaf in states.leaves(trainer.state))


@pytest.mark.parametrize(
    "mixer", [name for name, entry in threefold.MIXERS.items() if entry.load().causal]
)
def test_language_models_train_and_generate_there(mixer: str) -> None:
    example = Example(language(mixer), text)
    texts = []
    for elsewhere in (False, True):
        with other_device():
            model = example.build()
            if elsewhere:
                move_there(model)
            settings = TrainingSettings(steps=1, optimizer="sgd", learning_rate=0.1)
            trainer = Trainer(model, lambda step: example.rows(), settings, objective_of(model))
            trainer.step()
            model.eval()
            written = threefold.generate(model, [1, 2, 3], max_tokens=2, seed=1)
            texts.append(written.rows())
    assert texts[0] == texts[1]


def test_sampling_options_and_beams_there() -> None:
    model = Example(language("gla"), text).build().eval()
    options = {"max_tokens": 4, "seed": 1, "repetition_penalty": 1.1, "top_k": 9, "top_p": 0.9}
    prompts = [[1, 2, 3], [4, 5, 6]]
    expected = threefold.generate(model, prompts, **options).rows()
    beams = threefold.generate(model, prompts, max_tokens=3, beams=2).rows()
    with other_device():
        move_there(model)
        assert threefold.generate(model, prompts, **options).rows() == expected
        assert threefold.generate(model, prompts, max_tokens=3, beams=2).rows() == beams


def test_forecasts_and_streams_there() -> None:
    series, later = torch.randn(2, 6, 3).split([2, 1], -1), torch.randn(2, 3, 1)
    forecaster = EXAMPLES["forecaster"].build().eval()
    reader = Example(language("rwkv7"), text).build().eval()

    def answers(device: torch.device) -> tuple[Tensor, list[float]]:
        values, _ = rollout(
            forecaster,
            series[0].to(device),
            3,
            exogenous=series[1].to(device),
            future=later.to(device),
        )
        scores = threefold.stream(reader, [3, 1, 4, 1, 5])
        columns = [part.columns for part in scores]
        return values.cpu(), [x for c in columns for x in c["log_likelihood"]][1:]

    expected, likelihoods = answers(torch.device("cpu"))
    with other_device() as device:
        move_there(forecaster)
        move_there(reader)
        actual, found = answers(device)
    assert_close(actual, expected)
    assert found == pytest.approx(likelihoods, rel=1e-4)


def test_sessions_and_state_files_there(tmp_path: Path) -> None:
    model = Example(language("mamba"), text).build().eval()
    expected = threefold.Session(model).feed([1, 2, 3])
    with other_device() as device:
        model.to(device)
        session = threefold.Session(model)
        actual = session.feed([1, 2, 3])
        threefold.save_state(tmp_path / "state", session.state, model)
        loaded = threefold.load_state(tmp_path / "state", model)
        assert all(isinstance(leaf, OtherTensor) for _, leaf in states.leaves(loaded))
    assert expected is not None
    assert actual is not None


def test_stray_tensors_are_refused() -> None:
    """The device itself, and a model with a deliberate fault."""
    with other_device() as device:
        x = torch.ones(3, 2).to(device)
        for fault in (
            lambda: x + torch.ones(3, 2),
            lambda: torch.cat([x, torch.zeros(1, 2)]),
            lambda: x[torch.tensor([0, 2])],
            lambda: torch.where(torch.tensor([True, False]), x, x),
            lambda: x.add_(torch.ones(2)),
        ):
            with pytest.raises(StrayTensorError):
                fault()
        assert isinstance(x + torch.tensor(1.0), OtherTensor)  # a number may come from anywhere
        assert isinstance(x + torch.ones(2, device=x.device), OtherTensor)
        model = EXAMPLES["classifier"].build().to(device)
        rows = EXAMPLES["classifier"].rows()
        with pytest.raises((StrayTensorError, threefold.ThreefoldError)):
            mean_loss(model, rows)
        assert mean_loss(model, rows.to(device)).item() > 0
        model.norm.weight = nn.Parameter(torch.ones(32))  # a weight that was left behind
        with pytest.raises((StrayTensorError, threefold.ThreefoldError)):
            mean_loss(model, rows.to(device))


@pytest.mark.parametrize("name", [*EXAMPLES, *threefold.MIXERS])
def test_weights_are_assigned_to_a_model_built_on_meta(name: str) -> None:
    example = EXAMPLES[name] if name in EXAMPLES else mixer_example(name)
    source = example.build().eval()
    with torch.device("meta"):
        model = threefold.build(example.spec).eval()
    model.load_state_dict(source.state_dict(), assign=True)
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    with torch.no_grad():
        expected, loss = (mean_loss(part, example.rows()) for part in (source, model))
    assert torch.equal(loss, expected)
