"""Totals of a stream: mean log-likelihood, bits per byte, the element with the highest score."""

from __future__ import annotations

import math
from typing import Any

from threefold.runtime.scores.grouping import SUMMED, Columns


class Totals:
    """Sums over everything scored so far; saved and restored with the state."""

    def __init__(self, saved: dict[str, Any] | None = None) -> None:
        saved = saved or {}
        self.rows: int = saved.get("rows", 0)
        self.elements: int = saved.get("elements", 0)  # with a log-likelihood
        self.log_likelihood: float = saved.get("log_likelihood", 0.0)
        self.highest: dict[str, Any] | None = saved.get("highest")

    def add(self, columns: Columns) -> None:
        """Add the scores of a chunk."""
        if not columns:
            return
        self.rows += len(columns["position"])
        if SUMMED in columns:
            values = [value for value in columns[SUMMED] if not math.isnan(value)]
            self.elements += sum(columns["elements"]) if "elements" in columns else len(values)
            self.log_likelihood += math.fsum(values)
        if "score" in columns:
            self._compare(columns)

    def to_dict(self) -> dict[str, Any]:
        """Return all sums as JSON values, to create the same totals again."""
        return dict(vars(self))

    def summary(self, scored_bytes: int | None) -> dict[str, Any]:
        """Return the averages; scored_bytes: bytes of the text that have a likelihood."""
        summary: dict[str, Any] = {"rows": self.rows}
        if self.elements:
            summary["mean_log_likelihood"] = self.log_likelihood / self.elements
            if scored_bytes:
                summary["bits_per_byte"] = -self.log_likelihood / math.log(2) / scored_bytes
        if self.highest is not None:
            summary["highest_score"] = self.highest
        return summary

    def _compare(self, columns: Columns) -> None:
        scores = columns["score"]
        rows = [row for row, score in enumerate(scores) if not math.isnan(score)]
        if not rows:
            return
        row = max(rows, key=lambda i: scores[i])
        if self.highest is None or scores[row] > self.highest["score"]:
            names = [
                name
                for name in ("position", "byte", "text", "series", "time", "column", "score")
                if name in columns
            ]
            self.highest = {name: columns[name][row] for name in names}
