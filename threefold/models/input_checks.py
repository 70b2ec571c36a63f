"""Checks of the tokens or vectors given to a model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from threefold.errors import ThreefoldError
from threefold.kernels.autocast import under_autocast
from threefold.kernels.replay.activity import active_recorder


def check_tokens(tokens: Any, owner: str, what: str = "tokens") -> None:
    """Raise an error unless `tokens` is an int64 tensor [B, L]."""
    if not isinstance(tokens, Tensor) or tokens.dtype != torch.int64:
        received = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        raise ThreefoldError(f"{owner}: {what} are {received}, expected an int64 tensor")
    if tokens.dim() != 2 or tokens.numel() == 0:
        raise ThreefoldError(
            f"{owner}: {what} is {tuple(tokens.shape)}, expected [batch, length] with at "
            "least one token"
        )


def check_range(
    tokens: Tensor, aligned: Tensor, mask: Tensor | None, size: int, owner: str
) -> None:
    """Raise an error if a real token is not in the vocabulary; `aligned` is 0 at padding."""
    # A recorded step refuses such tokens itself.
    if torch.compiler.is_compiling() or tokens.is_meta or active_recorder() is not None:
        return
    low, high = aligned.aminmax()
    if low >= 0 and high < size:
        return
    wrong = (tokens < 0) | (tokens >= size)
    row, position = (wrong if mask is None else wrong & mask).nonzero()[0].tolist()
    raise ThreefoldError(
        f"{owner}: token {int(tokens[row, position])} in row {row} at position {position} is out "
        f"of range; expected 0 to {size - 1} (a vocabulary of {size})"
    )


def check_vectors(x: Any, size: int, dtype: torch.dtype, owner: str) -> None:
    """Raise an error unless x holds vectors [B, L, size] in the dtype of the weights."""
    shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
    if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[2] != size or x.numel() == 0:
        raise ThreefoldError(
            f"{owner}: inputs are {shape}, expected vectors [batch, length, {size}] with at least "
            "one element"
        )
    check_dtype(x, dtype, owner)


def check_dtype(x: Tensor, dtype: torch.dtype, owner: str, what: str = "inputs") -> None:
    """Raise an error unless x has the dtype of the weights, or autocast converts it."""
    if x.dtype != dtype and not under_autocast(x):
        raise ThreefoldError(
            f"{owner}: {what} are {x.dtype}, the weights are {dtype}; convert one of them"
        )


def last_elements(x: Tensor, lengths: Tensor | None) -> Tensor:
    """The last real element [B, D] of each row of x [B, L, D]; the first one of an empty row."""
    if lengths is None:
        return x[:, -1]
    return x[torch.arange(len(x), device=x.device), (lengths - 1).clamp(min=0)]
