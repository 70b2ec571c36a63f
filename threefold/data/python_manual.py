"""The Python language reference: text that needs no download, and its fixed split."""

from __future__ import annotations

from functools import cache

from threefold.errors import ThreefoldError

TRAINING_SHARE = 0.9  # the first part of a text is for training


@cache
def python_reference() -> str:
    """The Python language reference that comes with Python, each paragraph once.

    Several topics repeat whole sections of others (a fifth of the text).  Repeats are dropped, so
    that the end of the text, used for validation, does not occur word for word in the rest.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ThreefoldError(
            "this Python has no language reference (module pydoc_data); "
            "install the full standard library (Debian: package python3, not python3-minimal)"
        ) from error
    return join_topics(topics)


def join_topics(topics: dict[str, str]) -> str:
    """Topics in alphabetical order, without repeated paragraphs."""
    text = "\n\n".join(topics[name].strip("\n") for name in sorted(topics))
    return "\n\n".join(dict.fromkeys(text.split("\n\n"))) + "\n"


def split(text: str) -> tuple[str, str]:
    """Split into (training, validation): the first nine tenths of the characters, and the rest."""
    cut = int(len(text) * TRAINING_SHARE)
    return text[:cut], text[cut:]
