"""Runtime: models at work — sampling, generation, and states as files."""

from __future__ import annotations
