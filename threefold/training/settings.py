"""How a model is trained: `training` in Python, in a TOML file and on the command line."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from threefold.errors import ThreefoldError
from threefold.training.schema import Section

Optimiser = Literal["sgd", "momentum", "nesterov", "adagrad", "adadelta", "adam", "adamw", "muon"]
Schedule = Literal["constant", "cosine", "linear", "inverse_square_root", "stable"]
Part = Annotated[float, Field(ge=0, le=1)]
Below = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # of torch and of TOML


class TrainingSettings(Section):
    """How to train; give steps, seconds or both (the first to be reached ends the run)."""

    steps: int | None = None
    seconds: float | None = None  # of training, evaluation not counted
    optimiser: Optimiser = "adamw"
    learning_rate: NotNegative = 3e-3
    weight_decay: NotNegative = 0.1
    momentum: Below = 0.9  # of momentum and nesterov; β₁ of adam and adamw; of muon's matrices 0.95
    beta2: Below = 0.95  # of adam and adamw
    schedule: Schedule = "cosine"
    warmup: Below = 0.05  # a part of the run
    decay: Part = 0.2  # the last part of a `stable` run, in which the rate falls
    final: Part = 0.1  # a part of the learning rate
    clip: NotNegative = 1.0  # largest norm of the gradients; 0: any
    accumulate: Count = 1  # batches of one step
    label_smoothing: Below = 0.0
    average: Below = 0.0  # weights are judged as their running mean with this decay; 0: as they are
    own: Part = 0.0  # scheduled sampling of translators: the share of own tokens, rising to this
    recompute: bool = False  # blocks again in the backward pass: less memory, more time
    carry: bool = False  # the state from batch to batch, cut from the graph
    every: Count | None = None  # steps between evaluations; None: at the end only
    target: float | None = None  # a metric that ends the run
    patience: Count | None = None  # evaluations without a better loss that end the run
    non_finite: Literal["stop", "skip", "roll_back"] = "stop"  # if a loss is no number
    seed: Seed = 0  # of what is random inside the model
    save: Count = 100  # steps between checkpoints, in a folder
    keep: Count = 2  # newest checkpoints that are kept, beside the best

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.steps is None and self.seconds is None:
            raise ThreefoldError("training without an end: give steps=, seconds= or both")
        if (self.steps is not None and self.steps < 1) or (
            self.seconds is not None and self.seconds <= 0
        ):
            raise ThreefoldError(
                f"training for steps={self.steps}, seconds={self.seconds}: expected more than 0"
            )
        if self.patience is not None and self.every is None:
            raise ThreefoldError("patience counts evaluations: give every=, the steps between them")
        return self
