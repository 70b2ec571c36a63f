"""Checkpoints are complete or absent, whatever happens to the disk."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
from pathlib import Path

import pytest
import torch

from tests.training.disk import CrashError, FailingDisk
from threefold.data.atomic_files import Disk
from threefold.errors import ThreefoldError
from threefold.training.checkpoints import (
    Checkpoints,
    DamagedCheckpointError,
    Snapshot,
    lock_folder,
)


def snapshot(step: int) -> Snapshot:
    numbers = torch.Generator().manual_seed(step)
    weights = {"a": torch.randn(7, 3, generator=numbers), "b": torch.randn(5, generator=numbers)}
    random_state = {"torch": torch.randint(0, 256, (99,), dtype=torch.uint8, generator=numbers)}
    return Snapshot(step, {"model": weights, "random": random_state}, {"loss": 0.1 * step})


def assert_same(actual: Snapshot | None, expected: Snapshot) -> None:
    assert actual is not None
    assert actual.step == expected.step
    assert actual.values == expected.values
    assert actual.tensors.keys() == expected.tensors.keys()
    for name, tensors in expected.tensors.items():
        assert actual.tensors[name].keys() == tensors.keys()
        for key, tensor in tensors.items():
            assert torch.equal(actual.tensors[name][key], tensor)


def test_a_saved_checkpoint_loads_unchanged(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.newest() == (None, [])
    checkpoints.save(snapshot(10))
    newest, problems = checkpoints.newest()
    assert_same(newest, snapshot(10))
    assert problems == []


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3, 4, 5):
        checkpoints.save(snapshot(step), best=2 if step >= 2 else 1)
    assert checkpoints.steps == [2, 4, 5]


def operations_of_a_save(folder: Path) -> int:
    Checkpoints(folder, keep=1).save(snapshot(1))
    disk = FailingDisk(10**9, 0)
    Checkpoints(folder, keep=1, disk=disk).save(snapshot(2))
    return disk.done


def test_a_crash_at_any_operation_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    operations = operations_of_a_save(tmp_path / "counted")
    assert operations >= 12
    survived = set()
    for crash in range(operations + 1):
        for seed in range(6):
            folder = tmp_path / f"{crash}-{seed}"
            Checkpoints(folder, keep=1).save(snapshot(1))
            disk = FailingDisk(crash, seed)
            try:
                Checkpoints(folder, keep=1, disk=disk).save(snapshot(2))
            except CrashError:
                disk.settle()
            newest, _ = Checkpoints(folder).newest()
            assert newest is not None
            assert_same(newest, snapshot(newest.step))
            survived.add(newest.step)
            # The next save works, whatever was left behind.
            Checkpoints(folder, keep=1).save(snapshot(3))
            assert Checkpoints(folder).steps == [3]
            assert not list(folder.glob(".*"))
    assert survived == {1, 2}


def test_every_flipped_bit_is_detected(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(snapshot(1))
    path = checkpoints.save(snapshot(2))
    files = sorted(path.iterdir())
    draws = random.Random(0)
    for _ in range(500):
        file = draws.choice(files)
        content = file.read_bytes()
        at, bit = draws.randrange(len(content)), draws.randrange(8)
        flipped = bytearray(content)
        flipped[at] ^= 1 << bit
        file.write_bytes(bytes(flipped))
        with pytest.raises(DamagedCheckpointError, match=path.name):
            checkpoints.load(2)
        newest, problems = checkpoints.newest()
        assert_same(newest, snapshot(1))
        assert len(problems) == 1
        file.write_bytes(content)
    assert_same(checkpoints.load(2), snapshot(2))


def test_a_damaged_checkpoint_is_written_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.save(snapshot(1))
    (path / "manifest.json").write_bytes(b"")
    checkpoints.save(snapshot(1))
    assert_same(checkpoints.load(1), snapshot(1))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ThreefoldError, match="cannot be written"):
        Checkpoints(tmp_path / "file" / "checkpoints").save(snapshot(1))


class FullDisk(Disk):
    """A disk with room for one more file."""

    def __init__(self) -> None:
        self.files = 0

    def write(self, path: Path, content: bytes) -> None:
        self.files += 1
        if self.files > 1:
            path.write_bytes(content[:3])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(path, content)


def test_a_full_disk_leaves_no_incomplete_checkpoint(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(snapshot(1))
    with pytest.raises(ThreefoldError, match="No space left"):
        Checkpoints(tmp_path, disk=FullDisk()).save(snapshot(2))
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000000001"]
    assert_same(Checkpoints(tmp_path).newest()[0], snapshot(1))


def test_a_lock_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ThreefoldError, match="cannot be written"), lock_folder(tmp_path / "file"):
        pytest.fail("entered a folder that cannot be locked")


def hold(folder: Path, ready: multiprocessing.Queue[int]) -> None:
    with lock_folder(folder):
        ready.put(1)
        ready.get()


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Queue()
    other = context.Process(target=hold, args=(tmp_path, ready))
    other.start()
    assert ready.get(timeout=30) == 1
    with (
        pytest.raises(ThreefoldError, match=rf"another process \(process ID {other.pid}\)"),
        lock_folder(tmp_path),
    ):
        pass
    other.kill()
    other.join()
    with lock_folder(tmp_path):  # the lock ended with its process
        pass


def test_a_failed_save_does_not_promise_checkpoints_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    checkpoints = Checkpoints(tmp_path / "checkpoints")
    monkeypatch.setattr(checkpoints, "_write", fail)
    with pytest.raises(ThreefoldError, match="there is no earlier checkpoint"):
        checkpoints.save(snapshot(1))
