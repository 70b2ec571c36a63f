"""A run of one mixer of each kind of memory, in one or more processes: see test_distributed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from tests.training import runs
from threefold.data.loaders import Batch
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec
from threefold.training import TrainingSettings, train
from threefold.training.distributed import join_group

STEPS = 50
MIXERS = ("gated_delta_net", "mamba", "lstm", "s4d", "attention")


def rows(step: int) -> Batch:
    """Four rows with different numbers of ignored targets."""
    parts = [runs.rows(2 * step + i) for i in range(2)]
    inputs, targets, starts = (torch.cat([p[i] for p in parts])[:4] for i in range(3))
    targets[3, : step % 7] = -100
    return Batch(inputs, targets, starts)


def run(folder: Path, mixer: str) -> list[float]:
    """Train a model; returns its losses."""
    torch.manual_seed(0)
    model = LanguageModel(Spec("language", 16, 1, mixer, vocabulary=17))
    settings = TrainingSettings(
        steps=STEPS, carry_state=True, save_every=20, gradient_accumulation=2
    )
    return train(model, rows, settings, folder=folder / mixer).losses


def listening() -> list[str]:
    """The addresses at which this process listens, as Linux writes them."""
    mine = {os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}
    addresses = []
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:] if Path(table).exists() else ():
            cells = line.split()
            if cells[3] == "0A" and f"socket:[{cells[9]}]" in mine:
                addresses.append(cells[1].split(":")[0])
    return addresses


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    with join_group() as group:
        (folder / f"listening-{group.rank}").write_text("\n".join(listening()))
        for mixer in MIXERS:
            run(folder, mixer)
