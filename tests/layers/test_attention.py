"""Attention against torch's own, and every kind of positions against its equation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import threefold
from tests.tolerances import assert_close
from threefold import ThreefoldError
from threefold.drawing.attention import draw_weights
from threefold.layers.attention import Attention
from threefold.layers.positions import ALiBi, Relative, alibi_slopes, sinusoids

WIDTH, LENGTH = 32, 12


def some(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def make(**options: Any) -> Attention:
    torch.manual_seed(0)
    made = Attention(WIDTH, **{"heads": 4, "positions": "none", **options})
    return made.double().eval()


class TestAgainstTorch:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("causal", [True, False])
    @pytest.mark.parametrize("side", ["left", "right", "none"])
    def test_multihead_attention_with_copied_weights(
        self, causal: bool, side: str, dtype: torch.dtype
    ) -> None:
        torch.manual_seed(3)
        theirs = nn.MultiheadAttention(WIDTH, 4, batch_first=True).to(dtype).eval()
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
        ours = make(causal=causal, bias=True).to(dtype)
        weights = (*theirs.in_proj_weight.chunk(3), theirs.out_proj.weight)
        biases = (*theirs.in_proj_bias.chunk(3), theirs.out_proj.bias)
        modules = (ours.heads.query, ours.heads.key, ours.heads.value, ours.heads.out)
        with torch.no_grad():
            for module, weight, bias in zip(modules, weights, biases, strict=True):
                module.weight.copy_(weight)
                module.bias.copy_(bias)
        x = some(3, LENGTH, WIDTH, dtype=dtype)
        mask = torch.ones(3, LENGTH, dtype=torch.bool)
        if side != "none":
            for row, count in enumerate((0, 5, 9)):
                mask[row, slice(0, count) if side == "left" else slice(LENGTH - count, None)] = (
                    False
                )
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        expected, _ = theirs(
            x, x, x, key_padding_mask=~mask, attn_mask=later if causal else None, need_weights=False
        )
        y, _ = ours(x, mask=mask)
        assert_close(y[mask], expected[mask])

    def test_gradients_equal_multihead_attention(self) -> None:
        theirs = nn.MultiheadAttention(WIDTH, 4, batch_first=True, bias=False).double()
        ours = make(causal=False)
        with torch.no_grad():
            for module, weight in zip(
                (ours.heads.query, ours.heads.key, ours.heads.value),
                theirs.in_proj_weight.chunk(3),
                strict=True,
            ):
                module.weight.copy_(weight)
            ours.heads.out.weight.copy_(theirs.out_proj.weight)
        x = some(2, LENGTH, WIDTH).requires_grad_()
        (expected,) = torch.autograd.grad(theirs(x, x, x)[0].square().sum(), x)
        (found,) = torch.autograd.grad(ours(x)[0].square().sum(), x)
        assert_close(found, expected, "gradient")

    def test_dropout_only_while_training(self) -> None:
        mixer, x = make(dropout=0.5), some(2, LENGTH, WIDTH)
        assert torch.equal(mixer(x)[0], mixer(x)[0])
        assert torch.equal(mixer(x)[0], make()(x)[0])
        mixer.train()
        first, second = mixer(x)[0], mixer(x)[0]
        assert not torch.equal(first, second)
        mean = torch.stack([mixer(x)[0] for _ in range(2000)]).mean(0)
        assert (mean - make()(x)[0]).abs().max() < 0.15 * make()(x)[0].abs().max()


def written_out(mixer: Attention, x: Tensor, scores: Any) -> Tensor:
    """Causal attention with `scores(q, k)` [B, H, L, L] in the place of q kᵀ/√K."""
    q, k, v = (t.transpose(1, 2) for t in mixer.heads(x))
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    weights = scores(q, k).masked_fill(later, -torch.inf).softmax(-1)
    return mixer.heads.join((weights @ v).transpose(1, 2))


def plain(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / math.sqrt(q.shape[-1])


class TestPositions:
    x = some(2, LENGTH, WIDTH)

    def test_sinusoidal(self) -> None:
        p = torch.zeros(LENGTH, WIDTH, dtype=torch.float64)
        for t in range(LENGTH):
            for i in range(WIDTH // 2):
                angle = t / 10_000 ** (2 * i / WIDTH)
                p[t, 2 * i], p[t, 2 * i + 1] = math.sin(angle), math.cos(angle)
        mixer = make(positions="sinusoidal")
        assert_close(mixer(self.x)[0], written_out(mixer, self.x + p, plain))
        # p_{t+φ} is a rotation of p_t, the same for all t.
        a, b = sinusoids(torch.arange(50), 4), sinusoids(torch.arange(50) + 7, 4)
        assert_close((b[:-1] * b[1:]).sum(-1), (a[:-1] * a[1:]).sum(-1))

    def test_learned(self) -> None:
        mixer = make(positions="learned", max_length=LENGTH)
        expected = written_out(mixer, self.x + mixer.positions.table, plain)
        assert_close(mixer(self.x)[0], expected)
        with pytest.raises(ThreefoldError, match=r"element 13 is beyond .* max_length=12"):
            mixer(some(1, LENGTH + 1, WIDTH))
        _, state = mixer(self.x)
        with pytest.raises(ThreefoldError, match=r"element 13 is beyond .* max_length=12"):
            mixer.step(self.x[:, 0], state)
        # Padding is no element: the same rows fit with as much of it as one likes.
        mask = torch.arange(20) >= 8
        y, _ = mixer(F.pad(self.x, (0, 0, 8, 0)), mask=mask.expand(2, -1))
        assert_close(y[:, 8:], expected)

    def test_binary(self) -> None:
        mixer = make(positions="binary")
        p = torch.zeros(LENGTH, WIDTH, dtype=torch.float64)
        for t in range(LENGTH):
            p[t] = torch.tensor([1.0 if t >> i & 1 else -1.0 for i in range(WIDTH)])
        assert_close(mixer(self.x)[0], written_out(mixer, self.x + p, plain))

    def test_rotary_scores_know_distances_only(self) -> None:
        mixer = make(positions="rotary", rotary_base=100.0)

        def scores(q: Tensor, k: Tensor) -> Tensor:
            half = q.shape[-1] // 2
            angle = (
                torch.arange(LENGTH).unsqueeze(1) * 100.0 ** (-torch.arange(half) / half).double()
            )
            turn = torch.polar(torch.ones_like(angle), angle)
            q, k = (torch.complex(t[..., :half], t[..., half:]) * turn for t in (q, k))
            return (q @ k.mH).real / math.sqrt(2 * half)

        assert_close(mixer(self.x)[0], written_out(mixer, self.x, scores))

    @pytest.mark.parametrize("heads", [4, 8, 16])
    def test_alibi(self, heads: int) -> None:
        mixer = make(positions="alibi", heads=heads)
        powers = -8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads
        slopes = torch.exp2(powers)
        far = torch.arange(LENGTH).unsqueeze(1) - torch.arange(LENGTH)
        expected = written_out(
            mixer, self.x, lambda q, k: plain(q, k) - slopes.view(-1, 1, 1) * far
        )
        assert_close(mixer(self.x)[0], expected)

    def test_alibi_between_powers_of_two(self) -> None:
        assert alibi_slopes(6) == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
        assert ALiBi(6).slope(torch.tensor([[3]])).flatten().tolist() == [
            -3 * slope for slope in alibi_slopes(6)
        ]

    def test_relative(self) -> None:
        mixer = make(positions="relative")
        table = mixer.positions.table
        expected = written_out(
            mixer,
            self.x,
            # the first sixteen distances have a bucket each
            lambda q, k: (
                plain(q, k)
                + table[
                    (torch.arange(LENGTH).unsqueeze(1) - torch.arange(LENGTH)).clamp(min=0)
                ].permute(2, 0, 1)
            ),
        )
        assert_close(mixer(self.x)[0], expected)
        buckets = Relative(1).bucket(torch.arange(200)).tolist()
        assert buckets[:16] == list(range(16)) and buckets[-1] == 31
        assert buckets == sorted(buckets) and set(buckets) == set(range(32))
        both = Relative(1, both_sides=True).bucket(torch.arange(-200, 201))
        assert set(both.tolist()) == set(range(32)) - {16}  # 0 is no element to come

    def test_unknown(self) -> None:
        with pytest.raises(ThreefoldError, match=r"'rotaty'.*'rotary'"):
            make(positions="rotaty")
        with pytest.raises(ThreefoldError, match="max_length is None"):
            make(positions="learned")
        with pytest.raises(ThreefoldError, match="needs positions='learned'"):
            make(max_length=5)


class TestFunction:
    q, k, v = some(2, 5, 4, 8), some(2, 7, 2, 8, seed=2), some(2, 7, 2, 6, seed=3)

    def expected(self, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k, v = (t.transpose(1, 2) for t in (self.q, self.k, self.v))
        scores = q @ k.repeat_interleave(2, 1).mT / math.sqrt(8)
        if mask is not None:
            scores = (
                scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
            )
        weights = scores.softmax(-1).nan_to_num(nan=0.0)
        return (weights @ v.repeat_interleave(2, 1)).transpose(1, 2), weights

    @pytest.mark.parametrize("kind", ["none", "causal", "bool", "float", "rows", "blind", "both"])
    def test_masks_and_weights(self, kind: str) -> None:
        seen = torch.ones(5, 7, dtype=torch.bool).tril(2)
        odd = some(2, 4, 5, 7, seed=4) > 0
        odd[..., 0] = True
        mask: Tensor | None = {
            "bool": odd,
            "float": some(4, 5, 7, seed=5),
            "rows": odd[:, :1, :1],
            "blind": odd & (torch.arange(5) != 3).unsqueeze(1),
            "both": odd,
        }.get(kind)
        causal = kind in ("causal", "both")
        whole = seen if kind == "causal" else mask & seen if kind == "both" else mask
        expected, weights = self.expected(whole)
        out = threefold.attention(self.q, self.k, self.v, mask=mask, causal=causal)
        again, found = threefold.attention(
            self.q, self.k, self.v, mask=mask, causal=causal, return_weights=True
        )
        assert_close(out, expected)
        assert_close(again, expected)
        assert_close(found, weights)
        if kind == "blind":
            assert (out[:, 3] == 0).all()

    def test_causal_with_as_many_queries_as_keys(self) -> None:
        q = some(2, 7, 4, 8)
        out = threefold.attention(q, self.k, self.v, causal=True)
        again, weights = threefold.attention(q, self.k, self.v, causal=True, return_weights=True)
        assert_close(out, again)
        assert (weights.triu(1) == 0).all()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"query": q[0]}, r"query is \(5, 4, 8\), expected 4 axes"),
            ({"key": k[..., :4]}, "do not fit"),
            ({"value": v[:, :6]}, "do not fit"),
            ({"query": q[:, :, :3]}, "3 heads, key 2"),
            ({"query": q.float()}, r"torch.float32, torch.float64"),
            ({"mask": torch.ones(5, 7)}, r"mask is torch.float32, expected bool"),
            ({"mask": torch.ones(5, 7, dtype=torch.int64)}, r"mask is torch.int64, expected bool"),
            ({"mask": torch.ones(5, 6, dtype=torch.bool)}, r"mask is \(5, 6\), .* \(2, 4, 5, 7\)"),
            ({"mask": torch.ones(3, 1, 5, 7, dtype=torch.bool)}, r"broadcasts to \(2, 4, 5, 7\)"),
        ],
    )
    def test_bad_input(self, change: dict[str, Tensor], message: str) -> None:
        given: dict[str, Any] = {"query": self.q, "key": self.k, "value": self.v, **change}
        with pytest.raises(ThreefoldError, match=message):
            threefold.attention(**given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, r"5 heads do not divide 32"),
        ({"heads": 4, "groups": 3}, r"3 groups .* do not divide 4 heads; choose among \[1, 2, 4\]"),
        ({"window": 0}, "window is 0"),
        ({"dropout": 1.0}, r"dropout is 1.0"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ThreefoldError, match=message):
        make(**options)


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    _, weights = threefold.attention(
        *(some(1, 4, 3, 8, seed=s) for s in range(3)), causal=True, return_weights=True
    )
    figure = draw_weights(weights[0], tmp_path / "w.png", queries="abcd", keys="abcd")
    images = [image for axis in figure.axes for image in axis.get_images()]
    assert len(images) == 3
    assert torch.equal(torch.tensor(images[1].get_array().data), weights[0, 1].float())
    assert (tmp_path / "w.png").stat().st_size > 1000
    with pytest.raises(ThreefoldError, match=r"\(1, 3, 4, 4\), expected \[queries, keys\]"):
        draw_weights(weights)
    with pytest.raises(ThreefoldError, match="3 labels for 4 queries"):
        draw_weights(weights[0], queries="abc")
