"""One cell of a table: is it missing, is it a number, which text is it?

A cell is what a reader gives: text, int, float, bool, None, a date or time, or a JSON list.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from threefold.errors import setting

MISSING_TEXTS = frozenset(
    ["", "na", "n/a", "#n/a", "<na>", "nan", "nat", "null", "none", "-", "?"]
)  # compared without white space and case
SIGN_NAMES = {".": "point", ",": "comma"}
LARGEST_NUMBER = 1e30  # float32, in which models compute, ends at 3.4e38 and squares at 1.8e19

# ASCII digits only: Python's float() also takes 1_000, ٣ and infinity.
_NUMBER = {
    ".": re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"),
    ",": re.compile(r"[+-]?(?:[0-9]+,?[0-9]*|,[0-9]+)(?:[eE][+-]?[0-9]+)?"),
}
# Not a thousands separator: without exactly three digits after it, or with four before it.
_DECIMALS = r"[+-]?(?:[0-9]*{0}(?:[0-9]{{1,2}}|[0-9]{{4,}})|0?{0}[0-9]+|[0-9]{{4,}}{0}[0-9]+)"
_EXPONENT = r"(?:[eE][+-]?[0-9]+)?"
_SURE = {sign: re.compile(_DECIMALS.format(re.escape(sign)) + _EXPONENT) for sign in ".,"}
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:([,. '\u00a0\u2009\u202f])[0-9]{3})(?:\1[0-9]{3})*"
                      r"(?:[.,][0-9]*)?")  # fmt: skip
# Groups of thousands that cannot be decimals: 1 000 and 1'000'000,50.
_SPACED = re.compile(r"[+-]?[0-9]{1,3}(?:([ '’\u00a0\u2009\u202f])[0-9]{3})(?:\1[0-9]{3})*"
                     r"(?:[.,][0-9]*)?")  # fmt: skip
_GROUPED_BY = {
    ".": re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?"),
    ",": re.compile(r"[+-]?[0-9]{1,3}(?:\.[0-9]{3})+(?:,[0-9]*)?"),
}
# The same, where only one of both signs can be the decimal one: 1,234.5 and 1,234,567.
_SURE_GROUPS = {
    sign: re.compile(rf"[+-]?[0-9]{{1,3}}(?:(?:{other}[0-9]{{3}}){{2,}}(?:{own}[0-9]*)?"
                     rf"|{other}[0-9]{{3}}{own}[0-9]*)")
    for sign, own, other in ((".", r"\.", ","), (",", ",", r"\."))
}  # fmt: skip
_UNIT = re.compile(r"([+-]?)\s*([$€£]?)\s*([^%$€£]*?)\s*([%$€£]?)")
_INFINITE = re.compile(r"[+-]?inf(?:inity)?", re.IGNORECASE)


def label_order(label: str) -> tuple[float, str]:
    """The key that sorts labels: numbers by their value, before all other texts."""
    try:
        return float(label), label
    except ValueError:
        return float("inf"), label


def is_missing(cell: Any) -> bool:
    """Whether a cell holds no value: empty, NA, N/A, NaN, null, None, - or ?, in any case."""
    if isinstance(cell, str):
        return cell.strip().lower() in MISSING_TEXTS
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def is_blank(cell: Any) -> bool:
    """Whether a cell holds no text: in a text, NA, null and - are words."""
    return not cell.strip() if isinstance(cell, str) else is_missing(cell)


def split_unit(text: str) -> tuple[str, str]:
    """A text without the sign of a currency or of per cent around it, and that sign."""
    match = _UNIT.fullmatch(text)
    if match is None or (match[2] and match[4]):
        return text, ""
    return match[1] + match[3], match[2] or match[4]


def number_in(cell: Any, decimal: str = ".", *, grouped: bool = False) -> float | None:
    """The number in a cell, perhaps infinite; None if the cell holds something else.

    Its unit and spaces between thousands are left out; grouped: thousands may also be separated
    by the other of the two decimal signs.
    """
    if isinstance(cell, str):
        text = split_unit(cell.strip())[0]
        if _SPACED.fullmatch(text):
            text = re.sub(r"[ '’\u00a0\u2009\u202f]", "", text)
        elif grouped and _GROUPED_BY[decimal].fullmatch(text):
            text = text.replace("," if decimal == "." else ".", "")
        if not _NUMBER[decimal].fullmatch(text):
            return None
        return float(text.replace(",", ".") if decimal == "," else text)
    if isinstance(cell, bool) or not isinstance(cell, int | float | Decimal):
        return None
    try:
        return float(cell)
    except OverflowError:
        return math.inf


def usable_number(cell: Any, decimal: str = ".", *, grouped: bool = False) -> float | None:
    """The number in a cell if it is finite and not absurdly large, else None."""
    number = number_in(cell, decimal, grouped=grouped)
    return number if number is not None and abs(number) <= LARGEST_NUMBER else None


def number_of_one_cell(cell: Any, decimal: str | None, *, comma: bool = False) -> float | None:
    """The usable number in a cell whose column is not known yet, as in a stream.

    decimal: the sign that the model was trained with, if that is known; else the cell must show it,
    and a comma that may be either sign is a decimal one if `comma`.
    """
    if not isinstance(cell, str) or not ("," in cell or decimal == ","):
        return usable_number(cell, decimal or ".", grouped=decimal is not None)
    if decimal is not None:
        return usable_number(cell, decimal, grouped=True)
    shown_sign = decimal_sign([cell])
    sign = shown_sign or ("," if comma else ".")
    return usable_number(cell, sign, grouped=shown_sign is not None)


def resembles_number(cell: Any) -> bool:
    """Whether a reader would see a number, even one that is not read: 1,001 or 1e300 or 12 %."""
    if not isinstance(cell, str):
        return number_in(cell) is not None
    text = cell.strip()
    if text[:1].isalpha() and text[:1] not in "iI":
        return False
    text = split_unit(text)[0]
    patterns = (*_NUMBER.values(), _GROUPED, _SPACED, _INFINITE)
    return any(pattern.fullmatch(text) for pattern in patterns)


def why_not_a_number(cell: Any, decimal: str = ".", *, of_model: bool = False) -> str:
    """Why a cell of a column of numbers is refused, and what to do.

    of_model: the cell is read for a trained model, whose user has no settings to change.
    """
    number = number_in(cell, decimal)
    text = split_unit(cell.strip())[0] if isinstance(cell, str) else ""
    if number is not None or _INFINITE.fullmatch(text):
        return f"absurd: expected a number of at most {LARGEST_NUMBER:g}"
    if of_model and (_NUMBER[","].fullmatch(text) or _NUMBER["."].fullmatch(text)):
        sign = SIGN_NAMES[decimal]
        return f"this column is read with a decimal {sign}; write all its numbers so: 12{decimal}5"
    if _NUMBER[","].fullmatch(text) and not _SURE[","].fullmatch(text):
        point, comma = (setting("data.decimal", sign) for sign in ".,")
        return f"a decimal comma ({comma}), or a comma between thousands ({point})? Say so"
    if _NUMBER[","].fullmatch(text):
        return f"a decimal comma? Say so: {setting('data.decimal', ',')}"
    if _GROUPED.fullmatch(text):
        return "expected a number without thousands separators"
    if _NUMBER["."].fullmatch(text):
        point = setting("data.decimal", ".")
        return f"expected a decimal comma; if it is a decimal point: {point}"
    return "expected a number"


def decimal_sign(cells: Iterable[Any]) -> str | None:
    """The decimal sign that the texts of a column must have; None if they do not tell."""
    point = comma = False
    for cell in cells:
        if isinstance(cell, str) and ("," in cell or "." in cell) and not cell[:1].isalpha():
            text = cell.strip()
            text = split_unit(text)[0]
            fits = {s: _SURE[s].fullmatch(text) or _SURE_GROUPS[s].fullmatch(text) for s in ".,"}
            point, comma = point or fits["."] is not None, comma or fits[","] is not None
    if point and not comma:
        return "."
    return "," if comma and not point else None


def shows_groups(cells: Iterable[Any], decimal: str) -> bool:
    """Whether a cell of a column must have groups of thousands, as 1,234.5 and 1,234,567."""
    pattern = _SURE_GROUPS[decimal]
    texts = (split_unit(cell.strip())[0] for cell in cells if isinstance(cell, str))
    return any(pattern.fullmatch(text) for text in texts)


def text_of(cell: Any) -> str:
    """A cell as text, as a CSV file would have it."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15:
        return str(int(cell))
    if isinstance(cell, datetime.datetime):
        return cell.isoformat(" ")
    return str(cell)


def label_of(cell: Any) -> str:
    """The name of a class: white space around it is not part of it, nor is a number's type.

    "yes" and "yes " are one class, and so are JSON's 1, 1.0 and "1", and True, TRUE and true.
    """
    text = text_of(cell).strip()
    return text.lower() if text.lower() in ("true", "false") else text


def shown(cell: Any, most: int = 40) -> str:
    """A cell for a message, cut if it is long."""
    text = repr(cell) if isinstance(cell, str) else repr(text_of(cell))
    return text if len(text) <= most else f"{text[: most - 2]}…'"
