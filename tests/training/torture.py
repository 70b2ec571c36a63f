"""A run killed with SIGKILL at random moments, half of them during a save: `make torture`.

It resumes every time; in the end weights, losses and log are those of an uninterrupted run, bit for
bit.
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
from tests.training.test_run_folder import assert_same_as_uninterrupted


def saving(folder: Path) -> bool:
    """Whether a checkpoint is being saved."""
    return any((folder / "checkpoints").glob(".step-*"))


def started(folder: Path, log: int) -> bool:
    """Whether the process has done a step since the log had `log` bytes."""
    path = folder / "log.jsonl"
    return path.exists() and path.stat().st_size != log


def kill_once(folder: Path, steps: int, inside: bool, delay: float) -> bool:
    """Start the run and kill it; returns whether it was saving."""
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
    """Kill the run repeatedly, then compare it with an uninterrupted one."""
    parser = argparse.ArgumentParser(prog="python -m tests.training.torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draws = random.Random(arguments.seed)
    steps = 30 * arguments.kills
    uninterrupted = runs.run(None, steps, save=1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inside = 0
        for kill in range(arguments.kills):
            wanted = kill % 2 == 0
            inside += kill_once(folder, steps, wanted, draws.uniform(0, 0.2))
            done = len((folder / "log.jsonl").read_text().splitlines())
            print(f"killed {kill + 1:3} times, {inside} during a save, step {done}", flush=True)
        assert_same_as_uninterrupted(folder, runs.run(folder, steps, save=1), uninterrupted)
    print(
        f"{arguments.kills} of {arguments.kills} resumed; weights, losses and log are the same bits"
    )


if __name__ == "__main__":
    main()
