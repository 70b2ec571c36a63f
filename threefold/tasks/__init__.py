"""What to learn and what counts as solved, one file a task; `table.py` lists them.

Only the table is imported here, and it needs no torch.
"""

from __future__ import annotations

from threefold.tasks.table import TASKS, Card, card, task

__all__ = ["TASKS", "Card", "card", "task"]
