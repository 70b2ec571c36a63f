"""Both native memories (decays; erasing): native = the step in plain torch, and the contract."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.recurrences import (
    DECAYS,
    DTYPES,
    ERASING,
    SCATTERED,
    SIZES,
    Inputs,
    Size,
    assert_equal,
    assert_same,
    cut,
    describe,
    kernel,
    make,
    results,
    step,
    timed_fields,
)
from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.memory.linear.recurrence import linear_recurrence

KINDS = ("plain", "bonus", "two_sided", *ERASING)
STRUCTURES = [(kind, decay) for kind in KINDS for decay in DECAYS]
every_structure = pytest.mark.parametrize("structure", STRUCTURES, ids="-".join)
# One case for each path through a kernel.
SOME = [
    *(("plain", "none"), ("plain", "scalar"), ("bonus", "per_key"), ("two_sided", "per_key")),
    *(("delta", "scalar"), ("rank_one", "per_key")),
]
some_structures = pytest.mark.parametrize("structure", SOME, ids="-".join)
both_kernels = pytest.mark.parametrize("kind", ["plain", "delta"])


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
    """One element calls a kernel directly; the one that erases gives the bits of the operation."""
    for size in [(1, 1, 4, 2, 64, 64), (3, 1, 3, 1, 17, 33), (2, 1, 1, 1, 1, 70)]:
        inputs = make(structure, size, torch.float32, lengths=size[0] == 3)
        for given in (inputs, {n: t for n, t in inputs.items() if n != "state"}):
            operation, expected = kernel(**given), step(**given)
            with torch.no_grad():
                direct = kernel(**given)
            for a, b, c in zip(direct, operation, expected, strict=True):
                assert structure[0] not in ERASING or torch.equal(a, b)
                assert_close(a, c)


@every_structure
def test_state_of_none_is_zeros(variant: str, structure: tuple[str, str]) -> None:
    inputs = make(structure, (2, 70, 2, 2, 5, 6))
    inputs["state"] = torch.zeros_like(inputs["state"])
    expected = results(kernel, inputs)
    del inputs["state"]
    assert_equal(results(kernel, inputs), expected)


@pytest.mark.parametrize("kind", ["strong", "mixed", "forget"])
@pytest.mark.parametrize("structure", [s for s in STRUCTURES if s[1] != "none"], ids="-".join)
def test_strong_decays_are_exact(variant: str, structure: tuple[str, str], kind: str) -> None:
    """−50 and −∞ next to mild decays: float32 as close to float64 as elsewhere, no NaN."""
    inputs = make(structure, (1, 256, 4, 2, 17, 20), torch.float32)
    # The product of both sides must stay a normal number.
    least = -30.0 if structure[0] == "two_sided" else -50.0
    rare = {}
    for name in {"log_decay", "log_decay_value"} & inputs.keys():
        mild = -0.1 * torch.rand_like(inputs[name])
        strong = torch.full_like(mild, -torch.inf if kind == "forget" else least)
        rare[name] = torch.rand_like(mild) < 0.2
        inputs[name] = strong if kind == "strong" else strong.where(rare[name], mild)
    actual = results(kernel, inputs)
    expected = results(step, {name: tensor.double() for name, tensor in inputs.items()})
    assert all(tensor.isfinite().all() for tensor in actual.values())
    assert_same(actual, expected, "extreme")
    if kind == "forget" and (structure[0] not in ERASING or structure[1] != "fixed"):
        for name, chosen in rare.items():
            assert (actual[name][chosen] == 0).all(), name


# Large enough to use three threads; heads that do and do not divide evenly.
LARGE = [(1, 70, 1, 1, 64, 70), (1, 70, 3, 1, 33, 64), (5, 20, 2, 2, 48, 40), (2, 1, 9, 9, 128, 70)]


@pytest.mark.parametrize("size", LARGE)
@some_structures
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
    """Whatever a later element contains, even NaN."""
    inputs = make(structure, (1, 70, 2, 1, 9, 21), torch.float32)
    before, _ = kernel(**inputs)
    for time in (0, 1, 2, 6, 7, 8, 11, 63, 64, 69):
        for name in timed_fields(inputs):
            changed = inputs[name].clone()
            changed[:, time] = changed[:, time] * 0.5 - 0.1
            poisoned = inputs[name].clone()
            poisoned[:, time] = torch.nan
            after, _ = kernel(**{**inputs, name: changed})
            ruined, _ = kernel(**{**inputs, name: poisoned})
            assert torch.equal(before[:, :time], after[:, :time]), (name, time)
            assert torch.equal(before[:, :time], ruined[:, :time]), (name, time)
            # With a bonus an element reads before it decays.
            first = time + (structure[0] == "bonus" and name == "log_decay")
            if first < 70:
                assert not torch.equal(before[:, first], after[:, first]), (name, time)


@every_structure
def test_rows_and_heads_are_independent_bit_for_bit(
    variant: str, structure: tuple[str, str]
) -> None:
    inputs = make(structure, (3, 70, 2, 2, 9, 11), torch.float32)
    shared = ("bonus", *(["log_decay"] if structure[1] == "fixed" else []))
    first = results(kernel, inputs)
    changed = {
        name: t if name in shared else torch.cat([t[:1], t[1:] * 0.5]) for name, t in inputs.items()
    }
    second = results(kernel, changed)
    for name, tensor in first.items():
        if name not in shared:
            assert torch.equal(tensor[0], second[name][0]), name
    assert not torch.equal(first["out"][1], second["out"][1])
    heads = {name: t[:1] if name in shared else t[:, :, :1] for name, t in inputs.items()}
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
    timed = timed_fields(inputs)

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
    size = (2, 11, 2, 2, 9, 21)
    inputs = make(structure, size, torch.float32)
    inputs["value"][1, 6, 0, 17] = torch.nan
    out, state = kernel(**inputs)
    assert out.isnan().nonzero().tolist() == [[1, t, 0, 17] for t in range(6, 11)]
    assert state.isnan().nonzero().tolist() == [[1, 0, k, 17] for k in range(9)]
    for name in ("query", "key"):
        changed = make(structure, size, torch.float32)
        changed[name][0, 5, 1, 3] = torch.nan
        out, state = kernel(**changed)
        assert not out[1].isnan().any()
        assert not out[0, :, 0].isnan().any()
        assert not out[0, :5].isnan().any()
        assert out[0, 5, 1].isnan().all()
        assert bool(out[0, 6:, 1].isnan().all()) == (name == "key")
        # What erases reads the whole memory, and writes into all of it.
        touched = list(range(9)) if structure[0] in ERASING else [3]
        rows = state[0, 1].isnan().nonzero()[:, 0].unique().tolist()
        assert rows == touched * (name == "key")
    changed = make(structure, size, torch.float32)
    changed["query"][0, 5, 1, 3] = torch.nan
    found = results(kernel, changed)
    # The query reaches the gradients of what was written before it, not of what comes after.
    assert found["value"].isnan().nonzero()[:, :3].unique(dim=0).tolist() == [
        [0, t, 1] for t in range(6)
    ]
    assert not found["query"].isnan().any()


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


@every_structure
def test_gradients_of_some_inputs_only(variant: str, structure: tuple[str, str]) -> None:
    """Gradients that are not requested are not computed, and the others do not change."""
    inputs = make(structure, (2, 70, 2, 1, 5, 6))
    everything = results(kernel, inputs)
    for name in inputs:
        leaf = inputs[name].detach().clone().requires_grad_()
        out, state = kernel(**{**inputs, name: leaf})
        generator = torch.Generator().manual_seed(1)
        grads = [
            torch.randn(t.shape, dtype=torch.float64, generator=generator) for t in (out, state)
        ]
        (found,) = torch.autograd.grad([out, state], leaf, grads)
        assert torch.equal(found, everything[name]), name


@pytest.mark.parametrize("used", [0, 1])
@some_structures
def test_gradients_of_one_output_only(variant: str, structure: tuple[str, str], used: int) -> None:
    """Of the outputs or of the new state, the other being unused."""
    inputs = make(structure, (2, 70, 2, 1, 5, 6))
    found = []
    for function in (kernel, step):
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
        wanted = [leaves[name] for name in ("key", "value", "state")]
        found.append(torch.autograd.grad(function(**leaves)[used].square().sum(), wanted))
    for a, b in zip(*found, strict=True):
        assert_close(a, b, "gradient")


@both_kernels
def test_second_derivative_is_refused(variant: str, kind: str) -> None:
    inputs = make((kind, "none"), (1, 3, 1, 1, 2, 2))
    value = inputs.pop("value").requires_grad_()
    out, _ = kernel(value=value, **inputs)
    (grad,) = torch.autograd.grad(out.square().sum(), value, create_graph=True)
    with pytest.raises(
        NotImplementedError, match="linear_recurrence can be differentiated only once"
    ):
        grad.sum().backward()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "structure", [*SOME[:-1], ("plain", "fixed"), ("rank_one", "fixed")], ids="-".join
)
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
            assert_close(compiled(**inputs)[0], function(**inputs)[0])


@both_kernels
def test_without_the_dispatcher_under_transforms(kind: str) -> None:
    """A step without gradients calls the kernel directly, but only on plain tensors."""
    inputs = make((kind, "scalar"), (3, 1, 2, 2, 5, 6))
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
    with torch.no_grad():
        without = kernel(**inputs)[0]
    for scatter in SCATTERED:
        scattered = {name: scatter(tensor) for name, tensor in inputs.items()}
        assert_equal(results(kernel, scattered), expected)
        with torch.no_grad():
            assert torch.equal(kernel(**scattered)[0], without)


@pytest.mark.parametrize("kind", ["two_sided", "delta"])
def test_expanded_inputs_and_gradients(variant: str, kind: str) -> None:
    """One element repeated, and a gradient that is one number repeated."""
    one = make((kind, "per_key"), (1, 1, 2, 2, 5, 6))
    state = one.pop("state")
    expanded = {n: t.expand(3, 9, *t.shape[2:]).requires_grad_() for n, t in one.items()}
    copies = {n: t.detach().clone().requires_grad_() for n, t in expanded.items()}
    for inputs in (expanded, copies):
        kernel(**inputs, state=state.expand(3, -1, -1, -1))[0].sum().backward()
    for name in one:
        assert expanded[name].grad is not None
        assert torch.equal(expanded[name].grad, copies[name].grad), name


@both_kernels
def test_negated_view_in_a_step(kind: str) -> None:
    """The imaginary part of a conjugate is a view whose numbers have the other sign in memory."""
    inputs = make((kind, "none"), (1, 1, 1, 1, 3, 4), torch.float32)
    z = torch.complex(inputs["query"], inputs["query"])
    with torch.no_grad():
        out, _ = kernel(**{**inputs, "query": z.conj().imag})
        assert torch.equal(out, -kernel(**inputs)[0])


@both_kernels
def test_the_processor_is_left_as_it_was(variant: str, kind: str) -> None:
    """Denormal numbers are 0 inside the kernel, and only there."""
    inputs = make((kind, "scalar"), (1, 5, 1, 1, 3, 4), torch.float32)
    inputs["state"] = torch.full((1, 1, 3, 4), 1e-42)
    inputs["value"] = torch.full((1, 5, 1, 4), 1e-42)
    out, state = kernel(**inputs)
    assert (out == 0).all()
    assert (state == 0).all()
    assert (torch.full((3,), 1e-42) * torch.ones(3) > 0).all()


@some_structures
def test_empty_batch(variant: str, structure: tuple[str, str]) -> None:
    found = results(kernel, make(structure, (0, 5, 2, 1, 3, 4)))
    assert (found["out"].shape, found["new state"].shape) == ((0, 5, 2, 4), (0, 2, 3, 4))
    assert (found.get("bonus", torch.zeros(1)) == 0).all()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "groups": ({"query": torch.zeros(2, 5, 3, 6)}, "divide those of value.*query .2, 5, 3, 6."),
    "key": (
        {"key": torch.zeros(2, 5, 2, 7)},
        r"expected key \[2, 5, 2, 6\]; given.*key .2, 5, 2, 7",
    ),
    "length": ({"key": torch.zeros(2, 4, 2, 6)}, r"key \[2, 5, 2, 6\]"),
    "decay": (
        {"log_decay": torch.zeros(2, 5)},
        r"log_decay \[4\] or \[2, 5, 4\] or \[2, 5, 4, 6\]",
    ),
    "state": ({"state": torch.zeros(2, 4, 8, 6)}, r"state \[2, 4, 6, 8\]"),
    "dtype": (
        {"state": torch.zeros(2, 4, 6, 8).double()},
        "all tensors to be torch.float32 on cpu",
    ),
    "device": ({"log_decay": torch.zeros(4, device="meta")}, "on cpu, as value"),
    "lengths": ({"lengths": torch.ones(3).long()}, r"lengths \[2\] of torch.int64"),
    "lengths' device": ({"lengths": torch.ones(2, device="meta").long()}, "torch.int64 on cpu"),
    "lengths' dtype": ({"lengths": torch.ones(2)}, r"lengths \[2\] of torch.int64"),
}
# Of one kernel only.
WRONG_DECAYS: dict[str, tuple[dict[str, Any], str]] = {
    "value side": ({"log_decay_value": torch.zeros(2, 5, 4, 6)}, r"log_decay_value \[2, 5, 4, 8\]"),
    "bonus": ({"bonus": torch.zeros(2, 6)}, r"bonus \[4, 6\]"),
}
WRONG_ERASING: dict[str, tuple[dict[str, Any], str]] = {
    "both": ({"write": torch.zeros(2, 5, 4, 6), "read": torch.zeros(2, 5, 4, 6)}, "either"),
    "strength": ({"strength": torch.zeros(2, 5, 2)}, r"strength \[2, 5, 4\]"),
}
WRONG_INPUTS = [
    *(("plain", change, message) for change, message in (WRONG | WRONG_DECAYS).values()),
    *(("delta", change, message) for change, message in (WRONG | WRONG_ERASING).values()),
]


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    WRONG_INPUTS,
    ids=[
        *(f"plain {n}" for n in WRONG | WRONG_DECAYS),
        *(f"delta {n}" for n in WRONG | WRONG_ERASING),
    ],
)
def test_wrong_input_is_refused(kind: str, change: dict[str, Any], message: str) -> None:
    inputs = {**make((kind, "none"), (2, 5, 4, 2, 6, 8), torch.float32), **change}
    with pytest.raises(ThreefoldError, match=message):
        kernel(**inputs)


@pytest.mark.parametrize("lengths", [[0, 6], [-1, 5]])
@both_kernels
def test_lengths_out_of_range_are_refused(variant: str, kind: str, lengths: list[int]) -> None:
    inputs = make((kind, "none"), (2, 5, 1, 1, 3, 4))
    with pytest.raises(ThreefoldError, match="a row's length is outside"):
        kernel(**inputs, lengths=torch.tensor(lengths))
