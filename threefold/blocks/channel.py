"""Channel mixers: y_t from x_t, or from x_t and x_{t−1}, under the contract of a mixer.

They follow a mixer in a block; the state of a stateless one is an empty dict.
Shazeer 2020, "GLU Variants Improve Transformer"; Peng et al. 2024, "Eagle and Finch"; Peng et al.
2025, "RWKV-7 'Goose'".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.errors import ThreefoldError, nearest
from threefold.kernels import ops
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.table import construct
from threefold.layers.token_shift import shift_ramp
from threefold.memory.state import State


class SwiGLU(Mixer):
    """y = W₃ (silu(W₁ x) ⊙ W₂ x); hidden size 8/3 of the width, rounded to a multiple of 16."""

    def __init__(self, width: int, *, hidden: int | None = None) -> None:
        super().__init__(width)
        hidden = max(16, 16 * round(width / 6)) if hidden is None else hidden
        self.gate = Linear(width, hidden, bias=False)
        self.input = Linear(width, hidden, bias=False)
        self.out = Linear(hidden, width, bias=False)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        return self.out(ops.swiglu(self.gate(x), self.input(x))), {}


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # used by GPT-2
    "relu": F.relu,
}


class MLP(Mixer):
    """y = W₂ φ(W₁ x + b₁) + b₂; hidden size 4 times the width; φ: gelu, gelu_tanh or relu."""

    def __init__(
        self,
        width: int,
        *,
        hidden: int | None = None,
        activation: str = "gelu",
        bias: bool = True,
    ) -> None:
        super().__init__(width)
        if activation not in ACTIVATIONS:
            raise ThreefoldError(
                f"MLP: unknown activation {activation!r}; {nearest(str(activation), ACTIVATIONS)}"
            )
        hidden = 4 * width if hidden is None else hidden
        self.activate = ACTIVATIONS[activation]
        self.input = Linear(width, hidden, bias=bias)
        self.out = Linear(hidden, width, bias=bias)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        return self.out(self.activate(self.input(x))), {}


class RWKVChannel(Mixer):
    """RWKV-6's channel mixing: y = σ(W_r x_r) ⊙ W_v relu(W_k x_k)².

    x_r and x_k are mixtures with the previous element; the hidden size is 3.5 times the width,
    rounded down to a multiple of 32.  One deviation: `out` starts small instead of at zero, so that
    the output of an untrained layer is not zero.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("shares",)

    def __init__(
        self, width: int, *, hidden: int | None = None, layer: int = 0, depth: int = 1
    ) -> None:
        super().__init__(width)
        hidden = max(32, int(3.5 * width) // 32 * 32) if hidden is None else hidden
        self.shares = nn.Parameter(shift_ramp(width, 1 - layer / depth).repeat(2, 1))
        self.key = Linear(width, hidden, bias=False)
        self.receptance = Linear(width, width, bias=False)
        self.out = Linear(hidden, width, bias=False)
        self.carries(shift=(width,))
        nn.init.orthogonal_(self.key.weight)
        nn.init.zeros_(self.receptance.weight)
        nn.init.orthogonal_(self.out.weight, gain=0.1)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        mixtures, last = ops.token_shift(x, self.shares, state["shift"], lengths)
        for_key, for_receptance = mixtures.unbind(0)
        y = self.out(F.relu(self.key(for_key)).square())
        return torch.sigmoid(self.receptance(for_receptance)) * y, {"shift": last}


class RWKV7Channel(Mixer):
    """RWKV-7's channel mixing: y = W_v relu(W_k x_k)², with x_k as in RWKV-6.

    The hidden size is 4 times the width.  `out` starts small instead of at zero, as in `rwkv`.
    """

    no_decay: ClassVar[tuple[str, ...]] = ("shares",)

    def __init__(
        self, width: int, *, hidden: int | None = None, layer: int = 0, depth: int = 1
    ) -> None:
        super().__init__(width)
        hidden = 4 * width if hidden is None else hidden
        self.shares = nn.Parameter(shift_ramp(width, (1 - layer / depth) ** 4).unsqueeze(0))
        self.key = Linear(width, hidden, bias=False)
        self.out = Linear(hidden, width, bias=False)
        self.carries(shift=(width,))
        for module, bound in ((self.key, 0.5), (self.out, 0.05)):
            nn.init.uniform_(module.weight, -bound * width**-0.5, bound * width**-0.5)

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        mixtures, last = ops.token_shift(x, self.shares, state["shift"], lengths)
        return self.out(F.relu(self.key(mixtures[0])).square()), {"shift": last}


CHANNELS: dict[str, type[Mixer]] = {
    "swiglu": SwiGLU,
    "mlp": MLP,
    "rwkv": RWKVChannel,
    "rwkv7": RWKV7Channel,
}


def channel(name: str, **options: Any) -> Mixer:
    """Make a channel mixer by name, e.g. `channel("swiglu", width=256)`."""
    if name not in CHANNELS:
        raise ThreefoldError(f"unknown channel mixer {name!r}; {nearest(name, CHANNELS)}")
    return construct(CHANNELS[name], f"channel mixer {name!r}", options)
