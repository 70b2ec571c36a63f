"""Few labels and many texts: `threefold lab fine-tuning`.

    scratch    a classifier of the labelled texts alone
    full       the same blocks, started from a language model of unlabelled texts, which itself
               started from vectors of their words; all are trained
    adapters   the same start; only low-rank adapters and the head are trained

Reviews of IMDb (Maas et al. 2011), or news of Reuters on eight topics.  The language model reads
texts of the training part without their labels; each draw takes other labelled texts of that part,
the same for all three, which have the same tokens, blocks and steps.  The accuracy is that on texts
of the test part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from threefold.data.atomic_files import write_json
from threefold.data.preprocessing import Preprocessing
from threefold.data.shuffling import shuffled
from threefold.errors import ThreefoldError, nearest
from threefold.tasks.texts import TOPICS, reviews, stories
from threefold.tasks.user_data.examples import ExampleData, RawExamples, examples_task
from threefold.tasks.user_data.settings import Reading, ReadSettings
from threefold.training.config import DataSettings, ModelSettings, RunConfig
from threefold.training.experiment import run
from threefold.training.fine_tuning import StartingModel, settle
from threefold.training.frozen_layers import trained_count
from threefold.training.preparation import prepare
from threefold.training.run_folder import CHECKPOINTS
from threefold.training.settings import TrainingSettings
from threefold.training.training_data import TrainingData, open_data
from threefold.training.word_embeddings import start_from_documents

DATA = {"reviews": (reviews, ("negative", "positive")), "news": (stories, TOPICS)}
NAMES = ("scratch", "full", "adapters")
CHARACTERS = 6  # of one word, with the space: what is cut before it is read
DRAW, TEST = 1, 2  # in the addresses of random numbers


@dataclass(frozen=True)
class FineTuningStudy:
    """Settings of all runs."""

    data: str = "reviews"  # or news
    draws: int = 10
    labels: int = 200  # labelled texts of a draw
    unlabelled: int = 12_000
    test: int = 1000
    length: int = 200  # words that a classifier reads
    window: int = 100  # words of an example of the language model
    vocabulary: int = 4096
    mixer: str = "min_gru"
    width: int = 64
    depth: int = 2
    pretrain_steps: int = 150
    steps: int = 60
    rank: int = 4
    seed: int = 0
    folder: Path | None = None  # of runs and results, from which an interrupted study continues

    @cached_property
    def texts(self) -> tuple[Any, Any]:
        """The texts of both parts with their labels, cut to what is read of them."""
        if self.data not in DATA:
            raise ThreefoldError(f"unknown data {self.data!r}; {nearest(self.data, DATA)}")
        read, names = DATA[self.data]
        most = CHARACTERS * self.length
        train, test = (
            ([text[:most] for text in texts], [names[label] for label in labels])
            for texts, labels in read()
        )
        return train, test

    def pretrained(self) -> StartingModel:
        """A language model of texts without labels."""
        texts = self.texts[0][0]
        chosen = shuffled((self.seed, 0), len(texts), range(min(self.unlabelled, len(texts))))
        settings = DataSettings(
            name="texts",
            tokenizer="word",
            vocabulary=self.vocabulary,
            length=self.window,
            batch_size=16,
            eval_examples=256,
            seed=self.seed,
        )
        data = open_data(settings, source=[texts[number] for number in chosen])
        config = RunConfig(
            data=settings,
            model=self._model(),
            training=TrainingSettings(steps=self.pretrain_steps, seed=self.seed),
        )
        prepared, folder = prepare(config, data), self.folder and self.folder / "pretrained"
        if folder is None or not (folder / CHECKPOINTS).is_dir():
            documents = [data.tokenizer.encode(texts[number]) for number in chosen]
            start_from_documents(prepared.model, documents, self.seed)
        trained = run(config, folder, prepared=prepared, reporters=(), samples=False, test=False)
        if not trained.finished:
            raise ThreefoldError("interrupted while the language model was trained")
        return StartingModel("the language model", trained.model, None)

    def _model(self) -> ModelSettings:
        return ModelSettings(
            mixers=(self.mixer,),
            width=self.width,
            depth=self.depth,
            options={"scale_embedding": True},
            seed=self.seed,
        )

    def draw(self, number: int, start: Preprocessing) -> TrainingData:
        """The labelled texts of one draw, and those of the test."""
        settings = DataSettings(name="texts", batch_size=20, seed=number)
        reading = Reading(ReadSettings(kind="classifier", length=self.length), start=start)
        train = self._pick(0, (self.seed, DRAW, number), self.labels)
        test = self._pick(1, (self.seed, TEST), self.test)
        valid = RawExamples(
            test.inputs[:64], test.targets[:64], test.places[:64]
        )  # decides nothing
        given = {"valid": valid, "test": test}
        fit: Any = None  # the model to start from has the tokenizer
        data = ExampleData(self.data, "classifier", "text", train, fit, given=given)
        return TrainingData(examples_task(data, reading), settings)

    def _pick(self, half: int, address: tuple[int, ...], count: int) -> RawExamples:
        texts, labels = self.texts[half]
        chosen = shuffled(address, len(texts), range(min(count, len(texts)))).tolist()
        places = [f"text {number}" for number in chosen]
        return RawExamples([texts[n] for n in chosen], [labels[n] for n in chosen], places)

    def config(self, name: str, number: int, start: StartingModel) -> RunConfig:
        """The run of one way to train on one draw."""
        model = self._model().model_copy(update={"seed": number})
        if name == "adapters":
            model = model.model_copy(update={"adapters": self.rank})
        config = RunConfig(
            data=DataSettings(name="texts", batch_size=20, seed=number),
            model=model,
            training=TrainingSettings(steps=self.steps, seed=number),
        )
        return config if name == "scratch" else settle(config, start.model)


@dataclass(frozen=True)
class Outcome:
    """The accuracies of all draws of one way to train, and how much of the model it trained."""

    accuracies: Sequence[float]
    trained: float  # share of the parameters


def table(study: FineTuningStudy) -> Iterator[str]:
    """A line for each draw as soon as it is trained, and the summary."""
    start = study.pretrained()
    preprocessing = start.model.preprocessing
    assert preprocessing is not None
    yield f"{'draw':<10}" + "".join(f"{name:>12}" for name in NAMES)
    draws: list[dict[str, list[float]]] = []
    for number in range(study.draws):
        path = study.folder and study.folder / f"draw-{number + 1}.json"
        if path is not None and path.is_file():
            draws.append(json.loads(path.read_text(encoding="utf-8")))
        else:
            data = study.draw(number, preprocessing)
            draws.append({name: _train(study, name, number, start, data) for name in NAMES})
            if path is not None:
                write_json(path, draws[-1])
        yield f"{number + 1:<10}" + "".join(f"{draws[-1][name][0]:>12.1%}" for name in NAMES)
    yield from _summary(
        {n: Outcome([draw[n][0] for draw in draws], draws[-1][n][1]) for n in NAMES}
    )


def _train(
    study: FineTuningStudy, name: str, number: int, start: StartingModel, data: TrainingData
) -> list[float]:
    """The accuracy of one way to train on one draw, and the share of parameters it trained."""
    config = study.config(name, number, start)
    prepared = prepare(config, data, None if name == "scratch" else start)
    trained = run(config, prepared=prepared, reporters=(), samples=False)
    if trained.test is None:
        raise ThreefoldError(f"interrupted while {name} was trained or tested")
    share = trained_count(trained.model) / trained.model.parameter_count
    return [trained.test.metric, share]


def _summary(outcomes: dict[str, Outcome]) -> Iterator[str]:
    """Means, wins over training from scratch, and what adapters reach of the gain."""
    base, full = outcomes["scratch"], outcomes["full"]
    gain = mean(full.accuracies) - mean(base.accuracies)
    rows: dict[str, list[str]] = {
        "mean": [],
        "deviation": [],
        "wins": [],
        "gain": [],
        "trained": [],
    }
    for outcome in outcomes.values():
        pairs = zip(outcome.accuracies, base.accuracies, strict=True)
        rows["mean"].append(f"{mean(outcome.accuracies):.1%}")
        spread = stdev(outcome.accuracies) if len(outcome.accuracies) > 1 else 0.0
        rows["deviation"].append(f"{spread:.1%}")
        rows["wins"].append(f"{sum(a > b for a, b in pairs)} of {len(base.accuracies)}")
        rows["gain"].append(f"{(mean(outcome.accuracies) - mean(base.accuracies)) / gain:.0%}")
        rows["trained"].append(f"{outcome.trained:.1%}")
    titles = {"wins": "> scratch", "gain": "of gain"}
    for name, cells in rows.items():
        yield f"{titles.get(name, name):<10}" + "".join(f"{cell:>12}" for cell in cells)
