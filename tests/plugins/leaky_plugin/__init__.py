"""A package that a user of Threefold might write: a mixer, and a task to try it on."""

from __future__ import annotations

import leaky_plugin.mixers
import leaky_plugin.tasks  # noqa: F401
