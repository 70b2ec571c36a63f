"""What the tests of the native linear memories share: calls of the kernel and of the definition."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.tolerances import assert_close
from threefold.kernels import ops
from threefold.memory.linear.recurrence import recur

Inputs = dict[str, Tensor]
# B, L, H, G, K, V
Size = tuple[int, int, int, int, int, int]


DTYPES = [torch.float32, torch.float64]
DECAYS = ("none", "fixed", "scalar", "per_key")
ERASING = ("delta", "rank_one")  # structures of the kernel that erases; the others only decay

# Sizes that are not multiples of a vector, and some that are.
SIZES: list[Size] = [
    (1, 1, 1, 1, 1, 1),
    (2, 2, 3, 3, 3, 5),
    (1, 63, 3, 1, 17, 33),
    (1, 64, 1, 1, 64, 16),
    (3, 65, 4, 2, 3, 70),
    (2, 130, 1, 1, 70, 5),
    (1, 130, 3, 3, 17, 16),
    (1, 5, 2, 1, 64, 64),
    (1, 70, 1, 1, 1, 33),
]


def make(
    structure: tuple[str, str],
    size: Size,
    dtype: torch.dtype = torch.float64,
    *,
    strongest: float = 2.0,
    lengths: bool = False,
) -> Inputs:
    """Random inputs whose transitions have norm ≤ 1; lengths include 0, 1 and L."""
    batch, length, heads, groups, keys, values = size
    kind, decay = structure

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    def unit(*shape: int) -> Tensor:
        return F.normalize(draw(*shape), dim=-1)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, dtype=torch.float64)

    inputs = {
        "query": unit(batch, length, groups, keys),
        "key": unit(batch, length, groups, keys),
        "value": draw(batch, length, heads, values),
        "state": draw(batch, heads, keys, values),
    }
    shapes = {"fixed": (heads,), "scalar": (batch, length, heads)}
    if decay != "none":
        shape = shapes.get(decay, (batch, length, heads, keys))
        inputs["log_decay"] = -strongest * uniform(*shape)
    if kind == "bonus":
        inputs["bonus"] = draw(heads, keys)
    if kind == "two_sided":
        inputs["log_decay_value"] = -strongest * uniform(batch, length, heads, values)
    if kind == "delta":
        inputs["strength"] = 2 * uniform(batch, length, heads)
    if kind == "rank_one":
        erased = unit(batch, length, heads, keys)
        inputs["write"] = -erased
        inputs["read"] = erased * uniform(batch, length, heads, 1)
    inputs = {name: tensor.to(dtype) for name, tensor in inputs.items()}
    if lengths:
        inputs["lengths"] = torch.tensor([length // 2, 0, length, 1][:batch])
    return inputs


def timed_fields(inputs: Inputs) -> list[str]:
    """The fields that have the time axis."""
    return [n for n, t in inputs.items() if n not in ("state", "bonus") and t.dim() > 1]


def by_kernel(result: Any) -> Any:
    """What an operation returned, unless no kernel served it."""
    assert result is not None, "the kernel did not run"
    return result


def kernel(**inputs: Any) -> tuple[Tensor, Tensor]:
    """`ops.linear_recurrence`, which fails if it does not use the kernel."""
    return by_kernel(ops.linear_recurrence(**{"state": None, **inputs}))


def step(**inputs: Any) -> tuple[Tensor, Tensor]:
    """The definition in plain torch, with gradients on; outputs at padding are 0."""
    pair = [inputs.pop(name) for name in ("write", "read") if name in inputs]
    out, state = recur(**inputs, rank_one=tuple(pair) or None, form="step")
    lengths = inputs.get("lengths")
    if lengths is None:
        return out, state
    padding = torch.arange(out.shape[1]) >= lengths[:, None]
    return out.masked_fill(padding[:, :, None, None], 0), state


def results(function: Any, inputs: Inputs) -> dict[str, Tensor]:
    """out, state, and the gradients of every input for fixed random gradients of both."""
    leaves = {
        name: tensor.detach().requires_grad_(tensor.is_floating_point())
        for name, tensor in inputs.items()
    }
    out, state = function(**leaves)
    generator = torch.Generator().manual_seed(1)
    grads = [
        torch.randn(tensor.shape, dtype=torch.float64, generator=generator).to(tensor)
        for tensor in (out, state)
    ]
    wanted = {name: tensor for name, tensor in leaves.items() if tensor.requires_grad}
    found = torch.autograd.grad([out, state], list(wanted.values()), grads)
    return {"out": out, "new state": state, **dict(zip(wanted, found, strict=True))}


def assert_same(
    actual: dict[str, Tensor], expected: dict[str, Tensor], quantity: str | None = None
) -> None:
    for name, tensor in actual.items():
        kind = quantity or {"out": "output", "new state": "state"}.get(name, "gradient")
        assert_close(tensor, expected[name], kind, name)


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, tensor in actual.items():
        assert torch.equal(tensor, expected[name]), name


def describe(structure: tuple[str, str], size: Size) -> str:
    return f"{'-'.join(structure)} {size}"


def cut(tensor: Tensor, at: int, length: int) -> Tensor:
    return tensor[:, at : at + length] if tensor.dim() > 2 else tensor


def guarded(shape: tuple[int, ...], dtype: torch.dtype, guard: int = 64) -> tuple[Tensor, Tensor]:
    """A tensor of NaN inside a larger one, whose ends must not change."""
    size = torch.Size(shape).numel()
    whole = torch.full((size + 2 * guard,), 7.0, dtype=dtype)
    whole[guard : guard + size] = torch.nan
    return whole[guard : guard + size].view(shape), whole


def check_guards(poisoned: list[tuple[Tensor, Tensor]]) -> None:
    """All outputs except the workspace (the last) are finite, and their guards are unchanged."""
    for index, (tensor, whole) in enumerate(poisoned):
        guard = (whole.numel() - tensor.numel()) // 2
        assert (whole[:guard] == 7).all(), f"buffer {index}: written before it begins"
        assert (whole[guard + tensor.numel() :] == 7).all(), f"buffer {index}: after its end"
    for index, (tensor, _) in enumerate(poisoned[:-1]):
        assert not tensor.isnan().any(), f"buffer {index}: not written"


def interleaved(tensor: Tensor) -> Tensor:
    return tensor.repeat_interleave(2, -1)[..., ::2]


def slices(tensor: Tensor) -> Tensor:
    """A part of a wider last axis, as after a joint projection."""
    return torch.cat([torch.full_like(tensor, 77), tensor], -1)[..., tensor.shape[-1] :]


def last_axis_first(tensor: Tensor) -> Tensor:
    return tensor.movedim(-1, 0).contiguous().movedim(0, -1)


def misaligned(tensor: Tensor) -> Tensor:
    """One number off the alignment of a vector."""
    return torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:].view(tensor.shape)


SCATTERED = (interleaved, slices, last_axis_first, misaligned)
