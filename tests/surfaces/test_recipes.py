"""`threefold lab recipe`: every file is a configuration, builds its model and can be trained."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.surfaces.test_cli import here
from threefold.data.fetch import cached
from threefold.data.packages import PACKAGES
from threefold.lab.recipes import recipe as recipes
from threefold.lab.recipes.recipe import FOLDER, RECIPES, Requirement, train_recipe
from threefold.runtime.interrupts import InterruptedByUser
from threefold.tasks.table import card
from threefold.training.config import RunConfig
from threefold.training.evaluation import evaluate
from threefold.training.experiment import run
from threefold.training.training_data import open_data

SHORT = ("training.steps=2", "training.eval_every=2", "data.batch_size=2", "data.eval_examples=2")


def fetched(config: RunConfig) -> None:
    """Skip recipes whose data are not downloaded."""
    for name in card(config.data.name).where.split(" + "):
        here = name == "scikit-learn" and find_spec("sklearn") is not None
        if name in PACKAGES and cached(name) is None and not here:
            pytest.skip(f"{name} is not fetched")


def test_every_file_is_a_recipe() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.toml")) == sorted(RECIPES)
    for name, one in RECIPES.items():
        head = one.path.read_text(encoding="utf-8").partition("[data]")[0].replace("\n# ", " ")
        assert one.name == name and f"Reached {one.recorded} (required: {one.requirement})" in head
        assert f"in {one.minutes:g} minutes" in head
        assert one.config().training.steps, f"{name}: ends by the clock, never twice the same"


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_learn_two_steps(name: str) -> None:
    if RECIPES[name].unit == "BLEU":
        pytest.importorskip("sacrebleu")
    config = RECIPES[name].config(SHORT)
    fetched(config)
    reached = run(config, test=False)
    assert reached.result.steps == 2 and reached.result.scores.loss > 0


@pytest.mark.parametrize("name", ["digits8-vit", "digits8-mamba"])
def test_images_are_learnt(name: str) -> None:
    pytest.importorskip("sklearn")
    reached = run(RECIPES[name].config(("training.steps=60", "training.eval_every=60")), test=False)
    assert reached.model.kind == "vision"
    assert reached.result.scores.metric > 0.3  # a guess is right in a tenth of all cases


@pytest.mark.parametrize("name", RECIPES)
def test_recorded_scores_meet_the_requirement(name: str) -> None:
    one = RECIPES[name]
    assert len(one.reached) == 1 + bool(one.length)
    assert one.required is None or all(map(one.required.met, one.reached))


def test_requirements() -> None:
    assert Requirement("≥", 1).met(1) and not Requirement(">", 1).met(1)
    assert Requirement("≤", 1).met(1) and not Requirement("<", 1).met(1)


def test_a_recipe_is_evaluated_on_the_whole_test_split_at_both_lengths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = replace(RECIPES["recall-delta_net"], length=64)
    monkeypatch.setitem(RECIPES, short.name, short)
    changes = (
        "data.options={pairs=2, length=16}",
        "data.batch_size=200",
        "data.eval_examples=1",
        *SHORT[:2],
    )
    outcome = train_recipe(short.name, changes)
    assert not outcome.met and "NOT met" in outcome.facts[0][1]
    for length, figure in zip((16, 64), outcome.scores, strict=True):
        there = open_data("recall", options={"pairs": 2}, length=length, batch_size=200)
        scores = evaluate(outcome.reached.model, there.pieces("test"))
        assert figure == pytest.approx(100 * scores.metric)


def test_an_interrupted_recipe_is_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(RECIPES["recall-delta_net"].config(SHORT), test=False)
    whole.result.stopped = "interrupted"
    monkeypatch.setattr("threefold.training.experiment.run", lambda *_, **__: whole)
    with pytest.raises(InterruptedByUser, match="stopped after step"):
        train_recipe("recall-delta_net")


def test_the_page_has_the_same_figures() -> None:
    """The table in README.md agrees with the code."""
    page = (Path(recipes.__file__).parent / "README.md").read_text(encoding="utf-8")
    for one in RECIPES.values():
        cells = (f"`{one.name}`", one.shows, one.requirement, one.recorded, f"{one.minutes:g}")
        row = f"| {' | '.join((*cells, one.published))} |"
        assert row in page, f"the line of {one.name} should be\n{row}"


def test_the_commands(tmp_path: Path) -> None:
    listed = here("lab", "recipe", "--json")
    assert listed.returncode == 0, listed.stderr
    assert [one["name"] for one in json.loads(listed.stdout)] == list(RECIPES)
    unknown = here("lab", "recipe", "recall-delta")
    assert unknown.returncode == 2 and "did you mean 'recall-delta_net'?" in unknown.stderr
    changes = ("--set", "training.steps=2", "--set", "data.options={pairs=2, length=16}")
    done = here("lab", "recipe", "recall-delta_net", *changes, "--folder", str(tmp_path / "run"))
    assert done.returncode == 1, done.stderr
    assert "NOT met" in done.stdout and (tmp_path / "run" / "model").is_dir()
