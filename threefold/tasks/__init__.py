"""What to learn and what counts as solved, one file a task; `table.py` lists them.

Only the table is imported here, and it needs no torch; `table.task(name)` makes a task.
"""

from __future__ import annotations

from threefold.tasks.table import TASKS, Card, card

__all__ = ["TASKS", "Card", "card"]
