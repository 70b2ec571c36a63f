"""Models: what is built from a `Spec`, saved to a folder and loaded from it."""

from __future__ import annotations

from threefold.models.spec import Spec
from threefold.models.table import KINDS, build

__all__ = ["KINDS", "Spec", "build"]
