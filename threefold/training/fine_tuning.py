"""Start from a trained model: what is taken over, what is new, and what is trained.

    taken over   embedding, blocks, norms; the head too if kind and labels are the same
    new          the head otherwise; low-rank adapters, if they are asked for
    trained      everything, or not the lowest blocks (training.freeze), or lower blocks more slowly
                 (training.layer_decay); with adapters only these and the head

Howard and Ruder 2018, "Universal Language Model Fine-tuning for Text Classification".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from threefold.data.preprocessing import Preprocessing
from threefold.data.readers import checked_path
from threefold.errors import ThreefoldError, option
from threefold.models.adapters import add_adapters, merge_adapters
from threefold.models.config import read_config
from threefold.models.ensemble import member_count
from threefold.models.model import Model
from threefold.models.narrow_weights import narrow_weights
from threefold.models.saving import find_model_folder, load, unique_tensors
from threefold.models.spec import Spec
from threefold.models.table import KINDS, build
from threefold.runtime.prediction import find_preprocessing
from threefold.tasks.table import TASKS
from threefold.training.config import ModelSettings, RunConfig
from threefold.training.frozen_layers import HEADS, freeze_blocks

if TYPE_CHECKING:
    from threefold.training.training_data import TrainingData

FINE_TUNING_RATE = 3e-4  # peak learning rate of all weights of a trained model, if none is given


@dataclass(frozen=True)
class StartingModel:
    """A trained model that another one starts from."""

    name: str
    model: Model
    sha256: str | None  # of its weights; None if it is in memory

    def preprocessing_for(self, data: str) -> Preprocessing | None:
        """How it reads data; a task of ours needs none."""
        if data in TASKS:
            return None
        found = find_preprocessing(self.model, "start from one of `threefold train`")
        return found.with_thresholds({})  # of the answers of the old weights


@dataclass(frozen=True)
class Takeover:
    """What a model has of the one that it starts from."""

    name: str  # of the model to start from
    kind: str
    sha256: str | None
    new: tuple[str, ...]  # parts that are new, e.g. head
    fitted: int = 0  # examples that a new head was fitted to
    had_thresholds: bool = False  # which were those of the old weights

    @property
    def shown(self) -> str:
        """One line for the plan."""
        new = f"new: {', '.join(self.new)}" if self.new else "nothing is new"
        new += f", fitted to the features of {self.fitted:,} examples" if self.fitted else ""
        new += "; its thresholds are not kept" if self.had_thresholds else ""
        return f"{self.kind} model of {self.name}; {new}"


def open_starting_model(source: Model | str | PathLike[str]) -> StartingModel:
    """Load the model to start from, with its adapters merged."""
    if isinstance(source, Model):
        name, sha256, model = f"this {source.kind} model", None, source
    else:
        folder = find_model_folder(checked_path("from_model", source))
        name, sha256 = str(source), read_config(folder).sha256
        model = load(folder)
    if count := member_count(model):
        raise ThreefoldError(
            f"{name}: an ensemble of {count} models; start from one of them, e.g. "
            f"{Path(name) / 'members' / '1'}"
        )
    if (stored := narrow_weights(model)) is not None:
        raise ThreefoldError(
            f"{name}: its weights are stored in {stored}, which cannot be trained; start from the "
            "model that it was made from"
        )
    if not isinstance(source, Model):
        merge_adapters(model)
    return StartingModel(name, model, sha256)


def settle(config: RunConfig, source: Model | None = None) -> RunConfig:
    """The configuration with what the model to start from decides; source: one in memory."""
    settings = config.model
    if settings.from_model is None and source is None:
        if settings.adapters is not None:
            raise ThreefoldError(
                f"{option('adapters')} is {settings.adapters}, but adapters need a trained model: "
                f"give {option('from_model', 'MODEL', flag='from')}"
            )
        return _with_lower_rate(config) if config.data.pretrain else config
    if source is None:
        path = find_model_folder(Path(str(settings.from_model)))
        spec, name = read_config(path).spec, str(Path(str(settings.from_model)).resolve())
    else:
        spec, name = source.spec, f"a {source.kind} model in memory"
    decided: dict[str, Any] = {
        "mixers": spec.entries,
        "width": spec.width,
        "depth": spec.depth,
        "channel": spec.channel_entry,
        "block": spec.block_entry,
    }
    _refuse_decided(settings, spec, name)
    model = settings.model_copy(update={**decided, "from_model": name})
    settled = config.model_copy(update={"model": model})
    return settled if settings.adapters is not None else _with_lower_rate(settled)


def _with_lower_rate(config: RunConfig) -> RunConfig:
    """Without a learning rate of the user's: that of trained weights."""
    if "learning_rate" in config.training.model_fields_set:
        return config
    training = config.training.model_copy(update={"learning_rate": FINE_TUNING_RATE})
    return config.model_copy(update={"training": training})


def _refuse_decided(settings: ModelSettings, spec: Spec, name: str) -> None:
    """Refuse settings of the model that differ from those of the model to start from."""
    decided: dict[str, Any] = {"width": spec.width, "depth": spec.depth}
    decided |= {"channel": spec.channel_entry, "block": spec.block_entry, "mixers": spec.entries}
    given = {key: getattr(settings, key) for key in decided if key in settings.model_fields_set}
    if "size" in settings.model_fields_set and settings.width is None:
        given["width"], given["depth"] = settings.sizes_of(spec.kind)
    for key, value in given.items():
        if value not in (None, ()) and _plain(value) != _plain(decided[key]):
            raise ThreefoldError(
                f"model.{key} is {_plain(value)!r}, but the model to start from, {name}, has "
                f"{_plain(decided[key])!r}; leave it out"
            )


def _plain(value: Any) -> Any:
    """A mixer, or several of them, with their keywords, as values that can be compared."""
    if isinstance(value, str) or not isinstance(value, (tuple, list)):
        return value
    if len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], Mapping):
        return value[0] if not value[1] else (value[0], dict(value[1]))
    plain = [_plain(part) for part in value]
    return plain[0] if len(plain) == 1 else tuple(plain)


def starting_spec(data: TrainingData, settings: ModelSettings, start: StartingModel) -> Spec:
    """The spec of the new model: what the data need, on the blocks of the model to start from."""
    _check_tokens(data, start)
    own, kind = start.model.spec, data.spec(settings).kind
    needed = data.needed_options(settings)
    known = KINDS[kind].options
    shared = {k: v for k, v in own.options.items() if k in known and k not in needed}
    options = {**shared, **settings.options}
    if kind == own.kind == "forecaster":
        options["lags"] = own.option("lags")
    spec = data.spec(settings.model_copy(update={"options": options}))
    # A masked model has one more token than its tokenizer.
    vocabulary = max(spec.vocabulary, own.vocabulary) if data.task.vocabulary else spec.vocabulary
    return replace(spec, vocabulary=vocabulary)


def _check_tokens(data: TrainingData, start: StartingModel) -> None:
    """Refuse the texts of a task that are cut into other tokens than those of the model."""
    theirs, mine = data.tokenizer, start.model.tokenizer
    if theirs is None or mine is None:
        return
    if theirs.parts != mine.parts:
        raise ThreefoldError(
            f"{data.task.name} is read with a {_tokenizer_name(theirs)} of {theirs.vocabulary:,} "
            f"tokens, but {start.name} has a {_tokenizer_name(mine)} of {mine.vocabulary:,}; "
            "choose a model with the same tokenizer"
        )


def _tokenizer_name(tokenizer: Any) -> str:
    return type(tokenizer).__name__


def build_from(
    spec: Spec, start: StartingModel, preprocessing: Preprocessing | None
) -> tuple[Model, Takeover]:
    """A model of a spec with the weights of the one to start from."""
    model = build(spec)
    model.preprocessing = preprocessing
    new = take_over(model, start.model, start.name)
    old = start.model.preprocessing
    had = old is not None and bool(old.thresholds)
    return model, Takeover(start.name, start.model.kind, start.sha256, new, had_thresholds=had)


def take_over(model: Model, source: Model, name: str, *, heads: bool = True) -> tuple[str, ...]:
    """Copy weights from one model to another; returns the parts that are new.

    heads: copy a head that gives the same answers, too.
    """
    mine, theirs = unique_tensors(model), unique_tensors(source)
    keep_head = heads and same_answers(model, source)
    new: dict[str, None] = {}
    for key, tensor in mine.items():
        part, other = key.split(".")[0], theirs.get(key)
        if part in HEADS and not keep_head:
            new[part] = None
            continue
        if ".adapter_" in key:  # new, and without effect before training
            continue
        if other is None or other.shape != tensor.shape:
            shown = "has none" if other is None else f"has {tuple(other.shape)}"
            raise ThreefoldError(
                f"a {model.kind} model cannot start from {name}, a {source.kind} model: its {key} "
                f"is {tuple(tensor.shape)}, and that model {shown}; start from a model with the "
                "same inputs and blocks"
            )
        with torch.no_grad():
            tensor.copy_(other)
    return tuple(new)


def same_answers(model: Model, source: Model) -> bool:
    """Whether two models give answers of the same kind and meaning, so that a head is kept."""
    if model.kind != source.kind:
        return False
    heads = [
        {key: tensor.shape for key, tensor in unique_tensors(one).items()}
        for one in (model, source)
    ]
    if heads[0] != heads[1]:
        return False
    ours, theirs = model.preprocessing, source.preprocessing
    if ours is None or theirs is None:
        return True
    outputs = [one.with_thresholds({}).outputs.to_list() for one in (ours, theirs)]
    return outputs[0] == outputs[1]


def choose_trained(model: Model, config: RunConfig) -> None:
    """Freeze what is not trained, and add adapters."""
    freeze, rank = config.training.freeze, config.model.adapters
    if rank is not None:
        if freeze is not None:
            raise ThreefoldError(
                f"training.freeze is {freeze}, but with adapters all blocks are frozen; leave it "
                f"out, or leave {option('adapters')} out"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.model.seed)
            add_adapters(model, rank, config.model.adapter_alpha)
    elif freeze is not None:
        freeze_blocks(model, freeze)
