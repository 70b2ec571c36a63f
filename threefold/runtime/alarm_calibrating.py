"""Where the calibration of alarms comes from: a clean stretch, the model, or a state file."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from torch import Tensor

from threefold.errors import ThreefoldError, option
from threefold.models.alarm_calibration import AlarmCalibration
from threefold.models.calibration import smallest_count
from threefold.runtime.scores.alarms import AlarmJudge, CollectingJudge
from threefold.runtime.scores.scorers import WARM_UP
from threefold.runtime.state_files import StateFile, fingerprint
from threefold.runtime.stream_settings import StreamSettings

PREFIX = "alarms."  # of the names of tensors in a state file


def fit_calibration(
    model: Any, settings: StreamSettings, judge: CollectingJudge, elements: int
) -> AlarmCalibration:
    """The calibration of collected scores; elements: of the clean input."""
    assert settings.alarm is not None  # asked for
    needed = smallest_count(settings.alarm)
    found = len(judge.points) if settings.window is None else len(judge.stretches)
    if found < needed:
        stretches = "" if settings.window is None else f" in windows of {settings.window}"
        # Those to warm up and those that are missing are not compared, nor a window's first ones.
        left_out = max(elements - len(judge.points), WARM_UP + 1) + (settings.window or 1) - 1
        other = f", or ask for a rate of at least {1 / (found + 1):.2g}" if found else ""
        raise ThreefoldError(
            f"{settings.calibrate}: {elements:,} clean elements, of which {found:,} can be "
            f"compared{stretches}; alarms at a rate of {settings.alarm:g} need {needed:,} "
            f"(1/rate − 1), which are {needed + left_out:,} elements; give more{other}"
        )
    made_with = _made_with(model, settings)
    return AlarmCalibration.fit(judge.points, settings.window, judge.stretches, made_with)


def _made_with(model: Any, settings: StreamSettings) -> dict[str, Any]:
    return {"weights": fingerprint(model), "context": settings.context}


def known_judge(model: Any, settings: StreamSettings) -> AlarmJudge:
    """Alarms by the calibration that the model has, which must be one for this stream."""
    calibration: AlarmCalibration | None = model.alarms
    again = f"calibrate them on a clean stretch: {option('calibrate', 'CLEAN')}"
    if calibration is None:
        raise ThreefoldError(f"the model has no calibration for alarms; {again}")
    for name, value in _made_with(model, settings).items():
        before = calibration.made_with[name]
        if before != value:
            told = "other weights" if name == "weights" else f"{name} {before}, now it is {value}"
            raise ThreefoldError(f"alarms were calibrated with {told}; {again}")
    if settings.window is not None and settings.window != calibration.window:
        before = "without a window" if calibration.window is None else calibration.window
        raise ThreefoldError(
            f"alarms were calibrated for the window {before}, but now the window is "
            f"{settings.window}; leave it out, or {again}"
        )
    judge = AlarmJudge(calibration, settings.alarm or 0.0, settings.window)
    _check_count(calibration, judge, again)
    return judge


def _check_count(calibration: AlarmCalibration, judge: AlarmJudge, again: str) -> None:
    halves = [calibration.points]
    if judge.window is not None and calibration.stretches is not None:
        halves.append(calibration.stretches)
    found, needed = min(part.count for part in halves), smallest_count(judge.rate)
    if found < needed:
        raise ThreefoldError(
            f"alarms were calibrated on {found:,} clean elements, but a rate of {judge.rate:g} "
            f"needs at least {needed:,} (1/rate − 1); {again}"
        )


def keep_calibration(
    calibration: AlarmCalibration, note: dict[str, Any], tensors: MutableMapping[str, Tensor]
) -> None:
    """Add a calibration to the notes and tensors of a state file."""
    note["alarm_calibration"] = calibration.header()
    tensors.update({f"{PREFIX}{name}": part for name, part in calibration.tensors().items()})


def saved_judge(
    note: dict[str, Any], state_file: StateFile, settings: StreamSettings
) -> AlarmJudge:
    """Alarms by the calibration of a state file."""
    tensors = state_file.extra_tensors.items()
    parts = {n.removeprefix(PREFIX): t for n, t in tensors if n.startswith(PREFIX)}
    calibration = AlarmCalibration.restore(parts, note["alarm_calibration"])
    return AlarmJudge(calibration, settings.alarm or 0.0, settings.window)
