"""The one place where `form="auto"` and the length of a chunk are decided."""

from __future__ import annotations

from collections.abc import Mapping

from threefold.errors import ThreefoldError, nearest

FORMS = ("step", "chunk", "parallel")

# Elements of one chunk in plain torch: long enough that products of matrices dominate, short
# enough that the C×C scores stay in the cache (measured flat between 32 and 128).
CHUNK_LENGTH = 64

# Queries of one block that reads a history: its mask has this many rows, not as many as the past.
QUERY_BLOCK = 256

# Elements of one Fourier transform of a filter: its buffers stay in the cache or near it.
TRANSFORM_LENGTH = 16384


def plan_form(
    form: str,
    length: int,
    forms: tuple[str, ...],
    owner: str,
    refusals: Mapping[str, str] | None = None,
) -> str:
    """The execution for `length` elements, among those that `owner` declares.

    `refusals` says why it lacks a form.
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
    """The number of elements that one chunk holds."""
    if form == "parallel":
        return length
    if chunk is None:
        return min(CHUNK_LENGTH, length)
    if chunk < 1:
        raise ThreefoldError(f"chunk={chunk}: expected at least 1 element a chunk")
    return min(chunk, length)


def plan_query_block(length: int, form: str) -> int:
    """The number of queries that read a history together."""
    return min(QUERY_BLOCK, length) if form == "chunk" else length


def plan_transform(length: int, form: str) -> int:
    """The number of elements that are convolved by one Fourier transform."""
    return min(TRANSFORM_LENGTH, length) if form == "chunk" else length
