"""What a run trains: its data and its model, new or started from another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from threefold.classical.word_vectors import WordVectors
from threefold.data.augmentation import FOR_TOKENS, augmented
from threefold.errors import ThreefoldError
from threefold.models.ensemble import check_kind
from threefold.models.forecaster import Forecaster
from threefold.models.model import Model
from threefold.models.table import KINDS, build
from threefold.tasks.task import Task
from threefold.training import clock
from threefold.training.config import RunConfig
from threefold.training.decisions import check_decision
from threefold.training.devices import place
from threefold.training.estimate import estimate_evaluation, estimate_step
from threefold.training.evaluation import OnBatch
from threefold.training.fine_tuning import (
    StartingModel,
    Takeover,
    build_from,
    choose_trained,
    open_starting_model,
    starting_spec,
)
from threefold.training.head_starts import start_head
from threefold.training.linear_starts import apply_start
from threefold.training.pretraining import check_pretraining, starts_from_neighbours
from threefold.training.regular_evaluations import EVALUATIONS, evaluates_regularly
from threefold.training.time_budget import MOST_JUDGING, TimeBudget
from threefold.training.training_data import EvaluationBatches, TrainingData, open_data
from threefold.training.word_embeddings import start_embedding, with_scale, with_width_of

REGULAR_EXAMPLES = 1000  # of each validation of a run that has ten of them
FINISHING = 0.03  # share of a time limit for the model's files, samples and figures


@dataclass(frozen=True)
class PreparedRun:
    """What a run trains on and evaluates: made once, used for the plan and for the run."""

    data: TrainingData
    model: Model
    batches: Callable[[int], Any]  # by step
    valid_examples: int | None  # of each validation; None: all
    known_words: int | None = None  # tokens that start from given word vectors
    test_examples: int | None = None  # of the final test; None: all
    budget: TimeBudget | None = None  # of a run with a time limit
    on_test_batch: OnBatch | None = None  # sees the outputs of the final test
    takeover: Takeover | None = None  # what the model has of one that it starts from
    start: StartingModel | None = None
    chosen: Mapping[str, str] = field(default_factory=dict)  # reasons of settings not given

    def split_batches(self, split: str, carry: bool) -> EvaluationBatches:
        """The batches of the validation or of the test, as many as there is time for."""
        examples = self.valid_examples if split == "valid" else self.test_examples
        batches = self.data.limited(examples).pieces(split, carry)
        if self.budget is None:
            return batches
        late = self.budget.validation_is_late if split == "valid" else self.budget.test_is_late
        return replace(batches, is_late=late)


def prepare(
    config: RunConfig,
    data: TrainingData | None = None,
    start: StartingModel | None = None,
    started: float | None = None,
) -> PreparedRun:
    """Open the data, unless they are given, and build a model with initial weights.

    start: the model of `config.model.from_model`, if it is open already.  started: when a time
    limit began, on the monotonic clock; default: now.
    """
    started = clock.now() if started is None else started
    if config.threads:
        torch.set_num_threads(config.threads)
    start = start or open_start(config)
    data = data or open_run_data(config, start)
    model, known, takeover = build_model(config, data, start)
    _check_ensemble(config, model)
    check_decision(data, config.training)
    if config.data.pretrain:
        check_pretraining(model, data)
    place(model, config.training)
    batches = _augmented(config, data)
    few = REGULAR_EXAMPLES if evaluates_regularly(model, config.training) else None
    prepared = PreparedRun(
        data,
        model,
        batches,
        config.data.eval_examples or few,
        known,
        takeover=takeover,
        start=start,
    )
    limit = config.training.time
    return prepared if limit is None else _fit_into_time(config, prepared, limit, started)


def _augmented(config: RunConfig, data: TrainingData) -> Callable[[int], Any]:
    """The training batches, with the augmentations that were asked for."""
    settings = config.training
    carried = settings.carry_state
    batches = data.batches(carried, settings.reset_every if carried else None)
    names = settings.augment
    if not names:
        return batches
    if not can_augment(data):
        raise ThreefoldError(
            f"training.augment is {', '.join(names)}, but {data.task.name} is for a "
            f"{data.task.kind} model; only classifiers and regressors of single sequences use it"
        )
    tokens = not data.first.inputs.is_floating_point()
    unfit = [name for name in names if tokens and name not in FOR_TOKENS]
    if unfit:
        raise ThreefoldError(
            f"training.augment: {unfit[0]} changes numbers, but {data.task.name} has tokens; "
            f"expected {' or '.join(FOR_TOKENS)}"
        )
    return augmented(batches, names, config.data.seed)


def can_augment(data: TrainingData) -> bool:
    """Whether training examples are single sequences with a label or numbers."""
    if data.task.kind not in ("classifier", "regressor"):
        return False
    first = data.first.inputs
    return bool(first.dim() == (3 if first.is_floating_point() else 2))


def _check_ensemble(config: RunConfig, model: Model) -> None:
    """Refuse an ensemble that has no mean answer, or only one member."""
    count = config.training.ensemble
    if count is None:
        return
    if count < 2:
        raise ThreefoldError(f"training.ensemble is {count}, expected 2 or more")
    check_kind(model.kind)


def open_start(config: RunConfig) -> StartingModel | None:
    """The model that a run starts from, if there is one."""
    path = config.model.from_model
    return None if path is None else open_starting_model(path)


def open_run_data(
    config: RunConfig, start: StartingModel | None, name: str | None = None, source: Any = None
) -> TrainingData:
    """The data of a run, read as by the model that it starts from; name: where they are now."""
    settings = config.data if name is None else config.data.model_copy(update={"name": name})
    is_task = isinstance(source, Task)
    known = None if start is None or is_task else start.preprocessing_for(settings.name)
    return open_data(settings, source=source, start=known)


def build_model(
    config: RunConfig, data: TrainingData, start: StartingModel | None
) -> tuple[Model, int | None, Takeover | None]:
    """A new model, or one that starts from another; with its known words and what is taken over."""
    vectors = None if config.model.embedding is None else WordVectors.load(config.model.embedding)
    settings = config.model if vectors is None else with_width_of(vectors, config.model)
    pretrained = config.data.pretrain and start is None and starts_from_neighbours(data)
    if (pretrained or vectors) and "scale_embedding" in KINDS[data.task.kind].options:
        settings = with_scale(settings)
    takeover, known = None, None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.model.seed)
        if start is None:
            model = build(data.spec(settings))
        else:
            spec = starting_spec(data, settings, start)
            model, takeover = build_from(spec, start, data.preprocessing)
            if "head" in takeover.new:
                takeover = replace(takeover, fitted=start_head(model, data))
    model.tokenizer, model.preprocessing = data.tokenizer, data.preprocessing
    if isinstance(model, Forecaster) and (takeover is None or "start" in takeover.new):
        options = {**settings.options, "lags": model.lags} if takeover else settings.options
        fitted = data.linear_start(settings.model_copy(update={"options": options}))
        if fitted is not None:
            apply_start(model, fitted)
    if vectors is not None:
        known = start_embedding(model, vectors, str(config.model.embedding))
    choose_trained(model, config)
    return model, known, takeover


def judging_seconds(config: RunConfig, prepared: PreparedRun) -> tuple[float, float]:
    """The estimated time of one validation and of the test, from a few batches of each."""
    carry, objective = config.training.carry_state, prepared.data.objective(config.training)
    valid, test = (
        estimate_evaluation(prepared.model, objective, batches)
        for batches in (prepared.split_batches(split, carry) for split in ("valid", "test"))
    )
    return valid, test


def _fit_into_time(
    config: RunConfig, prepared: PreparedRun, time_limit: float, started: float
) -> PreparedRun:
    """Evaluate on a sample, if all examples would take more than a share of the time limit."""
    valid, test = judging_seconds(config, prepared)
    regular = evaluates_regularly(prepared.model, config.training)
    rounds, sampled = EVALUATIONS + 1 if regular else 1, prepared
    if not config.training.carry_state:
        shares = _judged_shares(MOST_JUDGING * time_limit, rounds * valid, test)
        sampled = replace(
            prepared,
            valid_examples=_fewer(prepared, "valid", prepared.valid_examples, shares[0]),
            test_examples=_fewer(prepared, "test", None, shares[1]),
        )
        valid, test = shares[0] * valid, shares[1] * test
    objective = prepared.data.objective(config.training)
    step = estimate_step(prepared.model, objective, prepared.batches(0), config.training).seconds
    step = max(step, 1e-9)
    finishing = FINISHING * time_limit
    budget = TimeBudget(time_limit, started, finishing, step, valid / step, test / step)
    return replace(sampled, budget=budget)


def _judged_shares(limit: float, valid: float, test: float) -> tuple[float, float]:
    """The shares of the validation and of the test examples that are evaluated in `limit` seconds.

    A test that takes at most half of them is whole: validations are shortened first.
    """
    if valid + test <= limit:
        return 1.0, 1.0
    if test <= limit / 2:
        return (limit - test) / valid, 1.0
    return limit / (valid + test), limit / (valid + test)


def _fewer(prepared: PreparedRun, split: str, examples: int | None, share: float) -> int | None:
    """A share of the examples of a split, at least one."""
    size = prepared.data.task.size(split)
    return examples if share == 1.0 else max(1, int(share * min(size, examples or size)))
