"""Echo state network:  h = (1−α) h₋ + α φ(W_in x + b + W h₋),  y = W_o [x; h] + b_o.

A random reservoir, never trained, echoes the inputs; only the read-out learns.
Jaeger 2001, "The echo state approach to analysing and training recurrent neural networks".
"""

from __future__ import annotations

import torch
from torch import Tensor

from threefold.errors import ThreefoldError, nearest
from threefold.layers.cell_mixer import CellMixer
from threefold.layers.linear import Linear
from threefold.layers.mixer import Mixer
from threefold.memory import reservoir
from threefold.memory.spectrum import random_matrix, scale_to_radius
from threefold.memory.state import State, memory_dtype


class ESN(Mixer):
    """A fixed sparse reservoir of `units` (twice the width) and a read-out trained by gradients.

    W_in and b are uniform in ±`input_scale` and ±`bias_scale`; gradients flow through the reservoir
    to the layers below.
    """

    weight_in: Tensor
    bias_in: Tensor
    forms = CellMixer.forms
    refusals = CellMixer.refusals

    def __init__(
        self,
        width: int,
        *,
        units: int | None = None,
        spectral_radius: float = 0.9,
        density: float = 0.1,
        leak: float = 1.0,
        input_scale: float = 0.5,
        bias_scale: float = 0.1,
        activation: str = "tanh",
    ) -> None:
        super().__init__(width)
        self.units = 2 * width if units is None else units
        self.leak, self.activation = leak, activation
        if self.units < 1 or not 0 < leak <= 1:
            raise ThreefoldError(
                f"ESN: units={self.units}, leak={leak}; expected at least 1 unit and a leak above "
                "0, up to 1"
            )
        if activation not in reservoir.ACTIVATIONS:
            known = nearest(activation, reservoir.ACTIVATIONS)
            raise ThreefoldError(f"ESN: unknown activation {activation!r}; {known}")
        # Drawn from torch's global generator, like every other weight.
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, (), device="cpu")))
        drawn = random_matrix(self.units, self.units, density=density, generator=generator)
        matrix = reservoir.sparse(scale_to_radius(drawn, spectral_radius))
        for name, tensor in matrix._asdict().items():
            self._keep(name, tensor)
        self._keep("weight_in", input_scale * random_matrix(self.units, width, generator=generator))
        bias = random_matrix(1, self.units, generator=generator)[0]
        self._keep("bias_in", bias_scale * bias)
        self.out = Linear(width + self.units, width)
        self.carries(memory=(self.units,))

    def _keep(self, name: str, tensor: Tensor) -> None:
        if tensor.is_floating_point():
            tensor = tensor.to(torch.get_default_dtype())
        self.register_buffer(name, tensor.to(self.device))

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        dtype = memory_dtype(x.dtype)
        matrix = reservoir.Sparse(*(getattr(self, name) for name in reservoir.Sparse._fields))
        drive = torch.nn.functional.linear(
            x.to(dtype), self.weight_in.to(dtype), self.bias_in.to(dtype)
        )
        states, memory = reservoir.run(
            drive,
            matrix._replace(values=matrix.values.to(dtype)),
            state["memory"],
            form=form,
            lengths=lengths,
            activation=self.activation,
            leak=self.leak,
        )
        return self.out(torch.cat([x, states.to(x.dtype)], -1)), {"memory": memory}
