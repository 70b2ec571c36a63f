"""Run the same command in several processes of this machine, for `--ranks`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from threefold.cli import output

FORWARDED_SIGNALS = [n for n in signal.Signals if n.name in ("SIGINT", "SIGTERM", "SIGHUP")]


def launch(ranks: int, extra_arguments: list[str]) -> int:
    """Start the processes, forward signals and wait; returns one exit code for all."""
    with tempfile.TemporaryDirectory() as name:
        processes = _start(ranks, extra_arguments, Path(name))

        def forward(number: int, frame: Any) -> None:
            for process in processes:
                if process.poll() is None:
                    process.send_signal(number)

        previous = {n: signal.signal(n, forward) for n in FORWARDED_SIGNALS}
        try:
            while any(process.poll() is None for process in processes):
                time.sleep(0.05)
                if failed := _failed(processes):
                    return _stop_after_failure(processes, Path(name), failed)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
    return max(process.returncode for process in processes)


def _environment(ranks: int, folder: Path) -> dict[str, str]:
    """The environment variables that all ranks share; the cores are divided among the ranks."""
    cores = os.cpu_count() or 1
    return {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "THREEFOLD_RENDEZVOUS": str(folder / "rendezvous"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, cores // ranks))),
    }


def _start(ranks: int, extra_arguments: list[str], folder: Path) -> list[subprocess.Popen[bytes]]:
    """Only rank 0 writes to stderr directly, because the other ranks would repeat its messages."""
    environment = _environment(ranks, folder)
    command = [sys.executable, "-m", "threefold", *sys.argv[1:], *extra_arguments]
    with ExitStack() as files:
        return [
            subprocess.Popen(
                command,
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stderr=files.enter_context(open(folder / f"{rank}", "wb")) if rank else None,
                # In groups of their own they get Ctrl-C once, from `forward`, not twice.
                process_group=0,
            )
            for rank in range(ranks)
        ]


def _failed(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    """Ranks of the processes that have failed for a reason of their own."""
    fine = (None, 0, output.OTHER_PROCESS_FAILED)
    return [rank for rank, process in enumerate(processes) if process.poll() not in fine]


def _stop_after_failure(
    processes: list[subprocess.Popen[bytes]], folder: Path, failed: list[int]
) -> int:
    """After one process failed, stop the others, which would wait forever, and show its message."""
    deadline = time.monotonic() + 10
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
    # Others may fail because of it: gloo aborts a process whose peer is gone.
    first = min(failed, key=lambda rank: processes[rank].poll() == -signal.SIGABRT)
    code = processes[first].poll() or 0
    if first:
        sys.stderr.write((folder / f"{first}").read_text(encoding="utf-8", errors="replace"))
    if code < 0:
        output.complain(
            f"process {first} of {len(processes)} was killed by signal {-code}; resume from "
            "the last checkpoint with `threefold resume`"
        )
    return code if code > 0 else 1
