"""Tasks: data to learn from, a metric, and what counts as solved; `table.py` lists them.

Only the table is imported here, which does not import torch; `table.task(name)` makes a task.
"""

from __future__ import annotations

from threefold.tasks.table import TASKS, Card, card

__all__ = ["TASKS", "Card", "card"]
