"""The same command in several processes of this machine, which meet through a file."""

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

PASSED_ON = [n for n in signal.Signals if n.name in ("SIGINT", "SIGTERM", "SIGHUP")]


def launch(ranks: int, more: list[str]) -> int:
    """Start them with `more` arguments, pass signals on, and wait; the exit code of all."""
    with tempfile.TemporaryDirectory() as name:
        processes = _start(ranks, more, Path(name))

        def pass_on(number: int, frame: Any) -> None:
            for process in processes:
                if process.poll() is None:
                    process.send_signal(number)

        before = {n: signal.signal(n, pass_on) for n in PASSED_ON}
        try:
            while any(process.poll() is None for process in processes):
                time.sleep(0.05)
                if any(process.poll() not in (None, 0) for process in processes):
                    return _end(processes, Path(name))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return 0


def _start(ranks: int, more: list[str], place: Path) -> list[subprocess.Popen[bytes]]:
    """Only what the first says is heard at once: the others would say the same."""
    cores = os.cpu_count() or 1
    around = {
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "THREEFOLD_MEETING": str(place / "meeting"),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, cores // ranks))),
    }
    command = [sys.executable, "-m", "threefold", *sys.argv[1:], *more]
    with ExitStack() as files:
        return [
            subprocess.Popen(
                command,
                env={**around, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stderr=files.enter_context(open(place / f"{rank}", "wb")) if rank else None,
                # Ctrl-C of a terminal reaches a whole group: here once, and passed on once.
                process_group=0,
            )
            for rank in range(ranks)
        ]


def _end(processes: list[subprocess.Popen[bytes]], place: Path) -> int:
    """One has failed: the others would wait for it for ever.  Say what it said."""
    deadline = time.monotonic() + 10
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    codes = [process.poll() for process in processes]
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
    failed = [rank for rank, code in enumerate(codes) if code not in (None, 0, output.LEFT_ALONE)]
    first = failed[0] if failed else 0
    code = codes[first] or 0
    if first:
        sys.stderr.write((place / f"{first}").read_text(encoding="utf-8", errors="replace"))
    if code < 0:
        output.complain(
            f"process {first} of {len(processes)} was killed by signal {-code}; resume from "
            "the last checkpoint with `threefold resume`"
        )
    return code if code > 0 else 1
