"""Scaling and filling of a user's numbers, fitted to the training split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from threefold.data.preprocessing import Chain
from threefold.data.preprocessing.categories import Categories, OneHot
from threefold.data.preprocessing.numbers import FillMissing, Standardise, Truncate
from threefold.tasks.stored import Array
from threefold.tasks.user_data.settings import ReadSettings


def fit_numbers(
    train: Sequence[Array],
    columns: Sequence[str],
    settings: ReadSettings,
    categories: Categories | None = None,
) -> Chain:
    """Scaling and filling of sequences of numbers and codes, fitted to the training split."""
    scale = Standardise.fit(train, columns, categories or ())
    policy = settings.missing or "mask"
    fill = FillMissing.fit(scale.apply(np.concatenate(list(train))), columns, policy)
    encode = (OneHot.fit(columns, categories),) if categories else ()
    cut = () if settings.length is None else (Truncate(settings.length),)
    return Chain((scale, fill, *encode, *cut))
