"""The Transformer against torch's own, its options, its loss, and its way through `generate`.

The contract of an encoder–decoder is kept by test_seq2seq, where two of these are listed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import threefold
from tests.tolerances import assert_close
from threefold import Spec, ThreefoldError, Transformer
from threefold.data.loaders import IGNORE
from threefold.layers.positions import sinusoids
from threefold.models.presets import transformer
from threefold.models.pretrained.transformers import TORCH, load_weights
from threefold.training import inverse_square_root

WIDTH = 32


def small(**options: Any) -> Spec:
    more = {"width": WIDTH, "depth": 2, "heads": 4, "hidden": 48, "vocabulary": 23, **options}
    return transformer(**more)


def build(spec: Spec, seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    made = threefold.build(spec)
    assert isinstance(made, Transformer)
    return made.eval()


def tokens(rows: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 23, (rows, length), generator=torch.Generator().manual_seed(seed))


def torchs(norm_first: bool, dtype: torch.dtype) -> nn.Transformer:
    torch.manual_seed(2)
    sizes = {"num_encoder_layers": 3, "num_decoder_layers": 2, "dim_feedforward": 48}
    made = nn.Transformer(WIDTH, 4, batch_first=True, norm_first=norm_first, **sizes).to(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return made.eval()


def embedded(weight: Tensor, given: Tensor, mask: Tensor) -> Tensor:
    """√width · E[token] + p, where each row counts from its own beginning."""
    places = (mask.cumsum(1) - 1).clamp(min=0)
    return WIDTH**0.5 * weight[given] + sinusoids(places, WIDTH).to(weight.dtype)


def paddings(side: str, length: int, counts: tuple[int, ...]) -> Tensor:
    places = torch.arange(length)
    places = places.flip(0) if side == "left" else places
    lengths = torch.tensor(counts if side != "none" else (length,) * len(counts))
    return places < lengths.unsqueeze(1)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("block", ["post_norm", "pre_norm"])
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_it_is_torchs_transformer_with_copied_weights(
    side: str, block: str, dtype: torch.dtype
) -> None:
    theirs = torchs(block == "pre_norm", dtype)
    spec = small()
    options = {**spec.options, "encoder_depth": 3}
    wired = (block, {"norm": "layer", "final_norm": True})
    ours = build(Spec(**{**vars(spec), "options": options, "block": wired})).to(dtype)
    weights = {**theirs.state_dict(), "embedding.weight": ours.embedding.weight.detach().clone()}
    load_weights(ours, weights, TORCH, "torch")
    source, target = tokens(3, 9), tokens(3, 7, seed=2)
    read, written = paddings(side, 9, (4, 9, 1)), paddings(side, 7, (7, 2, 5))
    table = ours.embedding.weight
    later = torch.ones(7, 7, dtype=torch.bool).triu(1)
    expected = theirs(
        embedded(table, source, read),
        embedded(table, target, written),
        tgt_mask=later,
        src_key_padding_mask=~read,
        memory_key_padding_mask=~read,
        tgt_key_padding_mask=~written,
    )
    logits, _ = ours(target, ours.encode(source, mask=read), mask=written)
    assert_close(logits[written], (expected @ table.T)[written])


def test_what_does_not_fit_is_refused() -> None:
    theirs, ours = torchs(False, torch.float32).state_dict(), build(small())
    table = {"embedding.weight": ours.embedding.weight.detach()}
    with pytest.raises(ThreefoldError, match=r"torch: has unknown decoder.norm.bias"):
        load_weights(ours, {**theirs, **table}, TORCH, "torch")
    with pytest.raises(ThreefoldError, match=r"embedding.weight is \(3, 32\), expected \(23, 32\)"):
        load_weights(ours, {**theirs, "embedding.weight": torch.zeros(3, 32)}, TORCH, "torch")


def test_tables_are_shared_as_published() -> None:
    model = build(small())
    assert model.source_embedding.weight is model.embedding.weight and model.head is None
    apart = build(small(source_vocabulary=23))
    assert apart.parameter_count == model.parameter_count + 23 * WIDTH
    assert model.embedding.scale == WIDTH**0.5
    assert model.spec.block_entry == ("post_norm", {"norm": "layer"})


def test_the_source_is_read_once() -> None:
    model = build(small())
    source, target = tokens(2, 9), tokens(2, 5)
    with torch.no_grad():
        begin = model.encode(source)
        _, after = model(target, begin)
    for name in ("0", "1"):
        before, later = begin["decoder"][name]["cross"], after["decoder"][name]["cross"]
        assert before["keys"].data_ptr() == later["keys"].data_ptr()
        assert later["position"].tolist() == [9, 9]
    assert after["position"].tolist() == [5, 5]


@pytest.mark.parametrize("block", ["post_norm", "pre_norm", "deep_norm"])
def test_generation_is_the_decoder_without_caches(block: str) -> None:
    model = build(small(block=block))
    source = tokens(3, 9)
    with torch.no_grad():
        begin = model.encode(source)
        text = torch.zeros(3, 1, dtype=torch.int64)
        for _ in range(8):
            best = model(text, begin, form="parallel")[0][:, -1].argmax(-1)
            text = torch.cat([text, best.unsqueeze(1)], 1)
    start = torch.zeros(3, 1, dtype=torch.int64)
    greedy = threefold.generate(model, start, begin, temperature=0, max_tokens=8)
    assert torch.equal(greedy.tokens, text[:, 1:])
    one = threefold.generate(model, start, begin, beams=1, max_tokens=8)
    assert torch.equal(one.tokens, greedy.tokens)
    drawn = [threefold.generate(model, start, begin, seed=4, max_tokens=8) for _ in range(2)]
    assert torch.equal(drawn[0].tokens, drawn[1].tokens)
    beams = threefold.generate(model, start, begin, beams=4, max_tokens=8)
    for row, found in enumerate(beams.hypotheses):
        whole = torch.tensor([[0, *found[0].tokens]])
        with torch.no_grad():
            logits, _ = model(whole[:, :-1], model.encode(source[row : row + 1]))
        likely = logits.log_softmax(-1).gather(-1, whole[:, 1:, None]).sum().item()
        assert found[0].log_probability == pytest.approx(likely, rel=1e-4)
        assert found[0].log_probability >= one.hypotheses[row][0].log_probability - 1e-4


@pytest.mark.parametrize("block", ["post_norm", "pre_norm", "deep_norm"])
def test_bfloat16_runs(block: str) -> None:
    model, source, target = build(small(block=block)), tokens(2, 9), tokens(2, 5)
    with torch.no_grad():
        expected, _ = model(target, model.encode(source))
        model.bfloat16()
        state = model.encode(source)
        logits, _ = model(target, state)
        stepped, _ = model(target, state, form="step")
    assert state["decoder"]["0"]["cross"]["keys"].dtype == torch.bfloat16
    for found in (logits, stepped):
        assert found.dtype == torch.bfloat16
        # Eight bits of mantissa through four layers.
        assert (found.float() - expected).abs().max() < 0.1 * expected.abs().max()


def test_dropout_is_for_training_only() -> None:
    model, source, target = build(small(dropout=0.5)), tokens(2, 9), tokens(2, 5)
    first, second = (model(target, model.encode(source))[0] for _ in range(2))
    assert torch.equal(first, second)
    model.train()
    first, second = (model(target, model.encode(source))[0] for _ in range(2))
    assert not torch.equal(first, second)


def test_the_loss_is_smoothed() -> None:
    model = build(small(label_smoothing=0.2))
    logits, answers = torch.randn(2, 4, 23), tokens(2, 4)
    answers[0, 2:] = IGNORE
    likely = logits.log_softmax(-1)[answers != IGNORE]
    wanted = 0.2 / 23 + 0.8 * F.one_hot(answers[answers != IGNORE], 23)
    assert_close(model.loss(logits, answers), -(wanted * likely).sum(-1).mean())


def test_the_schedule_is_the_papers() -> None:
    width, warmup, steps = 512, 4000, 100_000
    for step in (1, 100, 3999, 4000, 4001, 50_000, 100_000):
        paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        peak = (width * warmup) ** -0.5
        assert peak * inverse_square_root(step / steps, warmup / steps) == pytest.approx(paper)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_smoothing": 1.0}, "label_smoothing is 1.0, expected at least 0 and below 1"),
        ({"encoder_depth": -1}, "encoder_depth is -1"),
        ({"source_vocabulary": 9}, r"source and target cannot share embeddings: 9 and 23 tokens"),
        ({"source_vocabulary": -1}, "source_vocabulary is -1"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"encoder_mixers": ("mambo",)}, "unknown mixer 'mambo'; did you mean 'mamba"),
        (
            {"cross_attention": {"heads": 3}},
            "cross-attention 'cross' with width=32, heads=3: 3 heads",
        ),
        (
            {"positions": "learned", "max_length": 4},
            "element 9 is beyond the table of",
        ),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    spec = small()
    with pytest.raises(ThreefoldError, match=message):
        build(Spec(**{**vars(spec), "options": {**spec.options, **options}})).encode(tokens(1, 9))


def test_bad_calls_are_refused() -> None:
    model = build(small())
    source, target = tokens(2, 9), tokens(2, 5)
    state = model.encode(source)
    half = torch.tensor([[True, False, True, True, True]] * 2)
    for call, message in (
        (lambda: model(target), r"no source was given; pass the state returned by model.encode"),
        (lambda: model(target[:1], state), "another batch size"),
        (lambda: model(target, {"decoder": state["decoder"]}), "state of another model"),
        (lambda: model(target, state, mask=half), "the mask of row 0 has a hole"),
        (lambda: model(target, state, mask=half.long()), r"expected \(2, 5\) bool"),
        (
            lambda: model.encode(source, mask=half),
            r"mask is \(2, 5\) .* expected \(2, 9\)",
        ),
        (lambda: model.encode(source + 20), "source: token .* expected 0 to 22"),
    ):
        with pytest.raises(ThreefoldError, match=message):
            call()
    with pytest.raises(ThreefoldError, match=r"'fnet'.* see later tokens, .*encoder_mixers"):
        threefold.build(Spec("transformer", WIDTH, 1, "fnet", 23))
