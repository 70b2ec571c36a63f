"""Several processes train one model: each has its rows of every batch, gradients are summed.

    torchrun --nproc-per-node 2 -m threefold train …      or      threefold train … --ranks 2

Losses are divided by the number of targets of all ranks, so that the mean is that of one process
with the whole batch.  The second way meets through a file and talks over the loopback only.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load as read_safetensors
from safetensors.torch import save as write_safetensors
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from threefold.data.loaders import Batch
from threefold.errors import LeftAloneError, ThreefoldError
from threefold.memory import state as states
from threefold.memory.state import State
from threefold.models.files import own_storage
from threefold.tasks.pairs import Pairs


@dataclass(frozen=True)
class Group:
    """The processes of a run; of one process nothing is ever sent."""

    rank: int = 0
    ranks: int = 1

    @classmethod
    def current(cls) -> Group:
        """The group that this process is in."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def leads(self) -> bool:
        """Whether this is the process that evaluates, writes and shows."""
        return self.rank == 0

    def wrap(self, learner: nn.Module, *given: Any) -> nn.Module:
        """A module whose gradients are the mean over ranks; `given`: what it is called with."""
        if self.ranks == 1:
            return learner
        learner(*given).backward()
        unused = any(p.requires_grad and p.grad is None for p in learner.parameters())
        learner.zero_grad(set_to_none=True)
        known = inspect.signature(DistributedDataParallel).parameters
        still = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        options: dict[str, Any] = {"find_unused_parameters": unused, still: False}
        wrapped: nn.Module = DistributedDataParallel(learner, **options)
        return wrapped

    def apart(self, learner: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Gradients are sent after the last of several backward passes only."""
        if self.ranks == 1 or last:
            return nullcontext()
        return learner.no_sync()  # type: ignore[no-any-return, operator]

    def part(self, rows: Any) -> Any:
        """This rank's rows of a batch."""
        if self.ranks == 1:
            return rows
        whole = len(rows.inputs) if isinstance(rows, Batch) else len(rows.source)
        if whole % self.ranks:
            raise ThreefoldError(
                f"a batch of {whole} rows for {self.ranks} processes; expected a multiple of "
                f"{self.ranks}: give data.batch another size"
            )
        size = whole // self.ranks
        return _slice(rows, slice(self.rank * size, (self.rank + 1) * size))

    def sum(self, *numbers: float) -> list[float]:
        """Numbers added over all ranks."""
        if self.ranks == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(total)
        return [float(number) for number in total]

    def agree(self, *numbers: float) -> list[float]:
        """The numbers of the first rank, for all."""
        if self.ranks == 1:
            return list(numbers)
        told = torch.tensor(numbers, dtype=torch.float64)
        dist.broadcast(told, 0)
        return [float(number) for number in told]

    def whole_state(self, state: State | None) -> State | None:
        """The carried states of all ranks as one, rows in the order of the batch."""
        if state is None or self.ranks == 1:
            return state
        mine = write_safetensors({path: own_storage(leaf) for path, leaf in states.leaves(state)})
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.ranks)]
        dist.all_gather(sizes, torch.tensor([len(mine)]))
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(mine)] = torch.from_numpy(np.frombuffer(mine, np.uint8).copy())
        parts = [torch.empty_like(padded) for _ in range(self.ranks)]
        dist.all_gather(parts, padded)
        rows = []
        for part, size in zip(parts, sizes, strict=True):
            found = read_safetensors(part[: int(size)].numpy().tobytes())
            rows.append(states.tree({path: found[path] for path, _ in states.leaves(state)}))
        return states.join(rows)

    def own_state(self, state: State | None) -> State | None:
        """This rank's rows of a state of all."""
        if state is None or self.ranks == 1:
            return state
        rows = states.batch_size(state) or 0
        size = rows // self.ranks
        return states.select(state, slice(self.rank * size, (self.rank + 1) * size))

    def meet(self) -> None:
        """Wait for all ranks."""
        if self.ranks > 1:
            dist.barrier()


def _slice(rows: Any, part: slice) -> Any:
    if isinstance(rows, Pairs):
        return replace(
            rows,
            source=rows.source[part],
            target=rows.target[part],
            source_lengths=rows.source_lengths[part],
            target_lengths=rows.target_lengths[part],
        )
    cut: list[Tensor | None] = [None if item is None else item[part] for item in rows]
    return type(rows)(*cut)


@contextmanager
def joined() -> Iterator[Group]:
    """The group that torchrun, or `threefold train --ranks`, has started this process in."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks == 1 or dist.is_initialized():
        yield Group.current()
        return
    if os.environ.get("LOCAL_WORLD_SIZE", str(ranks)) == str(ranks):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    meeting = os.environ.get("THREEFOLD_MEETING")
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=None if meeting is None else f"file://{meeting}",
        rank=int(os.environ["RANK"]),
        world_size=ranks,
    )
    try:
        yield Group.current()
    except RuntimeError as error:
        if "by peer" not in str(error):
            raise
        raise LeftAloneError("another process of this run has ended, and says why") from error
    finally:
        dist.destroy_process_group()
