"""The plan that `threefold train` prints before it starts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from threefold.cli import output
from threefold.drawing.text import format_bytes, format_duration

if TYPE_CHECKING:
    from threefold.models.model import Model
    from threefold.training.config import RunConfig
    from threefold.training.preparation import PreparedRun
    from threefold.training.training_data import TrainingData


def print_plan(config: RunConfig, prepared: PreparedRun) -> None:
    """Print what will be trained on which data, and the estimated cost."""
    from threefold.training.estimate import check_memory, estimate_step

    data, model, settings = prepared.data, prepared.model, config.training
    task, spec = data.task, model.spec
    objective = data.objective(settings)
    check_memory(model, objective, data.first, config.data.batch_size, settings)
    step = estimate_step(model, objective, prepared.batches(0), settings)
    mixers = "+".join(dict.fromkeys(name for name, _ in spec.entries))
    parts = [spec.kind, mixers or spec.option("network", ""), f"width {spec.width}"]
    rate = f"learning rate {settings.learning_rate:g}"
    chance = task.chance_name or "a trivial baseline"
    output.say_facts(
        [
            *_data_facts(config, data),
            ("model", ", ".join(filter(None, [*parts, f"depth {spec.depth}"]))),
            *_embedding_facts(config, prepared),
            *_pretraining_facts(config, prepared),
            *([] if prepared.takeover is None else [("from", prepared.takeover.shown)]),
            *_start_facts(config, prepared),
            ("parameters", _parameters(config, model)),
            *_stream_facts(config, model),
            *_ensemble_facts(config),
            *_augmentation_facts(config, prepared),
            *_chosen_facts(config, prepared),
            ("optimizer", f"{settings.optimizer}, {rate}, {settings.schedule} schedule"),
            ("step", f"{step.elements:,} elements, about {1000 * step.seconds:.0f} ms"),
            ("duration", _duration(config, prepared, step.total(settings))),
            ("memory", f"about {format_bytes(step.memory)} for weights, gradients and activations"),
            ("metric", f"{task.metric}, {task.chance:.4g} for {chance} (chance level)"),
        ]
    )


def _chosen_facts(config: RunConfig, prepared: PreparedRun) -> list[tuple[str, str]]:
    """Settings that were not given, and why they are what they are."""
    from threefold.training.schema import flat

    values = flat(config.model_dump(mode="json"))
    shown = [
        f"{name}={_shown(values[name])} ({reason})" for name, reason in prepared.chosen.items()
    ]
    return [("chosen" if number == 0 else "", text) for number, text in enumerate(shown)]


def _shown(value: Any) -> str:
    """The value of a setting, as `--set` reads it."""
    names = ",".join(value) if isinstance(value, list) else value
    return str(names).lower() or "none"


def _pretraining_facts(config: RunConfig, prepared: PreparedRun) -> list[tuple[str, str]]:
    if not config.data.pretrain:
        return []
    from threefold.training.pretraining import pretraining_settings

    settings = pretraining_settings(config)
    limits = [f"{settings.steps:,} steps"] if settings.steps else []
    limits += [] if settings.time is None else [format_duration(settings.time)]
    count = len(prepared.data.task.pretraining)
    rate = f"learning rate {settings.learning_rate:g}"
    return [("pretraining", f"next element of {count:,} inputs, {' or '.join(limits)}, {rate}")]


def _augmentation_facts(config: RunConfig, prepared: PreparedRun) -> list[tuple[str, str]]:
    names = ", ".join(config.training.augment)
    why = "which won" if "training.augment" in prepared.chosen else "as asked for"
    return [("augmentation", f"{names}, of training batches, {why}")] if names else []


def _ensemble_facts(config: RunConfig) -> list[tuple[str, str]]:
    count, seed = config.training.ensemble, config.model.seed
    if count is None:
        return []
    seeds = f"from the seeds {seed} to {seed + count - 1}"
    return [("ensemble", f"{count} such models {seeds}, one after another; answers are averaged")]


def _parameters(config: RunConfig, model: Model) -> str:
    """How many parameters there are, and how many of them are trained."""
    from threefold.training.frozen_layers import trained_count

    total, trained = model.parameter_count, trained_count(model)
    shown = f"{total:,}"
    if trained < total:
        shown += f", of which {trained:,} are trained ({trained / total:.1%})"
    if config.model.adapters is not None:
        shown += f": the head, and adapters of rank {config.model.adapters}"
    if config.training.layer_decay < 1:
        shown += f"; each block learns {config.training.layer_decay:g} times as fast as the next"
    return shown


def _embedding_facts(config: RunConfig, prepared: PreparedRun) -> list[tuple[str, str]]:
    if prepared.known_words is None:
        return []
    known = f"{prepared.known_words:,} of {prepared.model.spec.vocabulary:,} tokens"
    return [("embedding", f"{known} start from {config.model.embedding}")]


def _start_facts(config: RunConfig, prepared: PreparedRun) -> list[tuple[str, str]]:
    """The linear forecast that a forecaster starts from."""
    start = None if prepared.takeover else prepared.data.linear_start(config.model)
    return [] if start is None else [("starts from", start.sentence)]


def _stream_facts(config: RunConfig, model: Model) -> list[tuple[str, str]]:
    """How long a state is carried, and what a stream may do to this model."""
    from threefold.models.stream_limits import stream_warning

    settings, facts = config.training, []
    if settings.carry_state:
        facts.append(("state", f"carried over up to {settings.reset_every} batches"))
    windowed = model.kind == "forecaster" and not settings.carry_state
    if model.streams and not windowed and (warning := stream_warning(model)):
        facts.append(("on a stream", warning))
    return facts


def _duration(config: RunConfig, prepared: PreparedRun, training: float) -> str:
    """How long the run takes, with its evaluations."""
    from threefold.training.preparation import judging_seconds
    from threefold.training.regular_evaluations import EVALUATIONS, evaluates_regularly

    settings, task = config.training, prepared.data.task
    if settings.time is not None and prepared.budget is not None:
        seconds = prepared.budget.judging
        text = f"{format_duration(min(settings.time, training + seconds))}, of which "
        sample = ""
        if prepared.test_examples is not None:
            sample = (
                f" of a sample of {prepared.test_examples:,} of {task.size('test'):,} test examples"
                " (`threefold evaluate` takes all)"
            )
        return f"{text}about {format_duration(seconds)} for evaluation{sample}"
    valid, test = judging_seconds(config, prepared)
    times = 1 + (settings.steps or 0) // (settings.eval_every or math.inf)
    if settings.eval_every is None and evaluates_regularly(prepared.model, settings):
        times = 1 + EVALUATIONS
    return (
        f"{settings.steps:,} steps, about {format_duration(training)}, and "
        f"{format_duration(times * valid + test)} for evaluation"
    )


def _data_facts(config: RunConfig, data: TrainingData) -> list[tuple[str, str]]:
    """What is trained on, and how a user's data were understood."""
    task = data.task
    if task.vocabulary:
        values = f"vocabulary of {task.vocabulary:,}"
    else:
        values = f"{task.features} numbers per element"
    length = ("length", f"{task.length:,} elements per example, {values}")
    if task.description is not None:
        return [("data", config.data.name), *task.description.lines(), length]
    examples = " / ".join(f"{size:,}" for size in task.sizes)
    title = config.data.name if data.from_user else task.title
    return [("data", title), ("examples", f"{examples} (train / validation / test)"), length]
