"""From probabilities to a label:  argmax p_c / t_c  over the classes c with p_c ≥ t_c.

t_c is the probability from which class c is answered.  If no class reaches its threshold, the
answer is the likeliest class without one, or argmax p_c / t_c if all have one.  With two classes
and t for one of them, that one is answered from t on and the other one otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from threefold.errors import ThreefoldError

Array: TypeAlias = NDArray[Any]
Thresholds: TypeAlias = Sequence[float | None]  # by class; empty: the likeliest is answered


def check_thresholds(thresholds: Thresholds, classes: int) -> None:
    """Refuse thresholds that are no probabilities, or of other classes."""
    if thresholds and len(thresholds) != classes:
        raise ThreefoldError(f"{len(thresholds)} thresholds of {classes} labels; expected as many")
    for threshold in thresholds:
        is_number = isinstance(threshold, (int, float)) and not isinstance(threshold, bool)
        if threshold is not None and not (is_number and 0 < threshold < 1):
            raise ThreefoldError(
                f"a threshold is {threshold!r}; expected a probability between 0 and 1"
            )


def decide(probabilities: Array, thresholds: Thresholds) -> Array:
    """The number of the class that is answered for each row of probabilities [n, classes]."""
    likeliest: Array = probabilities.argmax(-1)
    if not thresholds:
        return likeliest
    given = np.array([t is not None for t in thresholds])
    least = np.array([1.0 if t is None else t for t in thresholds])
    shares = np.where(given, probabilities / least, -np.inf)
    others = np.where(given, -np.inf, probabilities)
    rest = shares if given.all() else others
    answers: Array = np.where(shares.max(-1) >= 1, shares.argmax(-1), rest.argmax(-1))
    return answers


def answer_first(probabilities: Tensor, thresholds: Thresholds) -> Tensor:
    """Numbers [n, classes] in the order of the probabilities, but the answer has the largest."""
    if not thresholds:
        return probabilities
    answers = torch.from_numpy(decide(probabilities.cpu().numpy(), thresholds))
    return probabilities.scatter(-1, answers.to(probabilities.device).unsqueeze(-1), 2.0)
