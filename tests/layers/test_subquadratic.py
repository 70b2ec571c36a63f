"""Each sub-quadratic mixer against what it approximates, or its equation written out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import threefold
from tests.tolerances import assert_close, relative_error
from threefold import ThreefoldError
from threefold.layers.attention_parts.heads import Heads

WIDTH, LENGTH, HEADS = 32, 48, 4
SIZE = WIDTH // HEADS


def make(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    made = threefold.mixer(name, width=WIDTH, **options).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if not parameter.any():
                parameter.uniform_(-0.5, 0.5)
    return made


def some(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


X = some(2, LENGTH, WIDTH)


def heads_of(heads: Heads, x: Tensor) -> tuple[Tensor, ...]:
    return tuple(part.transpose(1, 2) for part in heads(x))


def softmax_attention(heads: Heads, x: Tensor, seen: Tensor | None = None) -> Tensor:
    """Full attention [B, L, width], every weight written out; `seen` [L, L]."""
    q, k, v = heads_of(heads, x)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = scores if seen is None else scores.masked_fill(~seen, -torch.inf)
    return heads.join((scores.softmax(-1) @ v).transpose(1, 2))


def distances(length: int = LENGTH) -> Tensor:
    return torch.arange(length).unsqueeze(1) - torch.arange(length)


class TestWindows:
    @pytest.mark.parametrize(("window", "count"), [(1, 1), (5, 3), (100, 2), (3, 60)])
    def test_longformer_written_out(self, window: int, count: int) -> None:
        mixer = make("longformer", window=window, globals=count, heads=4, positions="none")
        with torch.no_grad():
            for name in ("query", "key", "value"):  # they start equal to the local ones
                weight = mixer.get_parameter(f"global_{name}.weight")
                assert torch.equal(weight, mixer.get_parameter(f"heads.{name}.weight"))
                weight += 0.1 * torch.randn_like(weight)
        places = torch.arange(LENGTH)
        seen = (distances().abs() < window) | (places < count)
        expected = softmax_attention(mixer.heads, X, seen)
        q, k, v = (
            mixer.get_submodule(f"global_{name}")(X).unflatten(-1, (4, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        whole = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
        whole = mixer.heads.join(whole.transpose(1, 2))
        expected = torch.where((places < count).unsqueeze(-1), whole, expected)
        assert_close(mixer(X)[0], expected)


class TestPerformer:
    @pytest.mark.parametrize("causal", [True, False])
    def test_error_falls_with_the_root_of_the_features(self, causal: bool) -> None:
        # Where e^{|q + k|²} is moderate: its tail decides how many features the rate takes to show.
        quiet = 0.4 * X
        counts = [32, 128, 512, 2048]
        errors = []
        for features in counts:
            total = 0.0
            mixer = make("performer", heads=4, features=features, causal=causal, positions="none")
            seen = distances() >= 0 if causal else None
            expected = softmax_attention(mixer.heads, quiet, seen)
            for seed in range(8):
                torch.manual_seed(seed)
                mixer.redraw()
                with torch.no_grad():
                    total += (mixer(quiet)[0] - expected).square().mean().item()
            errors.append(math.sqrt(total / 8))
        logs = torch.tensor(
            [[math.log(c), math.log(e)] for c, e in zip(counts, errors, strict=True)]
        )
        x, y = logs.double().unbind(1)
        slope = (((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()).item()
        assert -0.6 < slope < -0.4, (slope, errors)

    def test_features_are_orthogonal_and_as_long_as_gaussians(self) -> None:
        mixer = make("performer", heads=1, features=256)
        blocks = mixer.random[0].view(-1, WIDTH, WIDTH)
        products = blocks @ blocks.mT
        off = products - torch.diag_embed(products.diagonal(dim1=-2, dim2=-1))
        assert off.abs().max() < 1e-4
        assert abs(products.diagonal(dim1=-2, dim2=-1).mean().item() / WIDTH - 1) < 0.1

    @pytest.mark.parametrize("causal", [True, False])
    def test_features_written_out(self, causal: bool) -> None:
        """ε is added to e^{Wx − |x|²/2 − m}, m the largest of Wx, as in the authors' code."""
        mixer = make("performer", heads=4, causal=causal, positions="none", eps=0.01)
        q, k, v = heads_of(mixer.heads, X)
        (wq, half_q), (wk, half_k) = (
            (y @ mixer.random.mT * SIZE**-0.25, y.square().sum(-1, True) / 2 / SIZE**0.5)
            for y in (q, k)
        )
        # Causal, m is the largest so far, and what was written before is scaled to it.
        m = wk.amax(-1, True).cummax(-2)[0] if causal else wk.amax((-2, -1), True)
        features = torch.exp(wq - half_q - wq.amax(-1, True)) + 0.01
        written = (torch.exp(wk - half_k - m) + 0.01) * torch.exp(m)
        weights = features @ written.mT
        weights = weights.tril() if causal else weights
        out = weights / weights.sum(-1, keepdim=True) @ v
        assert_close(mixer(X)[0], mixer.heads.join(out.transpose(1, 2)))

    def test_forms_agree_while_the_maximum_climbs(self) -> None:
        """Keys that grow a thousandfold: the memory is scaled down again and again."""
        mixer = make("performer", heads=2)
        x = X * torch.logspace(-2, 1, LENGTH, dtype=torch.float64).view(1, -1, 1)
        expected, _ = mixer(x, form="step")
        for form in ("chunk", "parallel"):
            assert_close(mixer(x, form=form)[0], expected, what=form)
        assert expected.isfinite().all()
        single = make("performer", heads=2).float()(x.float())[0]
        assert relative_error(single, expected) < 1e-3


class TestNystromformer:
    def test_as_many_landmarks_as_elements_is_softmax_attention(self) -> None:
        mixer = make("nystromformer", landmarks=LENGTH, iterations=40, taps=0, heads=4)
        assert relative_error(mixer(X)[0], softmax_attention(mixer.heads, X)) < 1e-3

    def test_more_landmarks_come_nearer(self) -> None:
        errors = []
        for landmarks in (4, 16, 40):
            mixer = make("nystromformer", landmarks=landmarks, iterations=20, taps=0, heads=4)
            errors.append(relative_error(mixer(X)[0], softmax_attention(mixer.heads, X)))
        assert errors == sorted(errors, reverse=True)

    def test_written_out_with_the_convolution(self) -> None:
        mixer = make("nystromformer", landmarks=6, iterations=6, taps=5, heads=4)
        q, k, v = heads_of(mixer.heads, X)
        scale = math.sqrt(SIZE)
        q_, k_ = (t.unflatten(2, (6, LENGTH // 6)).mean(3) for t in (q, k))
        small = (q_ @ k_.mT / scale).softmax(-1)
        inverse = mixer.invert(small)
        near = small @ inverse @ small
        assert relative_error(near, small) < 0.1
        out = (q @ k_.mT / scale).softmax(-1) @ inverse @ ((q_ @ k.mT / scale).softmax(-1) @ v)
        padded = torch.nn.functional.pad(v, (0, 0, 2, 2))
        for tap in range(5):
            out = out + mixer.kernel[:, tap].view(1, -1, 1, 1) * padded[:, :, tap : tap + LENGTH]
        assert_close(mixer(X)[0], mixer.heads.join(out.transpose(1, 2)))


class TestReformer:
    def full(self, mixer: Any, x: Tensor, shown: Tensor) -> Tensor:
        """Shared-query–key attention over pairs `shown` [B, H, L, L]; oneself if nobody else."""
        q = mixer.query(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)
        v = mixer.value(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2)
        k = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        scores = q @ k.mT / math.sqrt(SIZE)
        itself = torch.eye(x.shape[1], dtype=torch.bool)
        scores = scores.masked_fill(itself, -1e5).masked_fill(~(shown | itself), -torch.inf)
        return mixer.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    @pytest.mark.parametrize("rounds", [1, 3])
    def test_one_bucket_and_one_chunk_is_full_attention(self, rounds: int) -> None:
        mixer = make("reformer", buckets=1, chunk=64, rounds=rounds, heads=4)
        everything = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
        assert_close(mixer(X)[0], self.full(mixer, X, everything))

    def test_near_vectors_share_buckets(self) -> None:
        mixer = make("reformer", buckets=16, rounds=1, heads=4)
        q = some(1, HEADS, 2000, SIZE)
        near = q + 0.05 * some(1, HEADS, 2000, SIZE, seed=2)
        real = torch.ones(1, 2000, dtype=torch.bool)
        mixer.chunk = 2000
        hashes = [mixer.hash(t, real, mixer.rotations[0]).bucket for t in (q, near, q.flip(2))]
        assert (hashes[0] == hashes[1]).double().mean() > 0.85
        assert (hashes[0] == hashes[2]).double().mean() < 0.15


class TestBigBird:
    def test_a_window_over_everything_is_full_attention(self) -> None:
        mixer = make("bigbird", block=8, window=11, heads=4)
        assert_close(mixer(X)[0], softmax_attention(mixer.heads, X))

    def test_redraw_changes_the_graph(self) -> None:
        mixer = make("bigbird", block=4, heads=4)
        before = mixer(X)[0]
        assert torch.equal(mixer(X)[0], before)
        mixer.redraw()
        assert not torch.equal(mixer(X)[0], before)


class TestEquations:
    def test_linformer_with_the_identity_is_full_attention(self) -> None:
        mixer = make("linformer", rank=LENGTH, max_length=LENGTH, heads=4)
        with torch.no_grad():
            for weight in (mixer.mix_keys, mixer.mix_values):
                weight.copy_(torch.eye(LENGTH))
        assert_close(mixer(X)[0], softmax_attention(mixer.heads, X))

    def test_linformer_beyond_its_length(self) -> None:
        mixer = make("linformer", max_length=20, rank=4)
        with pytest.raises(ThreefoldError, match=r"48 elements, but max_length=20"):
            mixer(X)
        mask = torch.arange(LENGTH).expand(2, -1) < 20
        y, _ = mixer(X, mask=mask)  # padding is no element
        assert_close(y[:, :20], mixer(X[:, :20])[0])

    @pytest.mark.parametrize("normalise", [True, False])
    def test_fnet(self, normalise: bool) -> None:
        mixer = make("fnet", normalise=normalise)

        def matrix(n: int) -> Tensor:
            product = torch.arange(n).unsqueeze(1) * torch.arange(n)
            angle = -2 * math.pi * (product % n).double() / n
            return torch.polar(torch.ones_like(angle), angle)

        expected = (matrix(LENGTH) @ X.to(torch.complex128) @ matrix(WIDTH)).real
        expected = expected / math.sqrt(LENGTH * WIDTH) if normalise else expected
        assert_close(mixer(X)[0], expected)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("local_attention", {"window": 0}, "window is 0"),
        ("transformer_xl", {"memory": 0}, "memory is 0"),
        ("bigbird", {"window": 2}, "an odd window"),
        ("longformer", {"globals": 0}, "globals=0.*local_attention"),
        ("longformer", {"positions": "alibi"}, "'alibi'.*rotary"),
        ("reformer", {"buckets": 3}, "an even number of buckets"),
        ("linformer", {"rank": 0}, "rank is 0"),
        ("nystromformer", {"taps": 4}, "an odd number or 0"),
        ("luna", {"slots": 0}, "slots is 0"),
        ("performer", {"heads": 5}, "5 heads do not divide 32"),
        ("performer", {"positions": "alibi"}, "'alibi' act on scores, which are never formed"),
    ],
)
def test_bad_options(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ThreefoldError, match=message):
        make(name, **options)
