"""The command line: one file a command, and nothing heavy imported before a command runs.

Exit codes: 0 done · 1 a check failed or Threefold has a bug (then with a traceback) · 2 input that
cannot be used, with one message on stderr · 3 another of several processes says what is wrong ·
130 interrupted.
"""

from __future__ import annotations

from threefold.cli.app import main

__all__ = ["main"]
