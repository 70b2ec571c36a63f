"""Data opened once for several runs, which differ in their seed, not in what they read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from threefold.training.config import DataSettings
from threefold.training.training_data import TrainingData, open_data

# Settings that choose batches of data that are already open.
ORDER_SETTINGS = {"batch_size", "batching", "eval_examples", "seed"}


class DataCache:
    """Opened data by their settings; files that have changed on disk are read again.

    source: data in memory or a task, instead of what the settings name.
    """

    def __init__(self, source: Any = None) -> None:
        self.source = source
        self._opened: dict[str, tuple[dict[str, Any], TrainingData]] = {}

    def open(self, settings: DataSettings) -> TrainingData:
        """Open data, or take them from the cache if neither settings nor files have changed."""
        key = settings.model_dump_json(exclude=ORDER_SETTINGS)
        if key in self._opened:
            identity, data = self._opened[key]
            if data.identity() == identity:
                return replace(data, data=settings)
        data = open_data(settings, source=self.source)
        self._opened[key] = (data.identity(), data)
        return data
