"""A run killed with SIGKILL at random moments, half of them inside a save: `make torture`.

Every time it goes on by itself; in the end weights, losses and log are those of a run that nobody
disturbed, bit for bit.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.training import runs
from tests.training.test_keeping import assert_as_if_never_stopped


def saving(folder: Path) -> bool:
    """Whether a save is under way."""
    return any((folder / "checkpoints").glob(".step-*"))


def started(folder: Path, log: int) -> bool:
    """Whether the process has made a step since the log had so many bytes."""
    path = folder / "log.jsonl"
    return path.exists() and path.stat().st_size != log


def kill_once(folder: Path, steps: int, inside: bool, delay: float) -> bool:
    """Start the run and kill it; whether it was inside a save."""
    path = folder / "log.jsonl"
    size = path.stat().st_size if path.exists() else 0
    command = [sys.executable, "-m", "tests.training.runs", str(folder), str(steps)]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline and not started(folder, size):
        time.sleep(0.001)
    time.sleep(delay)
    while inside and process.poll() is None and time.monotonic() < deadline and not saving(folder):
        pass
    process.kill()
    process.wait()
    return saving(folder)


def main() -> None:
    """Kill, kill again, compare."""
    parser = argparse.ArgumentParser(prog="python -m tests.training.torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draws = random.Random(given.seed)
    steps = 30 * given.kills
    whole = runs.run(None, steps, save=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inside = 0
        for kill in range(given.kills):
            wanted = kill % 2 == 0
            inside += kill_once(folder, steps, wanted, draws.uniform(0, 0.2))
            done = len((folder / "log.jsonl").read_text().splitlines())
            print(f"killed {kill + 1:3} times, {inside} inside a save, step {done}", flush=True)
        assert_as_if_never_stopped(folder, runs.run(folder, steps, save=1), whole)
    print(f"{given.kills} of {given.kills} went on; weights, losses and log are the same bits")


if __name__ == "__main__":
    main()
