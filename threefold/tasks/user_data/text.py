"""A user's text: windows of its tokens, for a language model, a masked one or XLNet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from threefold.data.loaders import Batch
from threefold.data.preprocessing import Chain, Preprocessing
from threefold.data.preprocessing.text import Tokenize, TokenizeMasked
from threefold.data.readers import decode_text, read_byte_chunks
from threefold.data.tokenizers import ByteTokenizer, Tokenizer
from threefold.errors import option, setting
from threefold.tasks.language_modelling import (
    DEFAULT_LENGTH,
    DEFAULT_VOCABULARY,
    TextWindows,
    split_by_position,
    text_corpus,
)
from threefold.tasks.table import SPLITS, TEXT_KINDS
from threefold.tasks.task import Corpus, Task, declare_user_task
from threefold.tasks.user_data.description import DataDescription
from threefold.tasks.user_data.settings import Reading
from threefold.tasks.user_data.starting import known_tokenizer

SHORTEST_WINDOW = 32  # of a text that is too short for windows of the default length


def text_task(
    files: Sequence[Path], name: str, reading: Reading, notes: Sequence[str] = ()
) -> Task[Batch]:
    """Windows of a text; the files are joined in the given order, `notes` are told about them."""
    contents = (b"".join(read_byte_chunks(path)) for path in files)
    task = content_task(b"\n".join(contents), name, reading, len(files))
    if not notes or task.description is None:
        return task
    described = replace(task.description, notes=(*task.description.notes, *notes))
    return replace(task, description=described)


def content_task(content: bytes, name: str, reading: Reading, files: int = 1) -> Task[Batch]:
    """Windows of the tokens of a text in UTF-8, or of any bytes."""
    reading.settings.allow_only(f"{name}, a text", "tokenizer", "vocabulary", "length")
    reading.settings.check_kind(f"{name}, a text,", *TEXT_KINDS)
    source = "" if files == 1 else f"{files:,} files, "
    facts = [("text", f"{source}{len(content):,} bytes")]
    corpus = _corpus(content, name, reading)
    return corpus_task(name, corpus, reading, facts, _encoding_notes(content))


def corpus_task(
    name: str,
    corpus: Corpus,
    reading: Reading,
    facts: Sequence[tuple[str, str]],
    notes: tuple[str, ...] = (),
) -> Task[Batch]:
    """Windows of tokens, to predict the next ones, masked ones, or the last ones of an order."""
    settings, known = reading.settings, reading.preprocessing
    kind = settings.kind or _default_kind(known or reading.start)
    length = settings.length or _default_length(corpus)
    if not reading.split:  # a short text is one short window
        length = max(1, min(length, len(corpus.tokens["test"]) - 1))
    windows = TextWindows(name, lambda: corpus, length, kind)
    # Masked models and XLNet fill gaps.
    chain = Chain(((Tokenize if kind == "language" else TokenizeMasked).by(corpus.tokenizer),))
    preprocessing = known or Preprocessing(kind, "text", chain)
    return declare_user_task(
        name,
        windows.draw,
        kind=kind,
        domain="language",
        metric="bits",
        corpus=windows.corpus,
        augment=windows.augment,
        preprocessing=lambda: preprocessing,
        description=_describe(name, kind, corpus, reading, facts, notes),
        **windows.fields(),
    )


def _default_length(corpus: Corpus) -> int:
    """256 tokens, or as many as the shortest split has; a text that is tiny is refused."""
    shortest = min(len(tokens) for tokens in corpus.tokens.values()) - 1
    return min(DEFAULT_LENGTH, shortest) if shortest >= SHORTEST_WINDOW else DEFAULT_LENGTH


def _corpus(content: bytes, name: str, reading: Reading) -> Corpus:
    """The tokens of every split; without a split, all tokens in each."""
    settings = reading.settings
    tokenizer = _known_tokenizer(reading, name) or settings.tokenizer or "byte"
    vocabulary = settings.vocabulary or DEFAULT_VOCABULARY

    def cut(whole: Any) -> dict[str, Any]:
        return split_by_position(whole) if reading.split else dict.fromkeys(SPLITS, whole)

    if tokenizer == "byte" or isinstance(tokenizer, ByteTokenizer):
        return text_corpus(cut(content), tokenizer, vocabulary)
    return text_corpus(cut(decode_text(content, name)), tokenizer, vocabulary)


def _default_kind(known: Preprocessing | None) -> str:
    """What a text is read for: the kind of the model, if that is one of texts."""
    return known.kind if known is not None and known.kind in TEXT_KINDS else "language"


def _known_tokenizer(reading: Reading, name: str) -> Tokenizer | None:
    if reading.preprocessing is None and reading.start is not None:
        return known_tokenizer(reading.start, name, reading.settings)
    if reading.preprocessing is None:
        return None
    tokenizer: Tokenizer = reading.preprocessing.inputs.find(Tokenize).tokenizer
    return tokenizer


def _describe(
    name: str,
    kind: str,
    corpus: Corpus,
    reading: Reading,
    facts: Sequence[tuple[str, str]],
    notes: tuple[str, ...],
) -> DataDescription:
    tokenizer = type(corpus.tokenizer).__name__.removesuffix("Tokenizer").lower()
    size = f"{tokenizer}, vocabulary of {corpus.tokenizer.vocabulary:,}"
    shown = [*facts, ("tokenizer", size)]
    if reading.split:
        sizes = " / ".join(f"{len(corpus.tokens[split]):,}" for split in SPLITS)
        shown.append(("split", f"{sizes} tokens (train / validation / test), by position"))
    otherwise = f"{setting('data.tokenizer', 'byte|character|bpe|word')}, {option('kind')}"
    return DataDescription(name, kind, tuple(shown), notes, otherwise)


def _encoding_notes(content: bytes) -> tuple[str, ...]:
    """A note if the content is not text; byte models can read anything."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return (f"line {line} is not valid UTF-8: the content is read as bytes, not as text",)
    if b"\0" in content:
        return ("the content has NUL bytes: it is read as bytes, not as text",)
    return ()
