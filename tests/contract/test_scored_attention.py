"""Six scores against their formulas one place at a time, masks, and what is made of the weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tolerances import assert_close
from threefold import ThreefoldError
from threefold.layers.attention_parts.scored_attention import (
    Pointer,
    ScoredAttention,
    self_attention,
)
from threefold.layers.attention_parts.scores import SCORES, score

B, L, M, D = 3, 4, 6, 8
every_score = pytest.mark.parametrize("name", SCORES)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(name: str, kind: Any = ScoredAttention) -> Any:
    torch.manual_seed(1)
    return kind(D, D, score=name, max_length=M).double()


def by_hand(module: Any, name: str, s: Tensor, h: Tensor, place: int) -> Tensor:
    """The formula of SCORES for one s and one h."""
    if name == "content":
        return s @ h / (s.norm() * h.norm())
    if name == "additive":
        inner = module.of_query.weight @ s + module.of_source.weight @ h + module.of_source.bias
        return module.vector.weight[0] @ inner.tanh()
    if name == "location":
        return module.places.weight[place] @ s
    if name == "general":
        return s @ module.project.weight @ h
    return s @ h / (D**0.5 if name == "scaled_dot" else 1)


@every_score
def test_scores_are_their_formulas(name: str) -> None:
    attention, s, h = made(name), numbers(B, L, D), numbers(B, M, D, seed=1)
    expected = torch.stack(
        [by_hand(attention.score, name, s[b, i], h[b, j], j)
         for b in range(B) for i in range(L) for j in range(M)]
    ).view(B, L, M)  # fmt: skip
    found = attention.score(s, attention.score.prepare(h))
    if name == "content":  # the norm has 1e-6 under its root, so that 0 stays 0
        assert (found - expected).abs().max() < 1e-6
    else:
        assert_close(found, expected)
    context, weights = attention(s, h)
    assert_close(weights, found.softmax(-1))
    assert_close(context, torch.einsum("blm,bmd->bld", weights, h))


@every_score
def test_padding_does_not_exist(name: str) -> None:
    attention, s, h = made(name), numbers(B, L, D), numbers(B, M, D, seed=1)
    lengths = torch.tensor([2, 6, 0])
    mask = torch.arange(M) < lengths[:, None]
    h = h.masked_fill(~mask.unsqueeze(-1), torch.nan).requires_grad_()
    context, weights = attention(s, h, mask=mask)
    for row, n in enumerate(lengths.tolist()):
        if n == 0:
            assert (weights[row] == 0).all() and (context[row] == 0).all()
            continue
        alone, its = attention(s[row : row + 1], h[row : row + 1, :n])
        assert_close(context[row], alone[0])
        assert_close(weights[row, :, :n], its[0])
        assert (weights[row, :, n:] == 0).all()
    context.sum().backward()
    assert h.grad is not None and h.grad.isfinite().all()


def test_causal_and_arbitrary_masks() -> None:
    attention, x = made("dot"), numbers(B, M, D)
    _, weights = attention(x, x, causal=True)
    assert (weights.triu(1) == 0).all()
    assert_close(weights.sum(-1), torch.ones(B, M, dtype=torch.float64))
    mask = numbers(B, M, M, seed=2) > 0
    _, both = attention(x, x, causal=True, mask=mask)
    assert torch.equal(both != 0, mask.tril())
    with pytest.raises(ThreefoldError, match="4 queries and 6 source elements"):
        attention(x[:, :4], x, causal=True)
    with pytest.raises(ThreefoldError, match=r"mask is \(3, 5\) torch.bool, expected bool \(3, 6"):
        attention(x, x, mask=torch.ones(B, 5, dtype=torch.bool))


def test_self_attention_without_projections() -> None:
    x = numbers(B, M, D)
    y, weights = self_attention(x)
    one = (x[1] @ x[1, 2]).softmax(0)
    assert_close(weights[1, 2], one)
    assert_close(y[1, 2], one @ x[1])
    early, _ = self_attention(x[:, :3], causal=True)
    assert_close(self_attention(x, causal=True)[0][:, :3], early)
    mask = torch.arange(M) < torch.tensor([[2], [6], [3]])
    padded = self_attention(x.masked_fill(~mask.unsqueeze(-1), torch.nan), mask=mask)[0]
    assert_close(padded[0, :2], self_attention(x[:1, :2])[0][0])


@every_score
def test_a_pointer_answers_with_places(name: str) -> None:
    pointer, h = made(name, Pointer), numbers(B, M, D, seed=1)
    s = numbers(B, L, D).requires_grad_()
    mask = torch.arange(M) < torch.tensor([[2], [6], [3]])
    logarithms = pointer(s, h, mask=mask)
    assert_close(logarithms.exp().sum(-1), torch.ones(B, L, dtype=torch.float64))
    assert (logarithms[0, :, 2:] == -torch.inf).all()
    attention = ScoredAttention(D, D, score=name, max_length=M).double()
    attention.score.load_state_dict(pointer.score.state_dict())
    assert_close(logarithms.exp(), attention(s, h, mask=mask)[1])
    logarithms[:, :, 0].sum().backward()
    assert s.grad is not None and s.grad.isfinite().all()


def test_bad_scores_are_refused() -> None:
    with pytest.raises(ThreefoldError, match="unknown score 'generl'; did you mean 'general'"):
        score("generl", D, D)
    with pytest.raises(ThreefoldError, match="query_size is 8, source_size 9"):
        score("dot", D, 9)
    with pytest.raises(ThreefoldError, match="max_length is 0"):
        score("location", D, D)
    with pytest.raises(ThreefoldError, match="a source of 7 elements; there are weights for"):
        made("location")(numbers(B, L, D), numbers(B, 7, D))
    for name in ("additive", "general"):
        assert score(name, D, 5)(torch.zeros(1, 2, D), torch.zeros(1, 3, D)).shape == (1, 2, 3)
