"""Using trained models: sampling, generation, sessions, streams, and states as files."""

from __future__ import annotations
