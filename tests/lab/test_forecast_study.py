"""`threefold lab forecasts` on a short series."""

from __future__ import annotations

import numpy as np
import pytest

from threefold.errors import ThreefoldError
from threefold.lab.studies.forecasts import (
    SERIES,
    ForecastStudy,
    _bootstrap_error,
    measure,
    table,
)


def test_a_short_series_is_measured_beside_its_baselines() -> None:
    plan = ForecastStudy(rows=1500, steps=3, width=8)
    result = measure("walk", plan)
    assert set(result.baselines) == {"ridge", "last value", "Holt–Winters"}  # no season
    assert result.windows == 75 and result.streamed is None
    assert result.ratio < 1.1 and result.start == "last value"
    assert all(0 < share <= 1 and off > 0 for share, off in result.coverages.values())


def test_a_level_that_leaves_the_training_range_is_followed() -> None:
    result = measure("drift", ForecastStudy(rows=12_000, steps=3, width=8))
    assert result.start.startswith("ridge")  # which reads the level
    assert result.error < 0.9 * min(result.baselines.values())


def test_a_mistyped_series_is_refused() -> None:
    with pytest.raises(ThreefoldError, match="did you mean 'sensors'"):
        next(table(["sensor"], ForecastStudy()))
    assert len(SERIES) == 7


def test_the_bootstrap_error_is_that_of_a_mean() -> None:
    shares = np.random.default_rng(0).standard_normal(900)
    assert _bootstrap_error(shares) == pytest.approx(900**-0.5, rel=0.25)
    slow = np.repeat(shares[:90], 10)  # a tenth as many that are independent
    assert _bootstrap_error(slow) == pytest.approx(90**-0.5, rel=0.35)
