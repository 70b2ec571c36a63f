"""Several processes train one model: each has its rows of every batch, gradients are averaged.

    torchrun --nproc-per-node 2 -m threefold train …      or      threefold train … --ranks 2

Losses are divided by the number of targets of all ranks, so that the mean is that of one process
with the whole batch.  With --ranks the processes find each other through a file and communicate
over the loopback interface only.
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
from threefold.errors import OtherProcessFailedError, ThreefoldError
from threefold.memory import state as states
from threefold.memory.state import State
from threefold.models.files import own_storage
from threefold.tasks.pairs import Pairs


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run; a single process never communicates."""

    rank: int = 0
    ranks: int = 1

    @classmethod
    def current(cls) -> ProcessGroup:
        """The group of this process."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which evaluates, writes files and reports."""
        return self.rank == 0

    def wrap(self, learner: nn.Module, *inputs: Any) -> nn.Module:
        """Average gradients over ranks; a call with `inputs` shows which parameters are used."""
        if self.ranks == 1:
            return learner
        learner(*inputs).backward()
        unused = any(p.requires_grad and p.grad is None for p in learner.parameters())
        learner.zero_grad(set_to_none=True)
        known = inspect.signature(DistributedDataParallel).parameters
        sync = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        options: dict[str, Any] = {"find_unused_parameters": unused, sync: False}
        wrapped: nn.Module = DistributedDataParallel(learner, **options)
        return wrapped

    def no_sync(self, learner: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Send gradients only after the last of several backward passes."""
        if self.ranks == 1 or last:
            return nullcontext()
        return learner.no_sync()  # type: ignore[no-any-return, operator]

    def shard(self, rows: Any) -> Any:
        """This rank's rows of a batch."""
        if self.ranks == 1:
            return rows
        count = len(rows.inputs) if isinstance(rows, Batch) else len(rows.source)
        if count % self.ranks:
            raise ThreefoldError(
                f"a batch of {count} rows for {self.ranks} processes; expected a multiple of "
                f"{self.ranks}: change data.batch_size"
            )
        size = count // self.ranks
        return _slice(rows, slice(self.rank * size, (self.rank + 1) * size))

    def sum(self, *numbers: float) -> list[float]:
        """The sums of the numbers over all ranks."""
        if self.ranks == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(total)
        return [float(number) for number in total]

    def broadcast(self, *numbers: float) -> list[float]:
        """The numbers of the main rank."""
        if self.ranks == 1:
            return list(numbers)
        received = torch.tensor(numbers, dtype=torch.float64)
        dist.broadcast(received, 0)
        return [float(number) for number in received]

    def gather_state(self, state: State | None) -> State | None:
        """The carried states of all ranks in one on the CPU, rows in the order of the batch."""
        if state is None or self.ranks == 1:
            return state
        content = write_safetensors(
            {path: own_storage(leaf) for path, leaf in states.leaves(state)}
        )
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.ranks)]
        dist.all_gather(sizes, torch.tensor([len(content)]))
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(content)] = torch.from_numpy(np.frombuffer(content, np.uint8).copy())
        buffers = [torch.empty_like(padded) for _ in range(self.ranks)]
        dist.all_gather(buffers, padded)
        shards = []
        for buffer, size in zip(buffers, sizes, strict=True):
            tensors = read_safetensors(buffer[: int(size)].numpy().tobytes())
            shards.append(states.tree({path: tensors[path] for path, _ in states.leaves(state)}))
        return states.join(shards)

    def shard_state(self, state: State | None) -> State | None:
        """This rank's rows of a gathered state."""
        if state is None or self.ranks == 1:
            return state
        rows = states.batch_size(state) or 0
        size = rows // self.ranks
        return states.select(state, slice(self.rank * size, (self.rank + 1) * size))

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.ranks > 1:
            dist.barrier()


def _slice(rows: Any, selection: slice) -> Any:
    if isinstance(rows, Pairs):
        return replace(
            rows,
            source=rows.source[selection],
            target=rows.target[selection],
            source_lengths=None if rows.source_lengths is None else rows.source_lengths[selection],
            target_lengths=rows.target_lengths[selection],
        )
    fields: list[Tensor | None] = [None if item is None else item[selection] for item in rows]
    return type(rows)(*fields)


def backend() -> str:
    """What carries tensors between processes: NCCL those on CUDA devices, gloo all others."""
    has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
    return "cpu:gloo,cuda:nccl" if has_nccl else "gloo"


@contextmanager
def join_group() -> Iterator[ProcessGroup]:
    """Join the group that torchrun or `threefold train --ranks` started this process in."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks == 1 or dist.is_initialized():
        yield ProcessGroup.current()
        return
    if os.environ.get("LOCAL_WORLD_SIZE", str(ranks)) == str(ranks):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    rendezvous = os.environ.get("THREEFOLD_RENDEZVOUS")
    dist.init_process_group(
        backend(),
        init_method=None if rendezvous is None else f"file://{rendezvous}",
        rank=int(os.environ["RANK"]),
        world_size=ranks,
    )
    try:
        yield ProcessGroup.current()
    except RuntimeError as error:
        if "by peer" not in str(error):
            raise
        raise OtherProcessFailedError(
            "another process of this run has failed; see its message"
        ) from error
    finally:
        dist.destroy_process_group()
