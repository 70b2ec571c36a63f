"""One decoded token of the Mamba-130M shape beside the reading of its weights, which bounds it.

Both take turns in one run, so their ratio holds on a busy machine too. The reading is torch's sum
over as many bytes as the model's weights have, with the same number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Contender, Race
from threefold.kernels import library, ops
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec

# inputs × outputs: Mamba-130M's input projection, output projection, and head.
SIZES = [(768, 3072), (1536, 768), (768, 50280)]
ROUNDS = 40


def products(inputs: int, outputs: int, dtype: torch.dtype) -> Race:
    """One row times matrices that together are larger than every cache."""
    count = max(1, 160_000_000 // (inputs * outputs * dtype.itemsize))
    weights = [torch.randn(outputs, inputs).to(dtype) for _ in range(count)]
    x = torch.randn(1, inputs).to(dtype)

    def ours() -> list[Tensor]:
        with torch.no_grad():
            return [ops.linear(x, weight) for weight in weights]

    def plain() -> list[Tensor]:
        with torch.no_grad():
            return [F.linear(x, weight) for weight in weights]

    contenders = {"threefold": ours, "F.linear": plain}
    title = f"{count} products, {inputs} × {outputs}, {dtype}"
    return beside_reading(title, contenders, sum(weight.nbytes for weight in weights))


def beside_reading(title: str, contenders: dict[str, Contender], size: int) -> Race:
    """A race with the reading of `size` bytes, which has nothing to be compared but its time."""
    buffer = torch.zeros(size // 4)
    expected = list(next(iter(contenders.values()))())

    def read() -> list[Tensor]:
        buffer.sum()
        return expected

    return Race(title, {**contenders, "reading the weights": read}, rounds=ROUNDS)


def token() -> Race:
    """The step of a whole model, native and with the reference kernels."""
    spec = Spec("language", 768, 24, mixers=("mamba",), vocabulary=50280, channel="none")
    model = LanguageModel(spec).eval()
    tokens = torch.tensor([1])
    with torch.no_grad():
        _, state = model.step(tokens, None)

    def native() -> list[Tensor]:
        with torch.no_grad():
            return [model.step(tokens, state)[0]]

    def plain() -> list[Tensor]:
        with library.using("reference"):
            return native()

    size = 4 * sum(parameter.numel() for parameter in model.parameters())
    contenders = {"threefold": native, "reference kernels": plain}
    return beside_reading("one token of Mamba-130M", contenders, size)


def run() -> Iterator[Race]:
    """Products by size and dtype, then a whole token."""
    for inputs, outputs in SIZES:
        yield products(inputs, outputs, torch.float32)
    yield token()
