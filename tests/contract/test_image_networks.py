"""Image networks and Swin: published sizes, transformers' ResNet and Swin, any size of images."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import threefold
from tests.contract import image_oracles
from tests.contract.kinds import EXAMPLES
from tests.contract.test_masked import saved, shaken
from tests.tolerances import assert_close
from threefold import Spec, ThreefoldError
from threefold.cli.info import describe_model, say
from threefold.layers.window_attention import WindowAttention
from threefold.memory.attention import attention_weights
from threefold.models.image_networks import NETWORKS
from threefold.models.presets import image_network, swin
from threefold.models.pretrained.transformers import load_transformers
from threefold.training import TrainingSettings, train
from threefold.training.estimate import estimate_step
from threefold.training.objectives import objective_of
from threefold.training.reporters import Reporter

# At 1,000 classes and 224 × 224 pixels: AlexNet with its two groups, VGG and Swin-T as in their
# papers, GoogLeNet without auxiliary heads, the residual networks as everywhere.
PUBLISHED = {
    **{"alexnet": 60_965_224, "inception": 6_998_552, "resnext50": 25_028_904},
    **{"vgg_a": 132_863_336, "vgg_b": 133_047_848, "vgg_c": 133_638_952},
    **{"vgg_d": 138_357_544, "vgg_e": 143_667_240},
    **{"resnet18": 11_689_512, "resnet34": 21_797_672, "resnet50": 25_557_032},
    **{"resnet101": 44_549_160, "resnet152": 60_192_808},
}


def images(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).double()


def small(kind: str, width: int = 16, depth: int = 2, **options: Any) -> Any:
    torch.manual_seed(0)
    options = {"image": (8, 12), "channels": 1, "classes": 3, **options}
    return threefold.build(Spec(kind, width, depth, options=options))


def with_statistics(model: Any) -> Any:
    """Batch norms whose running statistics are no longer 0 and 1."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model


@pytest.mark.parametrize("network", NETWORKS)
def test_published_sizes(network: str) -> None:
    with torch.device("meta"):
        model: Any = threefold.build(image_network(network))
    assert model.parameter_count == PUBLISHED[network]
    assert model.grid == ((6, 6) if network == "alexnet" else (7, 7))


def test_published_size_of_swin() -> None:
    with torch.device("meta"):
        assert threefold.build(swin()).parameter_count == 28_288_354  # Swin-T


@pytest.mark.parametrize("network", NETWORKS)
def test_small_images_at_any_width(network: str) -> None:
    depth = 2 if network == "alexnet" else 3
    model = small("convolutional", 6, depth, network=network, image=(28, 32)).double().eval()
    x = images(2, 1, 28, 32)
    logits, state = model(x)
    features = model.encode(x)
    assert logits.shape == (2, 3) and state is None and logits.isfinite().all()
    assert features.shape == (2, model.grid[0] * model.grid[1], model.feature_width)
    assert model.pool(features).shape == (2, model.feature_width)
    assert torch.equal(model.classify(features), logits)


@pytest.mark.parametrize(
    ("network", "image", "share"),
    [
        ("alexnet", (67, 99), 1 / 8),
        *((name, (32, 64), 1 / 16) for name in image_oracles.VGG),
        ("inception", (57, 90), 1 / 8),  # odd sides, so that poolings meet the border
        ("resnext50", (17, 33), 1 / 2),
    ],
)
def test_equals_the_published_layers(network: str, image: tuple[int, int], share: float) -> None:
    published = NETWORKS[network]
    width, depth = round(published.width * share), len(published.stages)
    options = {"network": network, "image": image, "channels": 3, "stem": "published"}
    model = with_statistics(shaken(small("convolutional", width, depth, **options)))
    layers = [m for m in model.modules() if hasattr(m, "weight")]
    oracle = getattr(image_oracles, network.partition("_")[0])
    extra = [network] if network in image_oracles.VGG else []
    x = images(2, 3, *image)
    expected = oracle(x, image_oracles.Layers(layers, share), 3, *extra)
    assert_close(model(x)[0], expected)


def test_resnet_equals_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    x = images(2, 3, 224, 224)
    for kind, sizes, depths in (
        ("basic", [8, 16, 32, 64], [2, 2, 2, 2]),
        ("bottleneck", [32, 64, 128], [3, 4, 6]),
    ):
        config = transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=sizes, depths=depths, layer_type=kind, num_labels=5
        )
        theirs = transformers.ResNetForImageClassification(config)
        theirs = shaken(with_statistics(theirs), torch.float32)
        ours = saved(theirs, tmp_path / kind)
        assert ours.spec.option("network") == ("resnet18" if kind == "basic" else "resnet50")
        assert_close(ours(x)[0], theirs.double()(x).logits)
        features = theirs.resnet(x).last_hidden_state.flatten(2).mT
        assert_close(ours.encode(x), features)
    config.depths = [3, 5, 6]
    config.save_pretrained(tmp_path / "bottleneck")
    with pytest.raises(ThreefoldError, match="only those of ResNet-18"):
        load_transformers(tmp_path / "bottleneck")


def test_swin_equals_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 3, 2],
        num_heads=[2, 4, 8],
        window_size=4,
        num_labels=5,
    )
    x = images(2, 3, 32, 32)
    theirs = shaken(transformers.SwinForImageClassification(config), torch.float32)
    ours = saved(theirs, tmp_path / "labels")
    assert [b.mixer.shift for s in ours.stages for b in s.blocks] == [0, 2, 0, 2, 0, 0, 0]
    assert_close(ours(x)[0], theirs.double()(x).logits)
    theirs = shaken(transformers.SwinModel(config), torch.float32)
    ours = saved(theirs, tmp_path / "model")
    assert_close(ours.encode(x), theirs.double()(x).last_hidden_state)
    with pytest.raises(ThreefoldError, match="has no head"):
        ours(x)


def test_swin_pads_what_windows_do_not_divide(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    sizes = {"embed_dim": 8, "depths": [2, 2, 2], "num_heads": [2, 4, 8], "window_size": 4}
    config = transformers.SwinConfig(image_size=(37, 42), patch_size=2, num_labels=5, **sizes)
    x = images(2, 3, 37, 42)
    theirs = shaken(transformers.SwinForImageClassification(config), torch.float32)
    ours = saved(theirs, tmp_path / "labels")
    assert [ours.grid(stage) for stage in range(3)] == [(19, 21), (10, 11), (5, 6)]
    assert [b.mixer.padded for s in ours.stages for b in s.blocks[:1]] == [
        (20, 24),
        (12, 12),
        (8, 8),
    ]
    assert_close(ours(x)[0], theirs.double()(x).logits)


def test_no_stage_of_swin_has_windows_of_one_patch() -> None:
    for image, windows in (
        ((44, 44), [7, 7]),  # 22 and 11 patches
        ((8, 12), [4, 2]),
        ((32, 32), [4, 4]),
        ((10, 14), [5, 3]),
        ((224, 224), [7, 7]),
    ):
        model = small("swin", patch=2, image=image)
        assert [stage.blocks[0].mixer.window for stage in model.stages] == windows


@pytest.mark.parametrize("shift", [0, 1])
def test_windows_written_out(shift: int) -> None:
    """Each element by itself: its window in the image, and the bias of each distance."""
    torch.manual_seed(0)
    grid, side = (4, 6), 2
    layer = WindowAttention(8, grid=grid, window=side, shift=shift, heads=2).double()
    torch.nn.init.normal_(layer.bias)
    x = images(1, 24, 8)
    query, key, value = layer.heads(x)
    places = list(product(range(grid[0]), range(grid[1])))
    scores = torch.full((2, 24, 24), -torch.inf).double()
    for (i, one), (j, other) in product(enumerate(places), enumerate(places)):
        if all((a - shift) // side == (b - shift) // side for a, b in zip(one, other, strict=True)):
            down, across = (a - b + side - 1 for a, b in zip(one, other, strict=True))
            scores[:, i, j] = layer.bias[down * (2 * side - 1) + across]
    weights = attention_weights(query, key, scores.unsqueeze(0))
    expected = layer.heads.join((weights @ value.transpose(1, 2)).transpose(1, 2))
    assert_close(layer(x)[0], expected)


def test_a_shift_joins_neighbouring_windows_but_not_opposite_borders() -> None:
    for shift, readers in ((0, 16), (2, 4)):  # of the element in the corner
        layer = WindowAttention(8, grid=(8, 8), window=4, shift=shift, heads=2).double()
        x = images(1, 64, 8)
        other = x.clone()
        other[0, 0] += 1
        changed = (layer(x)[0] != layer(other)[0]).any(-1)
        assert int(changed.sum()) == readers


@pytest.mark.parametrize(("kind", "options"), [("convolutional", {}), ("swin", {"patch": 2})])
def test_saving_loading_and_rows(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = with_statistics(shaken(small(kind, **options)))
    x = images(2, 1, 8, 12)
    logits, _ = model(x)
    other = x.clone()
    other[0, 0, 7, 11] += 1
    changed, _ = model(other)
    assert not torch.equal(changed[0], logits[0]) and torch.equal(changed[1], logits[1])
    model.save(tmp_path / "model")
    again: Any = threefold.load(tmp_path / "model")
    assert torch.equal(again(x)[0], logits)
    assert "mixers" not in (tmp_path / "model" / "README.md").read_text()
    facts = describe_model(tmp_path / "model")
    assert facts["forms"] == ["parallel"] and facts["state_bytes"] == 0
    say(facts)
    assert Spec.from_json(model.spec.to_json()) == model.spec and model.spec.mixers == ()


def test_running_statistics_belong_to_the_run() -> None:
    """Estimates leave them alone, and the best weights have those of their evaluation."""
    model, rows = EXAMPLES["convolutional"].build(), EXAMPLES["convolutional"].rows()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    settings = TrainingSettings(steps=9, eval_every=1, patience=2, ema=0.5, learning_rate=1.0)
    estimate_step(model, objective_of(model), rows, settings)
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())
    seen: list[dict[str, Tensor]] = []

    class Watch(Reporter):
        def on_evaluate(self, trainer: Any) -> None:
            seen.append({name: buffer.clone() for name, buffer in model.named_buffers()})

    result = train(
        model, lambda step: rows, settings, validation=[rows], reporters=[Watch()]
    ).validation
    best = min(range(len(seen)), key=lambda number: result[number][1].loss)
    assert best < len(seen) - 1, "the last evaluation was the best: nothing was restored"
    after = dict(model.named_buffers())
    assert all(torch.equal(after[name], value) for name, value in seen[best].items())
    one = small("convolutional", depth=4, image=(8, 8))
    with pytest.raises(ThreefoldError, match="cannot be trained on one image with one position"):
        one.train()(torch.zeros(1, 1, 8, 8))


def test_bad_input_is_refused() -> None:
    cases: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("convolutional", {"network": "resnet19"}, "unknown network 'resnet19'; did you mean"),
        ("convolutional", {"stem": "big"}, "unknown stem 'big'"),
        ("convolutional", {"network": "vgg_a", "depth": 5}, "too small for 5 stages of vgg_a"),
        ("convolutional", {"depth": 5}, "resnet18 has 4 stages; expected 1 to 4"),
        ("convolutional", {"network": "alexnet", "width": 15}, "a multiple of 2"),
        ("convolutional", {"image": (8,)}, "expected a height and a width"),
        ("swin", {"depth": 3}, "2 × 3 patches cannot be halved 2 times"),
        ("swin", {"patch": 2, "blocks": (2,)}, r"blocks is \(2,\), depth 2"),
        ("swin", {"patch": 2, "heads": 3}, "3 heads do not divide 16"),
        ("swin", {"patch": 0}, "patch is 0, expected 1 or more"),
        ("swin", {"window": -1, "patch": 2}, "window is -1"),
    )
    for kind, options, message in cases:
        with pytest.raises(ThreefoldError, match=message):
            small(kind, **options)
    for field in ({"mixers": "gla"}, {"channel": "mlp"}, {"block": "post_norm"}):
        with pytest.raises(ThreefoldError, match="a swin model is not made of mixers; leave out"):
            Spec("swin", 16, 2, **field)
    with pytest.raises(ThreefoldError, match="mixers is \\(\\), expected a name"):
        Spec("vision", 16, 2)
    for kind in ("convolutional", "swin"):
        model = small(kind, patch=2) if kind == "swin" else small(kind)
        for given, message in (
            (torch.zeros(2, 1, 8, 8), r"\(2, 1, 8, 8\), expected \[batch, 1, 8, 12\]"),
            (torch.zeros(2, 3, 8, 12), r"expected \[batch, 1, 8, 12\]"),
            (torch.zeros(2, 1, 8, 12).double(), "torch.float64, the weights are torch.float32"),
        ):
            with pytest.raises(ThreefoldError, match=message):
                model(given)
        with pytest.raises(ThreefoldError, match=f"a {kind} model cannot read a stream"):
            model.check_streams()
