"""VisionTransformer: patches, class token or mean, any mixer, transformers' ViT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import threefold
from tests.contract.test_masked import saved, shaken
from tests.tolerances import assert_close
from threefold import Spec, ThreefoldError, VisionTransformer

SMALL = {"image": (8, 12), "channels": 3, "patch": 4, "classes": 5}


def images(rows: int = 3, height: int = 8, width: int = 12) -> Tensor:
    return torch.randn(rows, 3, height, width, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("mixer", ["mamba", "gla", "fnet", "attention"])
@pytest.mark.parametrize("pooling", ["class", "mean"])
def test_any_mixer_sees_the_whole_image(mixer: str, pooling: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = threefold.build(Spec("vision", 32, 2, mixer, options={**SMALL, "pooling": pooling}))
    assert isinstance(model, VisionTransformer)
    shaken(model)
    x = images()
    logits, state = model(x)
    assert logits.shape == (3, 5) and state is None
    assert model.encode(x).shape == (3, 6 + (pooling == "class"), 32)
    for row, column in ((0, 0), (7, 11), (3, 6)):
        other = x.clone()
        other[0, 1, row, column] += 1
        changed, _ = model(other)
        assert not torch.equal(changed[0], logits[0])
        assert torch.equal(changed[1:], logits[1:])
    model.save(tmp_path / "model")
    again: Any = threefold.load(tmp_path / "model")
    assert torch.equal(again(x)[0], logits)


def test_patches_are_a_convolution() -> None:
    model: Any = threefold.build(Spec("vision", 16, 1, "attention", options=SMALL)).double()
    kernel = model.embedding.weight.view(16, 3, 4, 4)
    expected = F.conv2d(images(), kernel, model.embedding.bias, stride=4).flatten(2).mT
    assert_close(model.embedding.look_up(model.patches(images())), expected)


def test_equals_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=8,
        patch_size=4,
        num_labels=5,
    )
    x = images(3, 8, 8)
    theirs = shaken(transformers.ViTForImageClassification(config), torch.float32)
    ours = saved(theirs, tmp_path / "labels")
    assert_close(ours(x)[0], theirs.double()(x).logits)
    theirs = shaken(transformers.ViTModel(config), torch.float32)
    ours = saved(theirs, tmp_path / "model")
    assert_close(ours.encode(x), theirs.double()(x).last_hidden_state)
    with pytest.raises(ThreefoldError, match="has no head"):
        ours(x)


def test_bad_input_is_refused() -> None:
    for options, message in (
        ({"patch": 3}, "multiples of the patch"),
        ({"image": (8,)}, "expected a height and a width"),
        ({"pooling": "last"}, "unknown pooling 'last'"),
        ({"classes": -1}, "-1 classes"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            threefold.build(Spec("vision", 16, 1, "gla", options={**SMALL, **options}))
    model: Any = threefold.build(Spec("vision", 16, 1, "gla", options=SMALL))
    for given, message in (
        (torch.zeros(2, 3, 8, 8), r"\(2, 3, 8, 8\), expected \[batch, 3, 8, 12\]"),
        (torch.zeros(0, 3, 8, 12), "at least one image"),
        (torch.zeros(2, 3, 8, 12).double(), "torch.float64, the weights are torch.float32"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            model(given)
