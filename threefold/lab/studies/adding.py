"""The adding problem for several mixers: `threefold lab adding`.

Numbers and marks → a linear map → the mixer → a linear map of its last output; Adam on the squared
error of new sequences, clipped gradients, until the error on held-out sequences is below 0.01.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from threefold.models.model import Model
from threefold.tasks import card
from threefold.training.config import DataSettings, ModelSettings, RunConfig
from threefold.training.experiment import run
from threefold.training.preparation import prepare
from threefold.training.settings import TrainingSettings

# A forget gate with a bias of 3 remembers for about e³ elements from the first step on.
MIXERS: dict[str, dict[str, Any]] = {
    "lstm": {"forget_bias": 3.0},
    "gru": {},
    "coupled_lstm": {"forget_bias": 3.0},
    "rnn": {},
}


@dataclass(frozen=True)
class AddingStudy:
    """Training settings, the same for every mixer."""

    length: int = 200
    width: int = 64
    batch_size: int = 32
    steps: int = 4000  # 0: the model as it is initialised
    learning_rate: float = 5e-3
    eval_every: int = 50
    seed: int = 0

    def config(self, mixer: str) -> RunConfig:
        """The run of one mixer, which ends when the task is solved."""
        return RunConfig(
            data=DataSettings(
                name="adding",
                length=self.length,
                batch_size=self.batch_size,
                eval_examples=512,
                seed=self.seed,
                options={"seed": self.seed},
            ),
            model=one_layer((mixer, MIXERS.get(mixer, {})), self.width, self.seed),
            training=TrainingSettings(
                steps=max(1, self.steps),
                optimizer="adam",
                learning_rate=self.learning_rate,
                beta2=0.999,
                schedule="constant",
                warmup_fraction=0.0,
                weight_decay=0.0,
                eval_every=self.eval_every,
                target_score=card("adding").solved,
                seed=self.seed,
            ),
        )


def one_layer(
    mixer: tuple[str, dict[str, Any]], width: int, seed: int, **options: Any
) -> ModelSettings:
    """One mixer between two linear maps, without norms and residual connections."""
    return ModelSettings(
        mixers=(mixer,),
        width=width,
        depth=1,
        channel="none",
        block="plain",
        options=options,
        seed=seed,
    )


@dataclass(frozen=True)
class AddingResult:
    """The best error on held-out sequences, and the steps of the run."""

    mixer: str
    error: float
    steps: int
    seconds: float

    @property
    def solved(self) -> bool:
        return card("adding").reached(self.error)

    def __str__(self) -> str:
        verdict = "solved" if self.solved else "not solved"
        return (
            f"{self.mixer:<16}{verdict:<12}error {self.error:.4f}  after {self.steps:>5} steps  "
            f"{self.seconds:.0f} s"
        )


def study(mixer: str, plan: AddingStudy) -> tuple[AddingResult, Model]:
    """Train one mixer until it solves the task or the steps run out."""
    config = plan.config(mixer)
    if plan.steps == 0:
        return AddingResult(mixer, card("adding").chance, 0, 0.0), prepare(config).model
    trained = run(config, reporters=(), test=False).complete()
    errors = [scores.metric for _, scores in trained.result.validation]
    result = AddingResult(mixer, min(errors), trained.result.steps, trained.result.seconds)
    return result, trained.model


def table(mixers: Sequence[str], plan: AddingStudy) -> Iterator[str]:
    """A line for each mixer, as soon as it is trained."""
    for mixer in mixers or list(MIXERS):
        yield str(study(mixer, plan)[0])
