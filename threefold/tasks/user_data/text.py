"""A user's text: windows of its tokens, for a language model."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.preprocessing import Chain, Preprocessing
from threefold.data.preprocessing.text import Tokenize
from threefold.data.readers import decode_text, file_error, read_bytes
from threefold.data.tokenizers import (
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    WordTokenizer,
)
from threefold.errors import ThreefoldError
from threefold.tasks.language_modelling import (
    check_tokenizer_name,
    count_windows,
    cut_windows,
    split_by_position,
    tokenize_splits,
    unigram_bits,
)
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Corpus, Numbers, Task, declare_user_task
from threefold.tasks.user_data.description import DataDescription
from threefold.tasks.user_data.settings import Reading

DEFAULT_LENGTH = 256
SHORTEST_WINDOW = 32  # of a text that is too short for windows of the default length
DEFAULT_VOCABULARY = 4096
Content = bytes | str


def text_task(
    files: Sequence[Path], name: str, reading: Reading, notes: Sequence[str] = ()
) -> Task[Batch]:
    """Windows of a text; the files are joined in the given order, `notes` are told about them."""
    task = content_task(b"\n".join(map(_read_file, files)), name, reading, len(files))
    if not notes or task.description is None:
        return task
    described = replace(task.description, notes=(*task.description.notes, *notes))
    return replace(task, description=described)


def _read_file(path: Path) -> bytes:
    content = read_bytes(path)
    if path.suffix.lower() != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise file_error(path, None, f"cannot be unpacked ({error})") from error


def content_task(content: bytes, name: str, reading: Reading, files: int = 1) -> Task[Batch]:
    """Windows of the tokens of a text in UTF-8, or of any bytes."""
    settings = reading.settings
    settings.allow_only(f"{name}, a text", "tokenizer", "vocabulary", "length")
    settings.check_kind(f"{name}, a text,", "language")
    corpus = _corpus(content, name, reading)
    length = settings.length or _default_length(corpus)
    sizes = count_windows(corpus, length)
    if min(sizes) < 1:
        total = sum(map(len, corpus.tokens.values()))
        raise ThreefoldError(
            f"{name}: {total} tokens are too few: each split (90, 5 and 5 per cent) needs at least "
            f"{length + 1}; give more text, or a length below {length}"
        )

    def draw(split: str, numbers: Numbers) -> Batch:
        return cut_windows(corpus.tokens[split], numbers, length)

    chain = Chain((Tokenize.by(corpus.tokenizer),))
    preprocessing = reading.preprocessing or Preprocessing("language", "text", chain)
    return declare_user_task(
        name,
        draw,
        kind="language",
        domain="language",
        length=length,
        sizes=sizes,
        metric="bits",
        chance=unigram_bits(corpus),
        vocabulary=corpus.tokenizer.vocabulary,
        classes=corpus.tokenizer.vocabulary,
        corpus=lambda: corpus,
        preprocessing=lambda: preprocessing,
        description=_describe(name, content, corpus, reading, files),
    )


def _default_length(corpus: Corpus) -> int:
    """256 tokens, or as many as the shortest split has; a text that is tiny is refused."""
    shortest = min(len(tokens) for tokens in corpus.tokens.values()) - 1
    return min(DEFAULT_LENGTH, shortest) if shortest >= SHORTEST_WINDOW else DEFAULT_LENGTH


def _corpus(content: bytes, name: str, reading: Reading) -> Corpus:
    """The tokens of every split."""
    tokenizer = _known_tokenizer(reading)
    if not reading.split:
        tokenizer = tokenizer or ByteTokenizer()
        is_bytes = isinstance(tokenizer, ByteTokenizer)
        tokens = tokenizer.encode(content if is_bytes else decode_text(content, name))  # type: ignore[arg-type]
        return Corpus(dict.fromkeys(SPLITS, tokens), tokenizer)
    choice = reading.settings.tokenizer or "byte"
    check_tokenizer_name(name, choice)
    if isinstance(tokenizer, ByteTokenizer) or (tokenizer is None and choice == "byte"):
        return Corpus(split_by_position(np.frombuffer(content, np.uint8)), ByteTokenizer())
    texts = split_by_position(decode_text(content, name))
    if tokenizer is not None:
        return Corpus({split: tokenizer.encode(text) for split, text in texts.items()}, tokenizer)
    return tokenize_splits(texts, choice, reading.settings.vocabulary or DEFAULT_VOCABULARY)


def _known_tokenizer(reading: Reading) -> Tokenizer | None:
    if reading.preprocessing is None:
        return None
    tokenizer: Tokenizer = reading.preprocessing.inputs.find(Tokenize).tokenizer
    return tokenizer


def learn_tokenizer(name: str, texts: Sequence[str], vocabulary: int) -> Tokenizer:
    """A tokenizer by name, learnt from texts."""
    check_tokenizer_name("data.tokenizer", name)
    if name == "byte":
        return ByteTokenizer()
    if name == "character":
        return CharacterTokenizer("".join(texts))
    return (BPETokenizer if name == "bpe" else WordTokenizer).learn(texts, vocabulary)


def _describe(
    name: str, content: bytes, corpus: Corpus, reading: Reading, files: int
) -> DataDescription:
    kind = type(corpus.tokenizer).__name__.removesuffix("Tokenizer").lower()
    source = "" if files == 1 else f"{files:,} files, "
    facts = [("text", f"{source}{len(content):,} bytes")]
    facts.append(("tokenizer", f"{kind}, vocabulary of {corpus.tokenizer.vocabulary:,}"))
    if reading.split:
        sizes = " / ".join(f"{len(corpus.tokens[split]):,}" for split in SPLITS)
        facts.append(("split", f"{sizes} tokens (train / validation / test), by position"))
    otherwise = "--set data.tokenizer=byte|character|bpe|word, --kind"
    return DataDescription(name, "language", tuple(facts), _encoding_notes(content), otherwise)


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
