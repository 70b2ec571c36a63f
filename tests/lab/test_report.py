"""The texts of a report: the verdict with its uncertainty, and its limitations."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.lab.reports import contender, report
from threefold.drawing.text import format_value
from threefold.lab.race.sequential import InterimLook
from threefold.lab.race.significance import Interval
from threefold.lab.report import cost_figures
from threefold.lab.report.evidence import best_lines, evidence, use_commands
from threefold.lab.report.markdown import markdown
from threefold.lab.report.page import page
from threefold.lab.report.recommendation import recommended
from threefold.lab.report.report import BaselineResult, BestModel, Contender, Report
from threefold.lab.report.sentences import still_learning
from threefold.lab.report.story import with_story
from threefold.lab.report.summary import summary
from threefold.lab.report.tables import caption, columns


def scored(name: str, *scores: float, decode: float = 1e-4) -> Contender:
    """A contender with these scores, one for each seed."""
    made = contender(name, seeds=len(scores))
    runs = tuple(replace(run, score=s) for run, s in zip(made.runs, scores, strict=True))
    return replace(made, runs=runs, cost=replace(made.cost, decode=((256, decode),)))


def told(*contenders: Contender, **changes: object) -> Report:
    subject = replace(report().subject, **changes)  # type: ignore[arg-type]
    return Report(subject, contenders)


def test_a_winner_and_a_faster_model() -> None:
    made = told(scored("mamba", 1.40, 1.50, 1.60, decode=3e-4), scored("lstm", 1.44, 1.541, 1.639))
    assert made.sentence == ("mamba is best by 0.0400 ± 0.0057 nats; lstm decodes 3 times as fast.")
    assert "Seeds overlap" in " ".join(made.warnings)  # although every single seed agrees


def test_a_winner_that_is_also_fastest() -> None:
    made = told(scored("lstm", 1.0, 1.1, 1.2), scored("mamba", 2.0, 2.1, 2.2, decode=3e-4))
    assert made.sentence.startswith("lstm is best by 1")
    assert made.sentence.endswith("it also decodes fastest.")
    assert not any("overlap" in warning for warning in made.warnings)
    assert caption(made).startswith("Best model first.")


def test_a_tie() -> None:
    made = told(scored("a", 1.0, 1.2, 1.1), scored("b", 1.1, 1.0, 1.2), scored("c", 9.0, 9.1, 9.2))
    assert made.verdict.kind == "tie"
    assert made.sentence.startswith("A tie: a and b cannot be distinguished (a leads b by ")
    assert any("With 3 seeds only large differences" in warning for warning in made.warnings)
    assert caption(made).startswith("Sorted by score. ± is half the width of the 99 % confidence")
    slower = told(scored("a", 1.0, 1.2, 1.1), scored("b", 1.1, 1.0, 1.2, decode=3e-4))
    assert slower.sentence.endswith("; a decodes fastest.")


def test_one_seed_gives_no_verdict() -> None:
    made = told(scored("a", 1.0), scored("b", 2.0))
    assert (
        "a leads b by 1 nats; with one seed it is unknown how much of this is chance"
        in made.sentence
    )
    assert any("One seed per model" in warning for warning in made.warnings)
    alone = told(scored("a", 1.0, 1.1))
    assert "no other model took part" in alone.sentence


def test_two_seeds_are_too_few_to_tell() -> None:
    """Their interval would be 64 times as wide as they differ: 2 ± 92 percentage points."""
    first, second = scored("a", 0.52, 0.58), scored("b", 0.55, 0.51)
    made = told(first, second, metric="accuracy", lower=False)
    assert "(a leads b by 2 percentage points; two seeds are too few to tell)" in made.sentence
    shown = page(replace(made, baselines=(baseline(0.7, 2),))) + " ".join(evidence(made))
    assert "two seeds are too few to tell how much of it is chance" in shown
    assert "±" not in shown
    equal = told(first, scored("b", 0.58, 0.52), metric="accuracy", lower=False)
    assert "their mean scores are equal; two seeds are too few to tell" in equal.sentence
    clear = told(scored("a", 0.9, 0.901), scored("b", 0.1, 0.101), metric="accuracy", lower=False)
    assert clear.sentence.startswith("a is best by 80.0")


def test_percent() -> None:
    scores = [(0.9, 0.91, 0.92), (0.8, 0.812, 0.818)]
    made = told(scored("a", *scores[0]), scored("b", *scores[1]), metric="accuracy", lower=False)
    assert made.verdict.leader == "a" and " percentage points" in made.sentence
    assert made.subject.score(0.931, 0.004) == "93.10 ± 0.40 %"


def test_short_training_and_chance() -> None:
    small = report("mamba", "lstm", steps=40)
    assert any("Training was short (40 steps)" in warning for warning in small.warnings)
    hopeless = told(scored("a", 3.3, 3.4), scored("b", 3.5, 3.6))
    assert any("No model is better than a baseline" in warning for warning in hopeless.warnings)
    assert not any("No model" in warning for warning in report().warnings)


def test_models_that_are_still_learning() -> None:
    done = contender("mamba")
    assert not still_learning(done)
    runs = tuple(
        replace(run, curve=tuple(m._replace(score=5 - m.steps / 1000) for m in run.curve))
        for run in done.runs
    )
    falling = replace(done, runs=runs)
    assert still_learning(falling)
    made = told(falling, contender("lstm"))
    assert any("mamba was still learning at the end" in w for w in made.warnings)
    assert any(w.endswith("the order may change.") for w in made.warnings)
    assert any(w.endswith("the score may improve.") for w in told(falling).warnings)


def test_memory_says_at_which_length_it_was_measured() -> None:
    made = told(contender("mamba"), contender("lstm"))
    titles = [title for title, _, _ in columns(made)]
    assert titles[-2].startswith("peak training memory at ") and titles[-2].endswith(" tokens")
    # A model that was not measured at the longest length is compared at the longest of its own.
    long, short = contender("mamba"), contender("lstm")
    long = replace(long, cost=replace(long.cost, memory=((16, 512.0), (64, 8192.0))))
    short = replace(short, cost=replace(short.cost, memory=((16, 1024.0),)))
    report = told(long, short)
    title, cells, best = columns(report)[-2]
    assert title == "peak training memory at 16 tokens" and cells == ["512 B", "1 KiB"]
    assert best == 0 and report.ranked[0].name == "mamba"
    texts = {figure.title: figure.description for figure in cost_figures.memory(report)}
    assert texts["Peak training memory"] == "Best model at 16 tokens: mamba."


def test_the_story_of_the_demo_explains_scores_and_who_won() -> None:
    worse, better = (
        replace(told(contender("mamba")), baselines=(b,)) for b in (baseline(0.9), baseline(3.0))
    )
    won, lost = (" ".join(with_story(r, "a text").subject.story) for r in (worse, better))
    assert "n-grams, which count what follows the last few bytes, need 0.9; mamba" in won
    assert "bytes are called tokens" in won and "“a text”" in won
    assert "That n-grams won is no mistake." in won and "no mistake" not in lost


SAVED = BestModel("a", 1, "race/best", "threefold predict race/best data.csv")


def baseline(score: float, seeds: int = 3) -> BaselineResult:
    """A baseline with the same score for all seeds."""
    results = tuple((seed, score) for seed in range(seeds))
    return BaselineResult("n-grams", results, 0.42, 3e-6, {"memory_bytes": 4 * 2**20})


def test_the_summary_recommends_a_winner() -> None:
    good = {"calibration": {"form": "confidence", "error": 0.08, "bins": []}}
    first = replace(scored("mamba", 0.90, 0.91, 0.92), extras={"weight_bytes": 2**20, **good})
    made = told(first, scored("lstm", 0.80, 0.812, 0.818), metric="accuracy", lower=False)
    text = " ".join(summary(replace(made, baselines=(baseline(0.82),))))
    assert text.startswith(
        "Use mamba, the best of the models. It is right in 91 % of the test cases; the best simple "
        "method, n-grams, is right in 82 % of the test cases (50 % fewer mistakes). It needs 100 µs"
    )
    assert " for each token and " in text and " MiB of memory on this machine" in text
    assert "Do not take its probabilities at face value: they are off by 8 percentage" in text
    assert "That mamba is the best model is 99 % certain: each model was trained 3 times." in text
    assert text.endswith("Next: train it on all your data, with `threefold train reference "
                         "--mixers mamba`.")  # fmt: skip
    settings = replace(made.subject, command="threefold compare a.csv --set data.horizon=3")
    last = summary(replace(made, subject=settings))[-1]
    assert last.endswith("`threefold train a.csv --mixers mamba --set data.horizon=3`.")
    assert "No simple method took part." in " ".join(summary(made))


def test_the_summary_recommends_a_baseline_that_is_not_beaten() -> None:
    models = scored("a", 1.50, 1.52, 1.51), scored("b", 1.90, 1.92, 1.91)
    lost = summary(replace(told(*models), baselines=(baseline(1.2),)))
    assert lost[0] == (
        "Use n-grams, a simple method: no sequence model beats it here. It has a loss of 1.2 nats; "
        "the best sequence model, a, has a loss of 1.51 nats."
    )
    assert lost[1] == (
        "It needs 3 µs for each token and 4 MiB of memory on this machine, and was fitted in "
        "420 ms."
    )
    unclear = summary(replace(told(*models), baselines=(baseline(1.53),)))
    assert "no sequence model clearly beats it" in unclear[0]


def test_a_model_that_hardly_differs_from_a_simple_method_is_not_recommended() -> None:
    models = scored("a", 1.2999, 1.29991, 1.29989), scored("b", 1.2999, 1.29991, 1.29989)
    made = replace(told(*models), baselines=(baseline(1.3),), best=SAVED)
    assert made.lead_over(made.baselines[0]).positive  # certain, and of no use
    assert recommended(made) is made.baselines[0]
    assert summary(made)[0].startswith(
        "Use n-grams, a simple method: the sequence models have added nothing to it. It has "
    )
    assert "A simple method, n-grams (1.3), is as good as a (1.2999" in made.sentence
    assert best_lines(made)[0] == "The baseline n-grams is recommended; it is not saved."
    folder = BestModel("n-grams", 0, "race/best-baseline", "threefold predict race/best-baseline x")
    saved = replace(made, best_baseline=folder)
    assert best_lines(saved)[0] == (
        "The baseline n-grams is recommended; fitted to the training examples, it is in "
        "race/best-baseline."
    )
    assert use_commands(saved) == (folder.command, SAVED.command)
    assert summary(saved)[-1].startswith("Next: use it, threefold predict race/best-baseline x, or")


def test_the_lead_over_a_simple_method_has_an_interval_over_test_examples() -> None:
    models = scored("a", 1.50, 1.501, 1.502), scored("b", 1.90, 1.92, 1.91)
    sure = replace(told(*models), baselines=(baseline(1.6),))
    sure = replace(sure, baseline_margins={"n-grams": Interval(0.1, 0.04, 300, 0.99)})
    sure = Report.from_dict(sure.to_dict())
    assert recommended(sure).name == "a"
    assert "its lead over n-grams would be between 0.06 and 0.14 nats (99 %" in " ".join(
        summary(sure)
    )
    assert (
        "a is ahead of the best baseline, n-grams, by 0.100 ± 0.040 nats (99 % confidence, "
        "bootstrap of 300 test examples, with the trained models as they are)."
    ) in evidence(sure)
    chance = replace(sure, baseline_margins={"n-grams": Interval(0.1, 0.2, 30, 0.99)})
    assert recommended(chance).name == "n-grams"
    assert "cannot be distinguished from a" in chance.sentence
    units = replace(sure, subject=replace(sure.subject, metric="absolute_error", quantity="load"))
    assert "by 0.100 ± 0.040 units of load (99 %" in " ".join(evidence(units))
    alone = replace(sure, contenders=models[:1])
    assert "a is ahead of the best baseline" in page(alone)
    same = replace(sure, test_margins={"b": Interval(0.0, 0.0, 30, 0.99)})
    assert "Over test examples: a and b score the same on each of 30 examples." in evidence(same)


def test_a_saved_simple_method_is_used_even_if_models_still_learn() -> None:
    falling = replace(contender("mamba"), runs=tuple(
        replace(run, curve=tuple(
            point._replace(score=5.0 - 0.1 * number) for number, point in enumerate(run.curve)
        ))
        for run in contender("mamba").runs
    ))  # fmt: skip
    made = replace(told(falling), baselines=(baseline(0.9),))
    assert summary(made)[-1].startswith("Next: repeat this with a longer --time, because mamba")
    saved = replace(SAVED, name="n-grams", command="threefold predict race/best-baseline data.csv")
    assert summary(replace(made, best_baseline=saved))[-1] == (
        "Next: use it, threefold predict race/best-baseline data.csv; or repeat this with a longer "
        "--time, because mamba was still improving."
    )


def test_the_summary_of_a_tie_of_one_seed_and_of_short_training() -> None:
    tied = told(scored("a", 1.0, 1.2, 1.1, decode=4e-4), scored("b", 1.1, 1.0, 1.2))
    assert recommended(tied).name == "b"  # as good, and faster
    text = " ".join(summary(tied))
    assert text.startswith("Use b: it is as good as a, as far as this race can tell, and the fast")
    assert "may be chance" in text and text.endswith("repeat this with more --seeds.")
    once = " ".join(summary(told(scored("a", 1.0), scored("b", 2.0))))
    assert "trained once only, so the order of the models may be chance" in once
    short = summary(report("mamba", "lstm", steps=40))
    assert short[-1] == "Next: repeat this with a longer --time; 40 training steps say little."


def test_errors_are_in_the_units_of_a_column() -> None:
    made = told(contender("mamba"), metric="absolute_error", quantity="flow")
    assert columns(made)[0][0] == "test absolute error, units of flow"
    assert "is off by 1.41 units of flow on average" in summary(made)[0]
    assert "absolute error, units of flow (lower is better)" in page(made)


def test_a_small_test_set_is_told_and_scores_are_rounded() -> None:
    few = {"metric": "accuracy", "lower": False, "test_examples": 6, "resolution": 1 / 6}
    made = told(scored("a", 5 / 6, 1.0), scored("b", 0.5, 5 / 6), **few)
    text = " ".join(summary(made))
    assert "is right in 92 % of the 6 test cases" in text
    assert text.endswith("Next: repeat this with more rows: 6 test examples decide little.")
    assert made.warnings[0] == (
        "The test has only 6 examples: one more right answer changes a score by 17 percentage "
        "points. More rows say more; more --seeds or a longer --time do not help here."
    )
    assert "91.67" not in page(made).split("<svg")[0] and "a leads b by 25 " in made.sentence
    assert "<dt>test examples</dt><dd>6</dd>" in page(made)
    large = replace(made.subject, test_examples=2000, resolution=1 / 2000)
    assert large.score(0.91666) == "91.67 %"


def test_intervals_of_percentages_end_where_percentages_do() -> None:
    made = told(scored("a", 0.5, 2 / 3, 1.0), metric="accuracy", lower=False)
    subject = made.subject
    assert subject.score(0.72, 1.46) == "72 [0, 100] %"
    assert subject.score(0.92, 0.12) == "92 [80, 100] %" and subject.score(0.9, 0.1) == "90 ± 10 %"
    assert subject.difference(0.28, 1.46) == "28 [-100, 100] percentage points"
    assert subject.difference(0.02, 0.05) == "2.0 ± 5.0 percentage points"
    assert "[0, 100] %" in page(made) and "±" not in columns(made)[0][1][0]
    assert "[low, high]" in caption(made)


def test_differences_of_two_seeds_promise_no_intervals() -> None:
    two = told(scored("a", 0.52, 0.58), scored("b", 0.55, 0.51), metric="accuracy", lower=False)
    text = page(two)
    assert "too few seeds for confidence intervals" in text
    assert "models whose interval includes zero" not in text
    assert "accuracy, worse by, percentage points" in text
    three = told(contender("mamba"), contender("lstm"), metric="absolute_error", quantity="load")
    assert "models whose interval includes zero" in page(three)
    assert "absolute error, worse by, units of load" in page(three)


def test_calibration_of_a_handful_of_answers_is_not_told() -> None:
    bins = [{"n": 3, "confidence": c, "accuracy": 0.5, "from": c, "to": c} for c in (0.5, 0.9)]
    found = {"calibration": {"form": "confidence", "error": 0.2, "bins": bins}}
    few = replace(scored("a", 0.9, 0.92), extras=found)
    many = [{**one, "n": 300} for one in bins]
    sure = {"calibration": {**found["calibration"], "bins": many}}
    made = told(few, replace(scored("b", 0.8, 0.81), extras=sure), metric="accuracy", lower=False)
    column = next(c for c in columns(made) if c[0] == "calibration error")
    assert column[1] == ["–", "20 %"]
    assert "Do not take its probabilities" not in " ".join(summary(made))
    text = page(made)
    assert "Expected calibration error: b 20 %." in text
    assert "Not drawn, with too few answers of similar probability: a." in text


def test_bands_that_contain_too_much_are_explained() -> None:
    wide = {"calibration": {"form": "coverage", "nominal": 0.8, "actual": 0.98, "by_step": []}}
    made = told(replace(contender("mamba"), extras=wide))
    assert "Its 80 % bands contain 98 % of the test values, so they are too wide" in " ".join(
        summary(made)
    )


def test_equal_values_are_not_bold_and_the_page_links_its_last_section() -> None:
    made = told(scored("a", 1.0, 1.0), scored("b", 1.0, 1.0))
    assert columns(made)[0][2] is None and "use" not in page(made).split("<nav")[1][:400]
    assert '<li><a href="#use">Use the best model</a></li>' in page(replace(made, best=SAVED))


def test_a_whole_input_has_one_time() -> None:
    text = " ".join(summary(told(scored("a", 1.0, 1.1), kind="classifier")))
    assert "25.6 ms for an input of 256 elements" in text


def test_percentages_have_one_style() -> None:
    text = page(report()) + markdown(report())
    assert "99 %" in text and not re.search(r"\d%", text.split("</style>")[-1])


def test_the_pareto_front() -> None:
    made = told(scored("a", 1.0, 1.0), scored("b", 2.0, 2.0), scored("c", 3.0, 3.0))
    cost, memory = {"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 9.0, "b": 9.0, "c": 1.0}
    assert made.pareto(cost, memory) == ("a", "c")
    assert made.pareto({"b": 2.0, "c": 3.0}) == ("b",)  # those with a cost only
    assert made.pareto({"a": 3.0, "b": 1.0, "c": 2.0}) == ("a", "b")
    assert made.pareto({"a": 1.0, "b": 2.0, "c": 3.0}) == ("a",)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1234, "count", "1,234"),
        (1.5e6, "count", "1.5M"),
        (999_960, "count", "1M"),
        (2.5e-4, "seconds", "250 µs"),
        (300, "seconds", "5 min"),
        (3 * 2**20, "bytes", "3 MiB"),
        (0.5, "percent", "50 %"),
        (12.344, "percent", "1,234 %"),
        (float("inf"), "number", "–"),
    ],
)
def test_values_have_readable_units(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


def test_what_a_verdict_rests_on() -> None:
    """Seeds, test examples, looks, and models that were stopped early."""
    stopped = replace(scored("c", 3.0, 2.2), stopped=True)
    contenders = (scored("a", 1.0, 1.1, 1.2, 1.3), scored("b", 2.0, 2.12, 2.21, 2.3), stopped)
    looks = (InterimLook(2, 0.5), InterimLook(3, 0.75), InterimLook(4, 0.9))
    margins = {"b": Interval(1.0, 1.5, 300, 0.99), "c": Interval(2.0, 0.1, 300, 0.99)}
    made = replace(told(*contenders), looks=looks, test_margins=margins)
    assert [c.name for c in made.ranked] == ["a", "b", "c"]
    text = " ".join(evidence(made))
    assert "Over seeds: a leads b by 1.007 ± " in text and "confidence, 4 seeds)" in text
    assert "Over test examples: 1.0 ± 1.5 nats (99 % confidence, bootstrap of 300 examples" in text
    assert "Most of the uncertainty comes from the test set: more test data narrow it." in text
    assert "after 2, 3 and 4 seeds; the race ended when all other models had been stopped." in text
    assert "mislead in at most 1 % of races" in text
    # Two seeds at an early look: it was stopped by the leader of that time, not by a.
    assert "c was stopped after 2 seeds" in text and "is not certain" in text
    assert "c" in made.verdict.rivals and made.verdict.kind == "tie"
    sure = replace(made, contenders=(contenders[0], contenders[1]))
    assert "the race ended when the verdict was clear." in " ".join(evidence(sure))
    assert any("on other test examples of this number it may vanish" in w for w in sure.warnings)
    for shown in (page(made), markdown(made)):
        assert "c (stopped)" in shown and "What the verdict rests on" in shown


def test_the_best_model_and_a_better_baseline() -> None:
    made = replace(told(scored("a", 1.0, 1.2, 1.1), scored("b", 2.0, 2.1, 2.2)), best=SAVED)
    assert best_lines(made) == (
        "The best sequence model, a (seed 1, the run with the lowest validation loss), is in "
        "race/best.",
    )
    worse = BaselineResult("ridge", ((0, 1.5), (1, 1.7), (2, 1.6)), 0.1, 1e-6)
    assert best_lines(replace(made, baselines=(worse,))) == best_lines(made)
    ridge = BaselineResult("ridge", ((0, 0.5), (1, 0.5), (2, 0.5)), 0.1, 1e-6)
    refitted = replace(made, baselines=(ridge,), best=replace(SAVED, refitted="10m"))
    assert best_lines(refitted) == (
        "The baseline ridge is recommended (better by 0.6 nats); it is not saved.",
        "The best sequence model, a, trained on all data for 10m after the race, is in race/best.",
    )
    for shown in (page(refitted), markdown(refitted)):
        assert (
            "threefold predict race/best data.csv" in shown
            and "ridge is recommended (better by" in shown
        )
    assert refitted.to_dict()["best"]["refitted"] == "10m"
