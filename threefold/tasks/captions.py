"""Texts that describe images: the steps between them, and digits as English words.

digits8-words   an image of a handwritten 3  →  three
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from threefold.data.preprocessing import Chain, Preprocessing
from threefold.data.preprocessing.media import ReadPicture
from threefold.data.preprocessing.text import Tokenize
from threefold.data.tokenizers import WordTokenizer
from threefold.tasks.image_tasks import digits8_images
from threefold.tasks.number_to_words import SMALL
from threefold.tasks.pairs import FIRST_TOKEN, Pairs, captions
from threefold.tasks.task import Numbers, Task, declare

LONGEST = 16  # words of a caption that a model writes at most


def caption_steps(words: Sequence[str], read: ReadPicture) -> Preprocessing:
    """What stands between images and texts of these words."""
    text = Tokenize.by(WordTokenizer(words), LONGEST, FIRST_TOKEN)
    return Preprocessing("captioner", "image", Chain((read,)), Chain((text,)))


def digits8_words(folder: Path | None = None) -> Task[Pairs]:
    """The images of `digits8-images` with the English words of their digits."""
    images = digits8_images(folder)
    words = caption_steps(SMALL[:10], ReadPicture(8, 8, colours="L"))
    step: Tokenize = words.outputs.find(Tokenize)

    def draw(split: str, numbers: Numbers) -> Pairs:
        rows = images.draw(split, numbers)
        texts = [step.apply(SMALL[digit]).tolist() for digit in rows.targets.tolist()]
        return captions("digits8-words", rows.inputs, texts, step.vocabulary)

    return replace(declare("digits8-words", draw, sizes=images.sizes), preprocessing=lambda: words)
