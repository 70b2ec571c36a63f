"""seconds(L), bytes(L):  what a mixer or a model costs at growing lengths, and how fast that grows.

Those who are compared take turns, so that a slow moment of the machine meets all of them, and the
median of the rounds counts.  Growth is the p of cost ≈ c · L^p, by least squares of logarithms.
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
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.lab.report.report import Cost
from threefold.memory.state import leaves
from threefold.models.spec import Spec
from threefold.models.translator import Translator

Points: TypeAlias = tuple[tuple[int, float], ...]
Work: TypeAlias = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)

ROUNDS = 9  # at most
LEAST = 3
SECONDS = 0.4  # of one measurement, if the rounds are not over before
PATIENCE = 6.0  # seconds of one call, beyond which a longer length is not tried
FEWEST = 3  # lengths, without which nothing is known of growth
WINDOW = 16  # elements of one measurement of decoding
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Growth:
    """cost ≈ c · L^exponent; `residual` is the largest part by which a point is off that."""

    exponent: float
    residual: float


def growth(points: Sequence[tuple[float, float]]) -> Growth:
    """The exponent that fits the points best, and how well it does."""
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
) -> dict[Name, float]:
    """Seconds of each, the median of rounds, after one round that does not count.

    pick=min: the least disturbed round, where only the growth of one work is asked for.
    """
    for work in works.values():
        work()
    samples: dict[Name, list[float]] = {name: [] for name in works}
    begin = time.perf_counter()
    for turn in range(ROUNDS):
        if turn >= LEAST and time.perf_counter() - begin > seconds * len(works):
            break
        for name, work in works.items():
            start = time.perf_counter()
            work()
            samples[name].append(time.perf_counter() - start)
    return {name: pick(taken) for name, taken in samples.items()}


def peak_memory(work: Work) -> float:
    """Bytes that a call needs at most beyond what was there before; NaN where nobody can tell.

    The largest resident size since it was reset, which Linux keeps; what earlier work left in
    the allocator is given back first.
    """
    try:
        _give_back()
        RESET.write_text("5")
        before = _resident("VmRSS")
        work()
        return float(max(0, _resident("VmHWM") - before))
    except OSError:
        return math.nan


def _give_back() -> None:
    """Hand free memory back to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _resident(name: str) -> int:
    """Bytes, as Linux says: VmRSS now, VmHWM at most."""
    line = next(text for text in STATUS.read_text().splitlines() if text.startswith(name))
    return 1024 * int(line.split()[1])


def some_input(spec: Spec, batch: int, length: int) -> Tensor:
    """Tokens or numbers that a model of this spec can read; a translator's source and target."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch, 2, length) if spec.option("pair", False) else (batch, length)
    size = spec.option("input_size", 0)
    if spec.kind == "forecaster":
        size = spec.option("channels") + spec.option("exogenous")
    if size:
        return torch.randn(*shape, size, generator=generator)
    most = min(spec.vocabulary, spec.option("source_vocabulary", 0) or spec.vocabulary)
    return torch.randint(most, shape, generator=generator)


def elements(x: Tensor) -> int:
    """Tokens, or vectors."""
    return math.prod(x.shape[:-1]) if x.is_floating_point() else x.numel()


def training_step(model: nn.Module, x: Tensor) -> None:
    """Forward and backward, without an update."""
    model.train()
    answer: Tensor = (model(x, model.encode(x)) if isinstance(model, Translator) else model(x))[0]
    (answer.float() ** 2).mean().backward()  # type: ignore[no-untyped-call]
    for parameter in model.parameters():
        parameter.grad = None


def reading(model: nn.Module, x: Tensor) -> Any:
    """The state after a sequence; of a language model only the last logits are made."""
    model.eval()
    last = {"last": True} if hasattr(model, "step") and x.dim() == 2 else {}
    with torch.no_grad():
        return model.encode(x) if isinstance(model, Translator) else model(x, **last)[1]


def writing(model: nn.Module, x: Tensor, state: Any, elements: int = WINDOW) -> None:
    """Some elements one by one, each from the state after the one before."""
    with torch.no_grad():
        for i in range(elements):
            state = model(x[:, i : i + 1], state)[1]


def costs(
    models: Mapping[str, Any],
    lengths: Sequence[int],
    *,
    tokens: int = 4096,
    seconds: float = SECONDS,
    limit: float = math.inf,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Cost]:
    """What each model costs at each length; batches have as many rows as `tokens` allow.

    A length that one of them refuses, or would take too long for, is left out for it; when half of
    the `limit` of seconds is over, no length beyond the third is begun.
    """
    begin = time.monotonic()
    found: dict[str, dict[str, list[tuple[int, float]]]] = {
        name: {field: [] for field in Cost.__dataclass_fields__} for name in models
    }
    tired: dict[str, set[str]] = {name: set() for name in models}  # fields that are over

    def note(field: str, length: int, works: Mapping[str, Work], per: float, rate: bool) -> None:
        progress(f"{field} at {length:,}")
        able = {n: w for n, w in works.items() if field not in tired[n] and _runs(w)}
        for name, taken in in_turns(able, seconds).items():
            found[name][field].append((length, per / taken if rate else taken / per))
            if taken > PATIENCE / 4:
                tired[name].add(field)
        for name in set(works) - set(able):
            tired[name].add(field)

    for place, length in enumerate(sorted(lengths)):
        if place >= FEWEST and time.monotonic() - begin > limit / 2:
            break
        rows = max(1, tokens // length)
        batches = {n: some_input(m.spec, rows, length) for n, m in models.items()}
        ones = {n: x[:1] for n, x in batches.items()}
        train = {n: _bound(training_step, m, batches[n]) for n, m in models.items()}
        count = elements(next(iter(batches.values())))
        note("training", length, train, count, True)
        read = {n: _bound(reading, m, batches[n]) for n, m in models.items()}
        note("inference", length, read, count, True)
        note(
            "prefill", length, {n: _bound(reading, m, ones[n]) for n, m in models.items()}, 1, False
        )
        streams = {n: m for n, m in models.items() if "inference" not in tired[n] and _streams(m)}
        states = {n: reading(m, ones[n]) for n, m in streams.items()}
        steps = {n: _bound(writing, m, ones[n], states[n]) for n, m in streams.items()}
        note("decode", length, steps, WINDOW, False)
        for name, model in models.items():
            if "training" not in tired[name]:
                work = _bound(training_step, model, ones[name])
                found[name]["memory"].append((length, peak_memory(work)))
        for name, state in states.items():
            size = sum(leaf.nbytes for _, leaf in leaves(state))
            found[name]["state"].append((length, float(size)))
    return {n: Cost(**{f: _known(points) for f, points in c.items()}) for n, c in found.items()}


def _bound(function: Callable[..., object], *arguments: Any) -> Work:
    return lambda: function(*arguments)


def _runs(work: Work) -> bool:
    try:
        work()
    except ThreefoldError:
        return False
    return True


def _streams(model: Any) -> bool:
    """Whether it carries a state from call to call, of something that goes on."""
    return bool(getattr(model, "causal", False)) and not getattr(model, "paired", False)


def _known(points: Sequence[tuple[int, float]]) -> Points:
    return tuple(point for point in points if math.isfinite(point[1]))
