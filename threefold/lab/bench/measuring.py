"""seconds(L), bytes(L):  costs of a mixer or a model at growing lengths, and how fast they grow.

Everything that is compared is measured in turns, so that slow phases of the machine affect all of
it; the median of the rounds counts.  Growth is the p of cost ≈ c · L^p, by least squares of
logarithms.
"""

from __future__ import annotations

import ctypes
import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.lab.report.report import Cost
from threefold.memory.state import leaves
from threefold.models.model import Model

Points: TypeAlias = tuple[tuple[int, float], ...]
Work: TypeAlias = Callable[[], object]
Clock: TypeAlias = Callable[[], float]
Name = TypeVar("Name", bound=Hashable)

MIN_ROUNDS, MAX_ROUNDS = 3, 9
SECONDS = 0.4  # time limit of one measurement
MAX_CALL_SECONDS = 6.0  # of one call; if it takes longer, longer sequences are not tried
MIN_LENGTHS = 3  # needed to see growth
DECODED = 16  # elements of one measurement of decoding
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Growth:
    """cost ≈ c · L^exponent; `residual` is the largest relative deviation of a point."""

    exponent: float
    residual: float


def growth(points: Sequence[tuple[float, float]]) -> Growth:
    """The exponent that fits the points best, and how well it fits."""
    if len(points) < 2 or any(x <= 0 or y <= 0 for x, y in points):
        raise ThreefoldError(f"growth of {list(points)}: expected two or more positive points")
    across, upwards = ([math.log(p[i]) for p in points] for i in (0, 1))
    slope, intercept = statistics.linear_regression(across, upwards)
    gaps = [abs(y - intercept - slope * x) for x, y in zip(across, upwards, strict=True)]
    return Growth(slope, math.expm1(max(gaps)))


def crossing(line: Mapping[int, float], other: Mapping[int, float]) -> tuple[float, float] | None:
    """(length, value) from which on `line` stays below `other`, interpolated on logarithmic axes.

    None if it does not cross within the lengths that both have.
    """
    shared = sorted(set(line) & set(other))
    if any(min(line[n], other[n]) <= 0 for n in shared):
        return None
    gaps = [math.log(line[n] / other[n]) for n in shared]
    for i in reversed(range(len(shared) - 1)):
        if gaps[i] > 0 and all(gap <= 0 for gap in gaps[i + 1 :]):
            share = gaps[i] / (gaps[i] - gaps[i + 1])
            left, right = shared[i], shared[i + 1]
            value = line[left] ** (1 - share) * line[right] ** share
            return left ** (1 - share) * right**share, value
    return None


def in_turns(
    works: Mapping[Name, Work],
    seconds: float = SECONDS,
    pick: Callable[[list[float]], float] = statistics.median,
    clock: Clock = time.perf_counter,
) -> dict[Name, float]:
    """Seconds of each call: the median over rounds, after one warm-up round.

    pick=min takes the least disturbed round, for measuring the growth of a single layer.  With one
    thread, clock=time.process_time does not count what other processes of a busy machine take.
    """
    for work in works.values():
        work()
    samples: dict[Name, list[float]] = {name: [] for name in works}
    begin = time.perf_counter()
    for turn in range(MAX_ROUNDS):
        if turn >= MIN_ROUNDS and time.perf_counter() - begin > seconds * len(works):
            break
        for name, work in works.items():
            samples[name].append(_seconds_of(work, clock))
    return {name: pick(taken) for name, taken in samples.items()}


def _seconds_of(work: Work, clock: Clock) -> float:
    start = clock()
    work()
    return clock() - start


def peak_memory(work: Work) -> float:
    """The peak memory of a call in bytes, beyond what was allocated before; NaN if unknown.

    Uses the peak resident size of Linux, which can be reset; free memory of the allocator is
    returned to the system first.
    """
    try:
        _release_free_memory()
        RESET.write_text("5")
        before = _resident("VmRSS")
        work()
        return float(max(0, _resident("VmHWM") - before))
    except OSError:
        return math.nan


def _release_free_memory() -> None:
    """Return free memory to the system, if the C library supports it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resident(name: str) -> int:
    """Resident bytes from /proc: VmRSS now, VmHWM at the peak."""
    line = next(text for text in STATUS.read_text().splitlines() if text.startswith(name))
    return 1024 * int(line.split()[1])


def elements(x: Tensor) -> int:
    """The number of tokens or vectors in an input."""
    return math.prod(x.shape[:-1]) if x.is_floating_point() else x.numel()


def training_step(model: Model, x: Tensor) -> None:
    """Forward and backward pass, without an update."""
    model.train()
    (model.training_outputs(x).float() ** 2).mean().backward()  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        parameter.grad = None


def prefill(model: Model, x: Tensor) -> Any:
    """The state after a sequence; language models compute the last logits only."""
    model.eval()
    with torch.no_grad():
        return model.prefill(x)


def decode(model: Model, x: Tensor, state: Any, elements: int = DECODED) -> None:
    """Read elements one by one, each with the state of the one before."""
    following = model.continuation(x, elements)
    with torch.no_grad():
        for i in range(elements):
            state = model.respond(following[:, i : i + 1], state, last=True)[1]


def costs(
    models: Mapping[str, Any],
    lengths: Sequence[int],
    *,
    tokens: int = 4096,
    seconds: float = SECONDS,
    limit: float = math.inf,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Cost]:
    """The costs of each model at each length; batches have about `tokens` elements.

    Lengths that a model refuses, or that take too long, are left out for this model.  No length is
    begun that would take more than the `limit` in seconds, if it takes as long as the last one.
    """
    begin = before = time.monotonic()
    meter = CostMeter(models, seconds, progress)
    for i, length in enumerate(sorted(lengths)):
        now = time.monotonic()
        if i and now - begin + (now - before) > limit:
            break
        before = now
        meter.measure(length, max(1, tokens // length))
    return meter.costs()


class CostMeter:
    """Measures several models in turns, length by length."""

    def __init__(
        self, models: Mapping[str, Any], seconds: float, progress: Callable[[str], None]
    ) -> None:
        self.models, self.seconds, self.progress = models, seconds, progress
        fields = Cost.__dataclass_fields__
        self.points: dict[str, dict[str, list[tuple[int, float]]]] = {
            name: {field: [] for field in fields} for name in models
        }
        # Fields that a model refused or that took too long; they are not measured any more.
        self.skipped: dict[str, set[str]] = {name: set() for name in models}

    def measure(self, length: int, rows: int) -> None:
        """All costs at one length, with batches of `rows` rows and with single rows."""
        batches = {n: m.example_inputs(rows, length) for n, m in self.models.items()}
        singles = {n: x[:1] for n, x in batches.items()}
        count = elements(next(iter(batches.values())))
        self._throughput("training", length, training_step, batches, count)
        self._throughput("inference", length, prefill, batches, count)
        for name, taken in self._time("prefill", length, self._works(prefill, singles)).items():
            self.points[name]["prefill"].append((length, taken))
        states = self._states(singles)
        works = {
            name: _bound(decode, self.models[name], singles[name], state)
            for name, state in states.items()
        }
        for name, taken in self._time("decode", length, works).items():
            self.points[name]["decode"].append((length, taken / DECODED))
        self._memory(length, singles)
        for name, state in states.items():
            size = sum(leaf.nbytes for _, leaf in leaves(state))
            self.points[name]["state"].append((length, float(size)))

    def costs(self) -> dict[str, Cost]:
        """Everything measured so far."""
        return {
            name: Cost(**{field: _known(points) for field, points in by_field.items()})
            for name, by_field in self.points.items()
        }

    def _works(
        self, function: Callable[..., object], inputs: Mapping[str, Tensor]
    ) -> dict[str, Work]:
        return {name: _bound(function, self.models[name], x) for name, x in inputs.items()}

    def _throughput(
        self,
        field: str,
        length: int,
        function: Callable[..., object],
        inputs: Mapping[str, Tensor],
        count: int,
    ) -> None:
        """Elements per second of a call with `count` elements."""
        for name, taken in self._time(field, length, self._works(function, inputs)).items():
            self.points[name][field].append((length, count / taken))

    def _time(self, field: str, length: int, works: Mapping[str, Work]) -> dict[str, float]:
        """Seconds of each call; models that refuse or are slow are skipped from then on."""
        self.progress(f"{field} at {length:,}")
        able = {n: w for n, w in works.items() if field not in self.skipped[n] and _runs(w)}
        times = in_turns(able, self.seconds)
        slow = {name for name, taken in times.items() if taken > MAX_CALL_SECONDS / 4}
        for name in slow | (set(works) - set(able)):
            self.skipped[name].add(field)
        return times

    def _states(self, singles: Mapping[str, Tensor]) -> dict[str, Any]:
        """States after one row, of the models that stream."""
        streaming = {
            name: model
            for name, model in self.models.items()
            if "inference" not in self.skipped[name] and _streams(model)
        }
        return {name: prefill(model, singles[name]) for name, model in streaming.items()}

    def _memory(self, length: int, singles: Mapping[str, Tensor]) -> None:
        for name, model in self.models.items():
            if "training" not in self.skipped[name]:
                work = _bound(training_step, model, singles[name])
                self.points[name]["memory"].append((length, peak_memory(work)))


def _bound(function: Callable[..., object], *arguments: Any) -> Work:
    return lambda: function(*arguments)


def _runs(work: Work) -> bool:
    try:
        work()
    except ThreefoldError:
        return False
    return True


def _streams(model: Any) -> bool:
    """Whether a model carries a state from call to call."""
    return bool(getattr(model, "causal", False)) and not getattr(model, "paired", False)


def _known(points: Sequence[tuple[int, float]]) -> Points:
    return tuple(point for point in points if math.isfinite(point[1]))
