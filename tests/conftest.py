"""A skip that nobody expects fails the whole run: a test that does not run proves nothing."""

from __future__ import annotations

import re

import pytest

# Reasons that hold on a machine without fetched data or a browser, or other than Linux.
EXPECTED = re.compile(
    r"not fetched|no Chromium|Linux|glibc|scikit-build-core|no native kernels|make test-peers"
)

unexpected: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if not EXPECTED.search(reason):
            unexpected.append(f"{report.nodeid}: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in unexpected:
        terminalreporter.write_line(f"UNEXPECTED SKIP {line}", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if unexpected and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
