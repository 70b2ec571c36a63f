"""What a race is asked to do: the arguments of `threefold compare`, checked before it starts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from threefold.errors import ThreefoldError, nearest, option, option_name, options
from threefold.lab.race.baselines import LEVELS
from threefold.layers.table import MIXERS, mixer_entry
from threefold.models.table import KINDS
from threefold.training.config import RunConfig
from threefold.training.durations import Duration, parse_duration
from threefold.training.overrides import apply_overrides, parse_override

DEFAULT_MIXERS = ("lstm", "attention", "s4d", "mamba", "gated_delta_net")
MATCHES = ("parameters", "time", "tokens")
AUTO = "auto"  # seeds until the verdict is clear
AUTO_SEEDS = 5  # seeds of all models that the budget of --seeds auto pays for
MOST_SEEDS = 12  # of one model, when others were stopped early
# Settings that cannot be overridden in a race, with what to use instead; {} has an option.
RESERVED = {
    "data.name": "DATA is the first argument",
    "data.batch_size": "use {batch_size}",
    "data.seed": "the seed differs from run to run; use {seeds}",
    "model.mixers": "use {mixers}",
    "model.size": "use {width}, {depth} or {parameters}",
    "model.width": "use {width}",
    "model.depth": "use {depth}",
    "model.seed": "the seed differs from run to run; use {seeds}",
    "training.steps": "use {time}, e.g. 500steps",
    "training.time": "use {time}",
    "training.learning_rate": "use {learning_rate} or {tune}",
    "training.seed": "the seed differs from run to run; use {seeds}",
    "training.eval_every": "the curves have 12 points",
    "training.on_non_finite": "a run that diverges is rolled back",
    "training.save_every": "the race saves eight times a run",
    "training.keep_checkpoints": "the race keeps one checkpoint",
    "training.target_score": "all models train for the same number of steps",
    "training.patience": "all models train for the same number of steps",
    "training.final_lr": "it is a tenth of the learning rate, which {tune} chooses",
}


@dataclass(frozen=True)
class RaceRequest:
    """The arguments of `threefold compare`."""

    data: str
    mixers: tuple[str, ...] = DEFAULT_MIXERS  # names, or name=mixer to choose another name
    time: str = "10m"  # total training time, or steps for each model such as 200steps
    match: str = "parameters"
    seeds: int | str = 3  # or auto: until the verdict is clear or the budget is spent
    tune: bool = False
    width: int = 64
    depth: int = 2
    parameters: int | None = None  # target; None: the median of the models as they are
    learning_rate: float = 3e-3
    batch_size: int = 16
    overrides: tuple[str, ...] = ()  # other settings, such as data.length=512
    baselines: str = "strong"  # simple models beside the others: strong, simple or none
    early_stop: bool = True  # no further seeds for models that are clearly behind

    def __post_init__(self) -> None:
        if self.match not in MATCHES:
            raise ThreefoldError(f"unknown match {self.match!r}; {nearest(self.match, MATCHES)}")
        if self.baselines not in LEVELS:
            raise ThreefoldError(
                f"unknown {option_name('baselines')} {self.baselines!r}; expected one of "
                f"{', '.join(LEVELS)}"
            )
        if self.seeds != AUTO and not (isinstance(self.seeds, int) and self.seeds >= 1):
            raise ThreefoldError(
                f"{option('seeds', str(self.seeds))}: expected at least 1, or auto"
            )
        if not self.learning_rate > 0:
            raise ThreefoldError(
                f"{option_name('learning_rate')} is {self.learning_rate}, expected more than 0, "
                "e.g. 0.003"
            )
        if self.duration.steps is not None and self.match == "time":
            raise ThreefoldError(
                f"{options(time=self.time, match='time')}: expected a time, e.g. 10m"
            )
        _ = self.entries
        for text in self.overrides:
            check_override(text)
        refuse_without_mixers(str(self.settings()["data"].get("kind")), self.data)

    @property
    def duration(self) -> Duration:
        """How long the race takes, or how many steps each model trains for."""
        return parse_duration(self.time)

    @property
    def rounds(self) -> int:
        """Seeds of all models that the budget pays for."""
        return self.seeds if isinstance(self.seeds, int) else AUTO_SEEDS

    @property
    def most_seeds(self) -> int:
        """Seeds of a model at most."""
        return self.seeds if isinstance(self.seeds, int) else MOST_SEEDS

    def settings(self) -> dict[str, Any]:
        """The sections of the configuration, from all overrides except options of mixers."""
        chosen = [text for text in self.overrides if not text.startswith("model.mixers.")]
        return apply_overrides(RunConfig, {"data": {"name": self.data}}, chosen)

    def mixer_options(self, name: str) -> dict[str, Any]:
        """Options of a mixer, from overrides such as model.mixers.mamba.state_size=64."""
        paths = map(parse_override, self.overrides)
        return {path[3]: value for path, value in paths if path[:3] == ["model", "mixers", name]}

    @property
    def entries(self) -> dict[str, tuple[str, ...]]:
        """The mixers of each contender by its name; a+b is a hybrid of both."""
        entries: dict[str, tuple[str, ...]] = {}
        for text in self.mixers:
            name, _, mixers = text.partition("=")
            parts = tuple((mixers or name).split("+"))
            for part in parts:
                if part not in MIXERS:
                    refuse_without_mixers(part, self.data)
                mixer_entry(part)
            if name in entries:
                raise ThreefoldError(
                    f"{name!r} is listed twice; give one of them another name, e.g. b={name}"
                )
            if not re.fullmatch(r"[\w+.-]+", name):
                raise ThreefoldError(f"{name!r}: a name may only have letters, digits and _ + . -")
            entries[name] = parts
        if not entries:
            raise ThreefoldError(f"no mixer to race; known: {', '.join(MIXERS)}")
        return entries


def refuse_without_mixers(kind: str, data: str) -> None:
    """Refuse kinds of models that are not made of mixers, which are what a race compares."""
    if kind in KINDS and not KINDS[kind].has_mixers:
        raise ThreefoldError(
            f"a race compares mixers, and a {kind} model has none; race the mixers with "
            f"{option('kind', 'vision')}, and compare with the test score of a {kind} model that "
            f"is trained on {data}"
        )


def check_override(text: str) -> None:
    """Refuse settings that the race itself decides, and mixers that do not exist."""
    path, _ = parse_override(text)
    if path[:2] == ["model", "mixers"] and len(path) > 2:
        apply_overrides(RunConfig, {"model": {"mixers": [path[2]]}}, [text])
        return
    key = ".".join(path)
    if key in RESERVED:
        instead = re.sub(r"\{(\w+)\}", lambda named: option_name(named[1]), RESERVED[key])
        raise ThreefoldError(f"{key} cannot be set in a race ({text}): {instead}")
