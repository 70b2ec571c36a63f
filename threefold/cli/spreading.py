"""The same command in several processes of this machine, which meet through a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def spread(ranks: int) -> int:
    """Start them, pass signals on, and wait; the worst exit code."""
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as name:
        around = {
            **os.environ,
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "THREEFOLD_MEETING": str(Path(name) / "meeting"),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, cores // ranks))),
        }
        command = [sys.executable, "-m", "threefold", *sys.argv[1:]]
        processes = [
            subprocess.Popen(command, env={**around, "RANK": str(r), "LOCAL_RANK": str(r)})
            for r in range(ranks)
        ]

        def pass_on(number: int, frame: Any) -> None:
            for process in processes:
                if process.poll() is None:
                    process.send_signal(number)

        before = {n: signal.signal(n, pass_on) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            while any(process.poll() is None for process in processes):
                time.sleep(0.05)
                if any(process.poll() not in (None, 0) for process in processes):
                    _end(processes)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        codes: list[int] = [abs(process.returncode) for process in processes]
        return max(codes)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """One has failed: the others would wait for it for ever."""
    deadline = time.monotonic() + 10
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
