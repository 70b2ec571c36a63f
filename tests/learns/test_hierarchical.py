"""A hierarchical classifier learns what depends on the order of sentences, from a user's file."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

import threefold
from threefold.data.random_by_address import integers

SUBJECTS = ("The food", "Our room", "That walk", "His speech", "The music", "The service")
GOOD, BAD = ("good", "lovely", "fine", "great"), ("bad", "awful", "dull", "poor")
FILLER = ("It was on a Monday.", "We were six!", "Did it rain?", "We came by train.")


def write_reviews(path: Path, count: int) -> None:
    """Reviews with the same sentences in both classes: only which comes last tells them apart.

    No review is written twice, so those of the test split are new.
    """
    written: set[str] = set()
    draws = integers((7,), 12, count, 6)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["review", "label"])
        for number, (a, b, c, d, filler, place) in enumerate(draws.tolist()):
            better = number % 2 == 0
            first, last = (BAD, GOOD) if better else (GOOD, BAD)
            parts = [
                f"{SUBJECTS[a % 6]} was {first[c % 4]}.",
                f"{SUBJECTS[b % 6]} was {last[d % 4]}.",
            ]
            parts.insert(place % 3, FILLER[filler % 4])
            review = " ".join(parts)
            if review not in written:
                table.writerow([review, "improved" if better else "declined"])
            written.add(review)


def test_the_order_of_sentences_is_learned(tmp_path: Path) -> None:
    write_reviews(tmp_path / "reviews.csv", 400)
    settings = {"model.width": 32, "model.depth": 1, "training.learning_rate": 5e-3}
    run = threefold.train(
        str(tmp_path / "reviews.csv"),
        kind="hierarchical",
        mixers="gru",
        steps=80,
        folder=tmp_path / "run",
        settings=settings,
    )
    assert run.model.kind == "hierarchical"
    assert run.summary["test"]["metric"] > 0.9, run.summary["test"]
    assert threefold.evaluate(tmp_path / "run")["accuracy"] > 0.9
    with pytest.raises(threefold.ThreefoldError, match="every sentence apart"):
        threefold.attention_weights(run.model, "Good. Bad.")
    sentences = ["Our room was great.", "Did it rain?", "The music was poor."]
    review = " ".join(sentences)
    expected, turned = run.model.predict([review, " ".join(reversed(sentences))])
    assert (expected["label"], turned["label"]) == ("declined", "improved")
    assert run.model.predict([review]).notes == []
    (note,) = run.model.predict([review, "Wibble wobbles, so gladly. Wibble!"]).notes
    assert note.endswith("reads their bytes instead: Wibble, wobbles, so, gladly"), note
    assert note.startswith("31% of the words (5 of 16)"), note
    code = (
        "import sys, threefold; "
        "print(threefold.load(sys.argv[1]).predict([sys.argv[2]])[0]['probability'], end='')"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "run"), review]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert float(done.stdout) == expected["probability"]
