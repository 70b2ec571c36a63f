"""mLSTM:  S = f S₋ + i k⊗v,  z = f z₋ + i k,  o = Sᵀq / max(1, |z·q|),  f = σ(·),  i = exp(·).

An LSTM whose cell is a matrix; the exponential input gate can overrule everything stored before.
Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory".
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.kernels import ops
from threefold.layers.convolution import ShortConvolution
from threefold.layers.heads import choose_heads, split_heads
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.norms import HeadNorm
from threefold.layers.precision import upcast
from threefold.memory.linear.recurrence import recur
from threefold.memory.linear.stabiliser import stabilise
from threefold.memory.state import State


class MLSTM(Mixer):
    """The mLSTM layer of xLSTM: up-projection, convolved queries and keys, a skip, and a SiLU gate.

    The memory is scaled by e^{−m}, m a running maximum; z is its last value column.  One deviation:
    the authors add 1e-6 to the scaled denominator; here it is the floor, so that the scale cancels.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("norm_weight",)
    gate_parameters: ClassVar[tuple[str, ...]] = ("gates",)

    def __init__(
        self,
        width: int,
        *,
        expand: int = 2,
        heads: int = 4,
        block_size: int = 4,
        taps: int = 4,
        eps: float = 1e-5,
        layer: int = 0,
        depth: int = 1,
    ) -> None:
        super().__init__(width)
        channels = expand * width
        self.heads = choose_heads(channels, heads, 64)
        size = channels // self.heads
        if block_size < 1 or channels % block_size:
            raise ThreefoldError(f"MLSTM: blocks of {block_size} do not divide {channels} channels")
        self.input = Linear(width, 2 * channels, bias=False)
        self.conv = ShortConvolution(channels, taps, bias=True)
        self.query, self.key, self.value = (
            nn.Parameter(torch.empty(channels // block_size, block_size, block_size))
            for _ in range(3)
        )
        self.gates = Linear(3 * channels, 2 * self.heads, bias=False)
        self.gate_bias = nn.Parameter(
            torch.cat([0.1 * torch.randn(self.heads), torch.linspace(3, 6, self.heads)])
        )
        self.norm = HeadNorm(self.heads, size, eps=eps, affine=False)
        self.norm_weight = nn.Parameter(torch.ones(self.heads, size))
        self.skip = nn.Parameter(torch.ones(channels))
        self.out = Linear(channels, width, bias=False)
        self.carries(
            memory=(self.heads, size, size + 1),
            maximum=(self.heads,),
            conv=self.conv.state_shape,
        )
        for weight in (self.input.weight, self.query, self.key, self.value):
            nn.init.normal_(weight, std=math.sqrt(2 / (5 * width)))
        nn.init.normal_(self.out.weight, std=2 / depth / math.sqrt(width))
        nn.init.zeros_(self.gates.weight)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        x, gate = self.input(x).chunk(2, -1)
        convolved, conv = self.conv(x, state["conv"], lengths)
        weights = (self.query, self.key, self.value)
        products = ops.block_products((convolved, convolved, x), weights)
        gates = self.gates(products)
        # In float64: around 10⁴, float32 keeps three decimals of a logarithm.
        log_input, forget = (gates.double() + self.gate_bias.double()).chunk(2, -1)
        scaled = stabilise(F.logsigmoid(forget), log_input, state["maximum"].double(), lengths)
        query, key, value = (upcast(split_heads(y, self.heads)) for y in products.chunk(3, -1))
        out, memory = recur(
            query,
            key * (scaled.log_input.exp() * key.shape[-1] ** -0.5).to(key.dtype).unsqueeze(-1),
            F.pad(value, (0, 1), value=1.0),
            log_decay=scaled.log_decay.to(key.dtype),
            state=state["memory"],
            form=form,
            lengths=lengths,
        )
        floor = torch.exp(-scaled.maxima).clamp(min=1e-6).to(out.dtype).unsqueeze(-1)
        out = out[..., :-1] / torch.maximum(out[..., -1:].abs(), floor)
        out = (self.norm(out).to(x.dtype) * self.norm_weight).flatten(-2)
        out = (out + self.skip * convolved) * F.silu(gate)
        # The rounding error of the carried maximum is compensated in the memory.
        maximum = scaled.maximum.to(memory.dtype)
        memory = memory * torch.exp(scaled.maximum - maximum).to(memory.dtype)[..., None, None]
        return self.out(out), {"memory": memory, "maximum": maximum, "conv": conv}
