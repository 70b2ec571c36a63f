"""`threefold lab …`: small versions of the studies, and the figures they draw."""

from __future__ import annotations

import gzip
import itertools
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch

import threefold
from tests.surfaces.test_cli import here
from threefold.lab.studies import deepnet, digits, hippo, sampling_rates
from threefold.lab.studies import delay as late
from threefold.layers.state_space_mixer import set_rate
from threefold.tasks.chords import chords
from threefold.tasks.delay import delay


def assert_drawn(folder: Path, name: str) -> None:
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    svg = (folder / f"{name}.svg").read_text(encoding="utf-8")
    assert svg.startswith("<?xml") and "<svg" in svg and "<text" in svg


def test_hippo_from_the_shell(tmp_path: Path) -> None:
    done = here("lab", "hippo", "--folder", str(tmp_path / "figures"), "--samples", "500")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[:4]] == [
        "LegS",
        "LegT",
        "Fourier",
        "LagT",
    ]
    assert_drawn(tmp_path / "figures", "hippo")


def test_hippo_errors() -> None:
    legs, legt, fourier, lagt = hippo.remember(hippo.wave(10_000), 64)
    assert legs.error < 0.02 and legt.error < 0.01
    # The window of Fourier jumps at its edges; Laguerre functions fade before the end of theirs.
    assert fourier.error < 0.2 and lagt.error < 0.5
    assert legs.past.max() > 9.9 and legt.past.max() <= 4.0


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    done = here("lab", "hippo", "--folder", str(tmp_path / "file"), "--samples", "200")
    assert done.returncode == 2 and "cannot be created as a folder" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ("objectives TEXT --steps 2 --length 8 --width 16", 0, "xlnet"),
        ("adding gru --length 8 --width 16 --steps 2", 0, "gru             not solved"),
        ("gradients rnn --steps 0 --length 8 --width 16 --picture PICTURE", 0, "by distance  1: "),
        ("translate luong --length 2 --width 16 --steps 2", 0, "luong          1: "),
        ("translate bahdanu --steps 2", 2, "did you mean 'bahdanau'?"),
        ("mackey-glass --seeds 1 --units 20", 0, "median"),
        ("deepnet --depth 2 --steps 2 --seeds 1 --folder FOLDER", 0, "DeepNorm, 2 layers"),
        ("controls parity --steps 2 --examples 50", 0, "parity                  0.5000"),
    ],
)
def test_studies_are_commands(arguments: str, code: int, expected: str, tmp_path: Path) -> None:
    text, picture = tmp_path / "text.txt", tmp_path / "norms.png"
    text.write_text("the cat sat on the mat. " * 30)
    arguments = arguments.replace("TEXT", str(text)).replace("FOLDER", str(tmp_path))
    done = here("lab", *arguments.replace("PICTURE", str(picture)).split())
    assert done.returncode == code, done.stderr
    assert expected in done.stdout + done.stderr
    assert picture.is_file() == ("PICTURE" in arguments)


def test_accuracy_stays_at_half_the_rate(tmp_path: Path) -> None:
    """A classifier hears chords at half its training rate, once its filters are adjusted."""
    plan = sampling_rates.SamplingRateStudy(length=128, width=16, depth=1, steps=240)
    full, half = sampling_rates.measure(sampling_rates.train(plan), plan, (1.0, 0.5))
    assert full.adjusted > 0.8
    assert half.adjusted > full.adjusted - 0.03
    # Without the adjustment the filters hear every chord an octave up.
    assert half.unchanged < full.adjusted - 0.2
    sampling_rates.save(sampling_rates.draw([full, half], plan), tmp_path, "rates")
    assert_drawn(tmp_path, "rates")


def test_chords_are_the_same_sounds_at_every_rate() -> None:
    full, half = (chords(256, rate=rate).rows("test", range(4)) for rate in (1.0, 0.5))
    assert torch.equal(full.targets, half.targets) and half.inputs.shape == (4, 128, 1)
    assert (full.inputs[:, 1::2] - half.inputs).abs().max() < 0.11  # only the noise
    with pytest.raises(threefold.ThreefoldError, match=r"rate 0.1 is 26 samples.*more than 30"):
        chords(256, rate=0.1)


def test_delay_is_late() -> None:
    rows = delay(100, 30, period=20.0).rows("test", range(3))
    assert torch.equal(rows.targets[:, 30:], rows.inputs[:, :70])
    assert rows.targets[:, :30].isnan().all()
    many = delay(400, 30, period=20.0).examples("test").inputs
    assert float(many.var()) == pytest.approx(1, rel=0.05)
    with pytest.raises(threefold.ThreefoldError, match="a delay of 30"):
        delay(20, 30)


def test_s4_learns_a_delay_and_both_curves_are_drawn(tmp_path: Path) -> None:
    plan = late.DelayStudy(elements=60, width=16, time=None, steps=150)
    late_s4 = late.study("s4", plan, points=4)
    assert late_s4.errors[-1] < 0.5 < late_s4.errors[0]
    assert len(late_s4.errors) == len(late_s4.seconds) == 5 and late_s4.steps == 150
    lstm = late.study("lstm", replace(plan, time=0.5, steps=None), points=4)
    assert len(lstm.errors) == 5 and 0 < lstm.seconds[-1] < 1
    late.save(late.draw([late_s4, lstm], plan), tmp_path, "delay")
    assert_drawn(tmp_path, "delay")


def test_deep_norm_learns_where_post_norm_does_not(tmp_path: Path) -> None:
    plan = deepnet.DeepNetStudy(depth=100, steps=25, seeds=(0,))
    deep, post = (deepnet.study(block, 100, 0, plan) for block in ("deep_norm", "post_norm"))
    assert fmean(deep[-5:]) < 2.6 < 2.9 < fmean(post[-5:])
    tokens = plan.rows(0, 1).inputs
    rows = [deepnet.DeepNetStudy(noise=0.0).rows(0, step).inputs for step in range(3)]
    pairs = {pair for row in torch.cat(rows).tolist() for pair in itertools.pairwise(row)}
    assert len(pairs) == 8 and tokens.shape == (8, 16)  # one successor for each symbol
    assert deepnet.DeepNetStudy(noise=1.0).best == pytest.approx(plan.chance) == 3.0
    deepnet.save(deepnet.draw({"both": [deep, post]}, plan), tmp_path, "deepnet")
    assert_drawn(tmp_path, "deepnet")


def test_the_study_of_digits(tmp_path: Path) -> None:
    """On random images; `threefold lab digits` measures the published difference."""
    rows = torch.cat([torch.randint(0, 17, (1797, 64)), torch.randint(0, 10, (1797, 1))], 1)
    text = "\n".join(",".join(map(str, row)) for row in rows.tolist())
    (tmp_path / "digits.csv.gz").write_bytes(gzip.compress(text.encode()))
    plan = digits.DigitsStudy(16, 8, 512, epochs=1, seeds=(0,), folder=tmp_path)
    lines = digits.run(tmp_path, plan)
    assert lines[0].startswith("HiPPO-LegS") and lines[1].startswith("random A")
    assert len(digits.study("random", 0, plan).valid) == 1
    assert_drawn(tmp_path, "digits")


def test_a_random_system_is_stable() -> None:
    torch.manual_seed(0)
    for size in (1, 2, 16):
        mixer = threefold.mixer("lssl", width=16, state_size=size, measure="random", learn=False)
        assert torch.linalg.eigvals(mixer.get_parameter("A").double()).real.max() <= 1e-6
        set_rate(mixer, 0.5)
