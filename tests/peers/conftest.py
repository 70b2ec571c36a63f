"""What the comparisons measured, printed as tables at the end."""

from __future__ import annotations

import pytest

ROWS: list[tuple[str, ...]] = []  # of tests/peers/table.py
CLASSICAL: list[tuple[str, ...]] = []  # of tests/peers/test_classical.py


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    from tests.peers.table import HEADER, in_order
    from tests.surfaces.documents import table

    if ROWS:
        terminalreporter.write_line("\n" + table(HEADER, in_order(ROWS)))
    if CLASSICAL:
        header = ("classical model", "peer", "on", "what", "measured")
        terminalreporter.write_line("\n" + table(header, CLASSICAL))
