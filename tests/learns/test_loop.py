"""The training loop on a leaky average: it learns, is reproducible bit for bit, and stops."""

from __future__ import annotations

import io
import math
import os
import signal
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from tests.tolerances import TOLERANCES
from threefold.data import Batch, ByteTokenizer, TokenStream, Windows
from threefold.errors import ThreefoldError
from threefold.training import Result, Scores, TrainingSettings, evaluate, train
from threefold.training.reporters import console_reporter

EXACT = TOLERANCES[torch.float32, "output"]
TOKENS = ByteTokenizer().encode("to be, or not to be, that is the question: " * 20)


class Leaky(nn.Module):
    """A language model with memory S = 0.5 S₋ + x and dropout; records the states it receives."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(256, 16)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(16, 256)
        self.states: list[Any] = []

    def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        self.states.append(state)
        x = self.dropout(self.embedding(tokens))
        memory = x.new_zeros(len(x), 16) if state is None else state["memory"]
        outputs = []
        for t in range(x.shape[1]):
            memory = 0.5 * memory + x[:, t]
            outputs.append(memory)
        return self.head(torch.stack(outputs, 1)), {"memory": memory}


def run(
    settings: TrainingSettings, model: Leaky | None = None, **options: Any
) -> tuple[Leaky, Result]:
    model = model or Leaky()
    return model, train(model, Windows(TOKENS, batch_size=8, length=16), settings, **options)


def close(expected: float) -> Any:
    return pytest.approx(expected, rel=EXACT)


def test_the_loss_falls() -> None:
    stream = TokenStream(TOKENS, batch_size=4, length=16)
    model, result = run(
        TrainingSettings(steps=100, learning_rate=0.03, eval_every=40),
        validation=[stream(0), stream(1)],
    )
    assert result.losses[0] > 5
    assert result.losses[-1] < 1
    assert result.stopped == "steps"
    assert result.tokens == 100 * 8 * 16
    assert result.tokens_per_second == pytest.approx(result.tokens / result.seconds)
    assert [step for step, _ in result.validation] == [40, 80, 100]
    assert result.scores == evaluate(model, [stream(0), stream(1)])
    assert result.scores.loss < 1
    assert result.scores.metric > 0.6
    assert model.training


def test_same_seed_same_bits() -> None:
    settings = TrainingSettings(steps=20)
    (one, first), (two, second) = run(settings), run(settings)
    assert first.losses == second.losses
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    # Dropout uses the seed of the run, and the random state of the caller is unchanged.
    assert run(TrainingSettings(steps=20, seed=1))[1].losses != first.losses
    model = Leaky()
    before = torch.get_rng_state()
    run(settings, model)
    assert torch.equal(torch.get_rng_state(), before)


def test_evaluation_weighs_targets_not_batches() -> None:
    model = Leaky().eval()
    rows = Windows(TOKENS, batch_size=2, length=8)(0)
    sparse = rows.targets.clone()
    sparse[:, 1:] = -100
    batches = [rows, Batch(rows.inputs, sparse, rows.starts)]
    logits = model(rows.inputs)[0].log_softmax(-1)
    losses = -logits.gather(-1, rows.targets[..., None]).squeeze(-1)
    expected = (losses.sum() + losses[:, 0].sum()) / (16 + 2)
    assert evaluate(model, batches).loss == close(expected.item())
    assert not model.training
    with pytest.raises(ThreefoldError, match="nothing to evaluate"):
        evaluate(model, [])


@pytest.mark.parametrize("where", ["loss", "gradient norm"])
def test_a_non_finite_number_stops_before_the_update(where: str) -> None:
    model = Leaky()
    saved: list[Tensor] = []

    def batches(step: int) -> Batch:
        if step == 7:
            saved.extend(p.detach().clone() for p in model.parameters())
            if where == "loss":
                model.head.register_forward_hook(lambda module, inputs, out: out * math.nan)
            else:
                model.head.bias.register_hook(lambda g: g * math.inf)
        return Windows(TOKENS, batch_size=8, length=16)(step)

    with pytest.raises(ThreefoldError, match=rf"step 7: the {where}"):
        train(model, batches, TrainingSettings(steps=20))
    after = list(model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(saved, after, strict=True))


def test_state_is_carried_detached_and_reset_where_documents_start() -> None:
    stream = TokenStream(TOKENS, batch_size=2, length=16)
    starts = {1: torch.tensor([False, True])}

    def batches(step: int) -> Batch:
        inputs, targets = stream(step)[:2]
        return Batch(inputs, targets, starts.get(step, torch.zeros(2, dtype=torch.bool)))

    model = Leaky()
    train(model, batches, TrainingSettings(steps=3, carry_state=True))
    first, second, third = model.states
    assert first is None
    assert not second["memory"].requires_grad
    assert second["memory"][0].abs().sum() > 0
    assert second["memory"][1].abs().sum() == 0
    assert (third["memory"].abs().sum(1) > 0).all()
    plain = Leaky()
    train(plain, batches, TrainingSettings(steps=3))
    assert plain.states == [None] * 3


def test_carried_evaluation_equals_one_uncut_pass() -> None:
    model = Leaky().eval()
    segments = TokenStream(TOKENS, batch_size=2, length=8)
    uncut_stream = TokenStream(TOKENS, batch_size=2, length=8 * segments.steps_per_epoch)
    cut = evaluate(model, (segments(i) for i in range(segments.steps_per_epoch)), carry=True)
    uncut = evaluate(model, [uncut_stream(0)])
    forgetful = evaluate(model, (segments(i) for i in range(segments.steps_per_epoch)))
    assert cut.loss == close(uncut.loss)
    assert forgetful.loss != close(uncut.loss)


def test_gradients_are_clipped() -> None:
    model = Leaky()
    norms: list[float] = []
    step = torch.optim.AdamW.step

    def spy(self: torch.optim.AdamW, *args: Any) -> Any:
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        norms.append(float(torch.cat([g.flatten() for g in gradients]).norm()))
        return step(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", spy)
        run(TrainingSettings(steps=3, grad_clip=0.01), model)
    assert norms == pytest.approx([0.01] * 3, rel=EXACT)


def test_a_time_limit_ends_the_run() -> None:
    _, result = run(TrainingSettings(time=0.3))
    assert result.stopped == "time"
    assert 0.3 <= result.seconds + result.other_seconds < 3
    assert result.steps > 1


def test_a_target_ends_the_run() -> None:
    stream = TokenStream(TOKENS, batch_size=4, length=16)
    _, result = run(
        TrainingSettings(steps=500, learning_rate=0.03, eval_every=5, target_score=0.5),
        validation=[stream(0)],
    )
    assert result.stopped == "target"
    assert result.steps < 500
    assert result.scores.metric >= 0.5
    assert result.validation[-2][1].metric < 0.5


def test_ctrl_c_finishes_the_step_and_returns_the_result() -> None:
    windows = Windows(TOKENS, batch_size=8, length=16)

    def batches(step: int) -> Batch:
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return windows(step)

    before = signal.getsignal(signal.SIGINT)
    result = train(Leaky(), batches, TrainingSettings(steps=100), validation=[windows(0)])
    assert result.stopped == "interrupted"
    assert result.steps == 4
    assert result.validation == []  # an evaluation would keep the user waiting
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("options", [{}, {"steps": 0}, {"time": 0}, {"steps": -1, "time": 1}])
def test_a_run_needs_an_end(options: dict[str, Any]) -> None:
    with pytest.raises(ThreefoldError, match=r"has no end|expected (more than 0|at least 1)"):
        TrainingSettings(**options)


def test_progress_is_plain_lines_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    run(
        TrainingSettings(steps=50),
        reporters=[console_reporter(Console(file=out, width=100), "leaky")],
    )
    lines = out.getvalue().splitlines()
    assert len(lines) == 6
    assert all(line.startswith("leaky: ") and "elements/s" in line for line in lines)
    assert "100%, step 50, loss" in lines[-1]
    assert "\x1b" not in out.getvalue()


def test_progress_is_a_panel_on_a_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True)
    run(TrainingSettings(steps=50), reporters=[console_reporter(console, "leaky")])
    assert "\x1b" in out.getvalue()
    for expected in ("leaky", "loss", "speed", "elements/s", "gradient norm", "left", "0 s", "▁"):
        assert expected in out.getvalue()


def test_scores_before_any_evaluation_are_nan() -> None:
    assert all(math.isnan(score) for score in Result().scores)
    assert Scores(1.0, 2.0).loss == 1.0
