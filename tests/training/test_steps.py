"""Steps of training: optimisers, schedules, accumulation, averaging, non-finite numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from tests.tolerances import TOLERANCES
from tests.training import runs
from threefold.data.loaders import Batch
from threefold.data.tokenizers import ByteTokenizer
from threefold.errors import DivergedError, OtherProcessFailedError, ThreefoldError
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec
from threefold.training import Result, TrainingSettings, train
from threefold.training.distributed import ProcessGroup
from threefold.training.learning_rates import SCHEDULES
from threefold.training.nan_finder import NOT_REPRODUCED, find_non_finite
from threefold.training.objectives import PredictionObjective
from threefold.training.optimizer import make_optimizer
from threefold.training.reporters import SampleReporter, TensorBoardReporter
from threefold.training.settings import OptimizerName
from threefold.training.trainer import Trainer

EXACT = TOLERANCES[torch.float32, "gradient"]


def small(mixer: str = "gla", **options: Any) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(Spec("language", 16, 2, mixer, vocabulary=17, options=options))


def one_batch(step: int) -> Batch:
    return runs.rows(0)


def trained(
    settings: TrainingSettings, batches: Any = runs.rows, **more: Any
) -> tuple[Any, Result]:
    model = small()
    return model, train(model, batches, settings, **more)


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_every_optimizer_learns_and_resumes(name: str, tmp_path: Path) -> None:
    rate = {"sgd": 0.3, "momentum": 0.05, "nesterov": 0.05, "adagrad": 0.05, "adadelta": 3.0}
    options = {"optimizer": name, "learning_rate": rate.get(name, 0.01), "save_every": 5}
    uninterrupted, result = trained(TrainingSettings(steps=30, **options), one_batch)
    assert result.losses[-1] < 0.9 * result.losses[0]
    stopped = iter(range(12))

    def interrupted(step: int) -> Batch:
        if next(stopped, None) is None:
            raise KeyboardInterrupt
        return one_batch(step)

    with pytest.raises(KeyboardInterrupt):
        trained(TrainingSettings(steps=30, **options), interrupted, folder=tmp_path)
    again, _ = trained(TrainingSettings(steps=30, **options), one_batch, folder=tmp_path)
    for mine, theirs in zip(again.parameters(), uninterrupted.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_muon_moves_the_matrices_of_the_stack_only() -> None:
    model = small()
    muon, other = make_optimizer(model, TrainingSettings(steps=1, optimizer="muon")).optimizers
    inside = set(model.stack.parameters())
    matrices = [p for group in muon.param_groups for p in group["params"]]
    assert matrices and all(p.dim() == 2 and p in inside for p in matrices)
    rest = [p for group in other.param_groups for p in group["params"]]
    assert len({*matrices, *rest}) == len(matrices) + len(rest) == len(list(model.parameters()))
    assert any(p is model.embedding.weight for p in rest)


def test_schedules() -> None:
    settings = TrainingSettings(steps=1, warmup_fraction=0.2, decay_fraction=0.25)
    at = {name: [SCHEDULES[name](d, settings) for d in (0.1, 0.2, 0.6, 1.0)] for name in SCHEDULES}
    assert all(values[0] == pytest.approx(0.5) for values in at.values())
    assert all(values[1] == pytest.approx(1.0) for values in at.values())
    assert at["constant"][2:] == [1.0, 1.0]
    assert at["cosine"][2:] == pytest.approx([0.55, 0.1])
    assert at["linear"][2:] == pytest.approx([0.55, 0.1])
    assert at["inverse_square_root"][2:] == pytest.approx([math.sqrt(1 / 3), math.sqrt(0.2)])
    assert at["stable"][2:] == pytest.approx([1.0, 0.1])
    assert SCHEDULES["stable"](0.875, settings) == pytest.approx(0.55)
    assert SCHEDULES["constant"](0.0, TrainingSettings(steps=1, warmup_fraction=0.0)) == 1.0


def test_accumulated_batches_are_one_large_batch() -> None:
    """Also where they have different numbers of targets."""

    def part(step: int) -> Batch:
        rows = runs.rows(step)
        targets = rows.targets.clone()
        if step % 2:
            targets[:, : 3 + step] = -100
        return Batch(rows.inputs, targets, rows.starts)

    def together(step: int) -> Batch:
        parts = [part(3 * step + i) for i in range(3)]
        return Batch(*(torch.cat([p[i] for p in parts]) for i in range(3)))

    accumulated, one = trained(
        TrainingSettings(steps=3, gradient_accumulation=3, grad_clip=0), part
    )
    large, other = trained(TrainingSettings(steps=3, grad_clip=0), together)
    assert one.losses == pytest.approx(other.losses, rel=EXACT)
    assert one.tokens == other.tokens
    for mine, theirs in zip(accumulated.parameters(), large.parameters(), strict=True):
        assert (mine - theirs).abs().max() <= 1e-2 * 3e-3  # a fraction of the largest step of AdamW


def test_the_averaged_weights_are_evaluated_and_kept() -> None:
    seen: list[list[Tensor]] = []

    def recording(step: int) -> Batch:
        seen.append([p.detach().clone() for p in model.parameters()])
        return runs.rows(step)

    model = small()
    train(model, recording, TrainingSettings(steps=12, ema=0.5, learning_rate=0.05))
    plain, _ = trained(TrainingSettings(steps=12, learning_rate=0.05))
    seen.append([p.detach() for p in plain.parameters()])
    mean = seen[0]
    for step, after in enumerate(seen[1:]):
        decay = min(0.5, (1 + step) / (10 + step))
        mean = [decay * m + (1 - decay) * p for m, p in zip(mean, after, strict=True)]
    for mine, theirs in zip(model.parameters(), mean, strict=True):
        torch.testing.assert_close(mine.detach(), theirs)


def test_patience_ends_the_run_with_the_best_weights(tmp_path: Path) -> None:
    settings = TrainingSettings(
        steps=200, eval_every=5, patience=3, learning_rate=0.05, save_every=7
    )
    validation = [runs.rows(10**6)]  # unlike the training data: it soon gets worse
    model, result = trained(settings, one_batch, validation=validation, folder=tmp_path)
    losses = [scores.loss for _, scores in result.validation]
    assert result.stopped == "patience" and result.steps < 200
    assert min(losses) == losses[-4] < min(losses[-3:])
    from threefold.training import evaluate

    assert evaluate(model, validation).loss == pytest.approx(min(losses), rel=EXACT)
    again, repeated = trained(settings, one_batch, validation=validation, folder=tmp_path)
    assert repeated.stopped == "patience" and repeated.steps == result.steps
    assert evaluate(again, validation).loss == pytest.approx(min(losses), rel=EXACT)


def test_gradient_checkpointing_has_the_same_gradients() -> None:
    gradients, calls = [], []
    for checkpointing in (False, True):
        model = small(dropout=0.2)
        for block in model.stack.blocks:
            block.register_forward_pre_hook(lambda *_, on=checkpointing: calls.append(on))
        torch.manual_seed(1)
        trainer = Trainer(
            model,
            runs.rows,
            TrainingSettings(steps=1, gradient_checkpointing=checkpointing),
            PredictionObjective(),
        )
        trainer.step()
        gradients.append([p.grad for p in model.parameters()])
    for mine, theirs in zip(*gradients, strict=True):
        assert mine is not None and torch.equal(mine, theirs)
    assert calls == 2 * [False] + 4 * [True]  # the blocks run again in the backward pass


def test_label_smoothing_applies_to_training_only() -> None:
    _, result = trained(TrainingSettings(steps=1, label_smoothing=0.3), validation=[runs.rows(0)])
    _, other = trained(TrainingSettings(steps=1), validation=[runs.rows(0)])
    assert result.losses != other.losses
    # The learning rate of the first step is 0, so both models have their initial weights.
    assert result.scores == other.scores


def broken(model: nn.Module, at: int, where: str = "loss") -> Any:
    """Batches that break a module at one step, and repair it after."""

    def batches(step: int) -> Batch:
        channel = dict(model.named_modules())["stack.blocks.1.channel"]
        inner = next(m for m in channel.modules() if isinstance(m, nn.Linear))
        inner._forward_hooks.clear()
        if step == at:
            factor = math.nan if where == "loss" else 1.0
            inner.register_forward_hook(lambda m, inputs, out: _spoiled(out, factor, where))
        return runs.rows(step)

    return batches


def _spoiled(out: Tensor, factor: float, where: str) -> Tensor:
    if where == "gradients":
        out.register_hook(lambda g: g * math.inf)  # type: ignore[no-untyped-call]
    return out * factor


@pytest.mark.parametrize("where", ["loss", "gradients"])
def test_the_first_non_finite_module_is_named(where: str, tmp_path: Path) -> None:
    model = small()
    settings = TrainingSettings(steps=20, save_every=4)
    with pytest.raises(ThreefoldError, match=r"stack\.blocks\.1\.channel") as caught:
        train(model, broken(model, 9, where), settings, folder=tmp_path)
    assert "step 9" in str(caught.value)
    # The run resumes from the last checkpoint once the cause is removed.
    repaired = small()
    result = train(repaired, runs.rows, settings, folder=tmp_path)
    _, expected = trained(settings)
    assert result.losses == expected.losses


@pytest.mark.parametrize("before_out", [True, False])
def test_a_mixer_is_named_not_the_linear_that_reads_it(before_out: bool) -> None:
    """NaN that is born in a recurrence, before or after the mixer's last linear map."""
    model = small()
    block: Any = model.stack.blocks[0]

    class Broken(type(block.mixer)):  # type: ignore[misc]
        def mix(self, *arguments: Any) -> Any:
            y, state = super().mix(*arguments)
            return y * math.nan, state

    if before_out:
        block.mixer.gate_temperature = math.nan
    else:
        block.mixer.__class__ = Broken
    with pytest.raises(DivergedError, match=r"that of stack\.blocks\.0\.mixer \("):
        train(model, runs.rows, TrainingSettings(steps=2))


def test_padding_is_not_taken_for_the_cause() -> None:
    """A mixer may leave NaN at padding; the module that breaks real elements is named."""
    model = small().train()
    block: Any = model.stack.blocks[0]
    mix, tokens = block.mixer.mix, torch.ones(2, 5, dtype=torch.int64)
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    block.mixer.mix = lambda x, state, form, lengths: (
        mix(x, state, form, lengths)[0].masked_fill(~mask.unsqueeze(-1), math.nan),
        mix(x, state, form, lengths)[1],
    )
    assert find_non_finite(model, lambda: model(tokens, mask=mask)[0].sum()) == NOT_REPRODUCED
    model.norm.register_forward_hook(lambda module, inputs, y: y * math.inf)
    cause = find_non_finite(model, lambda: model(tokens, mask=mask)[0].sum())
    assert cause.endswith("that of norm (RMSNorm)")


def test_a_step_can_be_skipped() -> None:
    model = small()
    result = train(model, broken(model, 5), TrainingSettings(steps=10, on_non_finite="skip"))
    assert math.isnan(result.losses[5])
    assert all(math.isfinite(loss) for i, loss in enumerate(result.losses) if i != 5)
    assert all(bool(p.isfinite().all()) for p in model.parameters())

    def always(step: int) -> Batch:
        rows = runs.rows(step)
        with torch.no_grad():
            model.embedding.weight[0, 0] = math.nan if step > 2 else 0.0
        return rows

    with pytest.raises(ThreefoldError, match=r"weights embedding\.weight are not finite"):
        train(model, always, TrainingSettings(steps=30, on_non_finite="skip"))


def test_a_bad_accumulated_batch_is_found() -> None:
    model = small()
    with pytest.raises(ThreefoldError, match=r"stack\.blocks\.1\.channel"):
        train(model, bad_rows(model, 7), TrainingSettings(steps=5, gradient_accumulation=3))


def bad_rows(model: nn.Module, number: int) -> Any:
    """Batches of which one breaks a module each time it is read."""
    poisoned = runs.rows(number)
    channel = dict(model.named_modules())["stack.blocks.1.channel"]
    inner = next(m for m in channel.modules() if isinstance(m, nn.Linear))
    reading: list[bool] = []

    def record(module: nn.Module, inputs: Any) -> None:
        reading[:] = [inputs[0] is poisoned.inputs]

    def spoil(module: nn.Module, inputs: Any, out: Tensor) -> Tensor:
        return out * math.nan if reading[0] else out

    model.register_forward_pre_hook(record)
    inner.register_forward_hook(spoil)
    return lambda step: poisoned if step == number else runs.rows(step)


class OneOfTwo(ProcessGroup):
    """One of two processes; the other one has found a non-finite number."""

    def sum(self, *numbers: float) -> list[float]:
        return [number + 1 for number in numbers]

    def shard(self, rows: Any) -> Any:
        return rows

    def wrap(self, learner: nn.Module, *inputs: Any) -> nn.Module:
        return learner


def test_the_process_with_the_bad_rows_reports_them() -> None:
    model = small()
    for number, error in ((1, DivergedError), (9, OtherProcessFailedError)):
        rows = broken(model, number)
        trainer = Trainer(
            model,
            rows,
            TrainingSettings(steps=5, grad_clip=0),
            PredictionObjective(),
            OneOfTwo(1, 2),
        )
        trainer.step()
        trainer._clip = lambda: math.nan  # type: ignore[method-assign]
        with pytest.raises(ThreefoldError) as caught:
            trainer.step()
        assert type(caught.value) is error


@pytest.mark.parametrize("at", [6, 7])  # right after a checkpoint, and later
def test_a_run_can_be_rolled_back(tmp_path: Path, at: int) -> None:
    model = small()
    bad = iter([True])

    def once(step: int) -> Batch:
        if step == at and next(bad, False):
            with torch.no_grad():
                model.embedding.weight[:] = math.nan
        return runs.rows(step)

    settings = TrainingSettings(steps=12, save_every=3, eval_every=3, on_non_finite="roll_back")
    result = train(model, once, settings, folder=tmp_path, validation=[runs.rows(99)])
    assert result.steps == 12 and all(map(math.isfinite, result.losses))
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert len(lines) == 12
    assert [steps for steps, _ in result.validation] == [3, 6, 9, 12]  # no evaluation is repeated
    _, plain = trained(TrainingSettings(steps=12))
    assert result.losses[:7] == plain.losses[:7]
    assert result.losses[9:] != plain.losses[9:]  # with half the learning rate


def test_a_failed_sample_does_not_end_the_run(tmp_path: Path) -> None:
    """A model with NaN generates a message; a full disk is one error."""
    model = small()
    model.tokenizer = ByteTokenizer()
    trainer = Trainer(model, runs.rows, TrainingSettings(steps=1), PredictionObjective())
    with torch.no_grad():
        model.embedding.weight[:] = math.nan
    SampleReporter(tmp_path / "samples.txt").on_evaluate(trainer)
    assert "the logits contain NaN" in (tmp_path / "samples.txt").read_text()
    with pytest.raises(ThreefoldError, match="No space left"):
        SampleReporter(Path("/dev/full")).on_evaluate(trainer)


def test_tensorboard_has_every_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra threefold[tensorboard] is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, result = trained(
        TrainingSettings(steps=6, eval_every=3),
        validation=[runs.rows(9)],
        reporters=[TensorBoardReporter(tmp_path)],
    )
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    losses = [event.value for event in events.Scalars("loss/train")]
    assert losses == pytest.approx(result.losses, rel=EXACT)
    assert [event.step for event in events.Scalars("loss/valid")] == [3, 6]
