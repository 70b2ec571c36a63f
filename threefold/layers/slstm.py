"""sLSTM:  c = f c₋ + i tanh(z),  n = f n₋ + i,  h = o c/n,  i = exp(·),  f = σ(·),  o = σ(·).

An LSTM whose exponential input gate can overrule what is stored; heads mix among themselves only.
Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from threefold.layers.cell_mixer import CellMixer, locked_mask
from threefold.layers.checks import check_dropout
from threefold.layers.convolution import ShortConvolution
from threefold.layers.heads import choose_heads, split_heads
from threefold.layers.linear import BlockLinear
from threefold.layers.mixer import Mixer
from threefold.layers.norms import HeadNorm
from threefold.memory.cell import CellWeights, SLSTMCell, run
from threefold.memory.state import State


class SLSTM(Mixer):
    """The sLSTM layer of xLSTM: i and f read a short convolution, followed by a norm per head.

    All matrices are block-diagonal, one block per head.  The state holds c/n and log n instead of
    c and n: the same function, but independent of scale.  The up-projection of the layer is left to
    the channel mixer of the block.
    """

    forms = CellMixer.forms
    refusals: ClassVar[Mapping[str, str]] = CellMixer.refusals
    no_decay: ClassVar[tuple[str, ...]] = ("norm_weight",)
    gate_parameters: ClassVar[tuple[str, ...]] = ("gates", "write")

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        taps: int = 4,
        recurrent_dropout: float = 0.0,
        eps: float = 1e-5,
        layer: int = 0,
        depth: int = 1,
    ) -> None:
        super().__init__(width)
        check_dropout(self.name, recurrent_dropout=recurrent_dropout)
        self.heads = choose_heads(width, heads, 64)
        size = width // self.heads
        self.recurrent_dropout = recurrent_dropout
        self.conv = ShortConvolution(width, taps, bias=True)
        self.write = BlockLinear(width, 2 * width, self.heads)  # z and o
        self.gates = BlockLinear(width, 2 * width, self.heads)  # i and f
        self.recurrent = nn.Parameter(torch.zeros(self.heads, 4 * size, size))
        self.norm = HeadNorm(self.heads, size, eps=eps, affine=False)
        self.norm_weight = nn.Parameter(torch.ones(self.heads, size))
        memory = dict.fromkeys(("hidden", "cell", "normaliser"), (width,))
        self.carries(memory=memory, maximum=(width,), conv=self.conv.state_shape)
        for part in (self.write, self.gates):
            nn.init.normal_(part.weight, std=math.sqrt(2 / (5 * width)))
        # From 5 down to −7 along a head; the curve depends on the layer.
        power = 0.3 + 1.3 * layer / max(depth - 1, 1)
        forget = 5 - 12 * torch.linspace(0, 1, size) ** power
        torch.unflatten(self.gates.bias.detach(), 0, (self.heads, 2, size))[:, 1] = forget

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        convolved, conv = self.conv(x, state["conv"], lengths)
        z, o = self._in_gates(self.write(x))
        i, f = self._in_gates(self.gates(convolved))
        mask = locked_mask(self, x, self.recurrent_dropout, self.width)
        out, carried = run(
            SLSTMCell(),
            torch.cat([z, i, f, o], -1),
            state,
            CellWeights(self.recurrent, None, mask),
            form,
            lengths,
        )
        out = self.norm(split_heads(out, self.heads)).to(x.dtype) * self.norm_weight
        return out.flatten(-2), {**carried, "conv": conv}

    def _in_gates(self, pair: Tensor) -> list[Tensor]:
        """[B, L, H·2·size], two numbers per unit of a head, to two tensors [B, L, H·size]."""
        both = torch.unflatten(pair, -1, (self.heads, 2, -1))
        return [gate.flatten(-2) for gate in both.unbind(-2)]
