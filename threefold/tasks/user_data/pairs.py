"""A user's parallel text: each line a source and its target, with a tab between them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from threefold.data.random_by_address import permutation
from threefold.data.readers import read_pairs
from threefold.data.tokenizers import BPETokenizer
from threefold.errors import ThreefoldError
from threefold.tasks.pairs import FIRST_TOKEN, Pairs, pairs
from threefold.tasks.table import SPLITS
from threefold.tasks.task import Numbers, Task, declare_user_task

FEWEST_PAIRS = 10


def pairs_task(path: Path, vocabulary: int, length: int | None) -> Task[Pairs]:
    """Pairs in byte-pair tokens, learnt from the training split of each side."""
    rows, length = read_pairs(path), length or 256
    if len(rows) < FEWEST_PAIRS:
        raise ThreefoldError(f"{path}: {len(rows)} pairs are too few; expected ten or more")
    order = permutation((0, len(rows)), len(rows))
    cuts = [int(len(rows) * part) for part in (0, 0.8, 0.9, 1)]
    splits = {s: order[a:b] for s, a, b in zip(SPLITS, cuts, cuts[1:], strict=False)}
    tokenizers = [
        BPETokenizer.learn([rows[i][side] for i in splits["train"]], vocabulary - FIRST_TOKEN)
        for side in (0, 1)
    ]
    sizes = [tokenizer.vocabulary + FIRST_TOKEN for tokenizer in tokenizers]

    def encode(side: int, text: str) -> list[int]:
        tokens = tokenizers[side].encode(text)[:length].astype(np.int64)
        return [FIRST_TOKEN + token for token in tokens.tolist()]

    def draw(split: str, numbers: Numbers) -> Pairs:
        picked = [rows[i] for i in splits[split][numbers]]
        sources, targets = ([encode(side, row[side]) for row in picked] for side in (0, 1))
        return pairs(path.stem, sources, targets, sizes[0], sizes[1])

    return declare_user_task(
        path.stem,
        draw,
        kind="seq2seq",
        domain="text",
        length=length,
        sizes=tuple(len(splits[split]) for split in SPLITS),
        metric="exact",
        chance=0.0,
        vocabulary=sizes[0],
        classes=sizes[1],
    )
