"""Shapes: two drawn shapes, and the sentence that describes them.

      ▒▒
     ▒▒▒▒
    ███████
    ███████      →  a small green triangle above a large red square
    ███████

A sentence is right only if it names size, colour and shape of both and how they lie.  No sentence
of one split is in another, so a model has to compose what it has seen.  Solved: 95 % exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from threefold.data.preprocessing.media import ReadPicture, picture_levels
from threefold.data.preprocessing.text import Tokenize
from threefold.data.random_by_address import integers_by_row
from threefold.tasks.captions import caption_steps
from threefold.tasks.pairs import Pairs, captions, sources_of
from threefold.tasks.task import Numbers, Task, address, declare

SIDE = 16  # pixels of an image; each shape lies in one half of it
SIZES = {"small": 4, "large": 7}  # pixels
COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "yellow": (255, 255, 0)}
SHAPES = ("circle", "square", "triangle")
RELATIONS = ("above", "left of")
KINDS = len(SIZES) * len(COLOURS) * len(SHAPES)  # of one shape
WORDS = ("a", " a", *(f" {word}" for word in (*SIZES, *COLOURS, *SHAPES)), " above", " left", " of")
Scene = Sequence[int]  # the relation, then both shapes, each a number below KINDS


def shapes(*, seed: int = 0) -> Task[Pairs]:
    """Images [3, 16, 16] from −1 to 1 and their sentences; the places of the shapes vary."""
    steps = caption_steps(WORDS, ReadPicture(SIDE, SIDE))
    step: Tokenize = steps.outputs.find(Tokenize)

    def draw(split: str, numbers: Numbers) -> Pairs:
        def make(attempt: int, rows: Numbers) -> list[list[int]]:
            key = address(seed, split, attempt)
            relations = integers_by_row((*key, 0), rows, len(RELATIONS), 1)
            kinds = integers_by_row((*key, 1), rows, KINDS, 2)
            return np.concatenate([relations, kinds], 1).tolist()  # type: ignore[no-any-return]

        scenes = sources_of("shapes", split, numbers, make)
        moves = integers_by_row(address(seed, split, 1 << 20), numbers, 1 << 20, 4)
        images = np.stack([draw_scene(s, m) for s, m in zip(scenes, moves, strict=True)])
        texts = [step.apply(describe(scene)).tolist() for scene in scenes]
        return captions("shapes", torch.from_numpy(picture_levels(images)), texts, step.vocabulary)

    return replace(declare("shapes", draw), preprocessing=lambda: steps)


def describe(scene: Scene) -> str:
    """The sentence of a scene."""
    first, second = (" ".join(("a", *_words(kind))) for kind in scene[1:])
    return f"{first} {RELATIONS[scene[0]]} {second}"


def draw_scene(scene: Scene, moves: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The image [16, 16, 3]; moves [4]: any numbers, which move both shapes along both axes."""
    image = np.zeros((SIDE, SIDE, 3), np.uint8)
    for half, kind in enumerate(scene[1:]):
        size, colour, shape = _words(kind)
        side = SIZES[size]
        # Along the axis of the relation anywhere in its half, across it near the middle.
        along = half * (SIDE // 2) + int(moves[2 * half]) % (SIDE // 2 - side + 1)
        across = (SIDE - side) // 2 - 1 + int(moves[2 * half + 1]) % 3
        down, right = (along, across) if scene[0] == 0 else (across, along)
        image[down : down + side, right : right + side][_mask(shape, side)] = COLOURS[colour]
    return image


def _words(kind: int) -> tuple[str, str, str]:
    """Size, colour and shape."""
    rest, shape = divmod(kind, len(SHAPES))
    size, colour = divmod(rest, len(COLOURS))
    return list(SIZES)[size], list(COLOURS)[colour], SHAPES[shape]


def _mask(shape: str, side: int) -> NDArray[np.bool_]:
    """The pixels [side, side] of a shape; in halves of pixels, so that all is exact."""
    down, right = np.indices((side, side))
    x, y = 2 * right - (side - 1), 2 * down - (side - 1)
    if shape == "circle":
        return np.asarray(x**2 + y**2 <= side**2)
    if shape == "triangle":
        return np.asarray(abs(x) <= down + 1)
    return np.ones((side, side), bool)
