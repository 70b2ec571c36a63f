"""Associative scan: all prefixes of a₁ ∘ a₂ ∘ … ∘ a_L in O(L) work and O(log L) depth.

Pairs are combined, the half-length sequence is scanned, and the gaps are filled
(Blelloch 1990; the recursion of `jax.lax.associative_scan`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Element = tuple[Tensor, ...]


def associative_scan(combine: Callable[[Element, Element], Element], elements: Element) -> Element:
    """Inclusive prefixes along dim 1; `combine(earlier, later)` must be associative."""
    length = elements[0].shape[1]
    if length == 1:
        return elements
    even = tuple(e[:, 0 : length - 1 : 2] for e in elements)
    odd = tuple(e[:, 1::2] for e in elements)
    at_odd = associative_scan(combine, combine(even, odd))
    later = tuple(e[:, 2::2] for e in elements)
    if later[0].shape[1] == 0:
        return tuple(torch.cat([e[:, :1], o], 1) for e, o in zip(elements, at_odd, strict=True))
    before = tuple(o[:, : later[0].shape[1]] for o in at_odd)
    at_even = combine(before, later)
    firsts = (torch.cat([e[:, :1], a], 1) for e, a in zip(elements, at_even, strict=True))
    return tuple(_interleave(a, b) for a, b in zip(firsts, at_odd, strict=True))


def _interleave(even: Tensor, odd: Tensor) -> Tensor:
    """e₀ o₀ e₁ o₁ …; `even` may have one element more."""
    length = even.shape[1] + odd.shape[1]
    if even.shape[1] > odd.shape[1]:
        odd = torch.cat([odd, odd.new_zeros(odd.shape[0], 1, *odd.shape[2:])], 1)
    return torch.stack([even, odd], 2).flatten(1, 2)[:, :length]


def compose_affine(earlier: Element, later: Element) -> Element:
    """Compose two maps S → a S + b, each (a, b), elementwise: S → a₂ (a₁ S + b₁) + b₂."""
    return later[0] * earlier[0], later[0] * earlier[1] + later[1]
