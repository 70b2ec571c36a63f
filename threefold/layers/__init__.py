"""Mixers: one file, one idea.  `MIXERS` is the table of them; `mixer` makes one by name."""

from __future__ import annotations

from threefold.layers.table import MIXERS, mixer

__all__ = ["MIXERS", "mixer"]
