"""Pretraining on a user's own inputs: predict the next element, then learn the few labels.

    words     log(N / N_w) √S V_w,  A ≈ U S Vᵀ  vectors of the tokens to start from: of many texts
              log σ(u_y · v_x), y near x        with one answer each; else from neighbours
    tokens    −log p(x_{t+1} | x_1 … x_t)       a language model with the same blocks
    numbers   (x̂_{t+1} − x_{t+1})²              from every element the next, by the same blocks

The inputs are those of the training split and those without a label; one in ten is for validation.
The run in the folder `pretraining` resumes as every run does, and its weights start the other one.
Dai and Le 2015, "Semi-supervised Sequence Learning"; Mikolov et al. 2013, "Distributed
Representations of Words and Phrases and their Compositionality".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from threefold.data.loaders import IGNORE, Batch
from threefold.data.padding import pad_rows
from threefold.data.tokenizers import BPETokenizer, WordTokenizer
from threefold.errors import ThreefoldError, option
from threefold.models.backbone import Backbone
from threefold.models.classifier import PooledModel
from threefold.models.model import Model
from threefold.tasks.stored import Array
from threefold.tasks.task import Numbers, Task, declare_user_task, make_batch
from threefold.tasks.user_data.splits import shuffled_split
from threefold.training.config import RunConfig
from threefold.training.fine_tuning import (
    FINE_TUNING_RATE,
    StartingModel,
    build_from,
    starting_spec,
    take_over,
)
from threefold.training.head_starts import start_head
from threefold.training.loop import train
from threefold.training.reporters import Reporter
from threefold.training.result import Result
from threefold.training.run_folder import CHECKPOINTS
from threefold.training.settings import TrainingSettings
from threefold.training.training_data import TrainingData
from threefold.training.word_embeddings import start_from_documents, start_from_neighbours

FOLDER = "pretraining"  # in the folder of the run
LONGEST = 256  # elements of one example; longer inputs are cut into several
SHARE = 0.5  # of a time limit
FEWEST_DOCUMENTS = 200  # from which the documents that words share say what these mean
PASSES = 5  # of the vectors of tokens over the inputs …
NEIGHBOURS, TOKENS_PER_SECOND = 0.1, 300_000  # … fewer if they took more of a time limit


def pretrain(
    config: RunConfig,
    data: TrainingData,
    model: Model,
    folder: Path | None,
    reporters: Sequence[Reporter] | None,
) -> Result:
    """Train the blocks of a model to predict the next element of the inputs."""
    check_pretraining(model, data)
    task = pretraining_task(data.task)
    resumed = folder is not None and any((folder / FOLDER / CHECKPOINTS).glob("*"))
    if config.model.from_model is None and starts_from_neighbours(data) and not resumed:
        if isinstance(model, PooledModel) and len(data.task.pretraining) >= FEWEST_DOCUMENTS:
            start_from_documents(model, data.task.pretraining, config.model.seed)
        else:
            start_from_neighbours(model, *_neighbours(config, data))
    inputs = TrainingData(task, config.data.model_copy(update={"batching": "examples"}))
    start = StartingModel("the model", model, None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.model.seed)
        spec = starting_spec(inputs, config.model.model_copy(update={"options": {}}), start)
        first, _ = build_from(spec, start, None)
    settings = pretraining_settings(config)
    result = train(
        first,
        inputs.batches(),
        settings,
        validation=inputs.pieces("valid"),
        objective=inputs.objective(settings),
        folder=None if folder is None else folder / FOLDER,
        identity=data.identity(),
        reporters=reporters,
    )
    take_over(model, first, "pretraining", heads=False)
    if result.stopped != "interrupted":
        start_head(model, data)
    return result


def starts_from_neighbours(data: TrainingData) -> bool:
    """Whether tokens are words or parts of them, so that their neighbours say what they mean."""
    return isinstance(data.tokenizer, (WordTokenizer, BPETokenizer))


def _neighbours(config: RunConfig, data: TrainingData) -> tuple[Sequence[Array], int, int]:
    """Inputs, passes over them, and seed of the vectors of tokens."""
    inputs, time = data.task.pretraining, config.training.time
    passes = PASSES
    if time is not None:  # a share of the time at a usual speed, so that no clock decides
        passes = int(NEIGHBOURS * time * TOKENS_PER_SECOND / max(sum(map(len, inputs)), 1))
    return inputs, min(max(passes, 1), PASSES), config.model.seed


def pretraining_settings(config: RunConfig) -> TrainingSettings:
    """How long and how fast the inputs are learnt."""
    training = config.training
    time = training.time if training.pretrain_steps is None else None
    new = config.model.from_model is None
    return training.model_copy(
        update={
            "steps": training.pretrain_steps or training.steps,
            "time": None if time is None else SHARE * time,
            "learning_rate": TrainingSettings(steps=1).learning_rate if new else FINE_TUNING_RATE,
            **{"final_lr": None, "freeze": None, "layer_decay": 1.0, "carry_state": False},
            **{"label_smoothing": 0.0, "class_weights": None, "scheduled_sampling": 0.0},
            **{"eval_every": None, "patience": None, "target_score": None},
        }
    )


def check_pretraining(model: Model, data: TrainingData) -> None:
    """Refuse a model that cannot predict the next element, or data without inputs for it."""
    if not data.task.pretraining:
        raise ThreefoldError(
            f"{option('pretrain')}: {data.task.name} has no rows without a label; expected a table "
            "in which some labels are empty"
        )
    if not isinstance(model, Backbone) or not model.causal or getattr(model, "paired", False):
        raise ThreefoldError(
            f"{option('pretrain')} learns to predict the next element, which this {model.kind} "
            "model cannot: it reads later elements, pairs or pictures; choose causal mixers"
        )


def pretraining_task(task: Task[Any]) -> Task[Batch]:
    """The task of predicting the next element of the inputs of another task."""
    rows = [piece for row in task.pretraining for piece in _pieces(row)]
    if len(rows) < 10:
        raise ThreefoldError(
            f"{task.name}: {len(rows)} inputs of two elements or more are too few to pretrain on; "
            "expected ten or more"
        )
    parts = shuffled_split(len(rows), ())
    splits = {"train": np.concatenate([parts["train"], parts["test"]]), "valid": parts["valid"]}
    splits["test"] = splits["valid"]
    tokens = rows[0].ndim == 1

    def draw(split: str, numbers: Numbers) -> Batch:
        picked = [rows[number] for number in splits[split][numbers]]
        inputs, lengths = pad_rows([row[:-1] for row in picked])
        targets, _ = pad_rows([row[1:] for row in picked], IGNORE if tokens else np.nan)
        return make_batch(inputs, targets, lengths)

    return declare_user_task(
        task.name,
        draw,
        kind="language" if tokens else "tagger",
        domain=task.domain,
        length=max(map(len, rows)) - 1,
        sizes=tuple(len(splits[split]) for split in ("train", "valid", "test")),
        metric="bits" if tokens else "squared_error",
        chance=float("nan"),
        vocabulary=task.vocabulary,
        features=task.features,
        classes=0 if tokens else task.features,
    )


def _pieces(row: Array) -> list[Array]:
    """The parts of an input, each of which begins with the last element of the one before."""
    cuts = range(0, max(1, len(row) - 1), LONGEST)
    return [part for cut in cuts if len(part := row[cut : cut + LONGEST + 1]) > 1]
