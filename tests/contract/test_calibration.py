"""Bands hold what they say, on held-out windows and on a stream that changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import threefold
from threefold import Spec
from threefold.errors import ThreefoldError
from threefold.models.calibration import FILE, Calibration, smallest_count
from threefold.runtime.scores.adaptive_bands import AdaptiveBands

LEVELS = (0.025, 0.1, 0.5, 0.9, 0.975)


def narrow(count: int, seed: int, horizon: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles that are too narrow and off centre, of values with heavy tails."""
    random = np.random.default_rng(seed)
    truth = random.standard_t(4, (count, horizon, 2)) * np.arange(1, horizon + 1)[:, None]
    spread = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    width = random.uniform(0.5, 1.5, truth.shape)
    return 0.3 + width[..., None] * spread, truth


def coverage(quantiles: np.ndarray, truth: np.ndarray, low: int, high: int) -> float:
    return float(((truth >= quantiles[..., low]) & (truth <= quantiles[..., high])).mean())


def test_calibrated_bands_hold_on_other_windows_and_never_cross() -> None:
    calibration = Calibration.fit(*narrow(4000, 0), LEVELS)
    quantiles, truth = narrow(4000, 1)
    assert coverage(quantiles, truth, 1, 3) < 0.5
    bands = calibration.apply(quantiles, quantiles[..., 2])
    assert abs(coverage(bands, truth, 1, 3) - 0.8) < 0.02
    assert abs(coverage(bands, truth, 0, 4) - 0.95) < 0.015
    assert (np.diff(bands, axis=-1) >= 0).all()
    assert np.array_equal(bands[..., 2], quantiles[..., 2])
    for step in range(3):  # each step ahead by itself
        assert abs(coverage(bands[:, step], truth[:, step], 1, 3) - 0.8) < 0.03


def test_too_few_windows_are_told_with_the_smallest_number() -> None:
    assert [smallest_count(level) for level in (0.1, 0.9, 0.025, 0.5)] == [9, 9, 39, 1]
    quantiles, truth = narrow(12, 0)
    notes = Calibration.fit(quantiles, truth, LEVELS).notes
    assert (
        len(notes) == 1
        and "12 held-out windows that do not overlap; it needs at least 39" in notes[0]
    )
    assert not Calibration.fit(*narrow(39, 0), LEVELS).notes
    assert len(Calibration.fit(*narrow(390, 0), LEVELS, independent=38).notes) == 1
    all_apart, overlapping = (
        Calibration.fit(*narrow(390, 0), LEVELS, independent=count).shift for count in (390, 45)
    )
    # Windows that overlap say less, so that bands are wider.
    assert (overlapping[..., :2] <= all_apart[..., :2]).all()
    assert (overlapping[..., 3:] >= all_apart[..., 3:]).all()
    with pytest.raises(ThreefoldError, match="expected"):
        Calibration.fit(quantiles[:, :2], truth, LEVELS)


@pytest.mark.parametrize("repeats", [1, 4])
def test_few_windows_hold_what_was_asked_for_on_average(repeats: int) -> None:
    random, count = np.random.default_rng(0), 110
    truth = random.uniform(0, 1, (count, 1, 2000)).repeat(repeats, 0)  # windows that overlap
    quantiles = np.broadcast_to([0.4, 0.45, 0.5, 0.55, 0.6], (*truth.shape, 5))
    fitted = Calibration.fit(quantiles, truth, LEVELS, independent=count)
    bands = np.clip(fitted.apply(quantiles[:1], quantiles[:1, ..., 2])[0, 0], 0, 1)
    # Rounding the ranks outwards would hold 96.4 % and 81.1 %.
    for low, high, share in ((0, 4, 0.95), (1, 3, 0.8)):
        assert abs((bands[:, high] - bands[:, low]).mean() - share) < 0.006


def test_missing_values_do_not_count() -> None:
    quantiles, truth = narrow(500, 0)
    truth[::2, 0, 0] = np.nan
    calibration = Calibration.fit(quantiles, truth, LEVELS)
    alone = Calibration.fit(quantiles[1::2], truth[1::2], LEVELS)
    assert calibration.count[0, 0] == 250 and calibration.count[1, 1] == 500
    # The mean width is that of all windows, so the scores are nearly those of every other one.
    assert np.abs(calibration.shift[0, 0] - alone.shift[0, 0]).max() < 0.1


def test_bands_adapt_on_a_stream_and_go_on_from_a_saved_state() -> None:
    calibration = Calibration.fit(*narrow(2000, 0), LEVELS)
    quantiles, truth = narrow(4000, 2)
    truth *= 2.5  # what comes is wider than what was calibrated on
    # The value of an element is what one step ahead of the element before was to be.
    stream = np.concatenate([np.full((1, 2), np.nan), truth[:-1, 0]])
    static = calibration.apply(quantiles, quantiles[..., 2])[2000:, 0]
    assert coverage(static, truth[2000:, 0], 1, 3) < 0.6
    whole = AdaptiveBands(calibration).bands(stream, quantiles, quantiles[..., 2])
    assert abs(coverage(whole[2000:, 0], truth[2000:, 0], 1, 3) - 0.8) < 0.03
    assert (np.diff(whole, axis=-1) >= 0).all()

    first, second = AdaptiveBands(calibration), AdaptiveBands(calibration)
    parts = [first.bands(stream[:777], quantiles[:777], quantiles[:777, ..., 2])]
    second.restore(first.state())
    parts.append(second.bands(stream[777:], quantiles[777:], quantiles[777:, ..., 2]))
    assert np.array_equal(np.concatenate(parts), whole)


def test_a_calibration_is_saved_with_the_model(tmp_path: Path) -> None:
    options = {"channels": 2, "horizon": 3, "quantiles": LEVELS, "lags": 4}
    model = threefold.build(Spec("forecaster", 16, 1, "gru", options=options))
    model.calibration = Calibration.fit(*narrow(50, 0), LEVELS)
    model.save(tmp_path / "model")
    loaded = threefold.load(tmp_path / "model")
    for name in ("levels", "width", "shift", "scores", "count", "independent"):
        expected = getattr(model.calibration, name)
        assert np.array_equal(getattr(loaded.calibration, name), expected)
    (tmp_path / "model" / FILE).write_bytes(b"damaged")
    with pytest.raises(ThreefoldError, match="calibration"):
        threefold.load(tmp_path / "model")
