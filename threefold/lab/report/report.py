"""The result of a race: the contenders with their numbers, ranked, and the verdict on them.

A report contains numbers only, so it can be rendered again at any time, also from its report.json:
`Report.load(folder).save(folder)`.  `page.py` and `markdown.py` render it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from threefold.errors import ThreefoldError
from threefold.lab.race.sequential import InterimLook
from threefold.lab.race.significance import CONFIDENCE, Interval, Verdict, paired, verdict
from threefold.lab.report.evidence import evidence
from threefold.lab.report.results import (
    BaselineResult,
    BestModel,
    Contender,
    Cost,
    CurvePoint,
    RaceRun,
    Subject,
)
from threefold.lab.report.sentences import limitations, verdict_sentence
from threefold.lab.report.stored import (
    read_baseline,
    read_best,
    read_contender,
    read_intervals,
    read_subject,
)


@dataclass(frozen=True)
class Report:
    """A finished race; notebooks display it like the page."""

    subject: Subject
    contenders: tuple[Contender, ...]
    baselines: tuple[BaselineResult, ...] = ()
    # At the results while the race was under way, and at its end.
    looks: tuple[InterimLook, ...] = ()
    # How much better the leader is than each other model, with intervals over the test examples.
    test_margins: Mapping[str, Interval] = field(default_factory=dict)
    best: BestModel | None = None
    best_baseline: BestModel | None = None  # if it is recommended, and was saved
    # How much better the leader is than each baseline, with intervals over the test examples.
    baseline_margins: Mapping[str, Interval] = field(default_factory=dict)

    @cached_property
    def ranked_baselines(self) -> tuple[BaselineResult, ...]:
        """The baselines, best first."""
        sign = 1 if self.subject.lower else -1
        return tuple(sorted(self.baselines, key=lambda b: (sign * b.quality.mean, b.name)))

    @cached_property
    def ranked(self) -> tuple[Contender, ...]:
        """The contenders, best first."""
        sign = 1 if self.subject.lower else -1
        return tuple(
            sorted(self.contenders, key=lambda c: (-len(c.runs), sign * c.quality.mean, c.name))
        )

    @property
    def everything(self) -> tuple[Contender | BaselineResult, ...]:
        """The contenders, best first, then the baselines."""
        return (*self.ranked, *self.ranked_baselines)

    @cached_property
    def verdict(self) -> Verdict:
        return verdict(
            {c.name: c.scores for c in self.contenders},
            lower=self.subject.lower,
            resolution=self.subject.resolution,
            looks=self.looks,
        )

    @cached_property
    def sentence(self) -> str:
        """The verdict with its uncertainty, the best baseline, and which model decodes faster."""
        return verdict_sentence(self)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Limitations of the verdict."""
        return limitations(self)

    def lead_over(self, baseline: BaselineResult) -> Interval:
        """How much better the best model is than a baseline, seed by seed."""
        sign = -1.0 if self.subject.lower else 1.0
        ours, theirs = (
            {seed: sign * score for seed, score in result.scores.items()}
            for result in (self.ranked[0], baseline)
        )
        return paired(ours, theirs, resolution=self.subject.resolution)

    def pareto(self, *costs: Mapping[str, float]) -> tuple[str, ...]:
        """Names of those that no other beats in quality and all costs, among those with costs."""
        sign = 1 if self.subject.lower else -1
        places = {
            c.name: (sign * c.quality.mean, *(cost[c.name] for cost in costs))
            for c in self.everything
            if all(c.name in cost for cost in costs)
        }
        return tuple(
            name
            for name, mine in places.items()
            if not any(
                all(a <= b for a, b in zip(other, mine, strict=True)) and other != mine
                for other in places.values()
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values; values that are not finite become null."""
        values = {
            "verdict": {"sentence": self.sentence, **asdict(self.verdict)},
            "warnings": list(self.warnings),
            "evidence": list(evidence(self)),
            "looks": [look._asdict() for look in self.looks],
            "test_margins": {name: asdict(m) for name, m in self.test_margins.items()},
            "baseline_margins": {name: asdict(m) for name, m in self.baseline_margins.items()},
            "best": None if self.best is None else asdict(self.best),
            "best_baseline": None if self.best_baseline is None else asdict(self.best_baseline),
            "subject": asdict(self.subject),
            "contenders": [
                {**asdict(c), "quality": asdict(c.quality)} for c in self.ranked
            ],
            "baselines": [
                {**asdict(b), "quality": asdict(b.quality)} for b in self.ranked_baselines
            ],
        }  # fmt: skip
        plain: dict[str, Any] = plain_values(values)
        return plain

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        """The report of the values of `to_dict`; the verdict follows from the numbers."""
        return cls(
            read_subject(values["subject"]),
            tuple(map(read_contender, values["contenders"])),
            tuple(map(read_baseline, values.get("baselines", ()))),
            tuple(InterimLook(**look) for look in values.get("looks", ())),
            read_intervals(values.get("test_margins", {})),
            read_best(values.get("best")),
            read_best(values.get("best_baseline")),
            read_intervals(values.get("baseline_margins", {})),
        )

    @classmethod
    def load(cls, folder: str | Path) -> Report:
        """The report of a race from report.json in its folder; needs neither data nor models."""
        path = Path(folder) / "report.json"
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ThreefoldError(
                f"{path}: not the report of a race ({error!r}); give the folder of a finished race"
            ) from error

    def save(self, folder: Path) -> Path:
        """Write report.html, report.md with its figures, and report.json; returns the page."""
        from threefold.drawing.page import standalone
        from threefold.lab.report.markdown import markdown
        from threefold.lab.report.page import page
        from threefold.lab.report.sections import figures

        drawings = folder / "figures"
        drawings.mkdir(parents=True, exist_ok=True)
        for figure in figures(self):
            (drawings / f"{figure.slug}.svg").write_text(standalone(figure), encoding="utf-8")
        (folder / "report.md").write_text(markdown(self), encoding="utf-8")
        (folder / "report.json").write_text(self.to_json(), encoding="utf-8")
        path = folder / "report.html"
        path.write_text(page(self), encoding="utf-8")
        return path

    def _repr_html_(self) -> str:
        from threefold.lab.report.page import fragment

        return fragment(self)

    def __str__(self) -> str:
        return self.sentence


def plain_values(value: Any) -> Any:
    """JSON values; numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_values(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


__all__ = [
    "CONFIDENCE",
    "BaselineResult",
    "BestModel",
    "Contender",
    "Cost",
    "CurvePoint",
    "RaceRun",
    "Report",
    "Subject",
]
