"""The largest differences of all comparisons, printed as one table at the end."""

from __future__ import annotations

import pytest

ROWS: list[tuple[str, str, str, str]] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not ROWS:
        return
    terminalreporter.write_line("\n| mixer | peer | float64 | float32 |\n| --- | --- | --- | --- |")
    for row in sorted(ROWS):
        terminalreporter.write_line(f"| {' | '.join(row)} |")
