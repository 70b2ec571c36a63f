"""Training that starts from a trained model: what is kept, what is new, what is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import threefold
from tests.surfaces.test_train_commands import command
from threefold.errors import ThreefoldError
from threefold.models.adapters import adapter_rank, add_adapters
from threefold.models.saving import unique_tensors
from threefold.training.config import RunConfig
from threefold.training.experiment import read_run, run
from threefold.training.fine_tuning import settle
from threefold.training.frozen_layers import layer_factors, trained_count
from threefold.training.head_starts import choose_readout
from threefold.training.optimizer import parameter_groups
from threefold.training.preparation import prepare

GOOD, BAD = ("lovely", "superb", "charming"), ("awful", "boring", "dreadful")
SMALL = {"data.batch_size": 8, "model.width": 16, "model.depth": 2}


def sentence(good: bool, number: int) -> str:
    draw = random.Random(number)
    words = [draw.choice(("the", "film", "was", "plot", "music")) for _ in range(5)]
    words.insert(draw.randrange(5), draw.choice(GOOD if good else BAD))
    return " ".join(words)


def write_reviews(path: Path, labels: tuple[str, ...] = ("bad", "good"), head: str = "") -> Path:
    rows = [f"{sentence(i % 2 == 1, i)},{labels[i % len(labels)]}" for i in range(40)]
    path.write_text("\n".join([head or "text,label", *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a language model of words."""
    folder = tmp_path_factory.mktemp("language")
    text = "\n".join(sentence(i % 2 == 1, i) for i in range(400))
    (folder / "notes.txt").write_text(text, encoding="utf-8")
    settings: dict[str, Any] = {"data.length": 16, "data.tokenizer": "word", "data.vocabulary": 280}
    threefold.train(
        folder / "notes.txt",
        mixers="min_gru",
        steps=3,
        folder=folder / "run",
        settings={**SMALL, **settings},
    )
    return folder / "run"


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in unique_tensors(model).items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], *parts: str) -> bool:
    names = [name for name in one if name.split(".")[0] in parts]
    return bool(names) and all(torch.equal(one[name], other[name]) for name in names)


@pytest.mark.parametrize("kind", ["classifier", "regressor", "tagger", "language"])
def test_a_language_model_becomes_every_kind_of_text_model(
    kind: str, language_model: Path, tmp_path: Path
) -> None:
    files = {
        "classifier": write_reviews(tmp_path / "reviews.csv"),
        "regressor": write_reviews(tmp_path / "stars.csv", ("1.5", "4", "3.25"), "text,stars"),
        "tagger": tmp_path / "words.conll",
        "language": tmp_path / "more.txt",
    }
    rows = [f"{w}\t{'X' if w in GOOD + BAD else 'O'}" for w in sentence(True, 1).split()]
    files["tagger"].write_text(("\n".join(rows) + "\n\n") * 12, encoding="utf-8")
    files["language"].write_text(sentence(False, 2) * 60, encoding="utf-8")
    config = RunConfig.read(
        {
            "data": {"name": str(files[kind]), "kind": kind, "batch_size": 8, "length": 16},
            "model": {"from_model": str(language_model)},
            "training": {"steps": 1},
        }
    )
    prepared = prepare(settle(config))
    model, source = prepared.model, threefold.load(language_model)
    assert model.kind == kind and model.tokenizer.parts == source.tokenizer.parts
    assert prepared.takeover is not None
    assert prepared.takeover.new == (() if kind == "language" else ("head",))
    assert same(weights(model), weights(source), "embedding", "stack", "norm")
    trained = run(settle(config), tmp_path / "run", prepared=prepared)
    assert trained.test is not None
    answers = threefold.predict(tmp_path / "run", [sentence(True, 5).split()] * 2) if (
        kind == "tagger"
    ) else threefold.predict(tmp_path / "run", [sentence(True, 5)])  # fmt: skip
    assert len(answers) == (2 if kind == "tagger" else 1)
    if kind == "tagger":
        assert len(answers[0]["tags"]) == len(sentence(True, 5).split())


def test_training_goes_on_with_labels_columns_and_head(
    language_model: Path, tmp_path: Path
) -> None:
    first = threefold.train(
        write_reviews(tmp_path / "a.csv"),
        from_model=language_model,
        steps=2,
        folder=tmp_path / "first",
        settings={"data.batch_size": 8},
    )
    path = tmp_path / "b.csv"  # other column order, and one of the two labels only in few rows
    rows = [f"{('bad', 'good')[i % 2]},{sentence(i % 2 == 1, 100 + i)}" for i in range(20)]
    path.write_text("\n".join(["label,text", *rows]) + "\n", encoding="utf-8")
    config = settle(RunConfig.read({"data": {"name": str(path), "batch_size": 4},
                                    "model": {"from_model": str(tmp_path / "first")},
                                    "training": {"steps": 1}}))  # fmt: skip
    prepared = prepare(config)
    assert prepared.takeover is not None and prepared.takeover.new == ()
    assert same(weights(prepared.model), weights(first.model), "embedding", "stack", "head")
    assert prepared.model.preprocessing == first.model.preprocessing
    # Another label needs another head, of which no weight is taken over.
    write_reviews(path, ("bad", "good", "mixed"))
    prepared = prepare(config)
    assert prepared.takeover is not None and prepared.takeover.new == ("head",)
    assert prepared.model.preprocessing.labels == ("bad", "good", "mixed")


def test_sensors_keep_their_scale_and_order_of_columns(tmp_path: Path) -> None:
    draw = random.Random(0)

    def rows(names: list[str], shift: float) -> str:
        lines = [",".join([*names, "state"])]
        for i in range(40):
            cells = {n: f"{shift + draw.random() + (i % 2):.4f}" for n in names}
            lines.append(",".join([*(cells[n] for n in names), ("off", "on")[i % 2]]))
        return "\n".join(lines) + "\n"

    table = {"kind": "classifier", "target": "state"}
    (tmp_path / "a.csv").write_text(rows(["p", "q", "r"], 0.0), encoding="utf-8")
    (tmp_path / "b.csv").write_text(rows(["r", "p", "q"], 5.0), encoding="utf-8")
    settings = {**SMALL}
    first = threefold.train(tmp_path / "a.csv", mixers="gru", steps=1, settings=settings, **table)
    more: Any = {"from_model": first.model, "steps": 1, "settings": {"data.batch_size": 8}}
    second = threefold.train(tmp_path / "b.csv", **more)
    assert second.model.preprocessing == first.model.preprocessing
    third = threefold.train(tmp_path / "b.csv", target="state", kind="classifier", **more)
    assert third.model.preprocessing.roles.features == ("p", "q", "r")
    (tmp_path / "c.csv").write_text(rows(["p", "q", "x"], 0.0), encoding="utf-8")
    with pytest.raises(ThreefoldError, match=r"the column r is missing; the model was trained"):
        threefold.train(tmp_path / "c.csv", **more)
    with pytest.raises(ThreefoldError, match=r"inputs are p, q, x, but the model .* reads p, q, r"):
        threefold.train(tmp_path / "c.csv", target="state", kind="classifier", **more)


def test_what_does_not_fit_is_refused_in_words(language_model: Path, tmp_path: Path) -> None:
    reviews = write_reviews(tmp_path / "a.csv")
    start: Any = {"from_model": language_model, "steps": 1}
    with pytest.raises(ThreefoldError, match=r"model.mixers is 'gla', but .* has 'min_gru'"):
        threefold.train(reviews, mixers="gla", **start)
    with pytest.raises(ThreefoldError, match=r"data.tokenizer is 'byte', but the model .* leave"):
        threefold.train(reviews, settings={"data.tokenizer": "byte"}, **start)
    with pytest.raises(ThreefoldError, match=r"adapters.* need a trained model"):
        threefold.train(reviews, adapters=4, steps=1)
    with pytest.raises(ThreefoldError, match=r"training.freeze is 3, but the model has 2 blocks"):
        threefold.train(reviews, settings={"training.freeze": 3, "data.batch_size": 8}, **start)
    (tmp_path / "n.csv").write_text("a,b\n" + "1.5,2\n2,3.5\n" * 60, encoding="utf-8")
    with pytest.raises(ThreefoldError, match=r"forecaster|reads texts"):
        threefold.train(tmp_path / "n.csv", target="a", **start)
    small = threefold.quantize(threefold.load(language_model), "int8")
    with pytest.raises(ThreefoldError, match=r"stored in int8, which cannot be trained"):
        threefold.train(reviews, from_model=small, steps=1)


def test_a_tokenizer_of_characters_cannot_read_others(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the red wheel barrow " * 60, encoding="utf-8")
    settings = {**SMALL, "data.tokenizer": "character", "data.length": 16}
    start = threefold.train(tmp_path / "a.txt", mixers="min_gru", steps=1, settings=settings)
    write_reviews(tmp_path / "b.csv")
    with pytest.raises(ThreefoldError, match=r"b.csv:\d+: unknown character"):
        threefold.train(tmp_path / "b.csv", from_model=start.model, steps=1)


def test_frozen_blocks_stay_and_lower_ones_learn_more_slowly(
    language_model: Path, tmp_path: Path
) -> None:
    reviews, source = write_reviews(tmp_path / "a.csv"), threefold.load(language_model)
    before = weights(source)
    start: Any = {"from_model": language_model, "steps": 2}
    frozen = threefold.train(
        reviews, settings={"training.freeze": 1, "data.batch_size": 8}, **start
    )
    after = weights(frozen.model)
    changed = {
        name.rsplit(".", 2)[0] for name in before if not torch.equal(before[name], after[name])
    }
    assert changed and not any("embedding" in name or "blocks.0" in name for name in changed)
    probe = threefold.train(
        reviews, settings={"training.freeze": "all", "data.batch_size": 8}, **start
    )
    assert same(weights(probe.model), before, "embedding", "stack", "norm")
    factors = layer_factors(source, 0.5)
    rates = {id(p): g["peak"] for g in parameter_groups(source, 1.0, 0.0, 0.5) for p in g["params"]}
    expected = {"embedding": 0.25, "norm": 1.0}
    for name, parameter in source.named_parameters():
        factor = expected.get(name.split(".")[0]) or 0.5 ** (1 - int(name.split(".")[2]))
        assert factors.get(id(parameter), 1.0) == factor
        assert rates[id(parameter)] == factor


def test_adapters_are_saved_merged_and_few(language_model: Path, tmp_path: Path) -> None:
    reviews = write_reviews(tmp_path / "a.csv")
    trained = threefold.train(
        reviews,
        from_model=language_model,
        adapters=2,
        steps=4,
        folder=tmp_path / "run",
        settings={"data.batch_size": 8},
    )
    model = trained.model
    assert same(weights(model), weights(threefold.load(language_model)), "embedding")
    assert trained_count(model) < 0.3 * model.parameter_count
    ups = [tensor for name, tensor in weights(model).items() if name.endswith("adapter_up")]
    assert ups and all(tensor.abs().max() > 0 for tensor in ups)
    loaded, texts = threefold.load(tmp_path / "run"), [sentence(True, 1), sentence(False, 2)]
    assert adapter_rank(loaded) == 2 and loaded.predict(texts) == model.eval().predict(texts)
    assert command("merge", str(tmp_path / "run"), str(tmp_path / "merged")) == 0
    merged = threefold.load(tmp_path / "merged")
    assert adapter_rank(merged) == 0
    for one, other in zip(merged.predict(texts), loaded.predict(texts), strict=True):
        assert one["probability"] == pytest.approx(other["probability"], rel=1e-5)
    assert adapter_rank(threefold.quantize(loaded, "int8")) == 0
    # Training goes on from an adapted model, whose adapters become part of the weights.
    again = threefold.train(
        reviews, from_model=tmp_path / "run", steps=1, settings={"data.batch_size": 8}
    )
    assert adapter_rank(again.model) == 0


def test_adapters_larger_than_every_map_are_refused() -> None:
    model = threefold.build(threefold.Spec("language", width=16, depth=1, mixers="min_gru"))
    with pytest.raises(ThreefoldError, match=r"rank 64 are not smaller than any linear map"):
        add_adapters(model, 64)


def test_a_fine_tuning_that_was_interrupted_resumes_bit_for_bit(
    language_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reviews = write_reviews(tmp_path / "a.csv")
    options: Any = {
        "from_model": language_model,
        "adapters": 2,
        "steps": 4,
        "settings": {"data.batch_size": 8, "training.save_every": 2, "training.ema": 0.5},
    }
    whole = threefold.train(reviews, folder=tmp_path / "whole", **options)
    from threefold.training.trainer import Trainer

    step = Trainer.step

    def dies_at_three(self: Trainer, *more: Any) -> bool:
        if self.result.steps == 3:
            raise SystemExit(9)
        return step(self, *more)

    monkeypatch.setattr(Trainer, "step", dies_at_three)
    with pytest.raises(SystemExit):
        threefold.train(reviews, folder=tmp_path / "part", **options)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert command("resume", str(tmp_path / "part")) == 0
    resumed = weights(threefold.load(tmp_path / "part"))
    assert all(torch.equal(resumed[name], tensor) for name, tensor in weights(whole.model).items())
    assert read_run(tmp_path / "part").model.adapters == 2


def test_the_plan_says_what_is_taken_over(
    language_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reviews = write_reviews(tmp_path / "a.csv")
    arguments = ["train", str(reviews), "--from", str(language_model), "--adapters", "2"]
    assert command(*arguments, "--steps", "1", "--dry-run", "--set", "data.batch_size=8") == 0
    plan = capsys.readouterr().out
    assert f"language model of {language_model}; new: head" in plan
    assert "are trained (" in plan and "the head, and adapters of rank 2" in plan


def test_a_new_head_starts_from_the_best_linear_readout(
    language_model: Path, tmp_path: Path
) -> None:
    config = RunConfig.read(
        {
            "data": {"name": str(write_reviews(tmp_path / "a.csv")), "batch_size": 8},
            "model": {"from_model": str(language_model)},
            "training": {"steps": 1},
        }
    )
    prepared = prepare(settle(config))
    assert prepared.takeover is not None and prepared.takeover.fitted == 32
    assert "head, fitted to the features of 32 examples" in prepared.takeover.shown
    again = prepare(settle(config))
    assert same(weights(prepared.model), weights(again.model), "head")
    rows = prepared.data.task.examples("train")
    with torch.no_grad():
        logits = prepared.model.eval()(rows.inputs, mask=rows.mask)[0]
        loss = torch.nn.functional.cross_entropy(logits, rows.targets)
    assert loss < 0.67  # below log 2, that of a head which knows nothing


def test_a_readout_recovers_a_linear_law() -> None:
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(400, 5, dtype=torch.float64, generator=draw)
    law = torch.tensor([[1.0, -2.0, 0.0, 0.5, 3.0]], dtype=torch.float64)
    weight, offset = choose_readout(features, features @ law.T + 4, 1)
    assert torch.allclose(weight, law, atol=0.02) and torch.allclose(
        offset, offset.new_tensor([4.0]), atol=0.02
    )
    labels = ((features @ law.T).flatten() > 0).long()
    weight, offset = choose_readout(features, labels, 2)
    right = (features @ weight.T + offset).argmax(1) == labels
    assert right.double().mean() > 0.97
