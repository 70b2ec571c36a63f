"""Nyströmformer:  Y = softmax(Q K̃ᵀ) A⁺ softmax(Q̃ Kᵀ) V + conv(V),  A = softmax(Q̃ K̃ᵀ),  Q ← Q/√K,
Q̃, K̃ means of `landmarks` segments,  A⁺ by Z ← ¼ Z (13 I − A Z (15 I − A Z (7 I − A Z))).

The matrix of weights is rebuilt from a few of its rows and columns.
Xiong et al. 2021, "Nyströmformer: A Nyström-Based Algorithm for Approximating Self-Attention".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from threefold.errors import ThreefoldError
from threefold.layers.attention_parts.heads import Heads
from threefold.layers.mixer import Mixer
from threefold.layers.precision import upcast
from threefold.memory.attention import attend, attention_weights
from threefold.memory.padding import readable_elements
from threefold.memory.state import State


class Nystromformer(Mixer):
    """The published layer: segment means, `iterations` of the pseudo-inverse, a convolution of V.

    A row with fewer elements than landmarks has as many landmarks as elements; segments are as
    equal as whole numbers allow (the authors fill up with zeros).  The pseudo-inverse starts from
    Aᵀ/(‖A‖₁‖A‖∞) of each head, as in the paper; the authors' default takes the largest norm of the
    whole batch, which would make a row depend on the others.  taps=0: no convolution.
    Not causal: landmarks contain later elements.  Parallel only, no state.
    """

    causal = False
    forms = ("parallel",)

    def __init__(
        self,
        width: int,
        *,
        landmarks: int = 64,
        iterations: int = 6,
        taps: int = 33,
        heads: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(width)
        if landmarks < 1 or iterations < 1 or taps < 0 or (taps and taps % 2 == 0):
            raise ThreefoldError(
                f"{self.name}: landmarks={landmarks}, iterations={iterations}, taps={taps}; "
                "expected at least 1, at least 1, and an odd number or 0"
            )
        self.landmarks, self.iterations = landmarks, iterations
        self.heads = Heads(width, heads=heads, bias=bias)
        bound = max(taps, 1) ** -0.5
        kernel = torch.empty(self.heads.heads, taps).uniform_(-bound, bound)
        self.kernel = nn.Parameter(kernel) if taps else None

    def mix(
        self, x: Tensor, state: State, form: str, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        query, key, value = self.heads(x)
        counts = lengths
        if counts is None:
            counts = torch.full((len(x),), x.shape[1], device=x.device)
        real = readable_elements(counts, x.shape[1])
        value = value * real[:, :, None, None]
        means, used = self.segments(counts, x)
        query_means, key_means = (
            torch.einsum("bml,blhk->bmhk", means, source) for source in (query, key)
        )
        seen = used[:, None, None]
        small = attention_weights(upcast(query_means), upcast(key_means), seen)
        # Landmarks that a short row does not use form a separate block, the identity.
        one = torch.eye(small.shape[-1], dtype=small.dtype, device=x.device)
        inverse = self.invert(torch.where(seen.mT & seen, small, one))
        read = attend(query_means, key, value, mask=real[:, None, None]) * used[:, :, None, None]
        carried = (inverse @ upcast(read).transpose(1, 2)).transpose(1, 2).to(x.dtype)
        out = attend(query, key_means, carried, mask=seen)
        return self.heads.join(out if self.kernel is None else out + self.convolve(value)), {}

    def segments(self, counts: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The averages over segments [B, landmarks, L], and which landmarks a row has."""
        length = x.shape[1]
        landmarks = torch.arange(min(self.landmarks, length), device=x.device)
        counts = counts.clamp(min=1).unsqueeze(1)
        has = counts.clamp(max=len(landmarks))
        places = torch.arange(length, device=x.device)
        segment = torch.where(places < counts, places * has // counts, -1)
        member = (segment.unsqueeze(1) == landmarks.unsqueeze(1)).to(x.dtype)
        return member / member.sum(-1, keepdim=True).clamp(min=1), landmarks < has

    def invert(self, matrix: Tensor) -> Tensor:
        """The pseudo-inverse of [B, H, m, m], by the paper's iteration of third order."""
        one = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        scale = matrix.sum(-1).amax(-1) * matrix.sum(-2).amax(-1)
        inverse = matrix.mT / scale[..., None, None]
        for _ in range(self.iterations):
            product = matrix @ inverse
            inner = 15 * one - product @ (7 * one - product)
            inverse = inverse @ (13 * one - product @ inner) / 4
        return inverse

    def convolve(self, value: Tensor) -> Tensor:
        """Each head of V [B, L, H, K] with its own kernel along the sequence."""
        assert self.kernel is not None
        heads, taps = self.kernel.shape
        flat = value.permute(0, 3, 2, 1).flatten(0, 1)
        out = F.conv1d(flat, self.kernel.unsqueeze(1), padding=taps // 2, groups=heads)
        return torch.unflatten(out, 0, (len(value), -1)).permute(0, 3, 2, 1)
