"""How new data are read for a model that training starts from: as that model reads its own.

tokenizer, columns, scaling of the inputs   always those of the model; what does not fit is refused
labels, scaling of the answers              those of the model if the kind and the labels are
                                            the same; else new ones, for a new head
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from threefold.data.preprocessing import Chain, Preprocessing, Roles
from threefold.data.preprocessing.numbers import RowAsSequence, Standardise, Truncate
from threefold.data.preprocessing.text import Labels, Tokenize, WordNumbers, WordPieces
from threefold.data.tokenizers import Tokenizer
from threefold.errors import ThreefoldError
from threefold.tasks.table import TEXT_KINDS
from threefold.tasks.user_data.settings import ReadSettings
from threefold.tasks.user_data.text_inputs import MOST_TEXT_TOKENS, texts_step

# Kinds whose data are read exactly as those of the model, answers included.
READ_ALIKE = ("forecaster", "seq2seq", "captioner")


def as_known(start: Preprocessing, settings: ReadSettings) -> Preprocessing | None:
    """The whole preprocessing of the model, where new data of its kind need nothing else."""
    kind = settings.kind or start.kind
    if kind != start.kind or kind not in READ_ALIKE:
        return None
    if kind == "forecaster":
        horizon, context = settings.horizon or start.horizon, settings.length or start.context
        if start.known_future and horizon != start.horizon:
            raise ThreefoldError(
                f"horizon is {horizon}, but the model to start from reads "
                f"{', '.join(start.known_future)} of the next {start.horizon} rows; leave it out"
            )
        return replace(start, horizon=horizon, context=context)
    return start


def known_tokenizer(start: Preprocessing, name: str, settings: ReadSettings) -> Tokenizer:
    """The tokenizer of the model, for a text."""
    step = start.inputs.find(Tokenize)
    if step is None:
        raise ThreefoldError(
            f"{name} is text, but the model to start from reads {what_it_reads(start)}"
        )
    for option in ("tokenizer", "vocabulary"):
        if (value := getattr(settings, option)) is not None:
            raise ThreefoldError(
                f"data.{option} is {value!r}, but the model to start from has its tokenizer "
                "already; leave it out"
            )
    tokenizer: Tokenizer = step.tokenizer
    return tokenizer


def what_it_reads(start: Preprocessing) -> str:
    """The inputs of a model, in words."""
    columns = start.roles.features or start.roles.targets or start.roles.texts
    named = f" ({', '.join(columns)})" if columns else ""
    forms = {"row": "rows of numbers", "series": "series of numbers", "table": "columns of numbers"}
    forms |= {"sound": "sounds", "image": "images", "words": "words", "tokens": "tokens"}
    return forms.get(start.form, "texts") + named


def kept_inputs(
    start: Preprocessing, name: str, kind: str, form: str, roles: Roles, settings: ReadSettings
) -> Chain:
    """The model's input steps, as data of this form and a model of this kind need them."""
    if form in ("text", "file"):
        tokenizer = known_tokenizer(start, name, settings)
        length = settings.length or start.inputs.find(Tokenize).length or MOST_TEXT_TOKENS
        return Chain((texts_step(kind, tokenizer, length),))
    if form == "words" and start.inputs.find(WordNumbers) is None:
        tokenizer = known_tokenizer(start, name, settings)
        return Chain((WordPieces.by(tokenizer, settings.length),))
    _refuse_other_inputs(start, name, form, roles)
    steps = [step for step in start.inputs.steps if not isinstance(step, (Truncate, RowAsSequence))]
    as_row = (RowAsSequence(),) if form == "row" else ()
    length = settings.length or getattr(start.inputs.find(Truncate), "length", None)
    cut = () if length is None else (Truncate(length),)
    return Chain((*steps, *as_row, *cut))


def _refuse_other_inputs(start: Preprocessing, name: str, form: str, roles: Roles) -> None:
    numbers = ("table", "series", "row")
    alike = form == start.form or (form in numbers[:2] and start.form in numbers[:2])
    if not alike:
        forms = replace(start, form=form, roles=roles)
        raise ThreefoldError(
            f"{name} has {what_it_reads(forms)}, but the model to start from reads "
            f"{what_it_reads(start)}; give such data, or train without a model to start from"
        )
    scale = start.inputs.find(Standardise)
    if form in numbers and scale is None:
        raise ThreefoldError(
            f"{name}: the model to start from scales each of several series by itself, which "
            "sequences with a label cannot be; train without it"
        )
    if form in numbers and roles.features and roles.features != scale.columns:
        raise ThreefoldError(
            f"{name}: the inputs are {', '.join(roles.features)}, but the model to start from "
            f"reads {', '.join(scale.columns)}; name the same columns with features"
        )


def ordered_like(start: Preprocessing | None, roles: Roles) -> Roles:
    """The same inputs in the model's order, if they are the same columns."""
    scale = None if start is None else start.inputs.find(Standardise)
    if scale is None or set(scale.columns) != set(roles.features):
        return roles
    return replace(roles, features=tuple(scale.columns))


def kept_outputs(
    start: Preprocessing, kind: str, targets: Iterable[Any], names: Sequence[str]
) -> Chain | None:
    """The answers of the model, if the new data ask for the same; None: it needs a new head."""
    if start.kind != kind:
        return None
    labels = start.outputs.find(Labels)
    if labels is not None:
        found = {t for target in targets for t in (target if kind == "tagger" else [target])}
        return start.outputs if found <= set(labels.names) else None
    scale = start.outputs.find(Standardise)
    same = scale is not None and tuple(names) in ((), scale.columns)
    return start.outputs if same else None


def kind_of(start: Preprocessing) -> str | None:
    """The kind of model that data are read for, if nothing else is said; texts may be labelled."""
    return None if start.kind in TEXT_KINDS else start.kind
