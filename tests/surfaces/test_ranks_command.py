"""`threefold train --ranks 2`: several processes, one message and one exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TEXT = "so much depends upon a red wheel barrow glazed with rain water\n" * 60
SETTINGS = ["data.batch_size=4", "data.length=12", "model.width=16", "model.depth=1"]
SIZE = [word for setting in SETTINGS for word in ("--set", setting)]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "notes.txt").write_text(TEXT)
    return tmp_path


def start(place: Path, *more: str) -> subprocess.Popen[str]:
    """In its own process group, as a shell starts it."""
    call = [sys.executable, "-m", "threefold", "train", "notes.txt", "--mixers", "gla", *SIZE]
    return subprocess.Popen(
        [*call, "--folder", "it", "--ranks", "2", *more],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def wait_for_steps(process: subprocess.Popen[str], place: Path) -> None:
    log, deadline = place / "it" / "log.jsonl", time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if log.exists() and log.stat().st_size:
            break
        time.sleep(0.02)


def test_ctrl_c_of_a_terminal_saves(place: Path) -> None:
    """It reaches every process of the group; none may take it for a second Ctrl-C."""
    process = start(place, "--steps", "100000")
    wait_for_steps(process, place)
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=180)
    assert process.returncode == 130, errors
    assert "threefold resume it" in out
    steps = len((place / "it" / "log.jsonl").read_text().splitlines())
    assert (place / "it" / "checkpoints" / f"step-{steps:09}").is_dir()
    # An error that only the first process notices is reported once.
    again = start(place, "--steps", "7")
    _, errors = again.communicate(timeout=180)
    assert again.returncode == 2
    assert "training.steps was 100000 and is now 7" in errors
    assert "Traceback" not in errors and errors.count("Error") == 1


def test_a_run_with_a_time_limit_ends(place: Path) -> None:
    """All processes agree on the time, although only the first one reports progress."""
    process = start(place, "--time", "0.6s")
    try:
        out, errors = process.communicate(timeout=120)
    finally:
        process.send_signal(signal.SIGHUP)  # stop it if it hangs
    assert process.returncode == 0, errors
    assert "finished: time limit reached" in out


def test_a_killed_process_is_reported(place: Path) -> None:
    process = start(place, "--steps", "100000")
    wait_for_steps(process, place)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 1
    assert "process 1 of 2 was killed by signal 9" in errors and "Traceback" not in errors
