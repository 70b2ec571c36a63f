"""Word vectors of threefold and gensim: one pass over eighteen books, and analogies of both.

Width 100, window 5, 5 negatives, the same words, vocabulary and threads; reading the text is not
measured. The draws differ, so the vectors do: instead of being compared, both are trained for five
passes and answer the same questions of grammar, and how many they solve is printed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.measure import Comparison, Contender, min_speedup
from threefold.classical.word_vectors import (
    WordCorpus,
    WordVectorOptions,
    WordVectors,
    sentences_of,
    train_vectors,
)
from threefold.tasks.corpora import prose

MEMORY = ("default",)
PEER = "gensim"
# Pairs of one relation each; a question is two pairs of one line.
RELATIONS = (
    "he:she his:her himself:herself man:woman men:women brother:sister father:mother son:daughter",
    "day:days year:years hand:hands eye:eyes son:sons king:kings ship:ships friend:friends",
    "go:went come:came see:saw take:took give:gave know:knew speak:spoke stand:stood make:made",
    "good:better great:greater high:higher old:older long:longer large:larger",
    "come:coming go:going look:looking speak:speaking walk:walking stand:standing",
)


def questions() -> list[tuple[str, str, str, str]]:
    found: list[tuple[str, str, str, str]] = []
    for line in RELATIONS:
        pairs = [pair.split(":") for pair in line.split()]
        found += [(a, b, c, d) for (a, b), (c, d) in permutations(pairs, 2)]
    return found


def theirs(sentences: list[list[str]], options: WordVectorOptions) -> Any:
    """gensim's model with its vocabulary built."""
    model = importlib.import_module("gensim.models").Word2Vec(
        vector_size=options.width,
        window=options.window,
        negative=options.negatives,
        sample=options.subsample,
        min_count=options.minimum_count,
        sg=int(options.method == "skip_gram"),
        workers=torch.get_num_threads(),
        seed=1,
    )
    model.build_vocab(sentences)
    return model


def comparison(sentences: list[list[str]], method: str, passes: int, rounds: int) -> Comparison:
    once = WordVectorOptions(method=method, passes=1)
    corpus = WordCorpus.read(sentences, once.minimum_count)
    several = WordVectorOptions(method=method, passes=passes)
    solved = {"threefold": WordVectors(corpus.words, train_vectors(corpus, several))}

    def ours() -> list[Tensor]:
        return [torch.from_numpy(train_vectors(corpus, once))]

    contenders: dict[str, Contender] = {"threefold": ours}
    if peers.installed(PEER):
        model = theirs(sentences, once)
        model.train(sentences, total_examples=len(sentences), epochs=passes)
        solved[PEER] = WordVectors(model.wv.index_to_key, model.wv.vectors)

        def gensim() -> list[Tensor]:
            model.train(sentences, total_examples=len(sentences), epochs=1)
            return []

        contenders[PEER] = gensim
    for name, vectors in solved.items():
        right, known = vectors.analogies_solved(questions())
        print(f"{method}, {name}: {right} of {known} analogies after {passes} passes")
    title = f"word vectors, {method}, {sum(map(len, sentences)):,} words"
    return Comparison(title, contenders, rounds, (min_speedup(1, PEER),), unchecked=(PEER,))


def run() -> Iterator[Comparison]:
    """Both methods."""
    sentences = list(sentences_of(prose().decode()))
    for method in ("skip_gram", "cbow"):
        yield comparison(sentences, method, 5, 5)


def quick() -> Iterator[Comparison]:
    text = "the king went home . the queen came home . " * 200
    yield comparison(list(sentences_of(text.replace(" .", "."))), "skip_gram", 1, 2)
