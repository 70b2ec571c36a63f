"""The selective scan: native = the step in plain torch, and the contract bit for bit."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.recurrences import by_kernel
from tests.kernels.test_short_convolution import guarded
from tests.tolerances import assert_close
from threefold.errors import ThreefoldError
from threefold.kernels import library, ops
from threefold.kernels import selective_scan as native
from threefold.memory.linear.selective import selective_recurrence

DTYPES = [torch.float32, torch.float64]
OPTIONAL = ("D", "gate", "delta_bias", "state", "lengths")
FLAGS = ("softplus", "hold")
OPTIONS = (*OPTIONAL, *FLAGS)
Size = tuple[int, int, int, int]


def run(*inputs: Any, **more: Any) -> tuple[Tensor, Tensor]:
    """`ops.selective_scan`, which fails if it does not use the kernel."""
    return by_kernel(ops.selective_scan(*inputs, **more))


def make(
    size: Size, options: tuple[str, ...] = OPTIONS, dtype: torch.dtype = torch.float64
) -> dict[str, Any]:
    """Random inputs for (B, L, D, N), the same numbers for every dtype; lengths have L, 0 and 1."""
    batch, length, channels, states = size
    draw = torch.Generator().manual_seed(hash(size) % 1000)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(dtype)

    shape = (batch, length, channels)
    inputs: dict[str, Any] = {
        "x": normal(*shape),
        "delta": normal(*shape) if "softplus" in options else normal(*shape).abs(),
        "A": -normal(channels, states).abs(),
        "B": normal(batch, length, states),
        "C": normal(batch, length, states),
        "D": normal(channels),
        "gate": normal(*shape),
        "delta_bias": normal(channels) if "softplus" in options else normal(channels).abs(),
        "state": normal(batch, channels, states),
        "lengths": torch.tensor([length, 0, 1, length // 2, 1][:batch]),
    }
    kept = {name: v for name, v in inputs.items() if name not in OPTIONAL or name in options}
    return kept | {flag: True for flag in FLAGS if flag in options}


def real(inputs: dict[str, Any]) -> Tensor:
    """Which elements are real, not padding, [B, L, 1]."""
    length = inputs["x"].shape[1]
    lengths = inputs.get("lengths", torch.full((len(inputs["x"]),), length))
    return (torch.arange(length) < lengths[:, None])[:, :, None]


def step(**inputs: Any) -> tuple[Tensor, Tensor]:
    """The definition, with zeros at padding."""
    y, state = selective_recurrence(**inputs, form="step")
    return torch.where(real(inputs), y, 0), state


def leaves(inputs: dict[str, Any]) -> dict[str, Tensor]:
    """Copies of the floating-point inputs that require gradients."""
    tensors = {name: t for name, t in inputs.items() if isinstance(t, Tensor) and name != "lengths"}
    return {name: t.detach().clone().requires_grad_() for name, t in tensors.items()}


def results(function: Any, inputs: dict[str, Any]) -> dict[str, Tensor]:
    """y, new state, and the gradients of every input for fixed random gradients of both."""
    wanted = leaves(inputs)
    y, state = function(**(inputs | wanted))
    draw = torch.Generator().manual_seed(1)
    grads = [torch.randn(tensor.shape, generator=draw).to(y.dtype) for tensor in (y, state)]
    gradients = torch.autograd.grad([y, state], list(wanted.values()), grads)
    return {"y": y, "new state": state} | dict(zip(wanted, gradients, strict=True))


@cache
def truth(size: Size, options: tuple[str, ...]) -> dict[str, Tensor]:
    return results(step, make(size, options))


def assert_true(size: Size, options: tuple[str, ...], dtype: torch.dtype) -> None:
    """Native = the step in float64, forward and backward."""
    kinds = {"y": "output", "new state": "state"}
    actual = results(run, make(size, options, dtype))
    for name, expected in truth(size, options).items():
        what = f"{name} of {size} {options}"
        assert_close(actual[name], expected.to(dtype), kinds.get(name, "gradient"), what)


def assert_same(a: Any, b: Any) -> None:
    for one, other in zip(a, b, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 3, 17, 70])
@pytest.mark.parametrize("states", [1, 3, 16, 17])
def test_native_is_the_step(variant: str, states: int, channels: int, dtype: torch.dtype) -> None:
    for length in (1, 2, 63, 64, 65, 130):
        size = (3, length, channels, states)
        assert_true(size, OPTIONS[:-1], dtype)
        assert_true(size, OPTIONS if length % 2 else (), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_combination_of_options(variant: str, dtype: torch.dtype) -> None:
    for chosen in itertools.product([False, True], repeat=len(OPTIONS)):
        options = tuple(itertools.compress(OPTIONS, chosen))
        assert_true((2, 4, 17, 3), options, dtype)


@pytest.mark.parametrize("size", [(1, 70, 200, 64), (2, 20, 40, 128), (1, 3, 3000, 2)])
def test_other_shapes(variant: str, size: Size) -> None:
    """A large state per channel, and enough channels for several slabs."""
    assert_true(size, OPTIONS, torch.float32)


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_decay(variant: str, dtype: torch.dtype, hold: bool) -> None:
    """From no decay to immediate underflow, in neighbouring channels."""
    inputs = make((2, 70, 35, 16), ("state", "softplus"), dtype) | {"hold": hold}
    scales = torch.tensor([0, 1e-30, 1e-3, 1, 30, 1e3, 1e30]).to(dtype).repeat(5)
    inputs["A"] = inputs["A"] * scales[:, None]
    wide = {k: v.double() if isinstance(v, Tensor) else v for k, v in inputs.items()}
    actual, expected = results(run, inputs), results(step, wide)
    for name in ("y", "new state", "x", "delta", "B", "C", "state"):
        kind = {"y": "output", "new state": "state"}.get(name, "gradient")
        assert_close(actual[name], expected[name].to(dtype), kind, name)
    assert all(tensor.isfinite().all() for tensor in actual.values())


def test_nothing_decays_where_a_is_zero(variant: str) -> None:
    """e^0 is 1 to the last bit: a memory that counts stays exact."""
    ones = torch.ones(1, 1000, 5)
    y, state = run(ones, ones, torch.zeros(5, 3), ones[..., :3], ones[..., :3])
    assert torch.equal(y[0, :, 0], 3 * torch.arange(1.0, 1001))
    assert torch.equal(state, torch.full((1, 5, 3), 1000.0))


def test_growth_beyond_the_range(variant: str) -> None:
    """Without softplus Δ may be negative; the state then grows to the largest number, then inf."""
    x = torch.zeros(1, 1, 4)
    delta = torch.tensor([-1.0, -80.0, -88.9, -1e30]).view(1, 1, 4)
    state, B = torch.ones(1, 4, 2), torch.ones(1, 1, 2)
    _, state = run(x, delta, -torch.ones(4, 2), B, B, state=state)
    assert_close(state[0, :2, 0], delta[0, 0, :2].double().neg().exp().float(), "state")
    assert state[0, 2:].isinf().all()


# Large enough to use three threads.
LARGE = [(2, 1, 5001, 16), (1, 300, 200, 16), (5, 64, 70, 17), (2, 3000, 3, 8), (3, 130, 100, 3)]


@pytest.mark.parametrize("size", LARGE)
def test_threads_change_no_bit(variant: str, size: Size) -> None:
    inputs = make(size, dtype=torch.float32)
    runs = []
    for threads in (1, 2, 3, 2):
        torch.set_num_threads(threads)
        runs.append(results(run, inputs))
    for other in runs[1:]:
        assert_same(runs[0].values(), other.values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [(), OPTIONS[:3], OPTIONS])
def test_cut_anywhere_and_resume(
    variant: str, options: tuple[str, ...], dtype: torch.dtype
) -> None:
    """Pieces that carry the state give the bits of the uncut pass, with and without gradients."""
    inputs = make((2, 133, 19, 10), (*options, "state"), dtype)
    inputs.pop("lengths", None)
    timed = ("x", "delta", "B", "C", "gate")
    y, last = run(**inputs)
    for pieces in ([1] * 133, [1, 2, 63, 67], [64, 69], [132, 1]):
        for grad in (True, False):
            carried, outputs, start = inputs["state"], [], 0
            with torch.set_grad_enabled(grad):
                for piece in pieces:
                    cut = {
                        k: v[:, start : start + piece] if k in timed else v
                        for k, v in inputs.items()
                    }
                    output, carried = run(**(cut | {"state": carried}))
                    outputs.append(output)
                    start += piece
            assert torch.equal(torch.cat(outputs, 1), y)
            assert torch.equal(carried, last)


def test_state_of_none_is_zeros(variant: str) -> None:
    inputs = make((2, 6, 9, 4), ("gate",))
    for length in (1, 6):
        cut = {k: v if k == "A" else v[:, :length] for k, v in inputs.items()}
        with torch.no_grad():
            assert_same(run(**cut), run(**cut, state=torch.zeros(2, 9, 4).double()))


@pytest.mark.parametrize("time", [0, 1, 30, 63, 64, 99])
@pytest.mark.parametrize("name", ["x", "delta", "B", "C", "gate"])
def test_causal_bit_for_bit(variant: str, name: str, time: int) -> None:
    """A later element so large that its decay leaves the range changes no bit before it."""
    inputs = make((1, 100, 11, 4), OPTIONS, torch.float32)
    before, _ = run(**inputs)
    inputs[name][:, time] += 1e4
    after, _ = run(**inputs)
    assert torch.equal(before[:, :time], after[:, :time])
    assert not torch.equal(before[:, time], after[:, time])


def test_rows_are_independent_bit_for_bit(variant: str) -> None:
    inputs = make((3, 70, 11, 4), OPTIONS, torch.float32) | {"lengths": torch.tensor([70, 70, 9])}
    first = results(run, inputs)
    for name in ("x", "delta", "B", "state"):
        inputs[name][1:] = 3 * torch.randn(inputs[name][1:].shape)
    inputs["lengths"][2] = 50
    second = results(run, inputs)
    for name in ("y", "new state", "x", "delta", "B", "C", "gate", "state"):
        assert torch.equal(first[name][0], second[name][0])
        assert not torch.equal(first[name][1], second[name][1])


@pytest.mark.parametrize("length", [1, 12, 70])
@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_is_never_read(variant: str, dtype: torch.dtype, length: int) -> None:
    """NaN at padding, in inputs and in the gradient of y, changes nothing."""
    clean = make((4, length, 21, 4), OPTIONS, dtype)
    poisoned = dict(clean)
    for name in ("x", "delta", "B", "C", "gate"):
        poisoned[name] = torch.where(real(clean), clean[name], torch.nan)
    first, second = results(run, clean), results(run, poisoned)
    assert_same(first.values(), second.values())
    padding = ~real(clean).expand(4, length, 21)
    assert torch.equal(first["y"][padding], torch.zeros_like(first["y"][padding]))
    assert torch.equal(first["new state"][1], clean["state"][1])  # a row of no elements
    wanted = leaves(poisoned)
    y, _ = run(**(poisoned | wanted))
    grad = torch.ones_like(y).masked_fill(padding, torch.nan)
    for gradient in torch.autograd.grad(y, list(wanted.values()), grad):
        assert not gradient.isnan().any()


def test_nan_stays_nan_and_goes_nowhere_else(variant: str) -> None:
    """In one channel from its time on; in B and C, in every channel."""
    for name, times in (("x", range(3, 70)), ("delta", range(3, 70)), ("gate", [3])):
        inputs = make((2, 70, 19, 5), OPTIONS[:3], torch.float32)
        inputs[name][1, 3, 17] = torch.nan
        y, state = run(**inputs)
        assert y.isnan().nonzero().tolist() == [[1, time, 17] for time in times], name
        bad = [[1, 17, n] for n in range(5)] if name != "gate" else []
        assert state.isnan().nonzero().tolist() == bad, name
    inputs = make((2, 70, 19, 5), (), torch.float32)
    inputs["A"][17, 2] = inputs["C"][0, 3, 1] = torch.nan
    y, state = run(**inputs)
    assert y[:, :, 17].isnan().all()
    assert y[0, 3].isnan().all()
    assert y.isnan().sum() == 2 * 70 + 18
    assert state.isnan().nonzero().tolist() == [[0, 17, 2], [1, 17, 2]]


def test_nan_in_gradients(variant: str) -> None:
    inputs = make((2, 70, 19, 5), (), torch.float32)
    inputs["x"][1, 66, 17] = torch.nan
    bad = {name: t.isnan() for name, t in results(run, inputs).items()}
    # The state is NaN after it, so the gradients of Δ and A are NaN; those of x are not.
    assert not bad["x"].any()
    assert bad["delta"].nonzero().tolist() == [[1, time, 17] for time in (66, 67, 68, 69)]
    assert bad["A"].nonzero().tolist() == [[17, n] for n in range(5)]
    assert bad["B"].nonzero().tolist() == [[1, 66, n] for n in range(5)]
    assert bad["C"].nonzero().tolist() == [[1, t, n] for t in range(66, 70) for n in range(5)]


def test_gradient_of_one_result_alone(variant: str) -> None:
    inputs = make((2, 70, 9, 4))
    both = leaves(inputs)
    names = list(both)
    y, state = run(**(inputs | both))
    for result, other in ((y, state), (state, y)):
        alone = torch.autograd.grad(
            result.sum(), list(both.values()), retain_graph=True, allow_unused=True
        )
        zero = 0 * other.sum()
        joint = torch.autograd.grad(result.sum() + zero, list(both.values()), retain_graph=True)
        for name, a, b in zip(names, alone, joint, strict=True):
            assert torch.equal(a, b), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [(), OPTIONS])
@pytest.mark.parametrize("size", [(1, 1, 1, 1), (2, 5, 3, 4), (3, 65, 33, 2), (4, 16, 70, 17)])
def test_every_output_is_written_and_nothing_else(
    variant: str, size: Size, options: tuple[str, ...], dtype: torch.dtype
) -> None:
    """On workspaces full of NaN, with guards around them."""
    batch, length, channels, states = size
    inputs = make(size, options, dtype)
    fields = [inputs.get(name) for name in ("x", "delta", "A", "B", "C", *OPTIONAL)]
    *timed, _, lengths = fields
    flags = [flag in options for flag in FLAGS]
    strides = [channels, channels, states, states, channels]
    kept = native.states_shape(*size)
    whole, memory = (batch, length, channels), (batch, channels, states)
    small = (batch, length, states)

    def room(backward: bool) -> tuple[int]:
        (numbers,) = library.ask("selective_scan_workspace", dtype, [*size, backward])
        return (numbers,)

    def call(name: str, shapes: list[Any], given: list[Any], *more: bool) -> list[Tensor]:
        outputs = [None if s is None else guarded(s, dtype) for s in shapes]
        tensors = [None if pair is None else pair[0] for pair in outputs]
        library.call(name, tensors, given, [*size, *strides, *flags, *more])
        for output, around in filter(None, outputs):
            guard = (around.numel() - output.numel()) // 2
            assert (around[:guard] == 7).all()
            assert (around[guard + output.numel() :] == 7).all()
        return tensors

    *_, states_kept, _ = call(
        "selective_scan_forward", [whole, memory, kept, room(False)], fields, True
    )
    y, new_state, *_ = call(
        "selective_scan_forward", [whole, memory, None, room(False)], fields, False
    )
    expected = results(step, inputs)
    assert_close(y, expected["y"])
    assert_close(new_state, expected["new state"])

    draw = torch.Generator().manual_seed(1)
    grads = [torch.randn(s, generator=draw).to(dtype) for s in (whole, memory)]
    gate = whole if "gate" in options else None
    outputs = [whole, whole, memory[1:], small, small, (channels,), gate, (channels,), memory]
    given = [*grads, states_kept, *timed, lengths]
    names = ("x", "delta", "A", "B", "C", "D", "gate", "delta_bias", "state")
    made = call("selective_scan_backward", [*outputs, room(True)], given)[:9]
    for name, gradient in zip(names, made, strict=True):
        if gradient is not None:
            assert not gradient.isnan().any(), name
        if name in expected:
            assert_close(gradient, expected[name], "gradient", name)


@pytest.mark.parametrize("hold", [False, True])
def test_gradcheck_through_two_pieces(variant: str, hold: bool) -> None:
    """From the inputs of one piece to the outputs of the next; where A = 0 too."""
    inputs = make((2, 3, 5, 2), OPTIONS[:4])
    tail = make((2, 2, 5, 2), ("gate",))
    inputs["A"][1, 1] = 0
    lengths = torch.tensor([1, 3])
    names = list(inputs)

    def two(*tensors: Tensor) -> Any:
        given = dict(zip(names, tensors, strict=True))
        y, carried = run(**given, lengths=lengths, softplus=True, hold=hold)
        return y, *run(**(given | tail | {"A": given["A"], "state": carried, "hold": hold}))

    assert torch.autograd.gradcheck(two, [leaf.requires_grad_() for leaf in inputs.values()])


def test_second_derivative_is_refused(variant: str) -> None:
    inputs = make((1, 3, 2, 2), ())
    x = inputs["x"].requires_grad_()
    (grad,) = torch.autograd.grad(run(**inputs)[0].sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="selective_scan can be differentiated only once"):
        grad.sum().backward()


def positional(inputs: dict[str, Any]) -> list[Any]:
    """The inputs in the order of the operation."""
    return [inputs.get(name) for name in ("x", "delta", "A", "B", "C", *OPTIONAL)]


@pytest.mark.parametrize("options", [(), OPTIONS])
def test_opcheck(options: tuple[str, ...]) -> None:
    inputs = make((2, 66, 6, 4), options)
    wanted = positional(inputs | leaves(inputs))
    flags = [flag in options for flag in FLAGS]
    torch.library.opcheck(native.operation, (*wanted, *flags, True))
    *timed, state, lengths = positional(inputs)
    _, _, states = native.operation(*timed, state, lengths, *flags, True)
    grads = (torch.randn(2, 66, 6).double(), torch.randn(2, 6, 4).double())
    torch.library.opcheck(native.backward, (*grads, states, *timed, lengths, *flags))


def test_states_that_were_not_kept_are_computed_again() -> None:
    inputs = make((2, 130, 6, 4))
    gradients = []
    for keep in (True, False):
        wanted = leaves(inputs)
        y, state, _ = native.operation(*positional(inputs | wanted), True, True, keep)
        loss = y.sum() + state.sum()
        gradients.append(torch.autograd.grad(loss, list(wanted.values())))
    assert_same(*gradients)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_as_one_graph(dynamic: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for length in (5, 70, 1):
        inputs = make((2, length, 6, 4))
        assert_same(results(compiled, inputs).values(), results(run, inputs).values())
        with torch.no_grad():
            assert_same(compiled(**inputs), run(**inputs))


def test_without_the_dispatcher_under_transforms() -> None:
    """A step without gradients calls the kernel directly, but only on plain tensors."""
    inputs = make((3, 1, 6, 4), OPTIONS[:4])
    with torch.no_grad():
        y, _ = run(**inputs)
        timed = ("x", "delta", "B", "C", "gate", "state")
        mapped = torch.func.vmap(
            lambda *parts: run(**(inputs | dict(zip(timed, parts, strict=True))))[0]
        )(*(inputs[name][:, None] for name in timed))
        assert torch.equal(mapped[:, 0], y)
        z = torch.randn(3, 1, 6, dtype=torch.complex128).conj()
        negative = inputs | {"delta": z.imag}
        assert_same(run(**negative), run(**(inputs | {"delta": z.imag.clone()})))


@pytest.mark.parametrize("length", [1, 5])
def test_slices_are_read_as_they_lie(variant: str, length: int) -> None:
    """Of wider projections, without a copy; anything else is copied, and gives the same bits."""
    channels, states = 6, 4
    inputs = make((2, length, channels, states), OPTIONS[:4], torch.float32)
    both = torch.cat([inputs["x"], inputs["gate"]], -1)
    three = torch.cat([inputs["delta"], inputs["B"], inputs["C"]], -1)
    sliced = dict(zip(("x", "gate"), both.chunk(2, -1), strict=True))
    sliced |= dict(
        zip(("delta", "B", "C"), three.split([channels, states, states], -1), strict=True)
    )
    for tensor in sliced.values():
        spaced, stride = library.evenly_spaced(tensor)
        assert spaced is tensor
        assert stride == (tensor.stride(1) if length > 1 else tensor.stride(0))
    turned = {
        name: t.transpose(-1, -2).contiguous().transpose(-1, -2)
        for name, t in inputs.items()
        if t.ndim > 1
    }
    expected = results(run, inputs)
    for other in (sliced, turned):
        given = inputs | other
        assert_same(results(run, given).values(), expected.values())
        # No copies as autograd leaves.
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                assert_same(run(**given), run(**inputs))


@pytest.mark.parametrize("length", [256, 1024])
def test_training_memory_does_not_grow_with_the_state_of_every_element(length: int) -> None:
    """Saved tensors and workspaces grow with L·D, whatever N."""
    for states in (16, 64):
        channels = 4 * states
        inputs = make((1, length, channels, states), OPTIONS[:4], torch.float32)
        wanted = leaves(inputs)
        known = {tensor.data_ptr() for tensor in wanted.values()}
        kept: dict[int, int] = {}

        def pack(tensor: Tensor, known: Any = known, kept: Any = kept) -> Tensor:
            if tensor.data_ptr() not in known:
                kept[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            run(**wanted)
        checkpoints = (length // native.CHECKPOINT_EVERY + 1) * channels * states
        assert sum(kept.values()) == checkpoints
        # Rates, adjoints, sums over time and partial sums: not a state for each element.
        (room,) = library.ask(
            "selective_scan_workspace", torch.float32, [1, *wanted["x"].shape[1:], states, True]
        )
        assert room <= length * channels + 4 * (states + 1) * (channels + 32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_none_where_there_is_no_kernel(dtype: torch.dtype) -> None:
    inputs = make((2, 5, 6, 4), OPTIONAL[:3], dtype=dtype)
    with library.using("auto" if dtype == torch.bfloat16 else "reference"):
        assert ops.selective_scan(**inputs) is None
        y, state = selective_recurrence(**inputs, form="chunk")
    assert (y.dtype, state.dtype) == (dtype, torch.float32)
    expected = step(**{name: tensor.float() for name, tensor in inputs.items()})
    assert_close(state, expected[1], "state")
    assert_close(y.float(), expected[0].to(dtype).float())


def test_other_devices_run_plain_torch() -> None:
    inputs = {k: v.to("meta") for k, v in make((2, 5, 6, 4), ()).items()}
    y, state = selective_recurrence(**inputs, form="chunk")
    assert (y.device.type, y.shape, state.shape) == ("meta", (2, 5, 6), (2, 6, 4))


def test_empty_batch(variant: str) -> None:
    inputs = make((2, 5, 6, 4))
    per_row = ("x", "delta", "B", "C", "gate", "state", "lengths")
    got = results(run, {k: v[:0] if k in per_row else v for k, v in inputs.items()})
    assert (got["y"].shape, got["new state"].shape) == ((0, 5, 6), (0, 6, 4))
    for name in ("A", "D", "delta_bias"):
        assert torch.equal(got[name], torch.zeros_like(inputs[name]))


WRONG = {
    "two axes": ({"x": torch.zeros(5, 6)}, r"expected x \[B, L, D\].*given x \[5, 6\]"),
    "no elements": ({"x": torch.zeros(2, 0, 6)}, r"none empty; given x \[2, 0, 6\]"),
    "delta": ({"delta": torch.zeros(2, 5, 1)}, r"delta and gate \[2, 5, 6\].*delta \[2, 5, 1\]"),
    "A": ({"A": torch.zeros(5, 4)}, r"A \[6, N\].*given.*A \[5, 4\]"),
    "B": ({"B": torch.zeros(2, 5, 3)}, r"B and C \[2, 5, N\].*given.*B \[2, 5, 3\]"),
    "C": ({"C": torch.zeros(1, 5, 4)}, r"B and C \[2, 5, N\].*given.*C \[1, 5, 4\]"),
    "D": ({"D": torch.zeros(1)}, r"D and delta_bias \[6\].*given.*D \[1\]"),
    "gate": ({"gate": torch.zeros(2, 5, 3)}, r"given.*gate \[2, 5, 3\]"),
    "bias": ({"delta_bias": torch.zeros(6, 1)}, r"given.*delta_bias \[6, 1\]"),
    "state": ({"state": torch.zeros(2, 4, 6)}, r"state \[2, 6, N\].*given.*state \[2, 4, 6\]"),
    "lengths": ({"lengths": torch.ones(3).long()}, r"lengths \[2\].*given.*lengths \[3\]"),
    "dtype": ({"A": torch.zeros(6, 4).double()}, "all tensors to be torch.float32 on cpu.*float64"),
    "device": (
        {"D": torch.zeros(6, device="meta")},
        "all tensors to be torch.float32 on cpu.*on meta",
    ),
    "lengths' dtype": ({"lengths": torch.ones(2)}, "lengths of torch.int64.*float32"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_refused(case: str) -> None:
    change, message = WRONG[case]
    with pytest.raises(ThreefoldError, match=message):
        run(**(make((2, 5, 6, 4), OPTIONS, torch.float32) | change))


@pytest.mark.parametrize("choice", ["auto", "reference"])
@pytest.mark.parametrize("lengths", [[0, 6], [-1, 5]])
def test_lengths_out_of_range_are_refused(choice: str, lengths: list[int]) -> None:
    inputs = make((2, 5, 6, 4)) | {"lengths": torch.tensor(lengths)}
    with library.using(choice), pytest.raises(ThreefoldError, match="length"):
        run(**inputs)
