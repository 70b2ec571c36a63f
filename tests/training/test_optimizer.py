"""Parameter groups: each parameter in exactly one, as its layer declares; the schedule."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from threefold.blocks.stack import make_mixer
from threefold.layers.norms import HeadNorm
from threefold.layers.table import MIXERS
from threefold.models.spec import Spec
from threefold.models.table import build
from threefold.training import adamw, cosine, parameter_groups
from threefold.training.optimizer import SLOW_LR_FACTOR, scale_learning_rate


class Layer(nn.Module):
    """A layer with one parameter of each sort."""

    no_decay: ClassVar[tuple[str, ...]] = ("A_log", "up")
    slow: ClassVar[tuple[str, ...]] = ("delta",)

    def __init__(self) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.ones(2, 2))
        self.delta = nn.Parameter(torch.ones(2, 2))
        self.project = nn.Linear(2, 2)
        self.inner = nn.ParameterDict({"up": nn.Parameter(torch.ones(2, 2))})
        self.norm = HeadNorm(2, 2)
        self.frozen = nn.Parameter(torch.ones(2, 2), requires_grad=False)


class Model(nn.Module):
    """Two layers, a weight that is shared, and a parameter with a declared name elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.A_log = nn.Parameter(torch.ones(2, 2))
        self.head = nn.Linear(2, 3, bias=False)
        self.head.weight = self.embedding.weight


def names(model: nn.Module, group: list[Tensor]) -> set[str]:
    return {
        name for name, parameter in model.named_parameters() if any(parameter is p for p in group)
    }


def test_groups_are_what_the_layers_declare() -> None:
    model = Model()
    groups = {group["name"]: group for group in parameter_groups(model, 0.01, 0.2)}
    group_names = {name: names(model, group["params"]) for name, group in groups.items()}
    layers = ("layers.0", "layers.1")
    assert group_names["slow"] == {f"{at}.delta" for at in layers}
    assert group_names["no_decay"] == {
        f"{at}.{name}"
        for at in layers
        for name in ("A_log", "inner.up", "project.bias", "norm.weight", "norm.bias")
    }
    assert group_names["decay"] == {
        "embedding.weight",
        "A_log",
        *(f"{at}.project.weight" for at in layers),
    }
    rates = {name: (group["lr"], group["weight_decay"]) for name, group in groups.items()}
    assert rates == {
        "decay": (0.01, 0.2),
        "no_decay": (0.01, 0.0),
        "slow": (SLOW_LR_FACTOR * 0.01, 0.0),
    }


def assert_each_once(model: nn.Module) -> None:
    grouped = [id(p) for group in parameter_groups(model, 0.01, 0.1) for p in group["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(p) for p in model.parameters() if p.requires_grad}


def test_every_parameter_is_in_one_group() -> None:
    assert_each_once(Model())


@pytest.mark.parametrize("name", MIXERS)
def test_mixers_declare_parameters_that_they_have(name: str) -> None:
    # In the middle of a stack: HGRN-2 and RWKV-7 have parameters only above the first layer.
    mixer = make_mixer((name, {}), 32, {"layer": 1, "depth": 2, "first": False})
    assert_each_once(mixer)
    names_present = {full.rsplit(".", 1)[-1] for full, _ in mixer.named_parameters()}
    assert set(mixer.no_decay) | set(mixer.slow) <= names_present
    assert not set(mixer.no_decay) & set(mixer.slow)


# The parameters that define a filter learn slowly and never decay.
SLOW_PARAMETERS = {
    "lssl": {"delta_log", "A", "B"},
    "s4": {"delta_log", "decay_log", "frequency", "P", "B"},
    "s4d": {"delta_log", "decay_log", "frequency"},
    "s5": {"delta_log", "decay_log", "frequency"},
    "h3": {"step_log", "decay_log", "angle"},
    "tcn": set(),  # no filter is fixed in time: what is between them is not linear
    "lmu_fft": set(),  # nothing of its filter is learnt
    "long_conv": {"coefficients"},
    "hyena": {"weight", "bias", "frequency"},  # the network that makes its filters
    "ckconv": {
        *("first_weight", "second_direction", "second_magnitude", "third_direction"),
        *("third_magnitude", "first_bias", "second_bias", "third_bias"),
    },
}


@pytest.mark.parametrize("name", [n for n, entry in MIXERS.items() if entry.family == "filter"])
def test_filters_learn_slowly_and_do_not_decay(name: str) -> None:
    spec = Spec("language", width=32, depth=2, mixers=(name,), channel="none")
    model = build(spec)
    groups = {group["name"]: group for group in parameter_groups(model, 0.01, 0.2)}
    slow = names(model, groups["slow"]["params"]) if "slow" in groups else set()
    assert {full.rsplit(".", 1)[-1] for full in slow} == SLOW_PARAMETERS[name]
    if slow:
        assert all(f".{layer}." in " ".join(slow) for layer in (0, 1))
        assert (groups["slow"]["lr"], groups["slow"]["weight_decay"]) == (
            SLOW_LR_FACTOR * 0.01,
            0.0,
        )
    undecayed = names(model, groups["no_decay"]["params"])
    assert {
        full for full, _ in model.named_parameters() if full.endswith(".skip")
    } <= undecayed | slow
    # Projections and read-outs decay, as in every mixer.
    decays = names(model, groups["decay"]["params"])
    assert any(full.endswith("out.weight") for full in decays)


def test_the_schedule_scales_every_group_from_its_peak() -> None:
    optimizer = adamw(Model(), 0.01)
    for factor in (0.5, 0.25):
        scale_learning_rate(optimizer, factor)
        rates = {group["name"]: group["lr"] for group in optimizer.param_groups}
        assert rates == {
            "decay": factor * 0.01,
            "no_decay": factor * 0.01,
            "slow": factor * (SLOW_LR_FACTOR * 0.01),
        }


def test_cosine_rises_then_falls() -> None:
    assert cosine(0.0, warmup=0.1) == 0
    assert cosine(0.05, warmup=0.1) == pytest.approx(0.5)
    assert cosine(0.1, warmup=0.1) == pytest.approx(1)
    assert cosine(0.55, warmup=0.1, final=0.2) == pytest.approx(0.6)
    assert cosine(1.0, warmup=0.1, final=0.2) == pytest.approx(0.2)
    assert cosine(0.0, warmup=0.0) == pytest.approx(1)
    falling = [cosine(i / 20) for i in range(1, 21)]
    assert falling == sorted(falling, reverse=True)
