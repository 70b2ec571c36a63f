"""What a whole stream comes to: mean log-likelihood, bits a byte, the most unusual element."""

from __future__ import annotations

import math
from typing import Any

from threefold.runtime.scores.grouping import SUMMED, Columns


class Totals:
    """Sums over everything that was scored, carried like the state."""

    def __init__(self, carried: dict[str, Any] | None = None) -> None:
        given = carried or {}
        self.rows: int = given.get("rows", 0)
        self.counted: int = given.get("counted", 0)  # elements with a log-likelihood
        self.likelihood: float = given.get("likelihood", 0.0)
        self.highest: dict[str, Any] | None = given.get("highest")

    def add(self, columns: Columns) -> None:
        """One more piece."""
        if not columns:
            return
        self.rows += len(columns["position"])
        if SUMMED in columns:
            values = [value for value in columns[SUMMED] if not math.isnan(value)]
            self.counted += sum(columns["elements"]) if "elements" in columns else len(values)
            self.likelihood += math.fsum(values)
        if "score" in columns:
            self._compare(columns)

    def carried(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return dict(vars(self))

    def facts(self, size: int | None) -> dict[str, Any]:
        """As told at the end; `size`: bytes of a text that have a likelihood."""
        facts: dict[str, Any] = {"rows": self.rows}
        if self.counted:
            facts["mean_log_likelihood"] = self.likelihood / self.counted
            if size:
                facts["bits_per_byte"] = -self.likelihood / math.log(2) / size
        if self.highest is not None:
            facts["highest_score"] = self.highest
        return facts

    def _compare(self, columns: Columns) -> None:
        scores = columns["score"]
        known = [place for place, score in enumerate(scores) if not math.isnan(score)]
        if not known:
            return
        place = max(known, key=lambda i: scores[i])
        if self.highest is None or scores[place] > self.highest["score"]:
            names = [name for name in ("position", "byte", "text", "score") if name in columns]
            self.highest = {name: columns[name][place] for name in names}
