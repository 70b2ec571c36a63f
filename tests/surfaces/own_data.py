"""Small files of every kind of a user's own data, made from fixed random numbers."""

from __future__ import annotations

import csv
import datetime
import math
import random
import wave
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

GOOD, BAD = ["great", "lovely", "superb", "fine"], ["awful", "boring", "poor", "sad"]
WORDS = {"dog": "N", "cat": "N", "runs": "V", "eats": "V", "the": "D"}
START = datetime.datetime(2024, 1, 1)
ROWS = 400  # of a series


def write_table(path: Path, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([list(header), *map(list, rows)])


def reviews(count: int, seed: int = 0) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        label = draw.choice(["positive", "negative"])
        words = draw.choices(GOOD if label == "positive" else BAD, k=2)
        rows.append((f"film {number} was {words[0]} and {words[1]}", label))
    return rows


def series(count: int = ROWS) -> list[tuple[str, float, float]]:
    """(time, flow around 1000, pressure around 0.01): two scales."""
    noise = np.random.default_rng(0).normal(size=(count, 2))
    return [
        (
            (START + datetime.timedelta(hours=i)).strftime("%Y-%m-%d %H:%M"),
            round(1000 + 50 * math.sin(i / 3) + 2 * float(noise[i, 0]), 3),
            round(0.01 * math.cos(i / 3) + 0.0005 * float(noise[i, 1]), 6),
        )
        for i in range(count)
    ]


def sentences(count: int) -> list[list[str]]:
    draw = random.Random(1)
    return [draw.choices(list(WORDS), k=draw.randrange(3, 7)) for _ in range(count)]


def make_files(folder: Path) -> None:
    """Write all of them."""
    folder.mkdir(exist_ok=True)
    _make_texts(folder)
    _make_tables(folder)
    _make_series(folder)
    _make_media(folder)


def _make_texts(folder: Path) -> None:
    text = "".join(f"{review}.\n" for review, _ in reviews(300))
    (folder / "notes.txt").write_text(text)
    write_table(folder / "reviews.csv", ("review", "sentiment"), reviews(120))
    draw = random.Random(2)
    numbers = [draw.choices(["one", "two"], k=2) for _ in range(80)]
    lines = [f"{' '.join(pair)}\t{' '.join(pair).upper()}\n" for pair in numbers]
    (folder / "pairs.tsv").write_text("".join(lines))
    tagged = ["".join(f"{w}\t{WORDS[w]}\n" for w in sentence) for sentence in sentences(60)]
    (folder / "words.conll").write_text("\n".join(tagged))
    rows = [(i, w, WORDS[w]) for i, sentence in enumerate(sentences(60)) for w in sentence]
    write_table(folder / "tags.csv", ("sentence", "word", "tag"), rows)


def _make_tables(folder: Path) -> None:
    draw = np.random.default_rng(3)
    rooms = draw.integers(1, 8, 150)
    area, age = rooms * 25 + draw.normal(size=150) * 10, draw.integers(0, 80, 150)
    price = (2000 * area + 10_000 * rooms - 500 * age).round(2)
    houses = zip(rooms.tolist(), area.round(1).tolist(), age.tolist(), price.tolist(), strict=True)
    write_table(folder / "houses.csv", ("rooms", "area", "age", "price"), houses)


def _make_series(folder: Path) -> None:
    rows = series()
    write_table(folder / "flow.csv", ("flow",), ((flow,) for _, flow, _ in rows))
    write_table(folder / "sensors.csv", ("time", "flow", "pressure"), rows)
    shops = [
        (day.strftime("%Y-%m-%d"), shop, round(mean * (1 + 0.2 * math.sin(i)), 2))
        for i in range(150)
        for day in [START + datetime.timedelta(days=i)]
        for shop, mean in (("north", 100), ("south", 300))
    ]
    write_table(folder / "shops.csv", ("date", "shop", "sales"), shops)
    draw = random.Random(4)
    lines = ["@timeStamps false", "@univariate true", "@classLabel true down up", "@data"]
    for _ in range(60):
        up = draw.choice([True, False])
        values = [(i if up else -i) / 5 + draw.gauss(0, 0.1) for i in range(12)]
        lines.append(",".join(f"{v:.3f}" for v in values) + (":up" if up else ":down"))
    (folder / "shapes.ts").write_text("\n".join(lines) + "\n")


def _make_media(folder: Path) -> None:
    draw = np.random.default_rng(5)
    for label, frequency in (("low", 100), ("high", 1500)):
        (folder / "sounds" / label).mkdir(parents=True, exist_ok=True)
        for number in range(15):
            angles = 2 * np.pi * frequency * np.arange(60) / 8000 + draw.random() * 6
            write_sound(folder / "sounds" / label / f"{number}.wav", 8000 * np.sin(angles))
    for label, level in (("dark", 0), ("light", 150)):
        (folder / "images" / label).mkdir(parents=True, exist_ok=True)
        for number in range(15):
            pixels = (draw.random((5, 4)) * 100 + level).astype("uint8")
            Image.fromarray(pixels).save(folder / "images" / label / f"{number}.png")


def write_sound(path: Path, samples: Any, rate: int = 8000) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.asarray(samples).astype("<i2").tobytes())
