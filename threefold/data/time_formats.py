"""Time stamps as text or numbers ↔ seconds since 1970 (UTC; without a zone: as if it were UTC).

A format is a text such as %d.%m.%Y %H:%M, in the signs of strftime: %-d is a day without a leading
zero, %3f a fraction of three digits, %z the zone as it stands in the cells. "epoch s" and its like
are numbers of seconds, milliseconds, microseconds or nanoseconds since 1970.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from typing import Any

from threefold.data.cells import number_in
from threefold.errors import ThreefoldError

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MONTH_NUMBERS = {name.lower(): number for number, name in enumerate(MONTHS, 1)}

DATES = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y",
         "%m-%d-%Y", "%d-%b-%Y", "%d %b %Y", "%b %d, %Y", "%b %d %Y")  # fmt: skip
CLOCKS = ("%H:%M:%S", "%H:%M", "%I:%M:%S %p", "%I:%M %p")
PERIODS = ("%Y-%m", "%Y/%m", "%b %Y", "%b-%Y", "%Y %b", "%Y-%b", "%m.%Y", "%m/%Y")
COMPACT_CLOCKS = ("%H%M", "%H%M%S")

# Whole numbers that are dates, by the number of their digits.
DIGIT_FORMATS = {4: "%Y", 6: "%Y%m", 8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
EPOCHS = {"epoch s": 1.0, "epoch ms": 1e-3, "epoch us": 1e-6, "epoch ns": 1e-9}
SAMPLE = 1000  # cells of which the format of a column is found
EPOCH_RANGE = (1e8, 1e10)  # seconds: 1973 to 2286
TIME_WORDS = frozenset(
    ["time", "times", "date", "dates", "datetime", "timestamp", "timestamps", "stamp", "ts",
     "epoch", "unix", "year", "years", "month", "period"]
)  # fmt: skip

_SIGNS = {
    "%Y": r"(?P<Y>[0-9]{4})",
    "%m": r"(?P<m>[0-9]{1,2})",
    "%d": r"(?P<d>[0-9]{1,2})",
    "%b": r"(?P<b>[A-Za-z]{3})[a-z]*\.?",
    "%H": r"(?P<H>[0-9]{1,2})",
    "%I": r"(?P<I>[0-9]{1,2})",
    "%M": r"(?P<M>[0-9]{2})",
    "%S": r"(?P<S>[0-9]{2})(?:[.,](?P<f>[0-9]{1,9}))?",
    "%p": r"(?P<p>[AaPp][Mm])",
    "%z": r"(?P<z> ?(?:Z|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?))",
}


@dataclass(frozen=True)
class TimeFormat:
    """How the stamps of a column are written; `others` fit all of them as well."""

    text: str
    zone: str = ""
    others: tuple[str, ...] = ()


def names_time(name: str) -> bool:
    """Whether the name of a column says that it holds times."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    return any(word.lower() in TIME_WORDS for word in words)


# --------------------------------------------------------------------------------- reading


def seconds_in(cell: Any, form: TimeFormat) -> float | None:
    """Seconds since 1970 of a cell written in a format; None if it is not."""
    if isinstance(cell, datetime.date):
        return _seconds_of(cell)
    if form.text in EPOCHS:
        number = number_in(cell)
        return None if number is None else number * EPOCHS[form.text]
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    match = _pattern(form.text).fullmatch(str(cell).strip())
    return None if match is None else _seconds_matched(match.groupdict())


def times_in(cells: Sequence[Any], form: TimeFormat) -> list[float | None]:
    """Seconds since 1970 of the cells of a column; ISO stamps by Python's own fast reader."""
    if not form.text.startswith("%Y-%m-%d"):
        return [seconds_in(cell, form) for cell in cells]
    return [_iso_seconds(cell, form) for cell in cells]


def _iso_seconds(cell: Any, form: TimeFormat) -> float | None:
    try:
        time = datetime.datetime.fromisoformat(cell.strip())
    except (AttributeError, ValueError):
        return seconds_in(cell, form)
    return _seconds_of(time) if (time.tzinfo is not None) == bool(form.zone) else None


def _seconds_of(cell: datetime.date) -> float:
    if not isinstance(cell, datetime.datetime):
        cell = datetime.datetime(cell.year, cell.month, cell.day)
    aware = cell if cell.tzinfo else cell.replace(tzinfo=UTC)
    return (aware - EPOCH).total_seconds()


@cache  # there are a few hundred formats
def _pattern(form: str) -> re.Pattern[str]:
    """The expression of a format; compact formats have two digits everywhere."""
    plain = re.sub(r"\.%[0-9]f", "", form).replace("%-", "%")
    compact = "%Y%m" in plain
    pattern = re.sub(r"%[A-Za-z]", lambda sign: _SIGNS[sign[0]], re.sub(r"[.]", r"\\.", plain))
    return re.compile(pattern.replace("{1,2}", "{2}") if compact else pattern)


def _seconds_matched(parts: dict[str, str | None]) -> float | None:
    month = MONTH_NUMBERS.get((parts.get("b") or "").lower(), 0) or int(parts.get("m") or 1)
    hour = int(parts.get("H") or 0)
    if parts.get("I"):
        hour = int(parts["I"] or 0) % 12 + 12 * ((parts["p"] or "").lower() == "pm")
    clock = (hour, int(parts.get("M") or 0), int(parts.get("S") or 0))
    try:
        day = datetime.datetime(int(parts["Y"] or 0), month, int(parts.get("d") or 1), *clock)
    except ValueError:
        return None
    if "b" in parts and (parts["b"] or "").lower() not in MONTH_NUMBERS:
        return None
    fraction = float(f"0.{parts.get('f') or 0}")
    return (
        (day.replace(tzinfo=UTC) - EPOCH).total_seconds() + fraction - zone_offset(parts.get("z"))
    )


def zone_offset(zone: str | None) -> float:
    """Seconds east of Greenwich of a zone such as Z or +01:00."""
    digits = re.sub(r"[^0-9]", "", zone or "")
    if not digits:
        return 0.0
    east = 3600.0 * int(digits[:2]) + 60.0 * int(digits[2:] or 0)
    return -east if "-" in (zone or "") else east


def offset_in(cell: Any, form: TimeFormat) -> float:
    """Seconds east of Greenwich of the clock of a cell."""
    if isinstance(cell, datetime.datetime):
        offset = cell.utcoffset()
        return offset.total_seconds() if offset else 0.0
    match = _pattern(form.text).fullmatch(str(cell).strip()) if form.zone else None
    return zone_offset(match["z"]) if match else 0.0


# --------------------------------------------------------------------------------- writing


def format_time(seconds: float, form: TimeFormat) -> str:
    """The stamp of a moment in a format."""
    if form.text in EPOCHS:
        return f"{seconds / EPOCHS[form.text]:.3f}".removesuffix(".000")
    moment = moment_of(seconds + zone_offset(form.zone))
    return re.sub(r"%-?[0-9]?[A-Za-z]", lambda sign: _written(sign[0], moment, form), form.text)


def moment_of(seconds: float) -> datetime.datetime:
    """The date and time some seconds after 1970."""
    try:
        return EPOCH + datetime.timedelta(microseconds=round(seconds * 1e6))
    except OverflowError as error:
        raise ThreefoldError(
            f"{seconds:g} seconds after 1970 is not in the years 1–9999"
        ) from error


def _written(sign: str, moment: datetime.datetime, form: TimeFormat) -> str:
    if sign == "%z":
        return form.zone
    if sign == "%b":
        return MONTHS[moment.month - 1]
    if sign == "%p":
        return "PM" if moment.hour >= 12 else "AM"
    if sign.endswith("f"):
        return f"{moment.microsecond:06d}000"[: int(sign[1])]
    numbers = {"Y": moment.year, "m": moment.month, "d": moment.day, "H": moment.hour,
               "I": (moment.hour - 1) % 12 + 1, "M": moment.minute, "S": moment.second}  # fmt: skip
    width = 4 if sign == "%Y" else 1 if sign[1] == "-" else 2
    return f"{numbers[sign[-1]]:0{width}d}"


# ------------------------------------------------------------------------------- detection


def detect_format(name: str, cells: Sequence[Any], share: float = 0.95) -> TimeFormat | None:
    """The format of a column's cells, none of which is missing; None if they are not times."""
    if not cells:
        return None
    sample = cells[:: -max(1, len(cells) // SAMPLE)][::-1]  # with the last one, whose zone counts
    if len(cells) > 3:  # in a short column a single odd cell is more than 5 %
        share = min(share, 1 - 1 / len(sample))
    dated = [cell for cell in cells if isinstance(cell, datetime.date)]
    if len(dated) > len(cells) / 2:
        return _format_of_dates(dated) if len(dated) >= share * len(cells) else None
    numbers = sum(number_in(cell) is not None for cell in sample)
    if numbers < len(sample) / 2:
        return _format_of_texts(cells, sample, share)
    return _format_of_numbers(name, cells) if numbers >= share * len(sample) else None


def _format_of_dates(cells: Sequence[datetime.date]) -> TimeFormat:
    times = [c if isinstance(c, datetime.datetime) else _midnight(c) for c in cells]
    if all(t.time() == datetime.time() and not t.tzinfo for t in times):
        return TimeFormat("%Y-%m-%d")
    fraction = ".%6f" if any(t.microsecond for t in times) else ""
    zone = times[-1].strftime("%z")
    zone = "" if not zone else "+00:00" if not zone_offset(zone) else f"{zone[:3]}:{zone[3:5]}"
    return TimeFormat(f"%Y-%m-%d %H:%M:%S{fraction}{'%z' if zone else ''}", zone)


def _midnight(day: datetime.date) -> datetime.datetime:
    return datetime.datetime(day.year, day.month, day.day)


def _format_of_numbers(name: str, cells: Sequence[Any]) -> TimeFormat | None:
    """Dates such as 20240101 that increase or are so named; other times only if so named."""
    numbers = [n for n in map(number_in, cells) if n is not None and abs(n) < 1e20]
    named, increasing = names_time(name), all(a <= b for a, b in pairwise(numbers))
    digits = len(str(int(numbers[0]))) if numbers else 0
    sure = named if digits >= 8 else "year" in name.lower()
    if (sure or (increasing and (named or digits >= 8))) and _are_dates(numbers, digits):
        return TimeFormat(DIGIT_FORMATS[digits])
    low, high = EPOCH_RANGE
    for text, unit in EPOCHS.items():
        if named and numbers and low <= min(numbers) * unit and max(numbers) * unit < high:
            return TimeFormat(text)
    return None


def _are_dates(numbers: Sequence[float], digits: int) -> bool:
    """Whether numbers are all years, months, days or times of the years 1000 to 2199."""
    form = TimeFormat(DIGIT_FORMATS.get(digits, ""))
    if not form.text or not all(n.is_integer() for n in numbers):
        return False
    low, high = 10 ** (digits - 1), 22 * 10 ** (digits - 2)
    in_range = low <= min(numbers) and max(numbers) < high
    return in_range and all(seconds_in(number, form) is not None for number in numbers)


def _format_of_texts(
    cells: Sequence[Any], sample: Sequence[Any], share: float
) -> TimeFormat | None:
    """The format of most of a sample; if several fit it, of most of all cells."""
    some = sample[:: -(-len(sample) // 20)]
    likely = [form for form in _candidates() if _share(some, form) >= 0.5]
    shares = {form: _share(sample, form) for form in likely}
    likely = [form for form in likely if shares[form] >= share]
    if len(likely) > 1:
        shares = {form: _share(cells, form) for form in likely}
    best = [form for form in likely if shares[form] == max(shares.values())]
    if not best:
        return None
    texts = [str(cell).strip() for cell in sample]
    matches = [m.groupdict() for text in texts if (m := _pattern(best[0]).fullmatch(text))]
    written = [_as_written(form, matches) for form in best]
    return TimeFormat(written[0], matches[-1].get("z") or "", tuple(written[1:]))


def _candidates() -> Iterator[str]:
    for date, clock, join, zone in product(DATES, CLOCKS, (" ", "T", ", "), ("", "%z")):
        yield f"{date}{join}{clock}{zone}"
    yield from DATES
    yield from PERIODS
    for clock, join, zone in product(COMPACT_CLOCKS, ("T", " "), ("", "%z")):
        yield f"%Y%m%d{join}{clock}{zone}"


def _share(cells: Sequence[Any], form: str) -> float:
    """The share of cells that are written in a format."""
    times = (seconds_in(cell, TimeFormat(form)) for cell in cells)
    return sum(time is not None for time in times) / len(cells)


def _as_written(form: str, matches: Sequence[dict[str, str | None]]) -> str:
    """A format with the digits of the fraction, and without leading zeros if there are none."""
    digits = max((len(match.get("f") or "") for match in matches), default=0)
    form = form.replace("%S", f"%S.%{min(digits, 6)}f") if digits else form
    bare = {s for s in "dmHI" if any(len(match.get(s) or "00") == 1 for match in matches)}
    zero = {s for s in "dm" if any((match.get(s) or "").startswith("0") for match in matches)}
    if bare & set("dm"):  # the other one may have had two digits by chance
        bare |= set("dm") - zero
    for sign in bare:
        form = form.replace(f"%{sign}", f"%-{sign}")
    return form
