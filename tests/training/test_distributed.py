"""Two processes follow one: same losses, checkpoints that either can go on from, loopback only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training import ranks
from threefold.data.loaders import Batch
from threefold.errors import ThreefoldError
from threefold.training.distributed import Group


def logged(folder: Path) -> list[float]:
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes."""
    place = tmp_path_factory.mktemp("ranks")
    around = {**os.environ, "WORLD_SIZE": "2", "THREEFOLD_MEETING": str(place / "meeting")}
    command = [sys.executable, "-m", "tests.training.ranks", str(place)]
    both = [
        subprocess.Popen(command, env={**around, "RANK": str(rank)}, stderr=subprocess.PIPE)
        for rank in (0, 1)
    ]
    for process in both:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors.decode()
    return place


@pytest.mark.parametrize("mixer", ranks.MIXERS)
def test_two_ranks_follow_one_process(mixer: str, folder: Path, tmp_path: Path) -> None:
    one, two = ranks.run(tmp_path, mixer), logged(folder / mixer)
    assert len(one) == len(two) == ranks.STEPS
    assert two == pytest.approx(one, rel=1e-5)


def test_a_checkpoint_of_two_ranks_goes_on_with_one(folder: Path, tmp_path: Path) -> None:
    """As if it had been killed after step 40; the carried state is that of all rows."""
    both = folder / "lstm"
    newest = both / "checkpoints" / "step-000000050" / "model.safetensors"
    newest.write_bytes(b"")
    assert ranks.run(folder, "lstm") == pytest.approx(ranks.run(tmp_path, "lstm"), rel=1e-5)
    assert logged(both) == pytest.approx(logged(tmp_path / "lstm"), rel=1e-5)


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="needs Linux's list of sockets")
def test_nothing_listens_beyond_the_loopback(folder: Path) -> None:
    found = [set((folder / f"listening-{rank}").read_text().split()) for rank in (0, 1)]
    loopback = {"0100007F", "00000000000000000000000001000000"}
    assert any(found), "gloo listens somewhere"
    assert all(addresses <= loopback for addresses in found), found


def test_rows_are_shared_out() -> None:
    rows = Batch(torch.arange(12).view(4, 3), torch.arange(4), torch.ones(4, dtype=torch.bool))
    parts = [Group(rank, 2).part(rows) for rank in (0, 1)]
    assert torch.equal(torch.cat([part.inputs for part in parts]), rows.inputs)
    assert parts[0].lengths is None
    with pytest.raises(ThreefoldError, match="a batch of 4 rows for 3 processes"):
        Group(0, 3).part(rows)
