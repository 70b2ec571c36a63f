"""Attention:  o_i = Σ_j a_ij v_j,  a_i = softmax_j(q_iᵀ k_j/√K + mask_ij).

Each query reads an average of the values, weighted by how well their keys match.  No parameters.
Vaswani et al. 2017, "Attention Is All You Need".
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from threefold.errors import ThreefoldError
from threefold.kernels.dispatch import transforms_active

NAME = "attention"  # in error messages


class Bias(NamedTuple):
    """What is added to the scores, by distance (position of the query − position of the key)."""

    look_up: Callable[[Tensor], Tensor]  # distances [..., L, S] → [..., H, L, S]
    constant_from: int | None = None  # all later elements from this distance on have one value
    slopes: Callable[[], Tensor] | None = None  # [H], if it is −slope · distance

    def __call__(self, distance: Tensor) -> Tensor:
        return self.look_up(distance)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend from query [B, L, H, K] to key [B, S, G, K] and value [B, S, G, V], G dividing H.

    mask: bool (True: may be read) or floating-point (added to the scores), of a shape that
    broadcasts to [B, H, L, S].  causal: the last query reads all S elements, the one before it the
    first S − 1, and so on.  A query that may read nothing gets zeros.
    Returns out [B, L, H, V], and with return_weights also the weights [B, H, L, S].
    """
    check(query, key, value, mask)
    length, source = query.shape[1], key.shape[1]
    if causal and (mask is not None or return_weights or length != source):
        positions = torch.arange(length, device=query.device).unsqueeze(1) + (source - length)
        seen = positions >= torch.arange(source, device=query.device)
        mask, causal = seen if mask is None else restrict(mask, seen), False
    if not return_weights:
        return attend(query, key, value, mask=mask, causal=causal)
    weights = attention_weights(query, key, mask)
    heads = value.repeat_interleave(query.shape[2] // value.shape[2], 2)
    return (weights @ heads.transpose(1, 2)).transpose(1, 2), weights


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """`attention` for mixers, without checks: one call of torch's fused attention.

    causal: query i reads elements 0 … i.  The fused attention needs keys and values of one size, so
    the narrower is padded with zeros, which does not change the result.
    """
    size, width = query.shape[-1], value.shape[-1]
    if size != width:
        query, key, value = (
            F.pad(x, (0, max(size, width) - x.shape[-1])) for x in (query, key, value)
        )
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    heads, groups = q.shape[1], k.shape[1]
    if mask is not None and mask.dim() < 4:
        mask = mask.view(*[1] * (4 - mask.dim()), *mask.shape)
    # One query: the heads of a group become its queries, so that no key is repeated.
    folded = groups != heads and q.shape[2] == 1
    if folded:
        q = q.reshape(q.shape[0], groups, heads // groups, -1)
        if mask is not None and mask.shape[1] == heads:
            mask = mask.reshape(mask.shape[0], groups, heads // groups, -1)
    with _usable_kernels():
        out = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=causal,
            dropout_p=dropout,
            scale=size**-0.5,
            enable_gqa=groups != heads and not folded,
        )
    if folded:
        out = out.reshape(out.shape[0], heads, 1, -1)
    return out.transpose(1, 2)[..., :width]


def _usable_kernels() -> AbstractContextManager[Any]:
    """Torch's fused attention has no forward-mode derivative and no rule for vmap."""
    return sdpa_kernel(SDPBackend.MATH) if transforms_active() else nullcontext()


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """The attention weights [B, H, L, S]; zeros for a query that may read nothing."""
    heads = key.repeat_interleave(query.shape[2] // key.shape[2], 2)
    scores = torch.einsum("blhk,bshk->bhls", query * query.shape[-1] ** -0.5, heads)
    if mask is None:
        return scores.softmax(-1)
    lowest = -torch.inf
    scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
    blind = (scores == lowest).all(-1, keepdim=True)
    return scores.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)


def restrict(mask: Tensor, seen: Tensor) -> Tensor:
    """A bool or floating-point mask that also hides what is not `seen`."""
    return mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, -torch.inf)


def visibility_mask(
    seen: Tensor, distance: Tensor, bias: Bias | None, dtype: torch.dtype
) -> Tensor:
    """The mask [..., 1 or H, L, S]: the bias where `seen` [..., L, S], hidden elsewhere."""
    seen = seen.unsqueeze(-3)
    return seen if bias is None else restrict(bias(distance).to(dtype), seen)


def check(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    """Raise if shapes, dtypes or the mask do not fit."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != 4:
            raise ThreefoldError(
                f"{NAME}: {name} is {tuple(tensor.shape)}, expected 4 axes "
                "[batch, length, heads, size]"
            )
    batch, length, heads, size = query.shape
    groups = key.shape[2]
    if key.shape[0] != batch or key.shape[3] != size or key.shape[:3] != value.shape[:3]:
        raise ThreefoldError(
            f"{NAME}: query {tuple(query.shape)}, key {tuple(key.shape)} and value "
            f"{tuple(value.shape)} do not fit; expected [B, L, H, K], [B, S, G, K], [B, S, G, V]"
        )
    if groups == 0 or heads % groups or key.shape[1] == 0:
        raise ThreefoldError(
            f"{NAME}: query has {heads} heads, key {groups} and {key.shape[1]} elements; expected "
            "a number of key heads that divides the query heads, and at least one element"
        )
    if not (query.dtype == key.dtype == value.dtype) or not value.dtype.is_floating_point:
        raise ThreefoldError(
            f"{NAME}: query, key and value are {query.dtype}, {key.dtype}, {value.dtype}; "
            "expected one floating-point dtype for all three"
        )
    if mask is None:
        return
    expected = (batch, heads, length, key.shape[1])
    if mask.dtype not in (torch.bool, query.dtype):
        raise ThreefoldError(
            f"{NAME}: mask is {mask.dtype}, expected bool (True: may be read) or {query.dtype} "
            "(added to the scores)"
        )
    sizes = zip(reversed(mask.shape), reversed(expected), strict=False)
    if mask.dim() > 4 or any(size not in (1, full) for size, full in sizes):
        raise ThreefoldError(
            f"{NAME}: mask is {tuple(mask.shape)}, expected a shape that broadcasts to {expected}"
        )
