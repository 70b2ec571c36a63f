"""Tables of a user: several series, categories, gaps, stratified splits, all questions at once."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import threefold
from threefold import ThreefoldError
from threefold.cli import main
from threefold.cli.predict import write_answers
from threefold.data.preprocessing import Preprocessing
from threefold.data.preprocessing.categories import OneHot
from threefold.errors import AmbiguousError, command_line
from threefold.lab.race.baselines import run_baselines
from threefold.lab.race.examples import _series
from threefold.runtime.answers import Answers
from threefold.runtime.streaming import stream
from threefold.tasks.user_data import ReadSettings, user_task
from threefold.training.config import DataSettings
from threefold.training.training_data import TrainingData

START = datetime.datetime(2024, 1, 1)
SMALL = {"model.width": 16, "model.depth": 1}


def write(path: Path, header: str, rows: Any) -> Path:
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def day(number: int) -> str:
    return (START + datetime.timedelta(days=number)).strftime("%Y-%m-%d")


def facts(task: Any) -> dict[str, str]:
    return dict(task.description.facts)


# ----------------------------------------------------------------------------- several series

LEVELS = {"kiosk": 2.0, "mall": 50_000.0}


def shop_rows(shops: dict[str, float], days: range) -> list[tuple[Any, ...]]:
    return [
        (day(i), shop, level * (1 + 0.3 * math.sin(2 * math.pi * i / 7) + 0.02 * math.sin(i * i)))
        for i in days
        for shop, level in shops.items()
    ]


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("shops")
    path = write(folder / "shops.csv", "date,shop,sales", shop_rows(LEVELS, range(200)))
    options = {"target": "sales", "series_column": "shop", "horizon": 3, "mixers": "gru"}
    settings = {**SMALL, "data.length": 14, "training.learning_rate": 0.01}
    run = threefold.train(
        path, folder=folder / "run", steps=150, settings=settings, seed=0, **options
    )
    return folder, run


def test_series_of_different_levels_are_forecast_in_their_own_units(shops: Any) -> None:
    """With one scale for all, the small series is a constant for the model."""
    folder, _ = shops
    path = write(folder / "new.csv", "date,shop,sales", shop_rows(LEVELS, range(200, 240)))
    answers = threefold.load(folder / "run").predict(path)  # type: ignore[attr-defined]
    truth = {(shop, stamp): sales for stamp, shop, sales in shop_rows(LEVELS, range(250))}
    for answer in answers:
        level = LEVELS[answer["series"]]
        expected = truth[answer["series"], answer["time"]]
        assert answer["sales"] == pytest.approx(expected, abs=0.1 * level), answer


def test_a_series_that_training_has_not_seen_is_scaled_by_its_history(shops: Any) -> None:
    folder, run = shops
    new = {"garage": 700.0}
    path = write(folder / "garage.csv", "date,shop,sales", shop_rows(new, range(200, 240)))
    answers = run.model.predict(path)
    assert any("garage was not in the training data" in note for note in answers.notes)
    assert all(400 < answer["sales"] < 1000 for answer in answers)
    scores = threefold.evaluate(run.model, path)
    assert scores["mae"] < 300
    assert "kiosk" in Preprocessing.read(folder / "run" / "model").inputs.steps[0].scales  # type: ignore


def test_evaluation_and_streams_use_the_scale_of_each_series(shops: Any) -> None:
    folder, run = shops
    scores = threefold.evaluate(run.model, folder / "shops.csv", split="test")
    by_name = {row["series"]: row for row in scores["by_series"]}
    assert by_name["kiosk"]["mae"] < 1 and by_name["mall"]["mae"] > 50
    ratio = by_name["kiosk"]["mase"] / by_name["mall"]["mase"]
    assert ratio == pytest.approx(1, rel=1e-3)  # the same curve, at two levels
    chunks = threefold.stream(run.model, folder / "shops.csv")
    rows = [row for chunk in chunks for row in chunk.rows()]
    last = {row["series"]: row["sales+1"] for row in rows}
    for shop, level in LEVELS.items():
        assert 0.5 * level < last[shop] < 1.5 * level


def test_the_scale_of_mase_leaves_out_gaps(tmp_path: Path) -> None:
    days = [*range(100), *range(1000, 1100)]
    rows = [(day(i), i) for i in days]  # one a day, and 900 over the gap
    task = user_task(write(tmp_path / "x.csv", "date,flow", rows), ReadSettings(target="flow"))
    assert task.preprocessing().naive_errors["1"] == [1.0]  # type: ignore[misc]
    assert task.preprocessing().naive_errors["7"] == [7.0]  # type: ignore[misc]


def test_the_chance_level_of_a_forecast_is_the_better_naive_one(tmp_path: Path) -> None:
    weekly = [(day(i), 10 + (i % 7) ** 2) for i in range(200)]
    task = user_task(write(tmp_path / "x.csv", "date,flow", weekly), ReadSettings(target="flow"))
    assert task.chance == pytest.approx(0) and task.chance_name == "the value of 7 rows ago"
    drift = [(day(i), float(i)) for i in range(200)]
    task = user_task(write(tmp_path / "y.csv", "date,flow", drift), ReadSettings(target="flow"))
    assert task.chance_name == "the last value repeated"


# --------------------------------------------------------------------------------- categories

COLOURS = {"red": 1.0, "green": 5.0, "blue": -3.0}


def painted(count: int) -> list[tuple[Any, ...]]:
    draw = np.random.default_rng(0)
    names = draw.choice(list(COLOURS), count)
    return [(n, round(float(x), 3), round(COLOURS[n] + 0.1 * float(x), 4))
            for n, x in zip(names.tolist(), draw.normal(size=count), strict=True)]  # fmt: skip


def test_categories_are_inputs_of_tables(tmp_path: Path) -> None:
    path = write(tmp_path / "paint.csv", "colour,x,price", painted(150))
    settings = {**SMALL, "training.learning_rate": 0.02}
    options: Any = {"kind": "regressor", "target": "price", "mixers": "gru", "steps": 150}
    run = threefold.train(path, folder=tmp_path / "run", settings=settings, **options)
    assert run.summary["test"]["metric"] < 1, "the price follows from the colour"
    description = run.data.task.description  # type: ignore[attr-defined]
    assert "colour: blue, green, red" in dict(description.facts)["categories"]
    model = threefold.load(tmp_path / "run")
    new = write(tmp_path / "new.csv", "x,colour", [(0, "green"), (0, "blue"), (0, "pink")])
    answers = model.predict(new)  # type: ignore[attr-defined]
    assert answers[0]["value"] == pytest.approx(5, abs=1)
    assert answers[1]["value"] == pytest.approx(-3, abs=1)
    assert any("colour: 1 cell has" in note and "new.csv:4" in note for note in answers.notes)
    with pytest.raises(ThreefoldError, match=r"with categories .colour.*expected a table"):
        model.predict([[1.0, 2.0]])  # type: ignore[attr-defined]


def test_unknown_categories_are_refused_if_missing_values_are(tmp_path: Path) -> None:
    path = write(tmp_path / "paint.csv", "colour,x,price", painted(60))
    options = ReadSettings(kind="regressor", target="price", missing="refuse")
    known = user_task(path, options).preprocessing()  # type: ignore[misc]
    other = write(tmp_path / "new.csv", "colour,x,price", [("pink", 0, 1)])
    with pytest.raises(ThreefoldError, match=r"new.csv:2: colour is 'pink'; .*trained on blue"):
        user_task(other, options, preprocessing=known, split=False)


@pytest.mark.parametrize("kind", ["forecaster", "classifier", "grouped classifier"])
def test_categories_of_every_kind_of_table(kind: str, tmp_path: Path) -> None:
    rows = [
        (i // 10, x, colour, "yes" if i // 10 % 2 else "no")
        for i, (colour, x, _) in enumerate(painted(200))
    ]
    path = write(tmp_path / "x.csv", "number,x,colour,label", rows)
    settings = {
        "forecaster": ReadSettings(kind="forecaster", target="x"),
        "classifier": ReadSettings(kind="classifier", target="label"),
        "grouped classifier": ReadSettings(
            kind="classifier", target="label", group_column="number"
        ),
    }[kind]
    task = user_task(path, settings)
    known = task.preprocessing()  # type: ignore[misc]
    assert known.categories["colour"] == ["blue", "green", "red"]
    assert "colour" in facts(task)["categories"]
    assert Preprocessing.from_dict(known.to_dict()) == known


def test_one_hot_is_inverted() -> None:
    step = OneHot.fit(("a", "b", "c"), {"b": ["x", "y"]})
    values = np.array([[1.0, 2.0, 3.0, 0.0], [4.0, 0.0, 5.0, 1.0], [6.0, 1.0, 7.0, 0.0]])
    encoded = step.apply(values)
    assert encoded.tolist() == [[1, 3, 0, 0, 1], [4, 5, 1, 0, 0], [6, 7, 0, 1, 0]]
    assert step.invert(encoded).tolist() == values.tolist()


# ------------------------------------------------------------------------------ all questions


def test_all_questions_are_asked_at_once(tmp_path: Path) -> None:
    stamps = [f"0{1 + i % 9}/0{1 + i // 9 % 9}/2024" for i in range(60)]
    rows = [(stamps[i], stamps[-i - 1], math.sin(i), math.cos(i)) for i in range(60)]
    path = write(tmp_path / "x.csv", "begin,end,flow,load", rows)
    with command_line(), pytest.raises(AmbiguousError) as asked:
        user_task(path, ReadSettings())
    message = str(asked.value)
    for option in ("--time-column begin", "--target flow", "data.day_first=true"):
        assert option in message, message
    assert len(asked.value.questions) == 3
    answered = ReadSettings(time_column="begin", target="flow", day_first=True)
    assert user_task(path, answered).kind == "forecaster"


def test_questions_behind_a_doubtful_header_are_asked_too(tmp_path: Path) -> None:
    waves = [(math.sin(i), math.cos(i)) for i in range(60)]
    path = tmp_path / "x.csv"
    path.write_text("".join(f"{a},{b}\n" for a, b in waves))
    with command_line(), pytest.raises(AmbiguousError) as asked:
        user_task(path, ReadSettings())
    assert "--set data.header=true" in asked.value.options
    assert "--target c1" in asked.value.options
    assert Counter(len(choices) > 1 for _, choices in asked.value.questions) == {True: 2}


# ---------------------------------------------------------------------------- splits, chance


def test_every_class_is_in_the_test_split(tmp_path: Path) -> None:
    labels = ["common"] * 100 + ["rare"] * 3 + ["other"] * 30 + ["once"]
    path = write(tmp_path / "x.csv", "x,y,label", [(i % 7, i % 5, n) for i, n in enumerate(labels)])
    task = user_task(path, ReadSettings(kind="classifier", target="label"))
    names = task.preprocessing().labels  # type: ignore[misc]
    drawn = {
        split: Counter(names[i] for i in task.examples(split).targets.tolist())
        for split in ("train", "valid", "test")
    }
    assert drawn["test"] == {"common": 10, "other": 3, "rare": 1}
    assert drawn["train"]["once"] == 1 and drawn["train"]["rare"] >= 1
    assert sum(drawn["valid"].values()) == 13
    assert sum(map(sum, (part.values() for part in drawn.values()))) == len(labels)
    assert "stratified by class" in facts(task)["split"]
    assert any("not tested: once" in note for note in task.description.notes)


def test_the_chance_level_is_learnt_from_the_training_split(tmp_path: Path) -> None:
    """The commonest class of the test split was taken, which no model can know."""
    x = [np.ones(3)] * 20
    y = {"train": ["a"] * 12 + ["b"] * 8, "valid": ["a", "b"], "test": ["b"] * 9 + ["a"]}
    splits: Any = {name: (x[: len(y[name])], y[name]) for name in ("valid", "test")}
    task = threefold.Task.from_arrays(x, y["train"], splits=splits)
    assert task.chance == pytest.approx(0.1)
    data: Any = TrainingData(task, DataSettings(name="arrays", batch_size=4))
    majority = run_baselines(data, "simple", 1, 100, lambda text: None)[0]
    assert majority.name == "majority" and majority.scores[0] == pytest.approx(task.chance)


# ------------------------------------------------------------------- options as users spell them


def test_messages_spell_options_as_their_reader_does(tmp_path: Path, capsys: Any) -> None:
    rows = [(math.sin(i), math.cos(i)) for i in range(60)]
    path = write(tmp_path / "x.csv", 'my flow,"a,b"', rows)
    with pytest.raises(AmbiguousError) as asked:
        threefold.train(path, steps=1)
    assert asked.value.options[:2] == ['target="my flow"', 'target="\\"a,b\\""']
    assert "--" not in str(asked.value)
    with pytest.raises(SystemExit):
        main(["data", "check", str(path)])
    offered = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert "--target 'my flow'" in offered and """--target '"a,b"'""" in offered
    assert user_task(path, ReadSettings(target='"a,b"')).kind == "forecaster"
    with pytest.raises(ThreefoldError, match=r'settings={"data.length": N}.*horizon=N'):
        threefold.train(path, steps=1, target=["a,b"], horizon=1000)
    with pytest.raises(ThreefoldError, match="a horizon of 99,999,999,999,999,999,999: train has"):
        threefold.train(path, steps=1, target=["a,b"], horizon=99_999_999_999_999_999_999)
    with pytest.raises(ThreefoldError, match=r"^kind is vision, but"):
        threefold.train(["some text"] * 100, steps=1, kind="vision")


@pytest.mark.parametrize("kind", ["forecaster", "classifier"])
def test_a_model_knows_how_its_dates_were_written(kind: str, tmp_path: Path) -> None:
    """The days of the training data go up to 31, those of new data may not."""

    def rows(form: str, count: int) -> list[tuple[Any, ...]]:
        days = [(START + datetime.timedelta(days=i)).strftime(form) for i in range(count)]
        return [(d, i // 5, math.sin(i), "ab"[i // 5 % 2]) for i, d in enumerate(days)]

    options: Any = {"kind": kind, "target": "flow", "steps": 1, "mixers": "gru", "settings": SMALL}
    if kind == "classifier":
        options |= {"target": "label", "group_column": "n", "features": "flow"}
    header = "date,n,flow,label"
    known = write(tmp_path / "x.csv", header, rows("%m/%d/%Y", 200))
    model = threefold.train(known, **options).model
    new = write(tmp_path / "new.csv", header, rows("%m/%d/%Y", 10))
    answers = model.predict(new)  # type: ignore[attr-defined]
    assert kind == "classifier" or answers[0]["time"] == "01/11/2024"
    other = write(tmp_path / "other.csv", header, rows("%Y-%m-%d", 200))
    model = threefold.train(other, **options).model
    with pytest.raises(
        ThreefoldError, match=r"day or the month first\? .*2024-01-.*write them so$"
    ):
        model.predict(new)  # type: ignore[attr-defined]


def test_a_tagger_tells_the_share_of_unknown_words(tmp_path: Path) -> None:
    path = tmp_path / "x.conll"
    path.write_text("the\tD\ndog\tN\nruns\tV\n\n" * 20)
    model: Any = threefold.train(path, steps=1, mixers="gru", settings=SMALL).model
    notes = model.predict(["the fax glims", "the dog"]).notes
    assert notes and notes[0].startswith("40% of the words (2 of 5) were not in the training data")
    assert notes[0].endswith("fax, glims")
    assert model.predict(["the dog runs", "the cat runs"]).notes == []  # one of six


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_tagged_words_are_read_in_one_way(separator: str, tmp_path: Path) -> None:
    start = separator.join(("-DOCSTART-", "-X-", "O"))
    first = ["the", "dog", "runs"], ["D", "N", "V"]
    second = ["cats", "sleep"], ["N", "V"]
    lines = [start, ""]
    for words, tags in (first, second):
        lines += [separator.join((word, "-X-", tag)) for word, tag in zip(words, tags, strict=True)]
        lines += [""]
    path = tmp_path / "x.conll"
    path.write_text("\n".join(lines * 10))
    trained = threefold.train(path, steps=1, mixers="gru", settings=SMALL, folder=tmp_path / "run")
    model: Any = threefold.load(trained.folder)
    answers = model.predict(path)
    assert [answer["words"] for answer in answers] == [first[0], second[0]] * 10
    assert threefold.evaluate(trained, path)["n"] == 20
    by_word = [tag for answer in answers for tag in answer["tags"]]
    for chunk_size in (1, 64):
        rows = [
            row
            for part in stream(model, path, mode="predict", chunk_size=chunk_size)
            for row in part.rows()
        ]
        assert [row["word"] for row in rows] == [*first[0], *second[0]] * 10
        assert [row["tag"] for row in rows] == by_word


def test_three_questions_are_asked_together(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text(
        "".join(f"0{1 + i % 9}/0{1 + i // 9}/2024,{i}.5,{'ab'[i % 2]}\n" for i in range(72))
    )
    with pytest.raises(ThreefoldError) as error:
        threefold.train(path, mixers="gru", steps=1)
    message = str(error.value)
    assert message.startswith("3 questions about the data; answer all of them together:")
    for what in ("a header or data?", "may be a label (c3)", "only if rows are read in the order"):
        assert what in message
    answers: Any = {"kind": "forecaster", "target": "c2", "horizon": 1, "mixers": "gru"}
    read = {**SMALL, "data.header": False, "data.day_first": True, "data.length": 4}
    assert threefold.train(path, steps=1, settings=read, **answers).model.kind == "forecaster"


def test_a_model_knows_how_its_thousands_were_separated(tmp_path: Path) -> None:
    known = {"x": [f"{1000.5 + 97 * i:,.1f}" for i in range(60)], "y": [i % 7 for i in range(60)]}
    options: Any = {"kind": "regressor", "target": "y", "mixers": "gru", "settings": SMALL}
    model: Any = threefold.train(known, steps=1, **options).model
    assert model.preprocessing.decimal == "."
    new = write(tmp_path / "new.csv", "x", [('"1,001"',), ("1001",)])
    one, other = model.predict(new)
    assert one == other
    # Cells that show their sign are read so, whatever that of the training data was.
    points = model.predict(write(tmp_path / "points.csv", "x", [("2500.5",), ("1001.25",)]))
    commas = tmp_path / "commas.csv"
    commas.write_text("x;note\n2500,5;a\n1.001,25;b\n")
    assert list(model.predict(commas)) == list(points)
    commas.write_text("x;y\n2500,5;3\n1.001,25;2\n")
    assert threefold.evaluate(model, commas)["n"] == 2


# ----------------------------------------------------------- identifiers, texts beside numbers


def customers(path: Path) -> Path:
    rows = [
        (f"C-{i * 7919 % 997:05}", i % 50, 0.37 * i, "pf"[i % 2], "yn"[i % 3 // 2])
        for i in range(60)
    ]
    return write(path, "customer,age,income,plan,churn", rows)


def test_a_column_that_only_names_the_rows_is_left_out_with_its_reason(tmp_path: Path) -> None:
    path = customers(tmp_path / "churn.csv")
    found = facts(user_task(path, ReadSettings(target="churn")))
    assert found["inputs"] == "age, income, plan"
    assert found["not used"] == "customer (identifier: every value occurs once)"
    task = user_task(path, ReadSettings(target="income"))
    assert task.kind == "regressor" and facts(task)["inputs"] == "age, plan, churn"
    chosen = facts(user_task(path, ReadSettings(target="churn", features="customer")))
    assert chosen["inputs"] == "customer" and "age (not in " in chosen["not used"]


def test_single_words_are_read_if_nothing_else_can_be(tmp_path: Path) -> None:
    path = write(
        tmp_path / "names.csv", "name,origin", [(f"Ann{i}a", "xy"[i % 2]) for i in range(40)]
    )
    assert facts(user_task(path, ReadSettings()))["inputs"] == "name"


def asked(path: Path, **settings: Any) -> list[str]:
    with command_line(), pytest.raises(AmbiguousError) as error:
        user_task(path, ReadSettings(**settings))
    return [choice.split("    ")[0] for choice in error.value.options]


def chosen(choice: str) -> ReadSettings:
    words = choice.removeprefix("--").replace("-column ", "_column ").split(" --")
    return ReadSettings(**dict(word.split(" ", 1) for word in words))  # type: ignore[arg-type]


def test_proposals_for_several_texts_name_the_label_and_work(tmp_path: Path) -> None:
    rows = [(f"Fine day {i}", f"All went well on day {i}", "pn"[i % 2]) for i in range(60)]
    path = write(tmp_path / "reviews.csv", "title,body,mood", rows)
    choices = asked(path)
    assert choices[-1] == "--features title,body --target mood"
    for choice in choices:
        assert facts(user_task(path, chosen(choice)))["target"] == "mood"
    assert asked(path, features="title,body")[0] == "--target mood"


def test_text_beside_numbers_is_asked_about(tmp_path: Path) -> None:
    rows = [(f"a house of {i} rooms", i % 7, math.sin(i), "yn"[i % 2]) for i in range(60)]
    path = write(tmp_path / "houses.csv", "about,age,size,sold", rows)
    choices = asked(path, target="sold")
    assert choices == [
        "--features about --target sold",
        "--kind classifier --features age,size --target sold",
    ]
    inputs = [facts(user_task(path, chosen(choice)))["inputs"] for choice in choices]
    assert inputs == ["about", "age, size"]
    rows = [(row[0], "DE" if number % 3 else "FR", row[3]) for number, row in enumerate(rows)]
    path = write(tmp_path / "reviews.csv", "review,country,mood", rows)
    choices = asked(path)  # several labels and one text: each answer is whole
    assert choices == [f"--features review --target {name}" for name in ("country", "mood")]
    for choice in choices:
        assert facts(user_task(path, chosen(choice)))["inputs"] == "review"


def test_a_number_per_group_is_regressed(tmp_path: Path) -> None:
    rows = [(f"W{i // 6}", i % 6, math.sin(i), "AB"[i // 6 % 2], 30.5 + i // 6) for i in range(240)]
    path = write(tmp_path / "wear.csv", "window,t,vibration,machine,wear", rows)
    task = user_task(path, ReadSettings(target="wear", group_column="window"))
    assert task.kind == "regressor" and facts(task)["inputs"] == "t, vibration, machine"
    assert (
        user_task(path, ReadSettings(target="machine", group_column="window")).kind == "classifier"
    )
    choices = asked(path, group_column="window")
    assert choices[:2] == ["--kind classifier --target machine", "--kind regressor --target wear"]
    assert asked(path, group_column="window", target="vibration") == [
        "--kind forecaster --series-column window --target vibration"
    ]


@pytest.mark.parametrize("names", [("a", "b"), (7, 12)])
def test_rows_of_several_series_are_not_taken_for_one(
    names: tuple[Any, Any], tmp_path: Path
) -> None:
    rows = []
    for hour in range(60):
        when, wave = f"2024-01-{1 + hour // 24:02} {hour % 24:02}:00", 2 + np.sin(hour / 4)
        rows += [f"{when},{names[0]},{wave:.3f}", f"{when},{names[1]},{1000 * wave:.1f}"]
    path = tmp_path / "machines.csv"
    path.write_text("\n".join(["when,machine,load", *rows]))
    known = {"target": "load", "horizon": 2}
    with pytest.raises(AmbiguousError, match="once for each machine: several") as why:
        user_task(path, ReadSettings(**known))
    assert [text.split("    ")[1] for text in why.value.options] == ["a series each", "one series"]
    for answer in ({"series_column": "machine"}, {"features": "machine"}):
        assert user_task(path, ReadSettings(**known, **answer)).size("train")
    # A second row now and then is no other series.
    path.write_text("\n".join(["when,machine,load", *rows[::2], rows[1]]))
    assert user_task(path, ReadSettings(**known)).size("train")


def test_many_columns_are_told_together_and_a_given_target_is_kept(tmp_path: Path) -> None:
    names = [*(f"t{n}" for n in range(80)), "kind"]
    random = np.random.default_rng(0)
    rows = [[*(f"{x:.3f}" for x in random.normal(size=80)), "ab"[n % 2]] for n in range(40)]
    path = tmp_path / "shapes.csv"
    path.write_text("\n".join(",".join(row) for row in [names, *rows]))
    with pytest.raises(AmbiguousError) as asked:
        user_task(path, ReadSettings())
    assert "t0 … t79 (80 numbers), kind (category)" in str(asked.value)
    assert "t40" not in str(asked.value) and "forecaster" in str(asked.value)
    with pytest.raises(AmbiguousError) as asked:
        user_task(path, ReadSettings(target="kind"))
    assert "forecaster" not in str(asked.value) and "classifier" in str(asked.value)


def test_a_wide_row_is_drawn_as_one_curve_and_left_out_beside_its_prediction(
    capsys: pytest.CaptureFixture[str],
) -> None:
    drawn = _series(np.arange(80.0)[None])
    assert drawn["more_channels"] == 0 and len(drawn["curves"]) == 1
    assert drawn["places"][-1] == 79 and drawn["curves"][0][79] == 79
    answer = {"label": "a", "probability": 0.9, "probabilities": {"a": 0.9, "b": 0.1}}
    wide, narrow = ({f"t{n}": float(n) for n in range(count)} for count in (9, 2))
    write_answers(Answers([answer], ["x.csv:2"], [wide]), None, False)
    shown = capsys.readouterr().out
    assert "x.csv:2" in shown and "prediction" in shown and "probability" in shown
    assert "t3" not in shown and "9 columns more" in shown
    write_answers(Answers([answer], ["x.csv:2"], [narrow]), None, False)
    assert "t1" in capsys.readouterr().out
    write_answers(Answers([answer], ["x.csv:2"], [wide]), None, True)
    assert '"t8": 8.0' in capsys.readouterr().out
