"""The native memory that erases: buffers, strengths, empty keys, parts, what has no kernel."""

from __future__ import annotations

import ctypes

import pytest
import torch
from torch import Tensor

from tests.kernels.recurrences import (
    DECAYS,
    DTYPES,
    SIZES,
    assert_same,
    check_guards,
    describe,
    guarded,
    kernel,
    make,
    results,
    step,
)
from tests.tolerances import assert_close
from threefold.kernels import delta_recurrence as native
from threefold.kernels import library, ops

STRUCTURES = [(rule, decay) for rule in ("delta", "rank_one") for decay in DECAYS]
every_structure = pytest.mark.parametrize("structure", STRUCTURES, ids="-".join)


@pytest.mark.parametrize("strength", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("decay", DECAYS)
def test_strengths_at_the_border(variant: str, decay: str, strength: float) -> None:
    inputs = make(("delta", decay), (1, 130, 2, 2, 16, 16), torch.float32, strongest=0.1)
    inputs["strength"] = torch.full_like(inputs["strength"], strength)
    assert_same(results(kernel, inputs), results(step, inputs))


@every_structure
def test_keys_of_length_zero(variant: str, structure: tuple[str, str]) -> None:
    inputs = make(structure, (1, 70, 2, 2, 9, 8), torch.float32, strongest=0.1)
    for keep in ((torch.arange(70) % 3 != 0).float(), torch.zeros(70)):
        for name in {"key", "write", "read"} & inputs.keys():
            inputs[name] = inputs[name] * keep.view(1, -1, 1, 1)
        assert_same(results(kernel, inputs), results(step, inputs))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("structure", [("delta", "scalar"), ("rank_one", "per_key")], ids="-".join)
def test_every_output_is_written_and_nothing_else(
    variant: str, structure: tuple[str, str], dtype: torch.dtype
) -> None:
    """Outputs and workspace are filled with NaN first; the guards around them do not change."""
    torch.set_num_threads(2)
    for size in SIZES:
        inputs = make(structure, size, dtype, lengths=True)
        given = native.DeltaInputs(**dict.fromkeys(native.DeltaInputs._fields) | inputs)
        sizes = given.sizes()
        forward = native._forward_shapes(*given, True)
        buffers = [*forward, workspace(given, backward=False)]
        poisoned = [guarded(tuple(tensor.shape), dtype) for tensor in buffers]
        strides = torch.tensor(given.strides())
        tensors = [tensor for tensor, _ in poisoned]
        library.call("delta_recurrence_forward", tensors, [*given, strides], sizes)
        check_guards(poisoned)
        out, state, moved, checkpoints = tensors[:4]
        assert_close(out, step(**inputs)[0], "output", describe(structure, size))

        like = native._backward_shapes(out, state, moved, checkpoints, *given)
        parts, heads = sizes[-1], inputs["value"].shape[2]
        shapes = [split(tensor, parts, heads) for tensor in like[:7]]
        shapes[2] = like[2].shape
        buffers = [torch.empty(s) for s in (*shapes, state.shape)]
        buffers.append(workspace(given, backward=True))
        poisoned = [guarded(tuple(tensor.shape), dtype) for tensor in buffers]
        library.call(
            "delta_recurrence_backward",
            [tensor if tensor.numel() else tensor.new_empty(0) for tensor, _ in poisoned],
            [
                *(torch.ones_like(out), torch.ones_like(state), moved, checkpoints, *given),
                torch.tensor([*given.strides(), *out.stride()[:3]]),
            ],
            sizes,
        )
        check_guards(poisoned)


def workspace(inputs: native.DeltaInputs, *, backward: bool) -> Tensor:
    sizes = [*inputs.sizes(), backward]
    return library.workspace("delta_recurrence_workspace", inputs.value, sizes)


def split(like: Tensor, parts: int, heads: int) -> tuple[int, ...]:
    """[parts, B, L, H, …] for a gradient [B, L, heads or groups, …]."""
    if like.numel() == 0:
        return (0,)
    return (parts, *like.shape[:2], heads, *like.shape[3:])


def test_gradients_without_what_was_kept(variant: str) -> None:
    """An operation called without `save` recomputes what the backward pass needs."""
    inputs = make(("delta", "scalar"), (1, 70, 2, 2, 5, 6))
    given = native.DeltaInputs(**dict.fromkeys(native.DeltaInputs._fields) | inputs)
    leaves = [None if t is None else t.detach().requires_grad_() for t in given]
    wanted = [leaf for leaf in leaves if leaf is not None]
    found = [
        torch.autograd.grad(native.operation(*leaves, save)[0].square().sum(), wanted)
        for save in (True, False)
    ]
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


@every_structure
def test_opcheck(structure: tuple[str, str]) -> None:
    inputs = make(structure, (2, 66, 2, 1, 3, 4), lengths=True)
    if structure[1] == "fixed":
        inputs["log_decay"] = inputs["log_decay"].expand(2, 66, 2)
    given = native.DeltaInputs(**dict.fromkeys(native.DeltaInputs._fields) | inputs)
    leaves = [t.requires_grad_() if t is not None and t.is_floating_point() else t for t in given]
    torch.library.opcheck(native.operation, (*leaves, True))
    detached = [None if t is None else t.detach() for t in leaves]
    out, state, moved, checkpoints = native.operation(*detached, True)
    torch.library.opcheck(native.backward, (out, state, moved, checkpoints, *detached))


@pytest.mark.parametrize("case", ["bonus", "value side", "half", "meta", "no keys"])
def test_what_has_no_kernel(case: str) -> None:
    inputs = make(("delta", "scalar"), (1, 5, 2, 2, 3, 4))
    if case == "bonus":
        inputs["bonus"] = torch.zeros(2, 3).double()
    if case == "value side":
        inputs["log_decay_value"] = -torch.ones(1, 5, 2, 4).double()
    if case in ("half", "meta"):
        inputs = {n: t.to(torch.bfloat16 if case == "half" else "meta") for n, t in inputs.items()}
    if case == "no keys":
        inputs |= {"query": torch.ones(1, 5, 2, 0), "key": torch.ones(1, 5, 2, 0)}
    assert ops.linear_recurrence(**inputs) is None
    with library.using("reference"):
        inputs = make(("rank_one", "none"), (1, 5, 2, 2, 3, 4))
        assert ops.linear_recurrence(**inputs) is None


@pytest.mark.parametrize(
    ("memories", "values", "threads", "parts"),
    [(4, 64, 2, 1), (1, 64, 2, 2), (3, 64, 2, 2), (1, 16, 2, 1), (1, 128, 8, 8), (7, 64, 1, 1)],
)
def test_heads_are_cut_where_threads_would_wait(
    memories: int, values: int, threads: int, parts: int
) -> None:
    native_library = library.current().native
    assert native_library is not None
    found = ctypes.c_int64()
    ask = native_library.function("delta_recurrence_parts", torch.float32)
    assert ask(ctypes.byref(found), memories, values, threads) == 0
    assert found.value == parts


def test_memory_for_training_grows_with_the_width() -> None:
    """What is saved for the backward pass is about as large as the value, not as the memories."""
    inputs = make(("delta", "scalar"), (1, 1024, 1, 1, 64, 64), torch.float32)
    given = native.DeltaInputs(**dict.fromkeys(native.DeltaInputs._fields) | inputs)
    _, _, moved, checkpoints = native.forward(*given, True)
    assert moved.numel() + checkpoints.numel() <= 2 * inputs["value"].numel()
    _, _, moved, checkpoints = native.forward(*given, False)
    assert moved.numel() + checkpoints.numel() == 0
