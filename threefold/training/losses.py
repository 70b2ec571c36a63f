"""L = L_cls + λ L_LM: a classifier that also keeps predicting the text it reads.

The second loss preserves what was learnt before, and helps most on large datasets (λ = 0.5 as
published).
Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training".
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from threefold.data.loaders import IGNORE
from threefold.errors import ThreefoldError
from threefold.models.language import LanguageModel


class JointLoss(NamedTuple):
    """The two losses in nats, and their weighted sum."""

    total: Tensor
    classes: Tensor  # mean over rows
    language: Tensor  # mean over tokens that follow another token


def joint_loss(
    model: LanguageModel,
    tokens: Tensor,
    labels: Tensor,
    *,
    weight: float = 0.5,
    mask: Tensor | None = None,
) -> JointLoss:
    """The losses of token rows [B, L] with one label per row [B]; `weight` is λ.

    The label is read from the last token of each row, which should therefore be a
    special end token (the paper's extract token).
    """
    if weight < 0:
        raise ThreefoldError(f"joint_loss: weight is {weight}, expected 0 or more")
    class_logits, logits, _ = model.classify(tokens, mask=mask)
    targets = tokens[:, 1:]
    if mask is not None:
        # The first token after padding has no token before it to be predicted from.
        targets = targets.masked_fill(~(mask[:, 1:] & mask[:, :-1]), IGNORE)
    if not bool((targets != IGNORE).any()):
        raise ThreefoldError(
            "joint_loss: no token follows another; expected 2 or more tokens per row"
        )
    language = F.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORE
    )
    classes = F.cross_entropy(class_logits.float(), labels)
    return JointLoss(classes + weight * language, classes, language)
