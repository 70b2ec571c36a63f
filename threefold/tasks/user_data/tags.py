"""A user's tagged words: a word and its tag per line, an empty line between sentences."""

from __future__ import annotations

from pathlib import Path

from threefold.data.preprocessing import Chain
from threefold.data.preprocessing.text import WordNumbers
from threefold.data.readers import file_error, read_lines
from threefold.data.table_formats import table_suffix
from threefold.data.tagged_lines import TAG_SUFFIXES, tagged_cells, words_in
from threefold.errors import option
from threefold.tasks.task import Task
from threefold.tasks.user_data.examples import ExampleData, RawExamples, examples_task
from threefold.tasks.user_data.settings import Reading

MOST_WORDS = 25_000


def tags_task(path: Path, reading: Reading) -> Task:  # type: ignore[type-arg]
    """A tagger of the sentences of a file."""
    settings = reading.settings
    settings.allow_only(f"{path.name}, tagged words", "length", "vocabulary")
    settings.check_kind(f"{path.name}, tagged words,", "tagger")
    vocabulary = settings.vocabulary or MOST_WORDS
    data = ExampleData(
        path.name,
        "tagger",
        "words",
        read_tagged(path),
        lambda train: Chain((WordNumbers.fit(train, vocabulary, settings.length),)),
        facts=(("inputs", "words, one per line"), ("target", "the tag after each word")),
        otherwise=option("kind"),
    )
    return examples_task(data, reading)


def read_tagged(path: Path) -> RawExamples:
    """The sentences of a file: a word, a tab or spaces, and its tag; the last column is the tag."""
    sentences: list[list[str]] = [[]]
    tags: list[list[str]] = [[]]
    places: list[str] = []
    for number, line in read_lines(path):
        cells = tagged_cells(line)
        if not cells:
            if sentences[-1]:
                sentences.append([])
                tags.append([])
            continue
        if len(cells) < 2 or not cells[0] or not cells[-1]:
            raise file_error(path, number, f"{line[:40]!r}; expected a word, a tab and its tag")
        if not sentences[-1]:
            places.append(f"{path}:{number}")
        sentences[-1].append(cells[0])
        tags[-1].append(cells[-1])
    count = len(places)
    return RawExamples(sentences[:count], tags[:count], places)


def read_words(path: Path) -> list[tuple[list[str], str]]:
    """Sentences to tag: one per line, or one word per line with an empty line between them.

    Of a file of tagged words, by its suffix or the tabs in all lines, only the words are read.
    """
    texts = list(read_lines(path))
    tabs = all("\t" in line for _, line in texts if tagged_cells(line))
    tagged = tabs or table_suffix(path) in TAG_SUFFIXES
    lines = [(number, words_in(line, tagged)) for number, line in texts]
    if max(len(words) for _, words in lines) > 1:
        return [(words, f"{path.name}:{number}") for number, words in lines if words]
    sentences: list[tuple[list[str], str]] = []
    start = True
    for number, words in lines:
        if words and start:
            sentences.append(([], f"{path.name}:{number}"))
        if words:
            sentences[-1][0].extend(words)
        start = not words
    return sentences
