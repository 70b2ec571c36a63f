"""L = L_cls + λ L_LM: a classifier that goes on predicting the text it reads.

The second loss keeps what was learnt before, and helps most on large sets (λ = 0.5 as published).
Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training".
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from threefold.data.loaders import IGNORE
from threefold.errors import ThreefoldError
from threefold.models.language import LanguageModel


class Joint(NamedTuple):
    """The two losses in nats, and their sum with the weight λ."""

    total: Tensor
    classes: Tensor  # over rows
    language: Tensor  # over the tokens that follow another


def joint_loss(
    model: LanguageModel,
    tokens: Tensor,
    labels: Tensor,
    *,
    weight: float = 0.5,
    mask: Tensor | None = None,
) -> Joint:
    """The losses of rows of tokens [B, L] with a label each [B]; `weight` is λ.

    The label is read from the last token of each row, which should therefore be one that says "now
    answer" (the paper's extract token).
    """
    if weight < 0:
        raise ThreefoldError(f"joint_loss: weight is {weight}, expected 0 or more")
    answer, logits, _ = model.classify(tokens, mask=mask)
    targets = tokens[:, 1:]
    if mask is not None:
        # The first real token of a row follows padding, not a token.
        targets = targets.masked_fill(~(mask[:, 1:] & mask[:, :-1]), IGNORE)
    if not bool((targets != IGNORE).any()):
        raise ThreefoldError("joint_loss: no token follows another; expected rows of two or more")
    language = F.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORE
    )
    classes = F.cross_entropy(answer.float(), labels)
    return Joint(classes + weight * language, classes, language)
