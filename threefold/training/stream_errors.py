"""Errors along one long stream: with the state carried all the way, and with a fresh one.

    carried   the state has read every element from the beginning of the stream
    fresh     the state began 200 elements before (a forecast: with the window that it was
              trained to read), so it has the age of those in training

Both are errors of the same elements, so that their ratio does not depend on how hard a part of the
stream is.  A ratio of 1 at every place says that the state may be carried for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.models.forecaster import Forecaster
from threefold.runtime.decoding import eval_mode
from threefold.tasks.task import Task

Array = NDArray[Any]
FRESH = 200  # elements that a fresh state has read
FAR = 20_000  # elements after which a state is far from its beginning
MOST_ELEMENTS = 1_000_000
PIECE, ROWS = 2048, 32  # elements read at once, and rows of fresh states
PLACES = (200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000)
LEAST = 50  # errors of a bin
MOST_CARRIED = 1.02  # error of a carried state, beside that of windows, for streams to carry it

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class StreamErrors:
    """Errors of the same elements, in the order of the stream."""

    positions: Array  # elements of the stream before each
    carried: Array
    fresh: Array
    unit: str  # of the errors

    @property
    def ratio(self) -> float | None:
        """Carried beside fresh far from the beginning; None if the stream is too short."""
        far = self.positions >= FAR
        return _ratio(self, far) if far.sum() >= LEAST else None

    @property
    def overall(self) -> float:
        """Carried beside fresh at all places."""
        return _ratio(self, np.ones(len(self.positions), bool))

    def values(self) -> dict[str, Any]:
        """By place, as JSON values."""
        ends = [0, *(place for place in PLACES if place < self.positions[-1]), MOST_ELEMENTS]
        lines = []
        for begin, end in pairwise(ends):
            inside = (self.positions >= begin) & (self.positions < end)
            if inside.sum() < LEAST:
                continue
            errors = {"carried": self.carried, "fresh": self.fresh}
            means = {name: float(np.nanmean(part[inside])) for name, part in errors.items()}
            last = min(end, int(self.positions[-1]) + 1)
            lines.append({"begin": begin, "end": last, "count": int(inside.sum()), **means})
        return {"unit": self.unit, "ratio_far": self.ratio, "far": FAR, "lines": lines}


def _ratio(errors: StreamErrors, chosen: Array) -> float:
    fresh = float(np.nanmean(errors.fresh[chosen]))
    return float(np.nanmean(errors.carried[chosen])) / fresh if fresh else 1.0


def stream_errors(
    model: Any, task: Task[Any], split: str, on_progress: OnProgress | None = None
) -> StreamErrors:
    """The errors of a language model or a forecaster along a split of a task."""
    show = on_progress or (lambda done, total: None)
    if isinstance(model, Forecaster) and task.windows is not None:
        return _forecast_errors(model, task, split, show)
    if model.kind == "language" and task.corpus is not None:
        corpus = task.corpus()
        tokens = np.asarray(corpus.tokens[split][: MOST_ELEMENTS + 1], np.int64)
        return _token_errors(model, torch.from_numpy(tokens), corpus.tokenizer, show)
    raise ThreefoldError(
        f"errors by position need a language model or a forecaster of a series, and this is a "
        f"{model.kind} model; leave by_position out"
    )


def _token_errors(model: Any, tokens: Tensor, tokenizer: Any, show: OnProgress) -> StreamErrors:
    """Bits per byte, or per token if the bytes are unknown, of every token but the first 400."""
    if len(tokens) < 3 * FRESH:
        raise ThreefoldError(
            f"a stream of {len(tokens)} tokens is too short to compare its places; expected at "
            f"least {3 * FRESH}"
        )
    tokens = tokens.to(model.device)
    with torch.no_grad(), eval_mode(model):
        carried = torch.cat(list(_carried_nats(model, tokens, show)))
        fresh = torch.cat(list(_fresh_nats(model, tokens, show)))
    count = len(fresh)
    text = None if tokenizer is None else tokenizer.decode(tokens[1:].tolist())
    per_token = 1.0 if text is None else len(text.encode()) / (len(tokens) - 1)
    scale = 1 / np.log(2) / max(per_token, 1e-9)
    # The nats of token i + 1 are those after i + 1 elements.
    positions = np.arange(FRESH + 1, FRESH + 1 + count)
    beside = carried[FRESH : FRESH + count]
    unit = "bits_per_token" if text is None else "bits_per_byte"
    return StreamErrors(positions, beside.numpy() * scale, fresh.numpy() * scale, unit)


def _carried_nats(model: Any, tokens: Tensor, show: OnProgress) -> Iterator[Tensor]:
    state = None
    for first in range(0, len(tokens) - 1, PIECE):
        piece = tokens[first : first + PIECE + 1]
        logits, state = model(piece[None, :-1], state)
        yield _nats(logits, piece[None, 1:])[0]
        show(min(first + PIECE, len(tokens)), 2 * len(tokens))


def _fresh_nats(model: Any, tokens: Tensor, show: OnProgress) -> Iterator[Tensor]:
    """Of the tokens from number FRESH + 1 on, each from a state that has read 200 to 400."""
    rows = tokens[: (len(tokens) - 1) // FRESH * FRESH + 1].unfold(0, 2 * FRESH + 1, FRESH)
    for first in range(0, len(rows), ROWS):
        chosen = rows[first : first + ROWS]
        logits, _ = model(chosen[:, :-1])
        yield _nats(logits, chosen[:, 1:])[:, FRESH:].flatten()
        show(len(tokens) + min(first * FRESH, len(tokens)), 2 * len(tokens))


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    chosen = logits.double().log_softmax(-1).gather(-1, targets.unsqueeze(-1))
    return -chosen.squeeze(-1).cpu()


def _forecast_errors(
    model: Forecaster, task: Task[Any], split: str, show: OnProgress
) -> StreamErrors:
    """Absolute errors of the forecasts of a split; the stream begins with the series."""
    windows = task.windows
    begins = windows.begins[split]
    member = int(np.bincount(windows.members(begins)).argmax())
    offset = int(windows.offsets[member])
    chosen = np.flatnonzero(windows.members(begins) == member)[:MOST_ELEMENTS]
    last = int(begins[chosen[-1]])
    first = max(offset, last - MOST_ELEMENTS)
    inputs = torch.from_numpy(windows.inputs[first:last]).to(model.device, model.dtype)
    chosen = chosen[begins[chosen] > first]
    # The carried state has read much; windows are computed for some of the origins.
    chosen = chosen[:: max(1, len(chosen) // 2000)]
    places = begins[chosen] - first
    with torch.no_grad(), eval_mode(model):
        carried = _carried_forecasts(model, inputs, places, show)
        fresh = _window_forecasts(model, task, split, chosen)
    truth = windows.targets[begins[chosen][:, None] + np.arange(model.horizon)]
    beside, alone = (np.nanmean(np.abs(part - truth), (1, 2)) for part in (carried, fresh))
    return StreamErrors(places, beside, alone, "mae")


def _carried_forecasts(model: Forecaster, inputs: Tensor, places: Array, show: OnProgress) -> Array:
    """Point forecasts [n, horizon, channels] after so many elements of one stream."""
    state, parts = None, []
    for first in range(0, len(inputs), PIECE):
        piece = inputs[None, first : first + PIECE]
        outputs, state = model.respond(piece, state)
        inside = places[(places > first) & (places <= first + piece.shape[1])] - first - 1
        parts.append(model.point_forecast(outputs[0, torch.from_numpy(inside)]).double().cpu())
        show(first, 2 * len(inputs))
    return np.asarray(torch.cat(parts).numpy())


def _window_forecasts(model: Forecaster, task: Task[Any], split: str, numbers: Array) -> Array:
    parts = []
    for first in range(0, len(numbers), ROWS):
        rows = task.rows(split, numbers[first : first + ROWS]).inputs
        outputs, _ = model.respond(rows.to(model.device, model.dtype), last=True)
        parts.append(model.point_forecast(outputs).double().cpu())
    return np.asarray(torch.cat(parts).numpy())


def choose_past(model: Forecaster, data: Any) -> dict[str, Any]:
    """Let streams carry the state if that is as good as windows on the validation split.

    Returns what was measured, for summary.json.
    """
    errors = stream_errors(model, data.task, "valid")
    carries = errors.overall <= MOST_CARRIED
    if model.preprocessing is not None:
        model.preprocessing = replace(model.preprocessing, carried=carries)
    return {"error_beside_windows": errors.overall, "used_by_streams": carries}
