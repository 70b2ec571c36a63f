"""Translations beside their references: exact match, BLEU and chrF.

Papineni et al. 2002, "BLEU"; Popović 2015, "chrF"; computed by sacreBLEU (Post 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from threefold.data.preprocessing.text import Tokenize
from threefold.tasks.pairs import Pairs
from threefold.training.evaluations.measures import MOST_WORST, Array, Measure, shorten
from threefold.training.objectives import BatchLoss, TranslationTally
from threefold.training.training_data import TrainingData

USUAL_ORDER = 4  # the longest n-grams of BLEU
MISSING = "BLEU and chrF need sacrebleu, which is not installed: pip install 'threefold[translate]'"


def text_scores(answers: Sequence[str], references: Sequence[str]) -> dict[str, Any] | None:
    """BLEU and chrF from 0 to 100; None if sacrebleu is not installed.

    BLEU counts n-grams up to n = 4, or as long as the longest answer (`bleu_order`): without one of
    4 words it would be 0 for perfect answers.  In longer texts it is the usual one.
    """
    try:
        import sacrebleu
    except ImportError:
        return None
    right = [list(references)]
    bleu = sacrebleu.corpus_bleu(list(answers), right, use_effective_order=True)
    return {
        "bleu": float(bleu.score),
        "bleu_order": sum(total > 0 for total in bleu.totals),
        "chrf": float(sacrebleu.corpus_chrf(list(answers), right).score),
    }


class TranslationMeasure(Measure):
    """Greedily decoded translations."""

    def __init__(self, data: TrainingData, split: str, numbers: Array) -> None:
        super().__init__(data, split, numbers)
        self.answers: list[list[int]] = []
        self.references: list[list[int]] = []

    def add(
        self, rows: Pairs, batch_loss: BatchLoss, tally: TranslationTally, numbers: Array
    ) -> None:
        """Collect the translations of a batch."""
        self.answers += tally.translations[-len(numbers) :]
        self.references += rows.texts()

    def values(self) -> dict[str, Any]:
        """Exact match, BLEU and chrF, and translations that are far from their references."""
        right = [a == b for a, b in zip(self.answers, self.references, strict=True)]
        answers, references = self._texts(self.answers), self._texts(self.references)
        values: dict[str, Any] = {"targets": len(right), "exact_match": float(np.mean(right))}
        if self._tokenize is not None:
            scores = text_scores(answers, references)
            values |= scores or {"bleu": None, "chrf": None, "notes": [MISSING]}
            if scores is not None and scores["bleu_order"] < USUAL_ORDER:
                values["notes"] = [
                    f"no answer has {USUAL_ORDER} words, so BLEU counts sequences of up to "
                    f"{scores['bleu_order']} words; do not compare it with published figures"
                ]
        wrong = [i for i, is_right in enumerate(right) if not is_right]
        wrong.sort(key=lambda i: (_overlap(self.answers[i], self.references[i]), i))
        values["worst"] = [
            {
                **self.show(self.numbers[i]),
                "target": shorten(references[i]),
                "answer": shorten(answers[i]),
            }
            for i in wrong[:MOST_WORST]
        ]
        return values

    @property
    def _tokenize(self) -> Tokenize | None:
        step: Tokenize | None = self.data.output_step(Tokenize)
        return step

    def _texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        if self._tokenize is None:
            return [" ".join(map(str, row)) for row in rows]
        return [self._tokenize.invert(row) for row in rows]


def _overlap(answer: Sequence[int], reference: Sequence[int]) -> float:
    """The share of tokens that both have."""
    common = len(set(answer) & set(reference))
    return common / max(len(set(answer) | set(reference)), 1)
