"""`threefold stream` over 20 million bytes: memory, time a byte, the same output when resumed.

The command runs in a process of its own and is watched from within: where it stands, when, with how
much resident memory, and how long some fixed work takes there, since machines do not keep their
speed for minutes. A second run is interrupted by SIGTERM and gone on with; its output has to be
the same, or nothing is printed.
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

from benchmarks.measure import Progress, Race, Result, Weighing, at_most
from threefold import LanguageModel, Spec
from threefold.data import ByteTokenizer, python_reference
from threefold.runtime.scores.files import as_json_lines
from threefold.runtime.streaming import plan_piece, stream

BYTES = 20_000_000
EVERY = 100  # bytes that one line stands for
SLICES = 20  # of a tenth
SELDOM = 8  # pieces between which the fixed work is done
GROWTH = 5_000_000  # bytes of resident memory, after the first megabyte
WATCHER = "from benchmarks.streaming import watch; watch()"


class Sample(NamedTuple):
    """A moment of a run."""

    position: int  # bytes of the input
    seconds: float
    processor: float  # seconds of processor time
    resident: int  # bytes
    fixed: float  # seconds of processor time that the fixed work took; 0 where it was not done


def watch() -> None:
    """Run the command that is given behind a file name and a place; note every piece there."""
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

    count, spent, waited = 0, 0.0, 0.0  # pieces; what the fixed work took by both clocks
    with open(path, "w") as notes, open("/proc/self/statm") as memory:

        def show(meter: Meter, position: int, elements: int) -> None:
            nonlocal count, spent, waited
            count += 1
            memory.seek(0)
            resident = int(memory.read().split()[1]) * page
            now, used = time.monotonic(), time.process_time()
            fixed = 0.0 if count % SELDOM else work()
            sample = Sample(elements, now - waited, used - spent, resident, fixed)
            notes.write(json.dumps(sample) + "\n")
            waited, spent = waited + time.monotonic() - now, spent + time.process_time() - used
            if elements == int(stop):
                os.kill(os.getpid(), signal.SIGTERM)

        Meter.show = show  # type: ignore[method-assign]
        main(arguments)


@dataclass(frozen=True)
class Passage:
    """The whole of an input, once without and once with an interruption."""

    folder: Path
    count: int
    piece: int

    def command(self, name: str, stop: int) -> list[Sample]:
        notes = self.folder / "notes"
        options = ["--output", f"{name}.jsonl", "--state", name, "--every", str(EVERY)]
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
        progress("streaming: a run without an interruption")
        samples = self.command("whole", 0)
        progress("streaming: a run with one")
        middle = self.count // 2 // self.piece * self.piece
        self.command("cut", middle)
        rest = self.command("cut", 0)
        if samples[-1].position != self.count or rest[-1].position != self.count - middle:
            raise AssertionError("a run did not come to the end of its input")
        if self.digest("cut") != self.digest("whole"):
            raise AssertionError("interrupted and gone on with, the output is another")
        return samples


def rates(samples: list[Sample], clock: int) -> list[float]:
    """Time for a byte in each of some slices, by wall clock (1) or processor (2)."""
    size = max(1, len(samples) // SLICES)
    ends = samples[::size]
    return [(b[clock] - a[clock]) / (b[0] - a[0]) for a, b in pairwise(ends)]


def slowness(samples: list[Sample]) -> float:
    """How long the fixed work took there."""
    return statistics.median([s.fixed for s in samples if s.fixed] or [1.0])


@dataclass(frozen=True)
class Tenths:
    """Time for a byte in the first and in the last tenth of a passage."""

    title: str
    samples: list[Sample]
    clock: int
    even: bool = False  # as if the machine had kept the speed of the first tenth

    def measure(self, progress: Progress = lambda _: None) -> Result:
        tenth = max(2, len(self.samples) // 10)
        # The first piece waits for what is made once.
        first, last = self.samples[1 : tenth + 1], self.samples[-tenth:]
        found = {"last tenth": rates(last, self.clock), "first tenth": rates(first, self.clock)}
        if self.even:
            factor = slowness(first) / slowness(last)
            found["last tenth"] = [value * factor for value in found["last tenth"]]
        scaled = {name: [value * 1e6 for value in values] for name, values in found.items()}
        return Result(self.title, scaled, (at_most(1.15, "first tenth"),))


def growth(samples: list[Sample]) -> int:
    """Resident memory at its most, above that after the first megabyte."""
    begin = next((s for s in samples if s.position >= 1_000_000), samples[0])
    after = [s.resident for s in samples if s.position >= begin.position]
    return max(1, max(after) - begin.resident)


def small(width: int, depth: int) -> LanguageModel:
    torch.manual_seed(0)
    model = LanguageModel(Spec("language", width, depth, "mamba")).eval()
    model.tokenizer = ByteTokenizer()
    return model


def speed(length: int, rounds: int) -> Race:
    """All of the command's work beside the model's alone."""
    model, text = small(64, 2), python_reference().encode()[:length]
    tokens = torch.tensor(list(text)).unsqueeze(0)
    piece = plan_piece(model)

    def ours() -> list[Tensor]:
        for scores in stream(model, text):
            as_json_lines(scores.columns)
        return []

    def alone() -> list[Tensor]:
        state = None
        with torch.no_grad():
            for first in range(0, length, piece):
                _, state = model(tokens[:, first : first + piece], state)
        return []

    return Race(
        f"stream of {length:,} bytes, a line for each, Mamba 64 × 2",
        {"threefold": ours, "the model alone": alone},
        rounds=rounds,
        apart=("the model alone",),
        targets=(at_most(1.5, "the model alone"),),
    )


def races(count: int, length: int, rounds: int) -> Iterator[Race | Weighing | Tenths]:
    yield speed(length, rounds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = python_reference().encode()
        with open(folder / "input", "wb") as file:
            file.writelines(text for _ in range(count // len(text)))
            file.write(text[: count % len(text)])
        model = small(32, 1)
        model.save(folder / "model")
        samples = Passage(folder, count, plan_piece(model)).measure()
    whole = (samples[-1].position - samples[0].position) / (samples[-1][1] - samples[0][1])
    title = f"stream of {count:,} bytes, Mamba 32 × 1, {whole:,.0f} bytes a second"
    steady = statistics.median(sample.resident for sample in samples)
    yield Weighing(
        f"{title}, growth of resident memory ({steady / 1e6:,.0f} MB) after the first megabyte",
        {"threefold": lambda: growth(samples), "limit": lambda: GROWTH},
        targets=(at_most(1.0, "limit"),),
    )
    yield Tenths(f"{title}, a million bytes", samples, 1)
    yield Tenths(f"{title}, a million bytes, processor time", samples, 2)
    even = f"{title}, a million bytes, processor time beside that of a fixed work"
    yield Tenths(even, samples, 2, even=True)


def run() -> Iterator[Race | Weighing | Tenths]:
    yield from races(BYTES, 200_000, 7)


def quick() -> Iterator[Race | Weighing | Tenths]:
    yield from races(100_000, 8_000, 2)
