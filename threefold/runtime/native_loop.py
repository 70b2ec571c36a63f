"""Many steps of a model in one native call: tokens are chosen, or elements read, one after another.

What it does is what `decoding.py` and `Session` do step by step, to the same random numbers; the
native loop (kernels/native/program_loop.cpp) only leaves out the Python between two steps.  Where
the model's step cannot be recorded, the answer is None, and the steps run one by one.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.kernels.replay.program import CHOOSING, Loop
from threefold.memory.state import State
from threefold.models.model import Model
from threefold.runtime.sampling import Sampling

MOST_STEPS = 1024  # in one call


class TokenLoop:
    """Chooses tokens for rows in a loop; it must live until the loop has run.

    rows: decoder rows, each with sampling settings, keys of its random numbers, tokens seen, and an
    end.  ends: for each row the tokens [vocabulary] after which it may end, or None.
    """

    def __init__(
        self, rows: Sequence[Any], count: int, ends: Sequence[NDArray[np.uint8] | None]
    ) -> None:
        self.rows, self.count = rows, count
        self.settings = array("d", [n for row in rows for n in _settings(row.sampling)])
        self.keys = array("Q", [int(key) for row in rows for key in row.keys])
        self.draws = array("q", [row.draws for row in rows])
        self.left = array(
            "q", [-1 if row.max_tokens is None else row.max_tokens - row.count for row in rows]
        )
        self.seen = np.stack([row.seen for row in rows]).astype(np.uint8)
        self.ends = list(ends)

    def run(
        self, model: Any, tokens: Tensor, state: State, steps: int
    ) -> tuple[list[list[int]], State] | None:
        """Read `tokens` [B] and choose up to `steps` tokens for each row: (tokens, state).

        The last tokens are chosen and not read.  It ends earlier where a row may have ended.
        """
        rows = len(self.rows)
        chosen = torch.empty(steps, rows, dtype=torch.int64, device="cpu")
        workspace = torch.empty(3, self.count, dtype=torch.float64, device="cpu")
        seen = array("q", [self.seen[row].ctypes.data for row in range(rows)])
        ends = array("q", [0 if one is None else one.ctypes.data for one in self.ends])
        words = {
            "rows": rows,
            "vocabulary": model.spec.vocabulary,
            "count": self.count,
            "wide": int(model.dtype == torch.float64),
            "chosen": chosen.data_ptr(),
            "settings": self.settings.buffer_info()[0],
            "keys": self.keys.buffer_info()[0],
            "draws": self.draws.buffer_info()[0],
            "left": self.left.buffer_info()[0],
            "seen": seen.buffer_info()[0],
            "ends": ends.buffer_info()[0],
            "workspace": workspace.data_ptr(),
        }
        choosing = array("q", [words.get(name, 0) for name in CHOOSING])
        found = model.replay(tokens, state, Loop(steps, choosing=choosing))
        if found is None:
            return None
        _, after, done = found
        return chosen[:done].tolist(), after


def _settings(sampling: Sampling) -> tuple[float, ...]:
    return (
        float(sampling.temperature),
        float(sampling.top_k or 0),
        float(sampling.top_p or 0),
        math.log(sampling.min_p) if sampling.min_p else 0.0,
        float(sampling.repetition_penalty),
    )


def read_steps(model: Model, inputs: Tensor, state: State) -> tuple[Tensor, State] | None:
    """Outputs [B, L, …] after each of the elements [B, L, …], read one by one, and the state."""
    pieces = []
    for piece in torch.split(inputs.transpose(0, 1).contiguous(), MOST_STEPS):
        steps = len(piece)
        found = model.replay(piece[0], state, Loop(steps, inputs=piece, keep_outputs=True))
        if found is None:
            return None
        outputs, state, _ = found
        pieces.append(outputs)
    return torch.cat(pieces).transpose(0, 1), state
