"""How a model is trained: the section `training` in Python, TOML files and `--set`."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from threefold.errors import ThreefoldError
from threefold.training.durations import as_seconds
from threefold.training.schema import Section

OptimizerName = Literal[
    "sgd", "momentum", "nesterov", "adagrad", "adadelta", "adam", "adamw", "muon"
]
ScheduleName = Literal["constant", "cosine", "linear", "inverse_square_root", "stable"]
Fraction = Annotated[float, Field(ge=0, le=1)]
FractionBelowOne = Annotated[float, Field(ge=0, lt=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]  # what torch and TOML can hold
Seconds = Annotated[float | None, BeforeValidator(as_seconds)]


def _device_name(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise ThreefoldError(
            f"training.device is {name!r}, expected auto, cpu, cuda, or one of several: cuda:0, …"
        )
    return name


DeviceName = Annotated[str, AfterValidator(_device_name)]


class TrainingSettings(Section):
    """How to train. Give `steps`, `time` or both; whichever is reached first ends the run."""

    steps: int | None = None
    """Number of optimizer steps."""
    time: Seconds = None
    """Time of the run such as "10m" or "90s", or a number of seconds, with its evaluations."""
    optimizer: OptimizerName = "adamw"
    """Optimization algorithm."""
    learning_rate: NonNegative = 3e-3
    """Peak learning rate."""
    final_lr: NonNegative | None = None
    """Learning rate that cosine, linear and stable fall to; default: a tenth of the peak."""
    schedule: ScheduleName = "cosine"
    """Shape of the learning rate over the run."""
    warmup_fraction: FractionBelowOne = 0.05
    """Fraction of the run in which the learning rate rises linearly to its peak."""
    decay_fraction: Fraction = 0.2
    """Schedule "stable" only: final fraction of the run in which the learning rate falls."""
    weight_decay: NonNegative = 0.1
    """Weight decay; norms, biases and what a mixer excludes are not decayed."""
    momentum: FractionBelowOne = 0.9
    """Momentum of momentum and nesterov, beta1 of adam and adamw (muon's matrices use 0.95)."""
    beta2: FractionBelowOne = 0.95
    """Second beta of adam and adamw."""
    grad_clip: NonNegative = 1.0
    """Largest norm of the gradient; larger ones are scaled down. 0 turns clipping off."""
    gradient_accumulation: Count = 1
    """Number of batches whose gradients are averaged for one step."""
    label_smoothing: FractionBelowOne = 0.0
    """Probability mass spread evenly over all classes."""
    class_weights: Literal["balanced"] | None = None
    """Classifiers and taggers only: balanced counts rare classes as much as common ones."""
    decide: Literal["accuracy", "balanced_accuracy", "macro_f1"] | None = None
    """Classifiers: answer labels from probabilities on that give validation the best of these."""
    thresholds: dict[str, Annotated[float, Field(gt=0, lt=1)]] | None = None
    """Classifiers: the probability from which a label is answered, e.g. {spam = 0.2}."""
    augment: tuple[Literal["noise", "scale", "crop", "warp", "dropout", "mixup"], ...] = ()
    """Classifiers and regressors: random changes of training examples; texts: crop, dropout."""
    ensemble: Count | None = None
    """Number of models that are trained from other seeds, and whose answers are averaged."""
    pretrain_steps: Count | None = None
    """Steps of data.pretrain; default: as many as `steps`, or half of the time."""
    freeze: Count | Literal["all"] | None = None
    """Number of lowest blocks that are not trained, nor the embedding; all: only the head is."""
    layer_decay: PositiveFraction = 1.0
    """Factor of the learning rate from each block to the one below it; 1: all learn alike."""
    ema: FractionBelowOne = 0.0
    """Decay of an exponential moving average of the weights, used for evaluation; 0: no average."""
    scheduled_sampling: Fraction = 0.0
    """Seq2seq models only: share of inputs that are the model's own tokens, rising to this."""
    device: DeviceName = "auto"
    """Where to compute: cpu, cuda, cuda:1, …; auto: CUDA if there is a device, else the CPU."""
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """bfloat16: products in bfloat16 (autocast), weights, memories and loss in float32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    carry_state: bool = False
    """Texts and series: carry the state from batch to batch, as a stream does (truncated BPTT)."""
    reset_every: Count = 64
    """With carry_state: batches after which a row starts with an empty state, at another place."""
    eval_every: Count | None = None
    """Steps between evaluations on the validation split; default: only at the end."""
    keep_best: bool = False
    """Keep the weights of the lowest validation loss, of ten evaluations or of `eval_every`."""
    target_score: float | None = None
    """Validation score that ends the run; needs eval_every."""
    patience: Count | None = None
    """Stop after this many evaluations without a lower loss; needs eval_every."""
    on_non_finite: Literal["stop", "skip", "roll_back"] = "stop"
    """What to do when a loss is not finite."""
    seed: Seed = 0
    """Seed of randomness inside the model, such as dropout."""
    save_every: Count = 100
    """Steps between checkpoints."""
    keep_checkpoints: Count = 2
    """Number of newest checkpoints to keep, in addition to the best one."""

    @property
    def final_fraction(self) -> float:
        """The final learning rate as a fraction of the peak."""
        if self.final_lr is None or not self.learning_rate:
            return 0.1
        return self.final_lr / self.learning_rate

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.steps is None and self.time is None:
            raise ThreefoldError("training has no end: give steps, time or both")
        if self.steps is not None and self.steps < 1:
            raise ThreefoldError(f"training.steps is {self.steps}, expected at least 1")
        if self.time is not None and self.time <= 0:
            raise ThreefoldError(f"training.time is {self.time:g} seconds, expected more than 0")
        for name in ("patience", "target_score"):
            if getattr(self, name) is not None and self.eval_every is None:
                raise ThreefoldError(f"training.{name} needs evaluations: set training.eval_every")
        if self.final_lr is not None and self.schedule in ("constant", "inverse_square_root"):
            raise ThreefoldError(
                f"training.final_lr is {self.final_lr:g}, but the schedule {self.schedule} does "
                "not fall to a given rate; remove it, or choose cosine, linear or stable"
            )
        if self.final_lr is not None and self.final_lr > self.learning_rate:
            raise ThreefoldError(
                f"training.final_lr is {self.final_lr:g}, expected at most the peak, "
                f"training.learning_rate = {self.learning_rate:g}"
            )
        return self
