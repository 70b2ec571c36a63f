"""Transformer-XL:  a_i = softmax_j(((q_i + u)ᵀ k_j + (q_i + w)ᵀ W_r r_{i−j})/√K),
i − memory < j ≤ i.

Past keys are kept and positions are distances, so that it does not matter where a sequence is cut.
Dai et al. 2019, "Transformer-XL: Attentive Language Models beyond a Fixed-Length Context".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.kernels.parameter_cache import ParameterCache
from threefold.kernels.replay.validity import is_watched
from threefold.layers.attention_parts.heads import Heads
from threefold.layers.heads import split_heads
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.layers.positions import sinusoids
from threefold.memory.history import AttentionInputs, SlidingWindow
from threefold.memory.state import State


class TransformerXL(Mixer):
    """Relative attention in which each element reads exactly the last `memory`, itself included.

    That is the authors' same-length mask; it makes the output independent of where a sequence is
    cut.  States are differentiable; detaching them between pieces is left to the training loop.
    Causal: step, chunk and parallel; the state is the last memory − 1 keys and values (projected;
    the authors keep their inputs).
    """

    no_decay = ("content_bias", "distance_bias")

    def __init__(
        self, width: int, *, memory: int = 128, heads: int | None = None, bias: bool = False
    ) -> None:
        super().__init__(width)
        if memory < 1:
            raise ThreefoldError(f"{self.name}: memory is {memory}, expected at least 1 element")
        self.heads = Heads(width, heads=heads, bias=bias)
        self.distance = Linear(width, self.heads.heads * self.heads.size, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(self.heads.heads, self.heads.size))
        self.distance_bias = nn.Parameter(torch.zeros(self.heads.heads, self.heads.size))
        self.history = SlidingWindow(memory)
        self.derived: ParameterCache[Tensor] = ParameterCache()

    def state_shapes(self, length: int) -> Mapping[str, Any]:
        """Shapes of the leaves of one row after `length` elements."""
        return self.history.shapes(length, self.heads.groups, self.heads.size)

    def waves(self, x: Tensor) -> Tensor:
        """The projected distances [H, K, memory]; kept while the weights stay, without a hook."""
        if is_watched(self.distance):
            return self._make_waves(x.dtype, x.device)
        read = [*self.distance.parameters(), *self.distance.buffers()]
        key = self.history.size, x.dtype, x.device
        return self.derived.of(read, lambda: self._make_waves(x.dtype, x.device), *key)

    def _make_waves(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        distances = torch.arange(self.history.size, device=device)
        waves = self.distance(sinusoids(distances, self.width).to(dtype))
        return split_heads(waves, self.heads.heads).permute(1, 2, 0).contiguous()

    def prepare_step(self) -> None:
        """Compute what a step needs besides the parameters, before it is recorded."""
        self.waves(torch.empty(0, dtype=self.dtype, device=self.device))

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        query, key, value = self.heads(x)
        far = torch.einsum("blhk,hkd->blhd", query + self.distance_bias, self.waves(x))
        read = AttentionInputs(query + self.content_bias, key, value, form, lengths)
        read = read._replace(by_distance=far * self.heads.size**-0.5)
        out, state = self.history.run(read, state)
        return self.heads.join(out), state
