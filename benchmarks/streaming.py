"""`threefold stream` over 20 million bytes: memory, time per byte, same output after resuming.

The command runs in its own process and records its position, time and resident memory, and how long
a fixed piece of work takes, because a machine does not keep its speed for minutes. A second run is
interrupted by SIGTERM and resumed; its output must be the same, or nothing is printed.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.measure import Comparison, MemoryComparison, Progress, Result, max_ratio
from threefold import LanguageModel, Spec
from threefold.data import ByteTokenizer, python_reference
from threefold.runtime.scores.files import as_json_lines
from threefold.runtime.stream_settings import plan_chunk_size
from threefold.runtime.streaming import stream

BYTES = 20_000_000
BYTES_PER_LINE = 100
SLICES = 20  # per tenth of the input
FIXED_WORK_EVERY = 8  # pieces
GROWTH_LIMIT = 5_000_000  # bytes of resident memory, after the first megabyte
MEMORY = ("kept",)  # as in `threefold stream`
WATCHER = "from benchmarks.streaming import watch; watch()"


class Sample(NamedTuple):
    """The state of a run after one piece of its input."""

    position: int  # bytes of the input that are done
    seconds: float
    processor: float  # seconds of processor time
    resident: int  # bytes
    fixed: float  # seconds of processor time of the fixed work; 0 if it was not done here


def watch() -> None:
    """Run `argv[3:]` as a threefold command, write samples to `argv[1]`, stop at byte `argv[2]`."""
    from threefold.cli import main
    from threefold.data.progress import Meter

    path, stop, *arguments = sys.argv[1:]
    torch.set_num_threads(1)
    page = os.sysconf("SC_PAGE_SIZE")
    matrix, row = torch.randn(96, 96), torch.randn(20_000)

    def work() -> float:
        start = time.process_time()
        for _ in range(20):
            _ = matrix @ matrix, row.exp(), sum(range(2000))
        return time.process_time() - start

    # Pieces, and the time spent on the fixed work by both clocks, which is not counted.
    count, spent, waited = 0, 0.0, 0.0
    with open(path, "w") as notes, open("/proc/self/statm") as memory:

        def show(meter: Meter, position: int, elements: int) -> None:
            nonlocal count, spent, waited
            count += 1
            memory.seek(0)
            resident = int(memory.read().split()[1]) * page
            now, used = time.monotonic(), time.process_time()
            fixed = 0.0 if count % FIXED_WORK_EVERY else work()
            sample = Sample(elements, now - waited, used - spent, resident, fixed)
            notes.write(json.dumps(sample) + "\n")
            waited, spent = waited + time.monotonic() - now, spent + time.process_time() - used
            if elements == int(stop):
                os.kill(os.getpid(), signal.SIGTERM)

        Meter.show = show  # type: ignore[method-assign]
        main(arguments)


@dataclass(frozen=True)
class StreamRuns:
    """Two runs over the same input, one of them interrupted and resumed."""

    folder: Path
    count: int
    piece: int

    def run_command(self, name: str, stop: int) -> list[Sample]:
        notes = self.folder / "notes"
        options = [
            "--output",
            f"{name}.jsonl",
            "--state",
            name,
            "--group-size",
            str(BYTES_PER_LINE),
        ]
        arguments = ["stream", "model", "input", *options]
        done = subprocess.run(
            [sys.executable, "-c", WATCHER, str(notes), str(stop), *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        if done.returncode != (130 if stop else 0):
            raise RuntimeError(done.stderr)
        return [Sample(*json.loads(line)) for line in notes.read_text().splitlines()]

    def digest(self, name: str) -> str:
        with open(self.folder / f"{name}.jsonl", "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def measure(self, progress: Progress = lambda _: None) -> list[Sample]:
        progress("streaming: a run without interruption")
        samples = self.run_command("uninterrupted", 0)
        progress("streaming: an interrupted and resumed run")
        middle = self.count // 2 // self.piece * self.piece
        self.run_command("resumed", middle)
        rest = self.run_command("resumed", 0)
        if samples[-1].position != self.count or rest[-1].position != self.count - middle:
            raise AssertionError("a run did not reach the end of its input")
        if self.digest("resumed") != self.digest("uninterrupted"):
            raise AssertionError("the output of the resumed run differs from the uninterrupted one")
        return samples


def rates(samples: list[Sample], clock: int) -> list[float]:
    """Seconds per byte in each slice, by wall clock (1) or processor time (2)."""
    size = max(1, len(samples) // SLICES)
    ends = samples[::size]
    return [(b[clock] - a[clock]) / (b[0] - a[0]) for a, b in pairwise(ends)]


def fixed_work_time(samples: list[Sample]) -> float:
    """Median time of the fixed work."""
    return statistics.median([s.fixed for s in samples if s.fixed] or [1.0])


@dataclass(frozen=True)
class Tenths:
    """Time per byte in the first and in the last tenth of a run."""

    title: str
    samples: list[Sample]
    clock: int
    corrected: bool = False  # for changes in machine speed, measured with the fixed work

    def measure(self, progress: Progress = lambda _: None) -> Result:
        tenth = max(2, len(self.samples) // 10)
        # The first piece is left out: it includes one-time setup.
        first, last = self.samples[1 : tenth + 1], self.samples[-tenth:]
        times = {"last tenth": rates(last, self.clock), "first tenth": rates(first, self.clock)}
        if self.corrected:
            factor = fixed_work_time(first) / fixed_work_time(last)
            times["last tenth"] = [value * factor for value in times["last tenth"]]
        else:
            begin, end = self.samples[0], self.samples[-1]
            seconds = end[self.clock] - begin[self.clock]
            times["whole run"] = [seconds / (end.position - begin.position)]
        scaled = {name: [value * 1e6 for value in values] for name, values in times.items()}
        return Result(self.title, scaled, (max_ratio(1.15, "first tenth"),))


def growth(samples: list[Sample]) -> int:
    """Peak resident memory minus that after the first megabyte."""
    start = next((s for s in samples if s.position >= 1_000_000), samples[0])
    after = [s.resident for s in samples if s.position >= start.position]
    return max(1, max(after) - start.resident)


def build_model(width: int, depth: int) -> LanguageModel:
    torch.manual_seed(0)
    model = LanguageModel(Spec("language", width, depth, "mamba")).eval()
    model.tokenizer = ByteTokenizer()
    return model


def speed(length: int, rounds: int) -> Comparison:
    """All work of the command, compared with the model alone."""
    model, text = build_model(64, 2), python_reference().encode()[:length]
    tokens = torch.tensor(list(text)).unsqueeze(0)
    piece = plan_chunk_size(model)

    def ours() -> list[Tensor]:
        for scores in stream(model, text):
            as_json_lines(scores.columns)
        return []

    def model_alone() -> list[Tensor]:
        state = None
        with torch.no_grad():
            for first in range(0, length, piece):
                _, state = model(tokens[:, first : first + piece], state)
        return []

    return Comparison(
        f"stream of {length:,} bytes, one line per byte, Mamba 64 × 2",
        {"threefold": ours, "the model alone": model_alone},
        rounds=rounds,
        unchecked=("the model alone",),
        targets=(max_ratio(1.5, "the model alone"),),
    )


def comparisons(
    count: int, length: int, rounds: int
) -> Iterator[Comparison | MemoryComparison | Tenths]:
    yield speed(length, rounds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = python_reference().encode()
        with open(folder / "input", "wb") as file:
            file.writelines(text for _ in range(count // len(text)))
            file.write(text[: count % len(text)])
        model = build_model(32, 1)
        model.save(folder / "model")
        samples = StreamRuns(folder, count, plan_chunk_size(model)).measure()
    title = f"stream of {count:,} bytes, Mamba 32 × 1"
    yield MemoryComparison(
        f"{title}, growth of resident memory after the first megabyte",
        {
            "threefold": lambda: growth(samples),
            "limit": lambda: GROWTH_LIMIT,
            "resident memory, median": lambda: int(statistics.median(s.resident for s in samples)),
        },
        targets=(max_ratio(1.0, "limit"),),
    )
    per_million = f"{title}, time per million bytes"
    yield Tenths(per_million, samples, 1)
    yield Tenths(f"{per_million}, processor time", samples, 2)
    corrected = f"{per_million}, processor time corrected for machine speed"
    yield Tenths(corrected, samples, 2, corrected=True)


def run() -> Iterator[Comparison | MemoryComparison | Tenths]:
    yield from comparisons(BYTES, 200_000, 7)


def quick() -> Iterator[Comparison | MemoryComparison | Tenths]:
    yield from comparisons(100_000, 8_000, 2)
