"""Text that is there without a download, and its pinned split."""

from __future__ import annotations

from functools import cache

from threefold.errors import ThreefoldError

TRAINING_SHARE = 0.9  # the part of a text, from its beginning, that is for training


@cache
def python_reference() -> str:
    """The Python language reference that every Python carries, each paragraph once.

    Several topics repeat whole sections of others (a fifth of the text): repeats are dropped, so
    that the end of the text, which validates, is not found word for word in the rest.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ThreefoldError(
            "this Python comes without pydoc_data, the language reference; "
            "install the full standard library (Debian: package python3, not python3-minimal)"
        ) from error
    return join_topics(topics)


def join_topics(topics: dict[str, str]) -> str:
    """Topics in the order of their names, without the paragraphs that came before."""
    text = "\n\n".join(topics[name].strip("\n") for name in sorted(topics))
    return "\n\n".join(dict.fromkeys(text.split("\n\n"))) + "\n"


def split(text: str) -> tuple[str, str]:
    """(training, validation): the first nine tenths of the characters and the rest."""
    cut = int(len(text) * TRAINING_SHARE)
    return text[:cut], text[cut:]
