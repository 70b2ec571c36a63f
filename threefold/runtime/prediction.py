"""Answers of a trained model for raw inputs, in the user's own words and units.

    classifier   {"label", "probability", "probabilities"}     language, seq2seq   {"text"}
    regressor    {"value"}, or one value per output            tagger              {"words", "tags"}
    simple       as classifier or regressor
    masked       {"text"}, with its gaps filled                xlnet               {"text", "bits"}
    captioner    {"text"}                                      hierarchical        as classifier
    forecaster   {"step", "time", "flow", "flow_q0.1", …} for each step ahead (`forecasting.py`)

The answer to an empty input has the same names with None, and a note tells it.
Inputs are padded to batches; padding does not exist for a model, so answers do not depend on the
batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from threefold.data.padding import pad_rows
from threefold.data.permutation import cover_ranks
from threefold.data.preprocessing import Chain, Preprocessing
from threefold.data.preprocessing.numbers import Standardise
from threefold.data.preprocessing.text import Labels, Tokenize, TokenizeMasked, WordPieces
from threefold.errors import ThreefoldError
from threefold.models.model import Model
from threefold.models.saving import load
from threefold.runtime.answers import Answers
from threefold.runtime.decoding import eval_mode
from threefold.runtime.generation import generate
from threefold.runtime.input_notes import input_notes
from threefold.runtime.raw_inputs import RawInput, read_raw_inputs
from threefold.runtime.table_forecasts import forecast_table
from threefold.tasks.pairs import BEGIN, END, pairs
from threefold.tasks.table import IMAGE_KINDS

BATCH_SIZE = 32
MOST_NEW_TOKENS = 128
LISTS = ("words", "tags")  # in answers of taggers
Progress = Callable[[int, int], None]


def predict(
    model: Model | str | PathLike[str],
    inputs: Any,
    *,
    batch_size: int = BATCH_SIZE,
    horizon: int | None = None,
    future: Any = None,
    on_progress: Progress | None = None,
) -> Answers:
    """Answer raw inputs: texts, paths, data frames, arrays, or lists of them.

    model: a model, or the folder of one or of a run.  horizon: steps of a forecast, default those
    that were trained.  future: a table of the known inputs of the rows to forecast, for a model
    that reads them; default: rows behind the last target.  on_progress: called with the numbers of
    answered inputs and of all inputs.
    """
    network = model if isinstance(model, Model) else load(model)
    preprocessing = find_preprocessing(network)
    if network.kind == "forecaster":
        return forecast_table(network, preprocessing, inputs, horizon, future)
    if horizon is not None:
        raise ThreefoldError(f"horizon is {horizon}, but this is a {network.kind} model")
    if future is not None:
        raise ThreefoldError(f"future rows are given, but this is a {network.kind} model")
    rows = read_raw_inputs(preprocessing, inputs)
    encoded = [encode(preprocessing.inputs, row) for row in rows]
    full = [number for number, elements in enumerate(encoded) if len(elements)]
    if not full:
        raise empty_input(rows[0])
    filled = [encoded[number] for number in full]
    answers = _in_batches(network, preprocessing, filled, batch_size, on_progress)
    if network.kind == "tagger" and preprocessing.form == "words":
        tagged = zip(full, answers, strict=True)
        answers = [_tagged_words(preprocessing, rows[n].value, answer) for n, answer in tagged]
    by_number = dict(zip(full, answers, strict=True))
    every = [by_number.get(number) or _no_answer(answers[0]) for number in range(len(rows))]
    notes = [*rows.notes, *input_notes(preprocessing.inputs, rows, encoded)]
    columns = [_own_columns(*pair) for pair in zip(rows, every, strict=True)]
    return Answers(every, [row.source for row in rows], columns, notes)


def _in_batches(
    model: Model,
    preprocessing: Preprocessing,
    encoded: Sequence[Any],
    batch_size: int,
    on_progress: Progress | None,
) -> list[dict[str, Any]]:
    """The answers to encoded inputs, in their order."""
    answers: list[Any] = [None] * len(encoded)
    done = 0
    with torch.no_grad(), eval_mode(model):
        for numbers in _batches(encoded, batch_size):
            batch = [encoded[number] for number in numbers]
            for number, answer in zip(numbers, _answer(model, preprocessing, batch), strict=True):
                answers[number] = answer
            done += len(batch)
            if on_progress is not None:
                on_progress(done, len(encoded))
    return answers


def _no_answer(other: dict[str, Any]) -> dict[str, Any]:
    """The answer to an empty input: the names of another answer, without its values."""
    empty: dict[str, Any] = {}
    for name, value in other.items():
        is_dict = isinstance(value, dict)
        empty[name] = dict.fromkeys(value) if is_dict else [] if name in LISTS else None
    return empty


def _tagged_words(
    preprocessing: Preprocessing, words: Sequence[str], answer: dict[str, Any]
) -> dict[str, Any]:
    """The words of a sentence with their tags, of which several tokens of a word have one."""
    tags, pieces = answer["tags"], preprocessing.inputs.find(WordPieces)
    if pieces is not None:
        tags = [tags[end] for end in pieces.ends(words)]
    return {"words": list(words[: len(tags)]), **answer, "tags": tags}


def _own_columns(row: RawInput, answer: dict[str, Any]) -> dict[str, Any]:
    """What the user's table has beside an input; lists have a cell for each element."""
    elements = len(answer.get("tags", ()))
    return {
        name: cells[:elements] if isinstance(cells, list) else cells
        for name, cells in row.columns.items()
    }


def pooled_outputs(
    model: Any, encoded: Sequence[Any], batch_size: int = BATCH_SIZE
) -> np.ndarray[Any, Any]:
    """What a classifier or regressor returns [N, outputs] for encoded inputs, in their order."""
    outputs: list[Any] = [None] * len(encoded)
    with torch.no_grad(), eval_mode(model):
        for numbers in _batches(encoded, batch_size):
            inputs, mask = _padded(model, [encoded[number] for number in numbers])
            answers = model(inputs, mask=mask)[0].double().cpu().numpy()
            for number, answer in zip(numbers, answers, strict=True):
                outputs[number] = answer
    return np.stack(outputs)


def find_preprocessing(
    model: Model, remedy: str = "call the model with tensors, or train it with `threefold train`"
) -> Preprocessing:
    """What stands between raw inputs and a model; of language models the tokenizer suffices."""
    if model.preprocessing is not None:
        return model.preprocessing
    if model.tokenizer is not None and model.kind == "language":
        return Preprocessing("language", "text", Chain((Tokenize.by(model.tokenizer),)))
    raise ThreefoldError(
        f"this {model.kind} model does not know how its inputs were prepared, so it cannot read "
        f"raw data; {remedy}"
    )


def _batches(encoded: Sequence[Any], size: int) -> Iterator[list[int]]:
    """The numbers of encoded inputs, in batches of similar lengths."""
    order = sorted(range(len(encoded)), key=lambda number: len(encoded[number]))
    for first in range(0, len(order), size):
        yield order[first : first + size]


def encode(chain: Chain, row: RawInput) -> np.ndarray[Any, Any]:
    """The elements of one input; an error names its source."""
    try:
        encoded: np.ndarray[Any, Any] = chain.apply(row.value)
    except ThreefoldError as error:
        known = str(error).startswith(row.source)
        raise ThreefoldError(str(error) if known else f"{row.source}: {error}") from error
    except ValueError as error:
        scales = chain.find(Standardise)
        trained = f" of {len(scales.mean)} numbers per element" if scales is not None else ""
        raise ThreefoldError(
            f"{row.source}: has the shape {np.shape(row.value)}, which does not fit the model's "
            f"training data{trained}"
        ) from error
    return encoded


def empty_input(row: RawInput) -> ThreefoldError:
    """The refusal of an input without elements, where there are no others to answer."""
    return ThreefoldError(f"{row.source}: the input is empty; expected at least one element")


def _answer(model: Any, preprocessing: Preprocessing, batch: list[Any]) -> list[dict[str, Any]]:
    answer = {
        "classifier": _labels,
        **dict.fromkeys(IMAGE_KINDS, _labels),
        "hierarchical": _labels,
        "regressor": _numbers,
        "simple": _of_simple,
        "tagger": _tags,
        "language": _continuations,
        "masked": _filled,
        "xlnet": _filled_in_order,
    }.get(model.kind, _translations)
    return answer(model, preprocessing, batch)


def _padded(model: Any, batch: list[Any]) -> tuple[Tensor, Tensor]:
    table, lengths = pad_rows(batch)
    tokens = table.dtype.kind in "iu"
    dtype = torch.int64 if tokens else model.dtype
    inputs = torch.from_numpy(table).to(model.device, dtype)
    mask = torch.arange(inputs.shape[1]) < torch.from_numpy(lengths).unsqueeze(1)
    return inputs, mask.to(model.device)


def _labels(model: Any, preprocessing: Preprocessing, batch: list[Any]) -> list[dict[str, Any]]:
    inputs, mask = _padded(model, batch)
    logits = model(inputs)[0] if model.kind in IMAGE_KINDS else model(inputs, mask=mask)[0]
    probabilities = logits.double().softmax(-1).cpu().numpy()
    step: Labels = preprocessing.outputs.find(Labels)
    return [
        {
            "label": step.names[number],
            "probability": float(row[number]),
            "probabilities": dict(zip(step.names, row.tolist(), strict=True)),
        }
        for number, row in zip(step.decide(probabilities).tolist(), probabilities, strict=True)
    ]


def _numbers(model: Any, preprocessing: Preprocessing, batch: list[Any]) -> list[dict[str, Any]]:
    inputs, mask = _padded(model, batch)
    scale = preprocessing.outputs.find(Standardise)
    outputs = model(inputs, mask=mask)[0].double().cpu().numpy().reshape(len(batch), -1)
    values = preprocessing.outputs.invert(outputs).tolist()
    if len(scale.columns) == 1:
        return [{"value": row[0]} for row in values]
    return [dict(zip(scale.columns, row, strict=True)) for row in values]


def _of_simple(model: Any, preprocessing: Preprocessing, batch: list[Any]) -> list[dict[str, Any]]:
    answers = _labels if model.spec.option("classes") else _numbers
    return answers(model, preprocessing, batch)


def _tags(model: Any, preprocessing: Preprocessing, batch: list[Any]) -> list[dict[str, Any]]:
    inputs, mask = _padded(model, batch)
    best = model(inputs, mask=mask)[0].argmax(-1).cpu().tolist()
    return [
        {"tags": preprocessing.outputs.invert(row[: len(x)])}
        for row, x in zip(best, batch, strict=True)
    ]


def _continuations(
    model: Any, preprocessing: Preprocessing, batch: list[Any]
) -> list[dict[str, Any]]:
    answers = []
    for prompt in batch:
        tokens = torch.from_numpy(prompt).unsqueeze(0).to(model.device)
        made = generate(model, tokens, max_tokens=MOST_NEW_TOKENS, temperature=0.0).rows()[0]
        answers.append({"text": preprocessing.inputs.invert(made)})
    return answers


def _filled(model: Any, preprocessing: Preprocessing, batch: list[Any]) -> list[dict[str, Any]]:
    """Texts with the likeliest token in place of every `[MASK]`."""
    step: TokenizeMasked = preprocessing.inputs.find(TokenizeMasked)
    inputs, mask = _padded(model, batch)
    best = model(inputs, mask=mask)[0][..., : step.mask_token].argmax(-1)
    filled = best.where(inputs == step.mask_token, inputs).cpu().tolist()
    return [{"text": step.invert(row[: len(x)])} for row, x in zip(filled, batch, strict=True)]


def _filled_in_order(
    model: Any, preprocessing: Preprocessing, batch: list[Any]
) -> list[dict[str, Any]]:
    """Texts whose gaps `[MASK]` are filled from left to right, each given those before it.

    bits: −log₂ p per token of the whole text, each sixth of it given the rest, as in training.
    """
    step: TokenizeMasked = preprocessing.inputs.find(TokenizeMasked)
    inputs, mask = _padded(model, batch)
    gaps = (inputs == step.mask_token) & mask
    ranks = gaps.cumsum(1).where(gaps, 0)
    inputs = inputs.masked_fill(gaps, 0)
    for rank in range(1, int(ranks.max()) + 1):  # a gap reads no gap of a higher rank
        best = model(inputs, mask=mask, ranks=ranks)[0].argmax(-1)
        inputs = best.where(ranks == rank, inputs)
    nats = torch.zeros(len(batch), dtype=torch.float64, device=model.device)
    for part in cover_ranks([len(x) for x in batch]).to(model.device):
        logits = model(inputs, mask=mask, ranks=part)[0].double().log_softmax(-1)
        scores = logits.gather(-1, inputs.unsqueeze(-1)).squeeze(-1)
        nats -= scores.where(part > 0, 0.0).sum(1)
    bits = nats / mask.sum(1) / math.log(2)
    rows = zip(inputs.cpu().tolist(), batch, bits.tolist(), strict=True)
    return [{"text": step.invert(row[: len(x)]), "bits": score} for row, x, score in rows]


def _translations(
    model: Any, preprocessing: Preprocessing, batch: list[Any]
) -> list[dict[str, Any]]:
    rows = translate(model, preprocessing, batch)
    return [{"text": preprocessing.outputs.invert(row)} for row in rows]


def translate(model: Any, preprocessing: Preprocessing, batch: list[Any]) -> list[list[int]]:
    """The tokens of greedy translations or captions of sources, their ends included."""
    step = preprocessing.outputs.find(Tokenize)
    if model.kind == "captioner":
        state = model.encode(torch.from_numpy(np.stack(batch)).to(model.device, model.dtype))
    else:
        rows = [row.tolist() for row in batch]
        made = pairs("inputs", rows, rows, 0, 0)  # the targets are not used
        mask = made.source_mask
        source = made.source.to(model.device)
        state = model.encode(source, mask=None if mask is None else mask.to(model.device))
    begin = torch.full((len(batch), 1), BEGIN, device=model.device)
    most = (step.length or MOST_NEW_TOKENS) + 1
    return generate(model, begin, state, max_tokens=most, stop=END, temperature=0.0).rows()
