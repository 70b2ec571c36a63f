"""`threefold words`: train word vectors on a text, and ask them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from threefold.cli import output
from threefold.cli.hints import CommandGroup
from threefold.cli.options import AsJson
from threefold.drawing.text import format_duration
from threefold.errors import ThreefoldError

if TYPE_CHECKING:
    from threefold.classical.word_vectors import WordVectorOptions, WordVectors

words = typer.Typer(
    name="words",
    cls=CommandGroup,
    help="Train word vectors on a text; nearest words, analogies, similarities.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Vectors = Annotated[
    Path, typer.Argument(metavar="VECTORS", help="A file in word2vec's text format.")
]
Count = Annotated[int, typer.Option(min=1, help="Number of words to show.")]


Texts = Annotated[
    list[Path], typer.Argument(metavar="TEXT…", help="Texts, or folders of .txt files.")
]
Output = Annotated[Path, typer.Option("--output", metavar="FILE", help="New file for the vectors.")]
Method = Annotated[str, typer.Option(help="skip_gram or cbow.")]
Width = Annotated[int, typer.Option(help="Numbers in a vector.")]
Window = Annotated[int, typer.Option(help="Words to each side.")]
Negatives = Annotated[int, typer.Option(help="Words drawn against each true one.")]
Subsample = Annotated[
    float, typer.Option(help="Share of the text above which words are thinned out; 0: none.")
]
MinimumCount = Annotated[int, typer.Option(help="Leave out words that are rarer.")]
Passes = Annotated[int, typer.Option(help="Times that the text is read.")]
LearningRate = Annotated[float | None, typer.Option(help="Default: 0.025; cbow: 0.075.")]
ByLine = Annotated[
    bool, typer.Option("--by-line", help="A line is a sentence; default: by punctuation.")
]
Threads = Annotated[
    int | None, typer.Option(min=1, max=1024, help="With 1, results are the same every time.")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the vectors and of all draws.")]


@words.command()
def train(
    texts: Texts,
    path: Output,
    method: Method = "skip_gram",
    width: Width = 100,
    window: Window = 5,
    negatives: Negatives = 5,
    subsample: Subsample = 1e-3,
    minimum_count: MinimumCount = 5,
    passes: Passes = 5,
    learning_rate: LearningRate = None,
    by_line: ByLine = False,
    threads: Threads = None,
    seed: Seed = 0,
) -> None:
    """Train word vectors on texts of your own."""
    import torch

    from threefold.classical.word_vectors import WordVectorOptions

    options = WordVectorOptions(
        *(method, width, window, negatives, subsample, minimum_count, passes, learning_rate, seed)
    )  # refused before a long text is read
    if path.exists():
        raise ThreefoldError(f"{path} exists; choose another --output, or remove it first")
    sentences = _sentences(texts, by_line)
    if threads:
        torch.set_num_threads(threads)
    _fit(sentences, options, path)


def _fit(sentences: list[list[str]], options: WordVectorOptions, path: Path) -> None:
    """Train, write the vectors and say what to do with them."""
    from time import monotonic

    from threefold.classical.word_vectors import WordVectors

    started = monotonic()
    try:
        with output.progress_bar("words") as show:
            vectors = WordVectors.fit(sentences, progress=show, **asdict(options))
    except KeyboardInterrupt:
        output.complain("interrupted; nothing was written")
        raise typer.Exit(output.INTERRUPTED) from None
    vectors.save(path)
    count = f"{sum(map(len, sentences)):,} in {len(sentences):,} sentences"
    output.say_facts(
        [
            ("words", f"{count}, {len(vectors):,} different"),
            ("training", f"{options.passes} passes in {format_duration(monotonic() - started)}"),
            ("vectors", str(path)),
            ("to use", f"threefold words nearest {path} {vectors.words[0]}"),
        ]
    )


def _sentences(texts: list[Path], by_line: bool) -> list[list[str]]:
    """The sentences of all files; those of a folder in the order of their names."""
    from threefold.classical.word_vectors import sentences_of
    from threefold.data.readers import read_text, text_files

    files = [file for path in texts for file in (text_files(path) if path.is_dir() else [path])]
    return [
        sentence for file in files for sentence in sentences_of(read_text(file), by_line=by_line)
    ]


@words.command()
def nearest(
    path: Vectors,
    word: Annotated[str, typer.Argument(help="A word.")],
    count: Count = 10,
    as_json: AsJson = False,
) -> None:
    """The words with the most similar vectors."""
    _say(_load(path).nearest(word, count), as_json)


@words.command()
def analogy(
    path: Vectors,
    a: Annotated[str, typer.Argument(metavar="A", help="For example: man")],
    b: Annotated[str, typer.Argument(metavar="B", help="king")],
    c: Annotated[str, typer.Argument(metavar="C", help="woman")],
    count: Count = 5,
    as_json: AsJson = False,
) -> None:
    """A is to B as C is to what?"""
    _say(_load(path).analogy(a, b, c, count), as_json)


@words.command()
def similarity(
    path: Vectors,
    one: Annotated[str, typer.Argument(metavar="A", help="A word.")],
    other: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    as_json: AsJson = False,
) -> None:
    """The cosine of the angle between two words' vectors, from −1 to 1."""
    value = _load(path).similarity(one, other)
    if as_json:
        return output.say_json({"similarity": value})
    output.say(f"{value:.4f}")


def _load(path: Path) -> WordVectors:
    from threefold.classical.word_vectors import WordVectors

    return WordVectors.load(path)


def _say(found: list[tuple[str, float]], as_json: bool) -> None:
    if as_json:
        return output.say_json([{"word": word, "similarity": value} for word, value in found])
    for line in output.align([[word, f"{value:.4f}"] for word, value in found]):
        output.say(line)
