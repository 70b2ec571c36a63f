"""What synthetic tasks ask for, against an independent reading of their rows."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from threefold import ThreefoldError
from threefold.data.loaders import IGNORE
from threefold.drawing.attention import draw_sheet
from threefold.tasks.listops import text
from threefold.tasks.modular_arithmetic import SIGNS
from threefold.tasks.table import task


def test_copying_repeats_what_came_first() -> None:
    rows = task("copying", silence=9, symbols=3, alphabet=4).batch("train", 0, 200)
    for row, targets in zip(rows.inputs.tolist(), rows.targets.tolist(), strict=True):
        assert row[3:11] == [0] * 8 and row[11] == 5 and row[12:] == [0] * 3
        assert targets == [IGNORE] * 12 + row[:3] and set(row[:3]) <= {1, 2, 3, 4}


def test_selective_copying_repeats_what_is_not_noise() -> None:
    made = task("selective_copying", length=40, symbols=5)
    rows, seen = made.batch("train", 0, 400), set()
    for row, targets in zip(rows.inputs.tolist(), rows.targets.tolist(), strict=True):
        assert row[35:] == [15] * 5
        assert targets == [IGNORE] * 35 + [token for token in row[:35] if token]
        seen |= {place for place, token in enumerate(row[:35]) if token}
    assert seen == set(range(35))


def test_induction_heads_answer_what_followed_the_sign() -> None:
    rows, seen = task("induction_heads", length=20).batch("train", 0, 500), set()
    for row, targets in zip(rows.inputs.tolist(), rows.targets.tolist(), strict=True):
        first = row.index(16)
        assert row[-1] == 16 and row.count(16) == 2
        assert targets == [IGNORE] * 19 + [row[first + 1]]
        seen.add(first)
    assert seen == set(range(18))


def test_delay_gives_the_same_noise_later() -> None:
    rows = task("delay", length=50, delay=7, smooth=4).batch("train", 0, 500)
    assert (
        torch.equal(rows.targets[:, 7:], rows.inputs[:, :-7]) and rows.targets[:, :7].isnan().all()
    )
    noise = rows.inputs[..., 0]
    assert noise.mean().abs() < 0.02 and noise.var().item() == pytest.approx(1, abs=0.02)
    # Averaged over four: neighbours share three quarters, the fourth nothing.
    for apart, expected in ((1, 0.75), (2, 0.5), (4, 0.0), (9, 0.0)):
        assert (noise[:, apart:] * noise[:, :-apart]).mean().item() == pytest.approx(
            expected, abs=0.03
        )


def test_parity_counts_ones_and_is_tested_on_longer_rows() -> None:
    made = task("parity")
    for split, low, high in (("train", 1, 40), ("valid", 1, 40), ("test", 41, 500)):
        rows = made.batch(split, 0, 1000)
        assert int(rows.lengths.min()) == low and int(rows.lengths.max()) <= high
        for row, answer, n in zip(rows.inputs.tolist(), rows.targets, rows.lengths, strict=True):
            assert row[:n].count(1) % 2 == answer and not any(row[n:])


def test_modular_arithmetic_is_arithmetic() -> None:
    made = task("modular_arithmetic")
    for split in ("train", "test"):
        rows = made.batch(split, 0, 500)
        for row, answer, n in zip(rows.inputs.tolist(), rows.targets, rows.lengths, strict=True):
            written = "".join(SIGNS[token] for token in row[:n])
            assert eval(written.replace("−", "-").replace("×", "*")) % 5 == answer
            assert n % 2 == 1


def value(words: list[str]) -> int:
    """ListOps as a person reads it: an operation is done when its bracket closes."""
    done = {
        "[MAX": max,
        "[MIN": min,
        "[MED": lambda numbers: int(statistics.median(numbers)),
        "[SM": lambda numbers: sum(numbers) % 10,
    }
    lists: list[tuple[str, list[int]]] = [("", [])]
    for word in words:
        if word in done:
            lists.append((word, []))
        elif word == "]":
            name, numbers = lists.pop()
            assert len(numbers) >= 2
            lists[-1][1].append(done[name](numbers))
        else:
            lists[-1][1].append(int(word))
    ((_, (answer,)),) = lists
    return answer


@pytest.mark.parametrize(("name", "count"), [("listops-mini", 10_000), ("listops", 250)])
def test_listops_against_another_reading(name: str, count: int) -> None:
    rows = task(name).batch("train", 0, count)
    for row, answer, n in zip(rows.inputs.tolist(), rows.targets, rows.lengths, strict=True):
        assert value(text(row[:n]).split()) == answer
        assert not any(row[n:])


def depth_of(words: list[str]) -> int:
    depths = np.cumsum([word.startswith("[") - (word == "]") for word in words])
    return int(depths.max())


def tree(draws: random.Random, depth: int, most: int, arguments: int) -> list[str]:
    """The published definition as it stands: an operation with probability 1/4."""
    if depth == most or draws.random() > 0.25:
        return [str(draws.randrange(10))]
    inner = [tree(draws, depth + 1, most, arguments) for _ in range(draws.randint(2, arguments))]
    name = draws.choice(["[MIN", "[MAX", "[MED", "[SM"])
    return [name, *(word for part in inner for word in part), "]"]


def test_lengths_and_depths_of_listops_are_those_of_the_definition() -> None:
    draws, plain = random.Random(0), []
    while len(plain) < 120:
        words = tree(draws, 1, 10, 10)
        plain += [words] if 500 < len(words) < 2000 else []
    rows = task("listops").batch("valid", 0, 500)
    ours = [
        text(row[:n]).split() for row, n in zip(rows.inputs.tolist(), rows.lengths, strict=True)
    ]
    assert min(map(len, ours)) > 500 and max(map(len, ours)) < 2000
    assert max(map(depth_of, ours)) == 9  # digits are the tenth level
    for measure in (
        len,
        depth_of,
        lambda words: sum(w.startswith("[") for w in words) / len(words),
    ):
        one, other = ([float(measure(words)) for words in both] for both in (plain, ours))
        error = (np.var(one) / len(one) + np.var(other) / len(other)) ** 0.5
        assert abs(np.mean(one) - np.mean(other)) < 3.5 * error + 1e-9


def grown(image: NDArray[np.bool_], radius: int) -> NDArray[np.bool_]:
    """Everything within a distance."""
    padded, result = np.pad(image, radius), np.zeros_like(image)
    for down in range(2 * radius + 1):
        for across in range(2 * radius + 1):
            if (down - radius) ** 2 + (across - radius) ** 2 <= radius**2:
                result |= padded[down : down + len(image), across : across + len(image)]
    return result


def reached(start: NDArray[np.bool_], inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """What is connected to the start."""
    while True:
        more = grown(start, 1) & inside
        if (more == start).all():
            return start
        start = more


def test_pathfinder_against_a_look_at_the_image() -> None:
    rows = task("pathfinder128").batch("train", 0, 16)
    for pixels, answer in zip(rows.inputs.numpy(), rows.targets.tolist(), strict=True):
        image = np.kron(pixels.reshape(128, 128) > 0.4, np.ones((2, 2), dtype=bool))
        dots = ~grown(~image, 4)  # only dots are so thick
        first = np.zeros_like(dots)
        first[np.unravel_index(dots.argmax(), dots.shape)] = True
        one = reached(first, dots)
        assert one.any() and (dots & ~one).any()
        # Gaps are closed by growing all that is drawn, curves stay apart.
        joined = reached(one, grown(image, 4))
        assert bool((joined & dots & ~one).any()) == bool(answer)


def test_a_contact_sheet_is_drawn(tmp_path: Path) -> None:
    rows = task("pathfinder16").batch("train", 0, 10)
    draw_sheet(rows.inputs, tmp_path / "sheet.png", titles=[str(int(n)) for n in rows.targets])
    assert (tmp_path / "sheet.png").stat().st_size > 1000
    for images, titles in ((torch.zeros(2, 15), None), (torch.zeros(2, 16), ["one"])):
        with pytest.raises(ThreefoldError, match="draw_sheet"):
            draw_sheet(images, titles=titles)


def test_the_distance_of_the_dots_tells_nothing() -> None:
    distances: list[list[float]] = [[], []]
    rows = task("pathfinder").batch("train", 0, 300)
    for pixels, answer in zip(rows.inputs.numpy(), rows.targets.tolist(), strict=True):
        # Where four pixels in a square are bright there is a dot; those of one are close together.
        full = pixels.reshape(32, 32)
        sums = full[1:, 1:] + full[1:, :-1] + full[:-1, 1:] + full[:-1, :-1]
        places = np.argwhere(sums > 3.6)
        far = np.linalg.norm(places[:, None] - places[None], axis=-1)
        distances[answer].append(float(far.max()))
    one, other = distances
    error = ((np.var(one) + np.var(other)) / 150) ** 0.5
    assert abs(np.mean(one) - np.mean(other)) < 3 * error
    assert np.std(one) == pytest.approx(np.std(other), rel=0.25)


def test_pathfinder_is_balanced_in_every_two() -> None:
    rows = task("pathfinder16").batch("train", 0, 40)
    assert rows.targets.view(-1, 2).sum(1).tolist() == [1] * 20
    assert rows.inputs.min() == 0 and rows.inputs.max() == 1
