"""PyTorch's own protocol: every module is called, so hooks, compile, checkpoint and FSDP act."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.utils.checkpoint import checkpoint

import threefold
from tests.contract.kinds import EXAMPLES, NETWORKS, mean_loss
from tests.contract.test_mixers import VARIANTS
from tests.crossings import count_crossings
from tests.tolerances import assert_close
from threefold import Spec, ThreefoldError
from threefold.blocks.stack import Stack
from threefold.layers.mixer import Mixer
from threefold.layers.table import MIXERS
from threefold.memory.state import State, leaves
from threefold.models.table import KINDS
from threefold.tasks.table import IMAGE_KINDS

MIXED = ("mamba", "attention")
# Models with a source are below, XLNet is in test_xlnet.py.
ELSEWHERE = ("seq2seq", "transformer", "captioner", "xlnet")
TOKENS = torch.randint(0, 11, (2, 6), generator=torch.Generator().manual_seed(1))
OPTIONS: dict[str, dict[str, Any]] = {
    "language": {"tie": False},
    "classifier": {"pooling": "attention"},
    "tagger": {"segments": 2},
    **{kind: {"image": (8, 8)} for kind in IMAGE_KINDS},
}


def made(kind: str, mixers: Any = MIXED, **options: Any) -> Any:
    torch.manual_seed(0)
    options = {**OPTIONS.get(kind, {}), **options}
    mixers = mixers if KINDS[kind].has_mixers else ()
    return threefold.build(Spec(kind, 32, 2, mixers, vocabulary=11, options=options)).eval()


def block() -> Any:
    return made("language").stack.blocks[0]


def called(model: nn.Module, run: Callable[[], Any]) -> Counter[str]:
    """How often each module was called, containers left out; pre-hooks count the same."""
    after: Counter[str] = Counter()
    before: Counter[str] = Counter()
    names = [name for name, module in model.named_modules() if not _is_list(module)]
    handles = []
    for name in names:
        module = model.get_submodule(name)
        handles += [
            module.register_forward_hook(lambda *_, name=name: after.update([name])),
            module.register_forward_pre_hook(lambda *_, name=name: before.update([name])),
        ]
    run()
    for handle in handles:
        handle.remove()
    assert before == after
    return Counter({name: after[name] for name in names})


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, (nn.ModuleList, nn.ModuleDict))


def more_than_once(model: nn.Module) -> dict[str, int]:
    """The dropout of a block is called for each of its parts."""
    return {
        f"{name}.dropout": len(module.parts)
        for name, module in model.named_modules()
        if isinstance(module, Mixer) and hasattr(module, "dropout") and hasattr(module, "parts")
    }


def reading(kind: str) -> Tensor:
    if kind in IMAGE_KINDS:
        return torch.randn(2, 3, 8, 8)
    if kind == "hierarchical":
        return torch.tensor([[1, 2, 10, 3, 4, 10], [5, 10, 6, 7, 8, 10]])
    return torch.randn(2, 6, 1) if kind == "forecaster" else TOKENS


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in NETWORKS if kind not in ELSEWHERE),
        ("classifier", {"bidirectional": True}),
        ("tagger", {"bidirectional": True}),
    ],
    ids=str,
)
def test_every_module_is_called_once(kind: str, options: dict[str, Any]) -> None:
    model = made(kind, **options)
    inputs, expected = reading(kind), more_than_once(model)
    runs = [lambda: model(inputs)]
    if kind not in IMAGE_KINDS:
        # Several steps are a loop inside each mixer, so its own parts are called in it.
        runs = [
            lambda form=form: model(inputs, form=form) for form in model.forms if form != "step"
        ]
    if kind not in IMAGE_KINDS and "step" in model.forms:
        _, state = model(inputs)
        runs += [lambda: model.step(inputs[:, 0]), lambda: model.step(inputs[:, 0], state)]
    for no_gradients in (False, True):
        for run in runs:
            with torch.set_grad_enabled(not no_gradients):
                counts = called(model, run)
            assert counts == Counter(dict.fromkeys(counts, 1) | expected)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("transformer", {"tie": False}),
        ("seq2seq", {"attention": "none", "bidirectional": False}),
        ("seq2seq", {"attention": "bahdanau"}),
        ("seq2seq", {"attention": "luong"}),
        ("seq2seq", {"attention": "luong", "input_feeding": True}),
        ("captioner", {"attention": "bahdanau"}),
        ("captioner", {"attention": "none", "encoder": "vector", "input_size": 3}),
    ],
    ids=str,
)
@torch.no_grad()
def test_encoders_and_decoders_are_called_once(kind: str, options: dict[str, Any]) -> None:
    model = made(kind, **options)
    expected = more_than_once(model)
    source = model.example_inputs(2, 6)
    counts = called(model, lambda: model.step(TOKENS[:, 0], model.encode(source)))
    for name in counts:
        if getattr(model, "bridge", None) and name.startswith(("decoder.stack", "decoder.norm")):
            expected[name] = 2 * expected.get(name, 1)  # reads the summary of the source first
        if name.endswith("cross.attention.heads"):
            expected[name] = 0  # queries and keys are made at different times, by its parts
    assert counts == Counter(dict.fromkeys(counts, 1) | expected)


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in MIXERS), *VARIANTS], ids=str
)
def test_every_part_of_a_mixer_is_called_once(name: str, options: dict[str, Any]) -> None:
    """In every form, with and without gradients; twice, because taps are kept without them."""
    mixer = threefold.mixer(name, width=32, **options).eval()
    for form in mixer.forms:
        x = torch.randn(2, 1 if form == "step" else 5, 32)
        for gradients in (True, False, False):
            with torch.set_grad_enabled(gradients):
                counts = called(mixer, lambda x=x, form=form: mixer(x, form=form))
            assert {part: times for part, times in counts.items() if times != 1} == {}


@torch.no_grad()
def test_a_hook_inside_a_filter_acts_and_ends() -> None:
    """Taps that are kept give way to a hook on the network that makes them."""
    mixer, x = threefold.mixer("hyena", width=32).eval(), torch.randn(2, 5, 32)
    expected, state = mixer(x)
    stepped, _ = mixer.step(x[:, 0], state)
    handle = mixer.filters.last.register_forward_hook(lambda _, args, y: 2 * y)
    doubled, _ = mixer(x)
    assert not torch.allclose(doubled, expected)
    assert_close(mixer(x, form="step")[0], doubled)
    assert not torch.allclose(mixer.step(x[:, 0], state)[0], stepped)
    handle.remove()
    assert torch.equal(mixer(x)[0], expected)
    assert_close(mixer.step(x[:, 0], state)[0], stepped)


@torch.no_grad()
def test_several_steps_call_a_mixer_once_and_its_parts_in_a_loop() -> None:
    model = made("language")
    counts = called(model, lambda: model(TOKENS, form="step"))
    assert counts["stack"] == counts["stack.blocks.0"] == counts["stack.blocks.0.mixer"] == 1
    assert counts["stack.blocks.0.mixer.out"] == TOKENS.shape[1]
    assert counts["stack.blocks.0.channel.out"] == 1  # it has no state: one call for all


@torch.no_grad()
def test_a_hook_acts_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded step of a stack gives way to a hook on a block until the hook is removed."""
    model = threefold.build(Spec("language", 32, 2, "mamba", vocabulary=11)).eval()
    _, state = model(TOKENS)
    expected, _ = model.step(TOKENS[:, 0], state)
    crossed = count_crossings(monkeypatch)
    handle = model.stack.blocks[1].register_forward_hook(lambda m, args, out: (out[0] * 2, out[1]))
    model.step(TOKENS[:, 0], state)  # records the parts without hooks
    crossed.clear()
    changed, _ = model.step(TOKENS[:, 0], state)
    assert not torch.allclose(changed, expected)
    assert len(crossed) == 3  # the other block, and the two parts of this one
    handle.remove()
    crossed.clear()
    assert torch.equal(model.step(TOKENS[:, 0], state)[0], expected)
    assert len(crossed) == 1


def test_backward_hooks_fire() -> None:
    model = made("language")
    seen = []
    for name in ("stack", "stack.blocks.0", "stack.blocks.0.mixer", "stack.blocks.0.channel"):
        module = model.get_submodule(name)
        module.register_full_backward_hook(lambda *_, name=name: seen.append(name))
    model(TOKENS)[0].sum().backward()
    assert sorted(seen) == sorted(set(seen)) and len(seen) == 4


BAD_STATES: dict[str, Callable[[State], Any]] = {
    "empty": lambda state: {},
    "another model": lambda state: {"0": state["0"]},
    "another mixer": lambda state: {name: {"mixer": {"a": torch.zeros(2, 3)}} for name in state},
    "another dtype": lambda state: threefold.memory.state.transform(lambda x: x.half(), state),
    "another batch": lambda state: threefold.memory.state.transform(lambda x: x[:1], state),
    "not a dict": lambda state: [state],
}


@torch.no_grad()
@pytest.mark.parametrize("name", BAD_STATES)
def test_a_bad_state_is_refused_before_a_step_is_recorded(name: str) -> None:
    model = threefold.build(Spec("language", 32, 2, "mamba", vocabulary=11)).eval()
    state = model.empty_state(2)
    for given in (BAD_STATES[name](state), BAD_STATES[name](state)):
        with pytest.raises(ThreefoldError, match="state"):
            model.step(TOKENS[:, 0], given)
    assert model.stack.programs == {}
    model.step(TOKENS[:, 0], state)
    assert list(model.stack.programs.values()) != [None]
    with pytest.raises(ThreefoldError, match="state"):  # after recording, too
        model.step(TOKENS[:, 0], BAD_STATES[name](state))


class Doubled(nn.Module):
    """A user's linear map: not an nn.Linear, with its own forward."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.inner(x)  # type: ignore[no-any-return]


@torch.no_grad()
@pytest.mark.parametrize("place", ["mixer.out", "mixer.input", "channel.out", "channel.gate"])
def test_a_replaced_linear_acts_in_forward_and_in_step(place: str) -> None:
    model = threefold.build(Spec("language", 32, 2, "mamba", vocabulary=11)).eval()
    _, state = model(TOKENS)
    plain, _ = model.step(TOKENS[:, 0], state)  # recorded
    part, _, name = place.partition(".")
    owner = getattr(model.stack.blocks[0], part)
    setattr(owner, name, Doubled(getattr(owner, name)))
    whole, _ = model(TOKENS, form="chunk")
    stepped, carried = [], None
    for t in range(TOKENS.shape[1]):
        y, carried = model.step(TOKENS[:, t], carried)
        stepped.append(y)
    assert_close(torch.stack(stepped, 1), whole)
    assert not torch.allclose(model.step(TOKENS[:, 0], state)[0], plain)


# Attention and long filters read where rows end, and a fixed filter is made outside of autograd:
# their graphs have breaks.
BROKEN_GRAPHS = {
    *("attention", "local_attention", "transformer_xl", "based", "long_conv", "ckconv", "hyena"),
    *("lmu", "lmu_fft", "s4"),
}


@pytest.mark.parametrize(
    ("mixer", "backend"),
    [
        *((mixer, "eager") for mixer in MIXERS),
        *((mixer, "aot_eager") for mixer in ("mamba", "lstm", "gla", "rwkv7", "attention")),
    ],
)
def test_a_block_can_be_compiled(mixer: str, backend: str) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    kind = "language" if MIXERS[mixer].load().causal else "tagger"
    depth = 2 if mixer == "rwkv7" else 1  # its layers hand over a value
    model = threefold.build(Spec(kind, 32, depth, mixer, vocabulary=11))
    expected, state = model(TOKENS)
    # A frozen reservoir has no gradients.
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    wanted = torch.autograd.grad(expected.square().mean(), weights)
    graphs: list[Any] = []
    for part in model.stack.blocks:
        part.compile(backend=_counting(backend, graphs), fullgraph=mixer not in BROKEN_GRAPHS)
    y, after = model(TOKENS)
    assert graphs, "the compiled block was not called"
    assert_close(y, expected)
    for (name, leaf), (_, given) in zip(leaves(after or {}), leaves(state or {}), strict=True):
        assert_close(leaf, given, quantity="state", what=name) if leaf.is_floating_point() else None
    found = torch.autograd.grad(y.square().mean(), weights)
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, quantity="gradient")


def _counting(backend: str, graphs: list[Any]) -> Any:
    from torch._dynamo.backends.registry import lookup_backend

    inner = lookup_backend(backend)

    def compiler(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return inner(graph, inputs)

    return compiler


@torch.no_grad()
def test_a_compiled_block_is_not_replayed() -> None:
    torch.compiler.reset()
    model = threefold.build(Spec("language", 32, 2, "mamba", vocabulary=11)).eval()
    _, state = model(TOKENS)
    expected, _ = model.step(TOKENS[:, 0], state)
    graphs: list[Any] = []
    model.stack.blocks[0].compile(backend=_counting("eager", graphs))
    assert_close(model.step(TOKENS[:, 0], state)[0], expected)
    assert graphs


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_user_can_checkpoint_a_block(reentrant: bool) -> None:
    part = block().train()
    results = []
    for again in (False, True):
        x = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(2), requires_grad=True)
        y, _ = checkpoint(part, x, use_reentrant=reentrant) if again else part(x)
        part.zero_grad()
        y.square().sum().backward()
        results.append([y, x.grad, *(p.grad.clone() for p in part.parameters())])
    assert all(map(torch.equal, *results))


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sharded(model: nn.Module) -> nn.Module:
    """A copy whose blocks are units of FSDP, on one rank."""
    copied: Any = copy.deepcopy(model)
    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    units = [part for m in copied.modules() if isinstance(m, Stack) for part in m.blocks]
    for unit in units:
        if unit.cross is not None:  # reads the source outside of the block's call
            fully_shard(unit.cross, mesh=mesh)
            register_fsdp_forward_method(unit.cross, "read_source")
    for unit in (*units, copied):
        fully_shard(unit, mesh=mesh)
    if hasattr(copied, "encode"):
        register_fsdp_forward_method(copied, "encode")
    return copied  # type: ignore[no-any-return]


@pytest.mark.parametrize("mixers", [MIXED, "rwkv7"], ids=str)
def test_sharded_blocks_train_to_the_same_bits(one_rank: None, mixers: Any) -> None:
    model = made("language", mixers, dropout=0.1).train()
    weights = []
    for one in (model, sharded(model)):
        optimizer = torch.optim.AdamW(one.parameters(), lr=0.01)
        for step in range(2):
            torch.manual_seed(step)
            one(TOKENS)[0].square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        weights.append([_whole(parameter) for parameter in one.parameters()])
    assert all(map(torch.equal, *weights))


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("kind", EXAMPLES)
def test_sharded_models_of_every_kind_train_to_the_same_bits(one_rank: None, kind: str) -> None:
    model, rows = EXAMPLES[kind].build().train(), EXAMPLES[kind].rows()
    weights = []
    for one in (model, sharded(model)):
        optimizer = torch.optim.AdamW(one.parameters(), lr=0.01)
        torch.manual_seed(0)
        mean_loss(one, rows).backward()
        optimizer.step()
        weights.append([_whole(parameter) for parameter in one.parameters()])
    assert all(map(torch.equal, *weights))


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_sharded_encoders_and_decoders_have_the_same_gradients(one_rank: None) -> None:
    """To the same bits: what all cross-attentions read gets its gradients in one order."""
    spec = Spec("transformer", 32, 3, MIXED, vocabulary=11)
    torch.manual_seed(0)
    model = threefold.build(spec).train()
    gradients = []
    for one in (model, sharded(model)):
        torch.manual_seed(0)
        one(TOKENS, one.encode(TOKENS))[0].square().mean().backward()
        gradients.append([_whole(parameter.grad) for parameter in one.parameters()])
    assert all(map(torch.equal, *gradients))


def _whole(tensor: Any) -> Tensor:
    found: Tensor = getattr(tensor, "full_tensor", lambda: tensor)()
    return found.detach().clone()


@pytest.mark.parametrize("name", ["gla", "delta_net", "gated_delta_net", "kda"])
def test_backward_hooks_of_convolved_heads_fire(name: str) -> None:
    mixer, fired = threefold.mixer(name, width=32), []
    mixer.convolved.register_full_backward_hook(lambda *_: fired.append(name))
    mixer(torch.randn(2, 5, 32, requires_grad=True))[0].sum().backward()
    assert fired == [name]
