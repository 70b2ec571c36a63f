"""Examples as text: images in shades, curves in blocks, tokens as letters if they are text.

▁▂▅█▆▂▁      ░▒▓█
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from threefold.data.loaders import IGNORE, Batch
from threefold.drawing.text import largest, sparkline
from threefold.tasks.pairs import Pairs
from threefold.tasks.task import Task

SHADES = " ░▒▓█"
MOST_CURVES = 4  # drawn of many features
Array = NDArray[Any]


def draw(task: Task[Any], split: str, number: int, width: int = 72) -> list[str]:
    """One example as lines of text."""
    rows = task.rows(split, [number])
    if isinstance(rows, Pairs):
        return _draw_pair(task, split, number, rows, width)
    real = None if rows.mask is None else rows.mask[0].numpy()
    inputs = rows.inputs[0].numpy()
    if real is not None and inputs.ndim == real.ndim + (task.features > 0):
        inputs = inputs[real] if real.ndim == 1 else inputs
    shown = _tokens(task, inputs, width) if task.features == 0 else _numbers(task, inputs, width)
    return [*shown, f"→ {_answer(task, rows, inputs, width)}"]


def _draw_pair(task: Task[Any], split: str, number: int, rows: Pairs, width: int) -> list[str]:
    if rows.source_lengths is None:
        step = None if task.preprocessing is None else task.preprocessing().outputs
        text = str(rows.texts()[0]) if step is None else step.invert(rows.texts()[0])
        return [*_numbers(task, rows.source[0].numpy(), width), f"→ {cut(text, width)}"]
    source = rows.source[0, : int(rows.source_lengths[0])].tolist()
    target = rows.texts()[0]
    texts = _spelling(task, split, number)
    if texts is None:
        texts = " ".join(map(str, source)), " ".join(map(str, target))
    return [cut(texts[0], width), f"→ {cut(texts[1], width)}"]


def _spelling(task: Task[Any], split: str, number: int) -> tuple[str, str] | None:
    """Source and target as text, if the task has texts."""
    if task.name == "phonemes":
        from threefold.tasks.phonemes import dictionary

        words, said = dictionary()
        word = words[split][number]
        return word, " ".join(said[word][0])
    if task.name in ("translation", "translation-machine"):
        from threefold.tasks.translation import texts_of

        return texts_of(task.name)[split][number]
    return None


def _tokens(task: Task[Any], inputs: Array, width: int) -> list[str]:
    if inputs.ndim == 2:  # a pair
        return [line for side in inputs for line in _tokens(task, side, width)]
    side = _side(len(inputs))
    if task.domain == "vision" and task.vocabulary == 256 and side:
        return picture(inputs.reshape(side, side) / 255)
    return [cut(spell(task, inputs), width)]


def spell(task: Task[Any], tokens: Array) -> str:
    """Tokens as text if they are bytes or characters, else as numbers."""
    if task.domain in ("text", "language") and task.vocabulary == 256:
        return " ".join(bytes(tokens.astype(np.uint8)).decode("utf-8", "replace").split())
    if task.kind == "masked" and task.vocabulary == 257:  # bytes, the mask, and what does not count
        shown = {IGNORE: "·", 256: "▒"}
        return "".join(shown.get(t, chr(t) if 32 <= t < 127 else " ") for t in tokens.tolist())
    if task.name in ("shakespeare", "dna"):
        from threefold.tasks.corpora import corpus

        decoded = corpus(task.name, "character").tokenizer.decode(tokens.tolist())
        return " ".join(decoded.split())
    return " ".join("·" if token == IGNORE else str(token) for token in tokens.tolist())


def _numbers(task: Task[Any], inputs: Array, width: int) -> list[str]:
    if inputs.ndim == 3:  # an image [channels, height, width] from −1 to 1
        return picture((inputs.mean(0) + 1) / 2)
    side = _side(len(inputs))
    if task.domain == "vision" and side and task.name != "pmnist":
        return picture(inputs.mean(-1).reshape(side, side))
    return [
        sparkline(inputs[:, feature].tolist(), width, largest)
        for feature in range(min(MOST_CURVES, inputs.shape[1]))
    ]


def _answer(task: Task[Any], rows: Batch, inputs: Array, width: int) -> str:
    targets = rows.targets[0].numpy()
    if targets.dtype.kind == "f":
        return (
            f"{float(targets):.3f}"
            if targets.ndim == 0
            else sparkline(targets.ravel().tolist(), width, largest)
        )
    if targets.ndim == 0:
        return str(int(targets))
    return cut(spell(task, targets[: len(inputs)]), width)


def _side(count: int) -> int:
    """The side of a square image of `count` pixels; 0: it is not square."""
    side = int(np.sqrt(count))
    return side if side * side == count else 0


def picture(brightness: Array) -> list[str]:
    """Numbers from 0 to 1 as shades; each pixel is two characters wide."""
    shades = np.clip((brightness * len(SHADES)).astype(int), 0, len(SHADES) - 1)
    return ["".join(SHADES[shade] * 2 for shade in row).rstrip() for row in shades]


def cut(text: str, width: int) -> str:
    """At most `width` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"
