"""No stale step: whatever is changed between two steps, the next one is that of the model as it is.

Every change is made to a model whose step has been recorded; the recorded way must then give what
the ordinary way gives, and something else than before.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import threefold
from tests.crossings import count_crossings
from tests.tolerances import assert_close, relative_error
from threefold.errors import ThreefoldError
from threefold.kernels.replay import validity
from threefold.kernels.replay.activity import ordinary_steps
from threefold.kernels.replay.program import Program
from threefold.kernels.replay.stepping import refusals
from threefold.layers.linear import EncodedLinear
from threefold.memory import state as states
from threefold.memory.state import State
from threefold.models.language import LanguageModel
from threefold.models.spec import Spec

MIXERS = ("mamba", "attention", "s4d", "local_attention", "hyena", "lstm", "rnn")
Change = Callable[[Any], None]


def made(mixers: tuple[str, ...] = MIXERS, dtype: torch.dtype = torch.float32) -> LanguageModel:
    options = {"tie": False}
    spec = Spec("language", 32, len(mixers), mixers, vocabulary=11, options=options)
    torch.manual_seed(0)
    return LanguageModel(spec).to(dtype).eval()


def stepped(model: LanguageModel, state: State) -> tuple[Tensor, State]:
    with torch.no_grad():
        return model.step(torch.tensor([3, 5]), state)


def prepared(model: LanguageModel) -> State:
    """A state from which a recorded step has been made, all caches of streams filled."""
    with torch.no_grad():
        _, state = model(torch.randint(0, 11, (2, 9)))
    for _ in range(3):
        _, state = stepped(model, state)
    assert not refusals(model)
    assert any(isinstance(program, Program) for program in model.programs.values())
    return state


def ordinary(model: LanguageModel, state: State) -> tuple[Tensor, State]:
    with ordinary_steps():
        return stepped(model, states.clone(state))


# Ways to change the numbers of a parameter.


def by_operation(p: Tensor) -> None:
    with torch.no_grad():
        p.mul_(1.25).add_(0.01)


def by_data(p: Tensor) -> None:
    p.data.mul_(1.25).add_(0.01)


def by_item(p: Tensor) -> None:
    p.data[...] = p.data * 1.25 + 0.01


def by_numpy(p: Tensor) -> None:
    numbers = p.detach().numpy()
    numbers *= 1.25
    numbers += 0.01


def by_new_data(p: Tensor) -> None:
    p.data = p.data * 1.25 + 0.01


def by_optimiser(p: Tensor) -> None:
    p.grad = torch.ones_like(p)
    torch.optim.SGD([p], lr=0.3, fused=True).step()
    p.grad = None


def by_list(p: Tensor) -> None:
    with torch.no_grad():
        torch._foreach_mul_([p], 1.25)
        torch._foreach_add_([p], 0.01)


def by_vector(p: Tensor) -> None:
    flat = nn.utils.parameters_to_vector([p]).detach()
    nn.utils.vector_to_parameters(flat * 1.25 + 0.01, [p])


def by_storage(p: Tensor) -> None:
    """The same memory under another tensor."""
    other = torch.empty(0, dtype=p.dtype).set_(p.untyped_storage())
    other.mul_(1.25).add_(0.01)


WAYS = [by_operation, by_data, by_item, by_numpy, by_new_data, by_optimiser]
WAYS += [by_list, by_vector, by_storage]
PARAMETERS = [
    "embedding.weight",
    "norm.weight",
    "head.weight",
    "stack.blocks.0.mixer.A_log",
    "stack.blocks.0.mixer.conv.weight",
    "stack.blocks.1.mixer.heads.key.weight",
    "stack.blocks.1.mixer_norm.weight",
    "stack.blocks.2.mixer.delta_log",
    "stack.blocks.2.mixer.skip",
    "stack.blocks.3.mixer.attention.heads.value.weight",
    "stack.blocks.4.mixer.filters.skip",
    "stack.blocks.4.mixer.filters.last.weight",
    "stack.blocks.5.mixer.recurrent",
    "stack.blocks.5.channel.out.weight",
]


def change_parameter(name: str, way: Callable[[Tensor], None], model: Any) -> None:
    way(model.get_parameter(name))


def part(model: Any, name: str) -> Any:
    return model.get_submodule(name)


def replace_parameter(name: str, model: Any) -> None:
    path, _, last = name.rpartition(".")
    holder = part(model, path)
    setattr(holder, last, nn.Parameter(getattr(holder, last).detach() * 1.25 + 0.01))


def replace_mixer(model: Any) -> None:
    block = part(model, "stack.blocks.5")
    block.mixer = copy.deepcopy(block.mixer)
    with torch.no_grad():
        block.mixer.recurrent.zero_()


def replace_linear(model: Any) -> None:
    mixer = part(model, "stack.blocks.1.mixer")
    mixer.heads.out = nn.Linear(32, 32).to(model.dtype)


def replace_norm(model: Any) -> None:
    model.norm = nn.Identity()


def replace_head(model: Any) -> None:
    model.head = nn.Linear(32, 11).to(model.dtype)


def tie(model: Any) -> None:
    model.head = None


def turn_parameter(model: Any) -> None:
    weight = part(model, "stack.blocks.1.mixer.heads.key").weight
    weight.data = weight.data.t()


def load_other(assign: bool, model: Any) -> None:
    torch.manual_seed(1)
    other = {name: torch.randn_like(value) * 0.1 for name, value in model.state_dict().items()}
    model.load_state_dict(other, assign=assign)


def set_attribute(name: str, attribute: str, value: Any, model: Any) -> None:
    setattr(part(model, name) if name else model, attribute, value)


def set_inner(model: Any) -> None:
    """An object that is neither module nor tensor."""
    object.__setattr__(part(model, "stack.blocks.6.mixer").cell, "activation", "relu")


def own_forward(model: Any) -> None:
    norm = part(model, "stack.blocks.2.mixer_norm")
    norm.forward = lambda x, gate=None: x * 2


def another_class(model: Any) -> None:
    class Doubled(type(model.norm)):  # type: ignore[misc]
        def forward(self, x: Tensor, gate: Any = None) -> Tensor:
            return 2 * super().forward(x, gate)

    model.norm.__class__ = Doubled


def encode(model: Any) -> None:
    EncodedLinear.encode(part(model, "stack.blocks.5.channel.out"))
    part(model, "stack.blocks.5.channel.out").row_scale *= 2


def hook(name: str, model: Any) -> None:
    def doubled(module: nn.Module, given: Any, y: Any) -> Any:
        return 1 + 2 * y if isinstance(y, Tensor) else (1 + 2 * y[0], y[1])

    part(model, name).register_forward_hook(doubled)


def before_hook(name: str, model: Any) -> None:
    part(model, name).register_forward_pre_hook(lambda module, given: (2 * given[0], *given[1:]))


CHANGES: dict[str, Change] = {
    **{f"{n}, {w.__name__}": partial(change_parameter, n, w) for n in PARAMETERS for w in WAYS},
    **{f"{n}, replaced": partial(replace_parameter, n) for n in PARAMETERS},
    "a mixer replaced": replace_mixer,
    "a linear map replaced": replace_linear,
    "the last norm replaced": replace_norm,
    "the head replaced": replace_head,
    "the head removed": tie,
    "a weight turned": turn_parameter,
    "weights loaded": partial(load_other, False),
    "weights assigned": partial(load_other, True),
    **{
        f"eps of {kind} {block}": partial(set_attribute, f"stack.blocks.{block}.{kind}", "eps", 3.0)
        for block in range(len(MIXERS))
        for kind in ("mixer_norm", "channel_norm")
    },
    "the last norm's eps": partial(set_attribute, "norm", "eps", 3.0),
    "the embedding's scale": partial(set_attribute, "embedding", "scale", 3.0),
    "zero-order hold": partial(set_attribute, "stack.blocks.0.mixer", "zero_order_hold", True),
    "silu": partial(set_attribute, "stack.blocks.0.mixer.conv", "silu", False),
    "a rate": partial(set_attribute, "stack.blocks.2.mixer", "rate", 2.0),
    "the rotary base": partial(set_attribute, "stack.blocks.1.mixer.positions", "base", 7.0),
    "an object inside": set_inner,
    "a forward of its own": own_forward,
    "another class": another_class,
    "8 bits": encode,
    **{f"a hook on {n}": partial(hook, n) for n in ("norm", "head", "stack", "stack.blocks.1")},
    **{f"a hook on {n}": partial(hook, n) for n in ("embedding", "stack.blocks.4.mixer.project")},
    **{
        f"a hook on {kind} {block}": partial(hook, f"stack.blocks.{block}.{kind}")
        for block in range(len(MIXERS))
        for kind in ("mixer", "mixer_norm", "channel")
    },
    **{
        f"a hook before {kind} {block}": partial(before_hook, f"stack.blocks.{block}.{kind}")
        for block in range(len(MIXERS))
        for kind in ("mixer", "channel")
    },
}


def test_there_are_two_hundred_kinds_of_change() -> None:
    assert len(CHANGES) >= 200


@pytest.fixture(scope="module")
def original() -> LanguageModel:
    return made(dtype=torch.float64)


@pytest.mark.parametrize("name", CHANGES)
def test_no_stale_step(original: LanguageModel, name: str) -> None:
    model = copy.deepcopy(original)
    state = prepared(model)
    before, _ = stepped(model, states.clone(state))
    CHANGES[name](model)
    expected, _ = ordinary(model, state)
    for _ in range(2):
        found, _ = stepped(model, states.clone(state))
        assert_close(found, expected)
    assert relative_error(found, before) > 1e-7
    assert_close(stepped(model, state)[0], expected)  # and where the stream goes on


def test_a_hook_that_is_removed_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made()
    state = prepared(model)
    expected, _ = stepped(model, states.clone(state))
    handle = model.norm.register_forward_hook(lambda module, given, y: 2 * y)
    assert not torch.allclose(stepped(model, states.clone(state))[0], expected)
    handle.remove()
    crossed = count_crossings(monkeypatch)
    assert torch.equal(stepped(model, state)[0], expected)
    assert crossed == [1]


def test_a_method_of_the_class_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(("gru",))
    state = prepared(model)
    cls = type(model.norm)
    run = cls.forward
    monkeypatch.setattr(cls, "forward", lambda self, x, gate=None: 2 * run(self, x, gate))
    assert_close(stepped(model, state)[0], ordinary(model, state)[0])


def test_hooks_for_all_modules_are_called() -> None:
    model = made(("gru",))
    state = prepared(model)
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda *_: seen.append(1))
    try:
        stepped(model, state)
    finally:
        handle.remove()
    assert seen


def test_training_goes_the_ordinary_way(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(("gru",))
    state = prepared(model)
    crossed = count_crossings(monkeypatch)
    model.train()
    stepped(model, state)
    assert crossed == []
    model.eval()
    stepped(model, state)
    assert crossed == [1]


def test_another_dtype_is_another_program() -> None:
    model = made(("mamba", "attention"))
    state = prepared(model)
    model.double()
    wide = states.transform(_double, state)
    assert_close(stepped(model, wide)[0], ordinary(model, wide)[0])


def _double(leaf: Tensor) -> Tensor:
    return leaf.double() if leaf.is_floating_point() else leaf


@pytest.mark.parametrize("leaf", ["keys", "values"])
def test_an_old_history_that_was_edited_is_refused(leaf: str) -> None:
    model = made(("attention",))
    old = prepared(model)
    _, new = stepped(model, old)
    old["0"]["mixer"][leaf].zero_()  # the same memory as the newer state's
    with pytest.raises(ThreefoldError, match="edited in place"):
        stepped(model, new)
    edited = states.clone(new)
    edited["0"]["mixer"][leaf].zero_()
    assert_close(stepped(model, edited)[0], ordinary(model, edited)[0])


def test_a_position_beyond_the_history_is_refused() -> None:
    model = made(("attention",))
    state = prepared(model)
    state["0"]["mixer"]["position"] += 5
    with pytest.raises(ThreefoldError, match="position is"):
        stepped(model, state)


def test_forks_of_a_history_do_not_meet() -> None:
    model = made()
    state = prepared(model)
    one, after = stepped(model, state)
    with torch.no_grad():
        other, _ = model.step(torch.tensor([1, 2]), state)
        third, _ = model.step(torch.tensor([7, 7]), after)
    with torch.no_grad(), ordinary_steps():
        assert_close(other, model.step(torch.tensor([1, 2]), states.clone(state))[0])
        assert_close(third, model.step(torch.tensor([7, 7]), states.clone(after))[0])
    assert_close(one, ordinary(model, state)[0])


def test_a_token_out_of_range_is_refused_by_name() -> None:
    model = made(("gru",))
    state = prepared(model)
    with torch.no_grad(), pytest.raises(ThreefoldError, match="token 11 in row 1"):
        model.step(torch.tensor([3, 11]), state)


@pytest.fixture
def switched_off() -> Iterator[None]:
    os.environ["THREEFOLD_REPLAY"] = "0"
    yield
    del os.environ["THREEFOLD_REPLAY"]


def test_it_can_be_switched_off(switched_off: None, monkeypatch: pytest.MonkeyPatch) -> None:
    crossed = count_crossings(monkeypatch)
    model = made(("gru",))
    with torch.no_grad():
        model.step(torch.tensor([3, 5]))
    assert crossed == [] and model.programs == {}
    monkeypatch.setenv("THREEFOLD_REPLAY", "maybe")
    with torch.no_grad(), pytest.raises(ThreefoldError, match="THREEFOLD_REPLAY='maybe'"):
        model.step(torch.tensor([3, 5]))


def test_a_model_with_a_mixer_of_torch_is_never_stale() -> None:
    model = threefold.build(Spec("language", 32, 2, "ckconv", vocabulary=11)).eval()
    with torch.no_grad():
        _, state = model(torch.randint(0, 11, (2, 9)))
        model.step(torch.tensor([3, 5]), state)
    assert refusals(model) and refusals(model)[0]


def test_equal_tuples_are_the_same_and_those_with_tensors_are_not_compared() -> None:
    @dataclass
    class Held:
        taps: torch.Tensor

    def entries(value: object) -> dict[str, object]:
        return {"name": value}

    assert validity._same_entries(entries((1, "a")), entries((1, "a")))
    assert not validity._same_entries(entries((1, "a")), entries((1.0, "a")) | {"other": 1})
    assert not validity._same_entries(entries((1, "a")), entries((2, "a")))
    held = (Held(torch.ones(3)),)
    assert validity._same_entries(entries(held), entries(held))
    assert not validity._same_entries(entries(held), entries((Held(torch.ones(3)),)))


def test_a_default_device_is_not_where_a_recorded_step_writes() -> None:
    model, state = made(("mamba", "attention", "local_attention", "lstm", "rnn")), None
    tokens, expected = torch.tensor([3, 5]), model.empty_state(2)
    for _ in range(2):  # recorded there, then replayed there
        with torch.device("meta"), torch.no_grad():
            found, state = model.step(tokens, state or model.empty_state(2))
    assert model.programs
    for _ in range(2):
        wanted, expected = ordinary(model, expected)
    assert_close(found, wanted)


class Counting(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_a_mode_sees_every_operation() -> None:
    model = made(("mamba", "rnn"))
    state = prepared(model)
    expected, _ = stepped(model, states.clone(state))
    with Counting() as counting:
        found, _ = stepped(model, state)
    assert_close(found, expected)
    assert {"selective_scan", "short_convolution", "rms_norm"} <= set(counting.seen)


@pytest.mark.parametrize("name", ["mamba", "gla", "gated_delta_net", "lstm", "rwkv7"])
def test_a_traced_step_follows_its_input(name: str) -> None:
    mixer = threefold.mixer(name, width=16).eval()
    x = torch.randn(2, 1, 16)
    with torch.no_grad():
        _, state = mixer(torch.randn(2, 5, 16))
        mixer(x, state, form="step")
        traced = make_fx(lambda x: mixer(x, state, form="step")[0])(x)
        other = torch.randn(2, 1, 16)
        assert_close(traced(other), mixer(other, state, form="step")[0])


def test_the_first_recorded_step_may_be_the_last_that_positions_allow() -> None:
    options = {"positions": "learned", "max_length": 12}
    model = LanguageModel(
        Spec("language", 16, 1, "attention", vocabulary=9, options=options)
    ).eval()
    with torch.no_grad():
        _, state = model(torch.ones(1, 11, dtype=torch.int64))
        y, state = model.step(torch.ones(1, dtype=torch.int64), state)
        assert_close(y, model(torch.ones(1, 12, dtype=torch.int64))[0][:, -1])
        with pytest.raises(ThreefoldError, match="12"):
            model.step(torch.ones(1, dtype=torch.int64), state)
