"""Decides what `form="auto"` means, and how long a chunk is; no other module does."""

from __future__ import annotations

from collections.abc import Mapping

from threefold.errors import ThreefoldError, nearest

FORMS = ("step", "chunk", "parallel")

# Elements of one chunk in plain torch: long enough that matrix products dominate, short enough that
# the C×C scores stay in the cache (the time is the same between 32 and 128).
CHUNK_LENGTH = 64

# Queries that read a history together: their mask has this many rows.
QUERY_BLOCK = 256

# Elements of one Fourier transform of a filter, so that its buffers mostly stay in the cache.
TRANSFORM_LENGTH = 16384


def plan_form(
    form: str,
    length: int,
    forms: tuple[str, ...],
    owner: str,
    refusals: Mapping[str, str] | None = None,
) -> str:
    """The form to run for `length` elements, one of the `forms` that `owner` has.

    `refusals` gives the reason why a form is missing, for the error message.
    """
    if form == "auto":
        if length == 1 and "step" in forms:
            return "step"
        return next(f for f in ("chunk", "parallel", "step") if f in forms)
    if form not in FORMS:
        raise ThreefoldError(f"{owner}: unknown form {form!r}; {nearest(form, (*FORMS, 'auto'))}")
    if form not in forms:
        reason = f": {refusals[form]}" if refusals and form in refusals else ""
        raise ThreefoldError(f"{owner}: has no {form} form; it has {', '.join(forms)}{reason}")
    return form


def plan_chunk(chunk: int | None, length: int, form: str) -> int:
    """The number of elements in one chunk."""
    if form == "parallel":
        return length
    if chunk is None:
        return min(CHUNK_LENGTH, length)
    if chunk < 1:
        raise ThreefoldError(f"chunk={chunk}: expected at least 1 element per chunk")
    return min(chunk, length)


def plan_query_block(length: int, form: str) -> int:
    """The number of queries that read a history together."""
    return min(QUERY_BLOCK, length) if form == "chunk" else length


def plan_transform(length: int, form: str) -> int:
    """The number of elements convolved by one Fourier transform."""
    return min(TRANSFORM_LENGTH, length) if form == "chunk" else length
