"""o = attention(q, [K; k], [V; v]): one element of attention over a history that grows in place

The native step writes the new key and value into the buffers of the history and reads as many
elements as each row has. `ops.history_step` decides when it is used.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from threefold.kernels import library
from threefold.kernels.dispatch import register_kernel
from threefold.kernels.growing_buffer import claim_buffer, claim_window, state_view
from threefold.kernels.replay.activity import active_recorder
from threefold.kernels.replay.growth import LeafGrowth
from threefold.kernels.replay.listing import Operand
from threefold.kernels.replay.recorder import Recorder

_NO_WINDOW = 2**62


class HistoryStep(NamedTuple):
    """One element: query [B, 1, H, K], key and value [B, 1, G, size] after a history.

    keys, values [B, T, G, size] and position [B]: the history, with all elements of each row, or
    (window) a window with the last `window` − 1 at its end.  bias [1 or B, H, D] is added to scores
    by distance, its last for all further ones; slopes [H] times the distance is subtracted.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    keys: Tensor
    values: Tensor
    position: Tensor
    window: int | None = None
    bias: Tensor | None = None
    slopes: Tensor | None = None

    def sizes(self) -> list[int]:
        rows, _, heads, key_size = self.query.shape
        _, _, groups, value_size = self.value.shape
        window = _NO_WINDOW if self.window is None else self.window
        bias_row = 0 if self.bias is None or len(self.bias) == 1 else self.bias.stride(0)
        bias_size = 0 if self.bias is None else self.bias.shape[-1]
        return [rows, heads, groups, key_size, value_size, window, bias_row, bias_size]


def run(step: HistoryStep) -> tuple[Tensor, Tensor, Tensor]:
    """The output [B, 1, H, V], and the keys and values after the step."""
    step = step._replace(
        query=step.query.contiguous(),
        key=step.key.contiguous(),
        value=step.value.contiguous(),
        bias=library.contiguous(step.bias),
        slopes=library.contiguous(step.slopes),
    )
    recorder = active_recorder()
    if recorder is None:
        return _run(step)
    with recorder.not_watching():
        found = _run(step)
    _record(recorder, step, *found)
    return found


def _run(step: HistoryStep) -> tuple[Tensor, Tensor, Tensor]:
    rows = len(step.query)
    starts: list[int] = step.position.tolist()
    key_starts = value_starts = starts
    if step.window is None:
        ends = [start + 1 for start in starts]
        keys = claim_buffer(step.keys, starts, ends)
        values = claim_buffer(step.values, starts, ends)
    else:
        keys, key_end = claim_window(step.keys, 1)
        values, value_end = claim_window(step.values, 1)
        key_starts, value_starts = [key_end] * rows, [value_end] * rows
    out = step.value.new_empty(*step.query.shape[:3], step.value.shape[3])
    integers = ctypes.c_int64 * rows
    tensors = (out, keys.storage, values.storage, step.query, step.key, step.value)
    pointers: list[int | None] = [x.data_ptr() for x in tensors]
    pointers += [None if x is None else x.data_ptr() for x in (step.bias, step.slopes)]
    position = step.position.double()
    library.invoke(
        "history_step",
        out.dtype,
        [*pointers, integers(*key_starts), integers(*value_starts), position.data_ptr()],
        [*step.sizes(), keys.room, values.room],
        [step.query.shape[-1] ** -0.5],
    )
    key_end, value_end = max(key_starts) + 1, max(value_starts) + 1
    length = None if step.window is None else step.window - 1
    key_begin, value_begin = (0, 0) if length is None else (key_end - length, value_end - length)
    return out, state_view(keys, key_begin, key_end), state_view(values, value_begin, value_end)


def _record(
    recorder: Recorder, step: HistoryStep, out: Tensor, keys: Tensor, values: Tensor
) -> None:
    position = recorder.leaf_of(step.position)
    growth = LeafGrowth(position if step.window is None else None)
    key_leaf = recorder.grow(step.keys, keys, growth)
    value_leaf = recorder.grow(step.values, values, growth)
    recorder.add_result(out)
    dtype = out.dtype
    given = (step.query, step.key, step.value, step.bias, step.slopes)
    addresses = [0 if x is None else recorder.address(x, dtype) for x in given]
    recorder.listing.call(
        "history_step",
        dtype,
        [
            recorder.address(out, dtype),
            Operand("storage", key_leaf),
            Operand("storage", value_leaf),
            *addresses,
            Operand("starts", key_leaf),
            Operand("starts", value_leaf),
            recorder.address(step.position, torch.float64),
        ],
        [*step.sizes(), Operand("room", key_leaf), Operand("room", value_leaf)],
        [step.query.shape[-1] ** -0.5],
    )


register_kernel("history_step", "cpu", run)
