"""What a layer hands to later layers of its stack: RWKV-7's value residual, and in general."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import threefold
from tests.crossings import count_crossings
from tests.tolerances import assert_close
from threefold import Spec, ThreefoldError
from threefold.blocks.stack import Stack
from threefold.data.atomic_files import sha256_of
from threefold.layers.handover import HANDOVER
from threefold.layers.mixer import Mixer
from threefold.memory.state import State, leaves
from threefold.testing import check_mixer

WIDTH = 32
MIXERS: dict[str, list[Any]] = {
    "alone": [("rwkv7", {"heads": 2})],
    "hybrid": [("mamba", {}), ("rwkv7", {"heads": 2})],
    "with attention": [("rwkv7", {"heads": 2}), ("attention", {})],
    "in both directions": [("bidirectional", {"mixer": "rwkv7", "options": {"heads": 2}})],
}


def made(mixers: str | list[Any] = "alone", depth: int = 4, channel: str = "none") -> Stack:
    """A stack in which no weight is zero, so that every residual shows."""
    torch.manual_seed(0)
    entries = MIXERS[mixers] if isinstance(mixers, str) else mixers
    stack = Stack(WIDTH, depth, entries, channel=(channel, {}))
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter += 0.2 * torch.rand_like(parameter) - 0.05
    return stack.eval()


def inputs(length: int = 7, seed: int = 1) -> Tensor:
    return torch.randn(2, length, WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("mixers", MIXERS)
def test_a_stack_with_a_handover_keeps_the_contract(mixers: str) -> None:
    check_mixer(Stack, width=WIDTH, depth=4, mixers=MIXERS[mixers], channel=("rwkv7", {}))


def test_first_layers_and_those_that_read_them() -> None:
    """The first RWKV-7 layer hands its values over, wherever it is; all later ones mix them in."""
    for mixers, readers in (("alone", [1, 2, 3]), ("hybrid", [3]), ("with attention", [2])):
        stack = made(mixers)
        residual = [i for i, b in enumerate(stack.blocks) if getattr(b.mixer, "residual", None)]
        assert residual == readers
    entry = ("rwkv7", {"value_residual": False})
    assert not [n for n, _ in made([entry]).named_parameters() if "residual" in n]
    assert threefold.mixer("rwkv7", width=WIDTH, layer=2, depth=4).residual is None


@pytest.mark.parametrize(("mixers", "first"), [("alone", 0), ("hybrid", 1)])
def test_values_reach_later_layers_by_the_handover(mixers: str, first: int) -> None:
    """With the residual stream cut after the first layer, only its values reach the output."""
    stack = made(mixers)
    for block in list(stack.blocks)[first + 1 :]:
        block.register_forward_pre_hook(lambda _, args: (torch.ones_like(args[0]), *args[1:]))
    weight = stack.blocks[first].mixer.value.weight
    (reaches,) = torch.autograd.grad(stack(inputs())[0].sum(), weight, retain_graph=True)
    assert reaches.abs().max() > 0
    for block in stack.blocks:
        if getattr(block.mixer, "residual", None) is not None:
            block.mixer.residual.bias.data.fill_(-1e4)  # no share of the first value is left
    (cut,) = torch.autograd.grad(stack(inputs())[0].sum(), weight, allow_unused=True)
    assert cut is None or cut.abs().max() == 0


@torch.no_grad()
@pytest.mark.parametrize("mixers", ["alone", "hybrid", "with attention"])
def test_recorded_steps_read_the_values_of_their_own_element(
    mixers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one program, and block by block, where a hook prevents one program."""
    stack, x = made(mixers, channel="rwkv7"), inputs(12)
    expected, _ = stack(x, form="chunk")
    crossed = count_crossings(monkeypatch)
    for watched in (False, True):
        handle = stack.register_forward_hook(lambda *_: None) if watched else None
        state, outputs = None, []
        for t in range(x.shape[1]):
            crossed.clear()
            y, state = stack.step(x[:, t], state)
            outputs.append(y)
        assert_close(torch.stack(outputs, 1), expected)
        recorded = 4 if watched else 1
        assert len(crossed) == recorded
        if handle is not None:
            handle.remove()


def test_the_handover_is_not_part_of_a_state() -> None:
    stack = made()
    _, state = stack(inputs())
    _, alone = stack.blocks[0](inputs())
    _, mixed = stack.blocks[0].mixer(inputs())
    for one in (state, alone, mixed, stack.empty_state(1)):
        assert not [name for name, _ in leaves(one) if HANDOVER in name]


def test_a_layer_without_its_first_layer_is_refused() -> None:
    stack = made()
    with pytest.raises(ThreefoldError, match="did not run before it; run the whole stack"):
        stack.blocks[1](inputs())
    with pytest.raises(ThreefoldError, match="value_residual=False"):
        stack.blocks[1].mixer(inputs())
    del stack.blocks[0]
    with pytest.raises(ThreefoldError, match="did not run before it"):
        stack(inputs())


def test_ranks_that_do_not_fit_are_refused() -> None:
    for ranks in ((4, 4, 4), (4, 4, 4, 0)):
        with pytest.raises(ThreefoldError, match="expected four"):
            threefold.mixer("rwkv7", width=WIDTH, ranks=ranks)


def test_gradient_checkpointing_changes_no_bit() -> None:
    results = []
    for recompute in (False, True):
        stack = made("hybrid", channel="rwkv7").train()
        stack.gradient_checkpointing = recompute
        stack(inputs())[0].square().sum().backward()
        results.append([parameter.grad for parameter in stack.parameters()])
    assert all(map(torch.equal, *results))


class Counter(Mixer):
    """Adds how many layers of its kind ran before it, by a handover of its own."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.scale = nn.Parameter(torch.ones(width))
        self.hands_over(count=(1,))

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        handed = state.get(HANDOVER)
        before = (handed or {}).get("count", torch.zeros_like(x[..., :1]))
        return before * self.scale, {} if handed is None else {HANDOVER: {"count": before + 1}}


def test_a_mixer_of_ones_own_can_hand_over() -> None:
    threefold.register_mixer("layer_counter", Counter)
    try:
        entries: list[Any] = [("layer_counter", {}), ("rwkv7", {"heads": 2})]
        stack = Stack(WIDTH, 6, entries, channel=("none", {}), block=("plain", {}))
        seen: list[float] = []
        for block in list(stack.blocks)[::2]:
            block.register_forward_hook(lambda _, args, out: seen.append(out[0].mean().item()))
        stack(inputs())
        assert seen == [0.0, 1.0, 2.0]
    finally:
        threefold.layers.table.MIXERS.pop("layer_counter")


def test_models_saved_without_the_residual(tmp_path: Path) -> None:
    """They are refused, and load once their config says what they are."""
    spec = Spec("language", WIDTH, 2, "rwkv7", vocabulary=11)
    model, folder = threefold.build(spec).eval(), tmp_path / "model"
    model.save(folder)
    tokens = torch.arange(10).view(2, 5)
    assert torch.equal(threefold.load(folder)(tokens)[0], model(tokens)[0])
    weights = {
        k: v for k, v in load_file(folder / "model.safetensors").items() if "residual" not in k
    }
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ThreefoldError, match=r"lacks .*residual.*older version"):
        threefold.load(folder)
    config = json.loads((folder / "config.json").read_text())
    config["sha256"] = sha256_of(folder / "model.safetensors")
    config["spec"]["mixers"] = [["rwkv7", {"value_residual": False}]]
    (folder / "config.json").write_text(json.dumps(config))
    assert threefold.load(folder)(tokens)[0].shape == (2, 5, 11)
