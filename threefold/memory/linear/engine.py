"""Runs a structure over a sequence: step by step, C elements at a time, or all at once.

Every chunk is an affine map of the memory before it, so all chunks are summarised in parallel and
only their memories are computed one after another.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from threefold.memory.linear.structures import Structure, Summary, Tokens, choose


def run(tokens: Tokens, memory: Tensor, form: str, chunk: int) -> tuple[Tensor, Tensor]:
    """Tokens [B, H, L, ·] on memory [B, H, K, V]: outputs [B, H, L, V] and the memory after."""
    structure = choose(tokens)
    if form == "step":
        return scan(structure, tokens, memory)
    return in_chunks(structure, tokens, memory, chunk)


def scan(structure: Structure, tokens: Tokens, memory: Tensor) -> tuple[Tensor, Tensor]:
    """The step in a loop: the definition, against which every other form is tested."""
    outputs = []
    for t in range(tokens.query.shape[-2]):
        out, memory = structure.step(memory, tokens.each(lambda field: field[..., t, :]))  # noqa: B023
        outputs.append(out)
    return torch.stack(outputs, -2), memory


def in_chunks(
    structure: Structure, tokens: Tokens, memory: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """Chunks of `chunk` elements, summarised in parallel, then connected by their memories."""
    length = tokens.query.shape[-2]
    summary = structure.chunk(tokens.each(lambda field: split(field, chunk)))
    starts, memory = carry(summary, memory)
    out = summary.reader @ starts
    if summary.out_decay is not None:
        out = out * summary.out_decay
    out = (out + summary.local)[..., :chunk, :].flatten(-3, -2)
    return out[..., :length, :], memory


def split(field: Tensor, chunk: int) -> Tensor:
    """[..., L, size] to [..., L/chunk, C, size], padded with zeros; C is a power of two."""
    length = field.shape[-2]
    count = -(-length // chunk)
    padded = 1 << (chunk - 1).bit_length()
    if length != count * chunk:
        field = F.pad(field, (0, 0, 0, count * chunk - length))
    field = torch.unflatten(field, -2, (count, chunk))
    return field if padded == chunk else F.pad(field, (0, 0, 0, padded - chunk))


def carry(summary: Summary, memory: Tensor) -> tuple[Tensor, Tensor]:
    """The memory before each chunk [..., n, K, V] and after the last."""
    written = summary.written.unbind(-3)
    decays = None if summary.decay is None else summary.decay.unbind(-3)
    erasers = None if summary.eraser is None else summary.eraser.unbind(-3)
    erased = None if summary.erased is None else summary.erased.unbind(-3)
    starts = []
    for i, write in enumerate(written):
        starts.append(memory)
        after = memory if decays is None else memory * decays[i]
        if erasers is not None and erased is not None:
            after = after + erasers[i].mT @ (erased[i] @ memory)
        memory = after + write
    return torch.stack(starts, -3), memory
