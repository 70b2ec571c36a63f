"""`python -m benchmarks.table RESULTS.json …`: the figures as a Markdown table.

Each memory setting has a column; a caption says where, when and how the figures were measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import DISTURBED
from benchmarks.runner import MEMORY_SETTINGS

Run = dict[str, Any]  # the JSON of one run
NOTE = "Bold: target not met. †: the machine was disturbed, measure again. –: not measured."


@dataclass
class Row:
    """One figure: its target, and the text of its cell for each memory setting."""

    target: str
    cells: dict[str, str] = field(default_factory=dict)


def markdown(runs: list[Run]) -> str:
    """Captions and table; if a figure was measured more than once, the last run counts."""
    heads = ["work", "figure", *(f"memory {memory}" for memory in MEMORY_SETTINGS), "target"]
    lines = [*dict.fromkeys(caption(run) for run in runs), NOTE, "", line(heads)]
    lines.append("|" + "---|" * len(heads))
    for (title, figure), row in rows(runs).items():
        cells = (row.cells.get(memory, "–") for memory in MEMORY_SETTINGS)
        lines.append(line([title, figure, *cells, row.target]))
    return "\n".join(lines)


def line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def rows(runs: list[Run]) -> dict[tuple[str, str], Row]:
    """Every figure by its work and meaning, in the order of the runs."""
    table: dict[tuple[str, str], Row] = {}
    for run in runs:
        for comparison in run["comparisons"]:
            for figure, value, target in figures(comparison):
                row = table.setdefault((comparison["title"], figure), Row(""))
                row.target = limit(target)
                row.cells[run["run"]["memory"]] = cell(value, target, comparison["slowdown"])
    return table


def figures(comparison: dict[str, Any]) -> Iterator[tuple[str, float, dict[str, Any] | None]]:
    """The measured targets of a comparison or, if it has none, the ratio to each contender."""
    if comparison["targets"]:
        for target in comparison["targets"]:
            if target["measured"] is not None:
                yield target["what"], target["measured"], target
        return
    medians = {name: values["median"] for name, values in comparison["contenders"].items()}
    ours, *others = medians
    for name in others:
        word = "times as fast as" if comparison["unit"] == "s" else "times less memory than"
        yield f"{word} {name}", medians[name] / medians[ours], None


def limit(target: dict[str, Any] | None) -> str:
    if target is None:
        return ""
    return f"{'≥' if target['at'] == 'least' else '≤'} {target['limit']:g}"


def cell(value: float, target: dict[str, Any] | None, slowdown: float) -> str:
    text = f"{value:.2f}" if value < 10 else f"{value:.1f}"
    if target is not None and not target["met"]:
        text = f"**{text}**"
    return text + (" †" if slowdown > DISTURBED else "")


def caption(run: Run) -> str:
    """Processor, threads, date, commit, command and versions of a run in one line."""
    machine, details = run["machine"], run["run"]
    packages = {name: machine[name] for name in ("python", "torch", "threefold")}
    packages |= {name: version for name, version in machine["peers"].items() if version}
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    quick = " Quick run with tiny shapes: the figures mean nothing." if details["quick"] else ""
    return (
        f"{machine['processor']}, {machine['cores']} cores, torch threads: {machine['threads']}; "
        f"{details['date'][:10]} (UTC); commit {details['commit'] or 'unknown'}; "
        f"`{details['command']}`; {versions}; kernels {machine['kernels']}.{quick}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS.json")
    runs = [json.loads(path.read_text()) for path in parser.parse_args().results]
    print(markdown(runs))


if __name__ == "__main__":
    main()
