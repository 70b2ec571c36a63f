"""The memory that erases: native = the step in plain torch, and the laws of the contract."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.recurrences import (
    SCATTERED,
    Inputs,
    Size,
    assert_equal,
    assert_same,
    check_guards,
    cut,
    describe,
    guarded,
    kernel,
    results,
    step,
)
from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.kernels import delta_recurrence as native
from threefold.kernels import library, ops
from threefold.memory.linear.recurrence import linear_recurrence

DTYPES = [torch.float32, torch.float64]
DECAYS = ("none", "fixed", "scalar", "per_key")
STRUCTURES = [(rule, decay) for rule in ("delta", "rank_one") for decay in DECAYS]
every_structure = pytest.mark.parametrize("structure", STRUCTURES, ids="-".join)

# B, L, H, G, K, V: sizes that are not multiples of a vector, and some that are.
SIZES = [
    (1, 1, 1, 1, 1, 1),
    (2, 2, 3, 3, 3, 5),
    (1, 63, 3, 1, 17, 33),
    (1, 64, 1, 1, 64, 16),
    (3, 65, 4, 2, 3, 70),
    (2, 130, 1, 1, 70, 5),
    (1, 130, 3, 3, 17, 16),
    (1, 5, 2, 1, 64, 64),
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
    rule, decay = structure

    def unit(*shape: int) -> Tensor:
        return F.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, dtype=torch.float64)

    inputs = {
        "query": unit(batch, length, groups, keys),
        "key": unit(batch, length, groups, keys),
        "value": torch.randn(batch, length, heads, values, dtype=torch.float64),
        "state": torch.randn(batch, heads, keys, values, dtype=torch.float64),
    }
    shapes = {"fixed": (heads,), "scalar": (batch, length, heads)}
    if decay != "none":
        shape = shapes.get(decay, (batch, length, heads, keys))
        inputs["log_decay"] = -strongest * uniform(*shape)
    if rule == "delta":
        inputs["strength"] = 2 * uniform(batch, length, heads)
    else:
        erased = unit(batch, length, heads, keys)
        inputs["write"] = -erased
        inputs["read"] = erased * uniform(batch, length, heads, 1)
    inputs = {name: tensor.to(dtype) for name, tensor in inputs.items()}
    if lengths:
        inputs["lengths"] = torch.tensor([length // 2, 0, length, 1][:batch])
    return inputs


@pytest.mark.parametrize("dtype", DTYPES)
@every_structure
def test_native_is_the_step(variant: str, structure: tuple[str, str], dtype: torch.dtype) -> None:
    for index, size in enumerate(SIZES):
        inputs = make(structure, size, dtype, lengths=index % 2 == 0)
        if index % 3 == 0:
            inputs["state"] = torch.zeros_like(inputs["state"])
        try:
            assert_same(results(kernel, inputs), results(step, inputs))
        except AssertionError as error:
            raise AssertionError(describe(structure, size)) from error


@every_structure
def test_step_without_gradients(variant: str, structure: tuple[str, str]) -> None:
    """One element calls the kernel directly, and gives the bits of the operation."""
    for size in [(1, 1, 4, 2, 64, 64), (3, 1, 3, 1, 17, 33), (2, 1, 1, 1, 1, 70)]:
        inputs = make(structure, size, torch.float32)
        operation, expected = kernel(**inputs), step(**inputs)
        with torch.no_grad():
            direct = kernel(**inputs)
        for a, b, c in zip(direct, operation, expected, strict=True):
            assert torch.equal(a, b)
            assert_close(a, c)


@every_structure
def test_state_of_none_is_zeros(variant: str, structure: tuple[str, str]) -> None:
    inputs = make(structure, (2, 70, 2, 2, 5, 6))
    inputs["state"] = torch.zeros_like(inputs["state"])
    expected = results(kernel, inputs)
    del inputs["state"]
    assert_equal(results(kernel, inputs), expected)


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


@pytest.mark.parametrize("kind", ["strong", "mixed", "forget"])
@pytest.mark.parametrize("structure", [s for s in STRUCTURES if s[1] != "none"], ids="-".join)
def test_strong_decays_are_exact(variant: str, structure: tuple[str, str], kind: str) -> None:
    """−50 and −∞ next to mild decays: float32 as close to float64 as elsewhere, no NaN."""
    inputs = make(structure, (1, 256, 4, 2, 17, 20), torch.float32)
    mild = -0.1 * torch.rand_like(inputs["log_decay"])
    strong = torch.full_like(mild, -torch.inf if kind == "forget" else -50.0)
    rare = torch.rand_like(mild) < 0.2
    inputs["log_decay"] = strong if kind == "strong" else strong.where(rare, mild)
    actual = results(kernel, inputs)
    expected = results(step, {name: tensor.double() for name, tensor in inputs.items()})
    assert all(tensor.isfinite().all() for tensor in actual.values())
    assert_same(actual, expected, "extreme")
    if kind == "forget" and structure[1] != "fixed":
        assert (actual["log_decay"][rare] == 0).all()


# Large enough to use three threads; heads that do and do not divide evenly.
LARGE = [(1, 70, 1, 1, 64, 70), (1, 70, 3, 1, 33, 64), (5, 20, 2, 2, 48, 40), (2, 1, 9, 9, 128, 70)]


@pytest.mark.parametrize("size", LARGE)
@pytest.mark.parametrize("structure", [("delta", "scalar"), ("rank_one", "per_key")], ids="-".join)
def test_same_threads_same_bits(variant: str, structure: tuple[str, str], size: Size) -> None:
    """Outputs have the same bits for every number of threads, gradients for the same number."""
    inputs = make(structure, size, torch.float32)
    runs = {}
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        runs[threads] = results(kernel, inputs)
        assert_equal(results(kernel, inputs), runs[threads])
    for threads in (2, 3):
        for name in ("out", "new state", "value", "state"):
            assert torch.equal(runs[threads][name], runs[1][name]), name
        assert_same(runs[threads], runs[1])


@pytest.mark.parametrize("dtype", DTYPES)
@every_structure
def test_cut_anywhere_and_resume(
    variant: str, structure: tuple[str, str], dtype: torch.dtype
) -> None:
    inputs = make(structure, (2, 71, 2, 2, 9, 11), dtype)
    whole, last = kernel(**inputs)
    for pieces in ([71], [1, 2, 3, 65], [64, 7], [70, 1], [3] * 23 + [2]):
        for grad in (True, False):
            carried, outputs, at = inputs["state"], [], 0
            with torch.set_grad_enabled(grad):
                for length in pieces:
                    piece = {name: cut(tensor, at, length) for name, tensor in inputs.items()}
                    out, carried = kernel(**{**piece, "state": carried})
                    outputs.append(out)
                    at += length
            assert_close(torch.cat(outputs, 1), whole)
            assert_close(carried, last, "state")


@every_structure
def test_causal_bit_for_bit(variant: str, structure: tuple[str, str]) -> None:
    inputs = make(structure, (1, 70, 2, 1, 9, 21), torch.float32)
    before, _ = kernel(**inputs)
    timed = [name for name, t in inputs.items() if t.dim() > 1 and name != "state"]
    for time in (0, 1, 2, 3, 6, 63, 64, 69):
        for name in timed:
            changed = inputs[name].clone()
            changed[:, time] = changed[:, time] * 0.5 - 0.1
            after, _ = kernel(**{**inputs, name: changed})
            assert torch.equal(before[:, :time], after[:, :time]), (name, time)
            assert not torch.equal(before[:, time], after[:, time]), (name, time)


@every_structure
def test_rows_and_heads_are_independent_bit_for_bit(
    variant: str, structure: tuple[str, str]
) -> None:
    inputs = make(structure, (3, 70, 2, 2, 9, 11), torch.float32)
    first = results(kernel, inputs)
    changed = {
        name: torch.cat([t[:1], t[1:] * 0.5]) if t.dim() > 1 else t for name, t in inputs.items()
    }
    second = results(kernel, changed)
    for name, tensor in first.items():
        if tensor.dim() > 1:
            assert torch.equal(tensor[0], second[name][0]), name
    assert not torch.equal(first["out"][1], second["out"][1])
    heads = {name: t[:, :, :1] if t.dim() > 2 else t[:1] for name, t in inputs.items()}
    heads["state"] = inputs["state"][:, :1]
    assert torch.equal(kernel(**heads)[0], first["out"][:, :, :1])


@pytest.mark.parametrize("dtype", DTYPES)
@every_structure
def test_padding_is_never_read(
    variant: str, structure: tuple[str, str], dtype: torch.dtype
) -> None:
    """NaN at padding, in inputs and in the gradient of the output, changes nothing."""
    inputs = make(structure, (4, 70, 2, 1, 9, 21), dtype, lengths=True)
    padding = torch.arange(70) >= inputs["lengths"][:, None]
    timed = [name for name, t in inputs.items() if t.dim() > 1 and name != "state"]

    def fill(value: float) -> Inputs:
        hidden = {name: padding.view(4, 70, *[1] * (inputs[name].dim() - 2)) for name in timed}
        return inputs | {name: inputs[name].masked_fill(hidden[name], value) for name in timed}

    clean, poisoned = results(kernel, fill(0.0)), results(kernel, fill(torch.nan))
    assert_equal(poisoned, clean)
    assert (poisoned["out"][padding] == 0).all()
    assert torch.equal(poisoned["new state"][1], inputs["state"][1])  # a row of no elements
    for name in timed:
        assert (poisoned[name][padding] == 0).all(), name
    value = fill(torch.nan)["value"].requires_grad_()
    out, _ = kernel(**{**fill(torch.nan), "value": value})
    grad = torch.ones_like(out).masked_fill(padding[:, :, None, None], torch.nan)
    (found,) = torch.autograd.grad(out, value, grad)
    assert found.isfinite().all()


@every_structure
def test_nan_stays_nan_and_goes_nowhere_else(variant: str, structure: tuple[str, str]) -> None:
    inputs = make(structure, (2, 11, 2, 2, 9, 21), torch.float32)
    inputs["value"][1, 6, 0, 17] = torch.nan
    out, state = kernel(**inputs)
    assert out.isnan().nonzero().tolist() == [[1, t, 0, 17] for t in range(6, 11)]
    assert state.isnan().nonzero().tolist() == [[1, 0, k, 17] for k in range(9)]
    for name in ("query", "key"):
        changed = make(structure, (2, 11, 2, 2, 9, 21), torch.float32)
        changed[name][0, 5, 1, 3] = torch.nan
        out, state = kernel(**changed)
        assert not out[1].isnan().any()
        assert not out[0, :, 0].isnan().any()
        assert not out[0, :5].isnan().any()
        assert out[0, 5, 1].isnan().all()
        assert bool(out[0, 6:, 1].isnan().all()) == (name == "key")
        assert bool(state[0, 1].isnan().any()) == (name == "key")
    changed = make(structure, (2, 11, 2, 2, 9, 21), torch.float32)
    changed["query"][0, 5, 1, 3] = torch.nan
    found = results(kernel, changed)
    # The query reaches the gradients of what was written before it, not of what comes after.
    assert found["value"].isnan().nonzero()[:, :3].unique(dim=0).tolist() == [
        [0, t, 1] for t in range(6)
    ]
    assert not found["query"].isnan().any()


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


@every_structure
def test_gradcheck_through_two_pieces(variant: str, structure: tuple[str, str]) -> None:
    """From the inputs of one piece to the outputs of the next."""
    inputs = make(structure, (2, 9, 2, 1, 3, 2))
    names = list(inputs)
    lengths = torch.tensor([5, 3])

    def two(*tensors: Tensor) -> Any:
        given = dict(zip(names, tensors, strict=True))
        first = {name: cut(tensor, 0, 5) for name, tensor in given.items() if name != "state"}
        second = {name: cut(tensor, 5, 4) for name, tensor in given.items() if name != "state"}
        out, carried = kernel(**first, state=given["state"], lengths=lengths)
        return out, *kernel(**second, state=carried)

    leaves = [tensor.requires_grad_() for tensor in inputs.values()]
    assert torch.autograd.gradcheck(two, leaves, fast_mode=True)


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


def test_second_derivative_is_refused(variant: str) -> None:
    inputs = make(("delta", "none"), (1, 3, 1, 1, 2, 2))
    value = inputs.pop("value").requires_grad_()
    out, _ = kernel(value=value, **inputs)
    (grad,) = torch.autograd.grad(out.square().sum(), value, create_graph=True)
    with pytest.raises(
        NotImplementedError, match="linear_recurrence can be differentiated only once"
    ):
        grad.sum().backward()


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


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("structure", [("delta", "scalar"), ("rank_one", "fixed")], ids="-".join)
def test_compiles_as_one_graph(structure: tuple[str, str], dynamic: bool) -> None:
    torch.compiler.reset()

    def function(**inputs: Any) -> tuple[Tensor, Tensor]:
        pair = [inputs.pop(name) for name in ("write", "read") if name in inputs]
        return linear_recurrence(**inputs, rank_one=tuple(pair) or None, form="chunk")

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for length in (66, 7, 1):
        inputs = make(structure, (2, length, 4, 2, 5, 6))
        assert_equal(results(compiled, inputs), results(function, inputs))
        with torch.no_grad():
            assert torch.equal(compiled(**inputs)[0], function(**inputs)[0])


def test_without_the_dispatcher_under_transforms() -> None:
    """A step without gradients calls the kernel directly, but only on plain tensors."""
    inputs = make(("delta", "scalar"), (3, 1, 2, 2, 5, 6))
    with torch.no_grad():
        out, _ = kernel(**inputs)
        mapped = torch.func.vmap(lambda rows: kernel(**rows)[0])(
            {name: tensor[:, None] for name, tensor in inputs.items()}
        )
        assert torch.equal(mapped[:, 0], out)
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = {name: mode.from_tensor(tensor) for name, tensor in inputs.items()}
            assert kernel(**fake)[0].shape == out.shape


@pytest.mark.parametrize("length", [1, 70])
@every_structure
def test_strides_do_not_matter(variant: str, structure: tuple[str, str], length: int) -> None:
    inputs = make(structure, (2, length, 4, 2, 6, 8), torch.float32)
    inputs["lengths"] = torch.tensor([length, length // 2])
    expected = results(kernel, inputs)
    for scatter in SCATTERED:
        scattered = {name: scatter(tensor) for name, tensor in inputs.items()}
        assert_equal(results(kernel, scattered), expected)
        with torch.no_grad():
            assert torch.equal(kernel(**scattered)[0], expected["out"])


def test_expanded_inputs_and_gradients(variant: str) -> None:
    """One element repeated, and a gradient that is one number repeated."""
    one = make(("delta", "per_key"), (1, 1, 2, 2, 5, 6))
    state = one.pop("state")
    expanded = {n: t.expand(3, 9, *t.shape[2:]).requires_grad_() for n, t in one.items()}
    copies = {n: t.detach().clone().requires_grad_() for n, t in expanded.items()}
    for inputs in (expanded, copies):
        kernel(**inputs, state=state.expand(3, -1, -1, -1))[0].sum().backward()
    for name in one:
        assert expanded[name].grad is not None
        assert torch.equal(expanded[name].grad, copies[name].grad), name


def test_negated_view_in_a_step() -> None:
    """The imaginary part of a conjugate is a view whose numbers have the other sign in memory."""
    inputs = make(("delta", "none"), (1, 1, 1, 1, 3, 4), torch.float32)
    z = torch.complex(inputs["query"], inputs["query"])
    with torch.no_grad():
        out, _ = kernel(**{**inputs, "query": z.conj().imag})
        assert torch.equal(out, -kernel(**inputs)[0])


def test_the_processor_is_left_as_it_was(variant: str) -> None:
    """Denormal numbers are 0 inside the kernel, and only there."""
    inputs = make(("delta", "scalar"), (1, 5, 1, 1, 3, 4), torch.float32)
    inputs["value"] = inputs["state"] = torch.full((1, 1, 3, 4), 1e-42)
    inputs["value"] = torch.full((1, 5, 1, 4), 1e-42)
    out, state = kernel(**inputs)
    assert (out == 0).all()
    assert (state == 0).all()
    assert (torch.full((3,), 1e-42) * torch.ones(3) > 0).all()


def test_empty_batch(variant: str) -> None:
    inputs = make(("delta", "scalar"), (0, 5, 2, 1, 3, 4))
    out, state = kernel(**inputs)
    assert (out.shape, state.shape) == ((0, 5, 2, 4), (0, 2, 3, 4))


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


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "groups": ({"query": torch.zeros(2, 5, 3, 6)}, "divide those of value.*query .2, 5, 3, 6."),
    "both": ({"write": torch.zeros(2, 5, 4, 6), "read": torch.zeros(2, 5, 4, 6)}, "either"),
    "key": (
        {"key": torch.zeros(2, 5, 2, 7)},
        r"expected key \[2, 5, 2, 6\]; given.*key .2, 5, 2, 7",
    ),
    "length": ({"key": torch.zeros(2, 4, 2, 6)}, r"key \[2, 5, 2, 6\]"),
    "strength": ({"strength": torch.zeros(2, 5, 2)}, r"strength \[2, 5, 4\]"),
    "decay": (
        {"log_decay": torch.zeros(2, 5)},
        r"log_decay \[4\] or \[2, 5, 4\] or \[2, 5, 4, 6\]",
    ),
    "state": ({"state": torch.zeros(2, 4, 8, 6)}, r"state \[2, 4, 6, 8\]"),
    "dtype": (
        {"state": torch.zeros(2, 4, 6, 8).double()},
        "all tensors to be torch.float32 on cpu",
    ),
    "device": ({"strength": torch.zeros(2, 5, 4, device="meta")}, "on cpu, as value"),
    "lengths": ({"lengths": torch.ones(3).long()}, r"lengths \[2\] of torch.int64"),
    "lengths' dtype": ({"lengths": torch.ones(2)}, r"lengths \[2\] of torch.int64"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_refused(case: str) -> None:
    change, message = WRONG[case]
    inputs = {**make(("delta", "none"), (2, 5, 4, 2, 6, 8), torch.float32), **change}
    with pytest.raises(ThreefoldError, match=message):
        kernel(**inputs)


@pytest.mark.parametrize("lengths", [[0, 6], [-1, 5]])
def test_lengths_out_of_range_are_refused(variant: str, lengths: list[int]) -> None:
    inputs = make(("delta", "none"), (2, 5, 1, 1, 3, 4))
    with pytest.raises(ThreefoldError, match="a row's length is outside"):
        kernel(**inputs, lengths=torch.tensor(lengths))


@pytest.mark.parametrize(
    ("memories", "values", "threads", "parts"),
    [(4, 64, 2, 1), (1, 64, 2, 2), (3, 64, 2, 2), (1, 16, 2, 1), (1, 128, 8, 8), (7, 64, 1, 1)],
)
def test_heads_are_cut_where_threads_would_wait(
    memories: int, values: int, threads: int, parts: int
) -> None:
    assert native._parts(memories, values, threads) == parts


def test_memory_for_training_grows_with_the_width() -> None:
    """What is saved for the backward pass is about as large as the value, not as the memories."""
    inputs = make(("delta", "scalar"), (1, 1024, 1, 1, 64, 64), torch.float32)
    given = native.DeltaInputs(**dict.fromkeys(native.DeltaInputs._fields) | inputs)
    _, _, moved, checkpoints = native.forward(*given, True)
    assert moved.numel() + checkpoints.numel() <= 2 * inputs["value"].numel()
    _, _, moved, checkpoints = native.forward(*given, False)
    assert moved.numel() + checkpoints.numel() == 0
