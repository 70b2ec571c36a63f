"""The native memory with decays: buffers, gradients of decays, growth, what has no kernel."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.recurrences import (
    DECAYS,
    DTYPES,
    SIZES,
    Size,
    check_guards,
    describe,
    guarded,
    kernel,
    make,
    results,
    step,
)
from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.kernels import decay_recurrence as native
from threefold.kernels import library, ops
from threefold.memory.linear.recurrence import linear_recurrence

KINDS = ("plain", "bonus", "two_sided")
STRUCTURES = [(kind, decay) for kind in KINDS for decay in DECAYS]
every_structure = pytest.mark.parametrize("structure", STRUCTURES, ids="-".join)
# One case for each path through the kernel.
SOME = [("plain", "none"), ("plain", "scalar"), ("bonus", "per_key"), ("two_sided", "per_key")]
some_structures = pytest.mark.parametrize("structure", SOME, ids="-".join)


def test_gradients_of_decays_do_not_cancel(variant: str) -> None:
    """After a decay of −50 the memory is small: so are gradients, with all their digits.

    The sum over time of q·∂q − k·∂k gives them as differences of numbers a million times larger.
    """
    inputs = make(("plain", "per_key"), (1, 64, 1, 1, 8, 8), torch.float32, strongest=0.1)
    inputs["log_decay"][:, 40] = -20.0
    inputs["key"][:, 40:] *= 1e-6
    actual = results(kernel, inputs)["log_decay"][:, 41:]
    expected = results(step, {n: t.double() for n, t in inputs.items()})["log_decay"][:, 41:]
    assert_close(actual, expected, "extreme")


@pytest.mark.parametrize("size", [(1, 1, 9, 9, 128, 70), (2, 1, 1, 1, 256, 300)])
def test_threads_change_no_bit_of_a_step(variant: str, size: Size) -> None:
    inputs = make(("plain", "per_key"), size, torch.float32)
    runs = []
    with torch.no_grad():
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            runs.append(kernel(**inputs))
    for out, state in runs[1:]:
        assert torch.equal(out, runs[0][0])
        assert torch.equal(state, runs[0][1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("structure", [*SOME, ("plain", "fixed")], ids="-".join)
def test_every_output_is_written_and_nothing_else(
    variant: str, structure: tuple[str, str], dtype: torch.dtype
) -> None:
    """Outputs and workspace are filled with NaN first; the guards around them do not change."""
    torch.set_num_threads(2)
    for size in SIZES:
        inputs = make(structure, size, dtype, lengths=True)
        given = native.DecayInputs(**dict.fromkeys(native.DecayInputs._fields) | inputs)
        sizes = given.sizes()
        buffers = [*native._forward_shapes(*given, True, True)]
        buffers.append(given.workspace(sizes, backward=False))
        poisoned = [guarded(tuple(tensor.shape), dtype) for tensor in buffers]
        strides = torch.tensor(given.strides())
        tensors = [tensor for tensor, _ in poisoned]
        library.call("decay_recurrence_forward", tensors, [*given, strides], [*sizes, True])
        check_guards(poisoned)
        out, state, checkpoints, _ = tensors
        assert_close(out, step(**inputs)[0], "output", describe(structure, size))

        buffers = list(native._backward_shapes(out, state, checkpoints, *given, True))
        if structure[1] == "fixed":
            buffers[3] = torch.empty(sizes[:3])
        buffers.append(given.workspace(sizes, backward=True))
        poisoned = [guarded(tuple(tensor.shape), dtype) for tensor in buffers]
        library.call(
            "decay_recurrence_backward",
            [tensor if tensor.numel() else tensor.new_empty(0) for tensor, _ in poisoned],
            [
                *(torch.ones_like(out), torch.ones_like(state), checkpoints, *given),
                torch.tensor([*given.strides(), *out.stride()[:3]]),
            ],
            sizes,
        )
        check_guards(poisoned)


@some_structures
def test_gradients_without_what_was_kept(variant: str, structure: tuple[str, str]) -> None:
    """An operation called without `save` recomputes what the backward pass needs."""
    inputs = make(structure, (1, 70, 2, 2, 5, 6))
    given = native.DecayInputs(**dict.fromkeys(native.DecayInputs._fields) | inputs)
    leaves = [None if t is None else t.detach().requires_grad_() for t in given]
    wanted = [leaf for leaf in leaves if leaf is not None]
    found = [
        torch.autograd.grad(native.operation(*leaves, save, True)[0].square().sum(), wanted)
        for save in (True, False)
    ]
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


@every_structure
def test_opcheck(structure: tuple[str, str]) -> None:
    inputs = make(structure, (2, 66, 2, 1, 3, 4), lengths=True)
    given = native.DecayInputs(**dict.fromkeys(native.DecayInputs._fields) | inputs)
    leaves = [t.requires_grad_() if t is not None and t.is_floating_point() else t for t in given]
    torch.library.opcheck(native.operation, (*leaves, True, True))
    detached = [None if t is None else t.detach() for t in leaves]
    torch.library.opcheck(native.operation, (*detached, False, True))
    out, state, checkpoints = native.operation(*detached, True, True)
    torch.library.opcheck(native.backward, (out, state, checkpoints, *detached, True))


@pytest.mark.parametrize("name", ["log_decay", "log_decay_value"])
@pytest.mark.parametrize("length", [1, 70])
def test_growth_is_refused(variant: str, name: str, length: int) -> None:
    """The kernel finds it, and the error says which and how much; padding may contain anything."""
    inputs = make(("two_sided", "per_key"), (2, length, 2, 2, 9, 21), torch.float32)
    inputs[name][1, -1, 1, 3] = 0.25
    given = [inputs.get(field) for field in native.DecayInputs._fields]
    with pytest.raises(ThreefoldError, match="a log-decay is above 0"):
        native.operation(*given, False, True)
    with pytest.raises(ThreefoldError, match=f"{name} must be ≤ 0.*0.25"):
        linear_recurrence(**inputs, form="chunk")
    with torch.no_grad(), pytest.raises(ThreefoldError, match=f"{name} must be ≤ 0.*0.25"):
        linear_recurrence(**inputs)
    # Mixers do not check: their log-decays are ≤ 0 up to rounding.
    assert kernel(**inputs)[0].isfinite().all()
    given[-1] = torch.tensor([length, length - 1])
    native.operation(*given, False, True)
    inputs[name][1, -1, 1, 3] = 0.0
    linear_recurrence(**inputs, form="chunk")


def test_growth_is_refused_when_compiled() -> None:
    torch.compiler.reset()
    compiled = torch.compile(linear_recurrence, fullgraph=True, backend="aot_eager")
    inputs = make(("plain", "scalar"), (1, 9, 1, 1, 3, 4))
    compiled(**inputs)
    with pytest.raises(ThreefoldError, match="a log-decay is above 0"):
        compiled(**inputs | {"log_decay": torch.full_like(inputs["log_decay"], 0.25)})


@pytest.mark.parametrize("case", ["both", "half", "meta", "no keys", "reference"])
def test_what_has_no_kernel(case: str) -> None:
    inputs = make(("bonus", "scalar"), (1, 5, 2, 2, 3, 4))
    if case == "both":
        inputs["log_decay_value"] = -torch.ones(1, 5, 2, 4).double()
    if case in ("half", "meta"):
        inputs = {n: t.to(torch.bfloat16 if case == "half" else "meta") for n, t in inputs.items()}
    if case == "no keys":
        inputs |= {"query": torch.ones(1, 5, 2, 0), "key": torch.ones(1, 5, 2, 0)}
    with library.using("reference" if case == "reference" else "auto"):
        assert ops.linear_recurrence(**inputs) is None


def test_memory_for_training_grows_with_the_width() -> None:
    """What is saved for the backward pass is about as large as the value, not as the memories."""
    inputs = make(("plain", "scalar"), (1, 1024, 1, 1, 64, 64), torch.float32)
    given = native.DecayInputs(**dict.fromkeys(native.DecayInputs._fields) | inputs)
    assert native.forward(*given, True, True)[2].numel() <= inputs["value"].numel()
    assert native.forward(*given, False, True)[2].numel() == 0
