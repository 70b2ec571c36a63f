"""A text of any size: tokenized once into a folder, then read from it without filling the memory.

    threefold data tokenize books/ corpus --tokenizer bpe      corpus/data.tokens, tokenizer.json
    threefold train corpus

Documents (files, or parts of a file between separators) do not see each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from threefold.data.loaders import Batch
from threefold.data.preprocessing.text import Tokenize
from threefold.data.readers import read_text_chunks, text_files
from threefold.data.token_files import TokenFile, read_token_folder, write_token_folder
from threefold.data.tokenizers import Tokenizer, describe_tokenizer
from threefold.errors import ThreefoldError, option_name
from threefold.tasks.language_modelling import (
    DEFAULT_VOCABULARY,
    check_tokenizer_name,
    learn_tokenizer,
)
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Corpus, Numbers, Task
from threefold.tasks.user_data.folder import TEXT_SUFFIXES
from threefold.tasks.user_data.settings import Reading
from threefold.tasks.user_data.text import corpus_task

LEARNT_SHARE, LEARNT_BYTES = 0.9, 1 << 26  # of the text, from which a tokenizer is learnt at most
NEAR = 0.02  # of the tokens: a split ends where a document does, if one ends so near


def tokenize_files(
    source: Path,
    folder: Path,
    *,
    tokenizer: str = "byte",
    vocabulary: int | None = None,
    separator: str | None = None,
) -> TokenFile:
    """Tokenize a file or a folder of texts; what the tokenizer has to know is learnt first."""
    check_tokenizer_name(option_name("tokenizer"), tokenizer)
    if not source.exists():
        raise ThreefoldError(f"{source}: file or folder not found")
    files = [source]
    if source.is_dir():
        files = text_files(source, [f"*{suffix}" for suffix in TEXT_SUFFIXES])
    size = vocabulary or DEFAULT_VOCABULARY
    known = learn_tokenizer(tokenizer, _texts_to_learn(files, tokenizer), size)
    return write_token_folder(folder, files, known, separator)


def _texts_to_learn(files: Sequence[Path], tokenizer: str) -> list[str]:
    """The characters of all files, or the paragraphs of their beginning; bytes need none."""
    if tokenizer == "byte":
        return []
    if tokenizer == "character":
        characters: set[str] = set()
        for chunk in _chunks(files):
            characters.update(chunk)
        return sorted(characters)
    most = min(LEARNT_BYTES, int(LEARNT_SHARE * sum(file.stat().st_size for file in files)))
    texts: list[str] = []
    taken = 0
    for chunk in _chunks(files):
        cut = chunk[: max(0, most - taken)]
        texts += [paragraph + "\n\n" for paragraph in cut.split("\n\n")]
        taken += len(chunk)
        if taken >= most:
            break
    return texts


def _chunks(files: Sequence[Path]) -> Iterator[str]:
    for file in files:
        yield from read_text_chunks(file)


def token_folder_task(folder: Path, reading: Reading) -> Task[Batch]:
    """Windows of the tokens; of several documents, chunks that do not see other documents."""
    reading.settings.allow_only(f"{folder.name}, a token folder", "length")
    file, tokenizer = read_token_folder(folder)
    _check_tokenizer(folder, tokenizer, reading)
    documents = len(file.starts)
    facts = [("tokens", f"{len(file):,} in {documents:,} document{'s' * (documents != 1)}")]
    return corpus_task(folder.name, _corpus(file, tokenizer, reading.split), reading, facts)


def _check_tokenizer(folder: Path, tokenizer: Tokenizer, reading: Reading) -> None:
    known = reading.preprocessing or reading.start
    if known is None:
        return
    trained: Tokenize | None = known.inputs.find(Tokenize)
    if trained is None or trained.description != describe_tokenizer(tokenizer):
        raise ThreefoldError(
            f"{folder}: was made with another tokenizer than the model; give the text itself"
        )


def _corpus(file: TokenFile, tokenizer: Tokenizer, split: bool) -> Corpus:
    """90, 5 and 5 per cent of the tokens, if possible of whole documents; or all of them thrice."""
    several = len(file.starts) > 1
    if not split:
        starts = dict.fromkeys(SPLITS, file.starts) if several else None
        return Corpus(dict.fromkeys(SPLITS, file.tokens), tokenizer, starts)
    cuts = [0, *(_near_start(file, share) for share in (0.9, 0.95)), len(file)]
    parts = list(zip(SPLITS, cuts, cuts[1:], strict=False))
    tokens = {name: file.tokens[begin:end] for name, begin, end in parts}
    if not several:
        return Corpus(tokens, tokenizer)
    starts = {name: _starts_within(file.starts, begin, end) for name, begin, end in parts}
    return Corpus(tokens, tokenizer, starts)


def _near_start(file: TokenFile, share: float) -> int:
    """The start of a document near a share of all tokens, or else just there."""
    place = int(len(file) * share)
    if len(file.starts) == 0:
        return place
    after = int(np.searchsorted(file.starts, place))
    around = file.starts[max(0, after - 1) : after + 1]
    nearest = int(around[np.abs(around - place).argmin()])
    return nearest if abs(nearest - place) <= NEAR * len(file) else place


def _starts_within(starts: Numbers, begin: int, end: int) -> Numbers:
    inside = starts[np.searchsorted(starts, begin) : np.searchsorted(starts, end)] - begin
    return np.unique(np.append(0, inside))
