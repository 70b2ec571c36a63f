"""Two processes train as one: same losses, exchangeable checkpoints, loopback only."""

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
from threefold.training.distributed import ProcessGroup


def logged(folder: Path) -> list[float]:
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs trained by two processes."""
    path = tmp_path_factory.mktemp("ranks")
    environment = {
        **os.environ,
        "WORLD_SIZE": "2",
        "THREEFOLD_RENDEZVOUS": str(path / "rendezvous"),
    }
    command = [sys.executable, "-m", "tests.training.ranks", str(path)]
    both = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stderr=subprocess.PIPE)
        for rank in (0, 1)
    ]
    for process in both:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors.decode()
    return path


@pytest.mark.parametrize("mixer", ranks.MIXERS)
def test_two_ranks_follow_one_process(mixer: str, folder: Path, tmp_path: Path) -> None:
    one, two = ranks.run(tmp_path, mixer), logged(folder / mixer)
    assert len(one) == len(two) == ranks.STEPS
    assert two == pytest.approx(one, rel=1e-5)


def test_a_checkpoint_of_two_ranks_resumes_with_one(folder: Path, tmp_path: Path) -> None:
    """As if killed after step 40; the carried state contains the rows of both ranks."""
    both = folder / "lstm"
    newest = both / "checkpoints" / "step-000000050" / "model.safetensors"
    newest.write_bytes(b"")
    assert ranks.run(folder, "lstm") == pytest.approx(ranks.run(tmp_path, "lstm"), rel=1e-5)
    assert logged(both) == pytest.approx(logged(tmp_path / "lstm"), rel=1e-5)


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="needs Linux's list of sockets")
def test_nothing_listens_beyond_the_loopback(folder: Path) -> None:
    addresses = [set((folder / f"listening-{rank}").read_text().split()) for rank in (0, 1)]
    loopback = {"0100007F", "00000000000000000000000001000000"}
    assert any(addresses), "gloo listens somewhere"
    assert all(listening <= loopback for listening in addresses), addresses


def test_rows_are_divided_among_ranks() -> None:
    rows = Batch(torch.arange(12).view(4, 3), torch.arange(4), torch.ones(4, dtype=torch.bool))
    parts = [ProcessGroup(rank, 2).shard(rows) for rank in (0, 1)]
    assert torch.equal(torch.cat([part.inputs for part in parts]), rows.inputs)
    assert parts[0].lengths is None
    with pytest.raises(ThreefoldError, match="a batch of 4 rows for 3 processes"):
        ProcessGroup(0, 3).shard(rows)
