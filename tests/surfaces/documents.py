"""Pages of docs/ made from the code: `python -m tests.surfaces.documents` writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from threefold.cli.config import list_settings, shown
from threefold.cli.mixers import LEGEND, summarise
from threefold.layers.table import MIXERS

ROOT = Path(__file__).parent.parent.parent
WIDTH, LENGTH = 256, 1024


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
    )


def mixers() -> str:
    """docs/mixers.md."""
    rows = []
    for entry in MIXERS.values():
        forms = summarise(entry, WIDTH, LENGTH)["forms"]
        cells = f"`{entry.name}`", entry.title, str(entry.year), entry.family
        rows.append((*cells, " ".join(forms), f"`{entry.equation}`"))
    legend = LEGEND.format(width=WIDTH, length=LENGTH).strip().splitlines()
    lines = [f"- **{line.split()[0].lower()}**: {line.split(None, 1)[1]}" for line in legend]
    return "\n".join(
        [
            "# Mixers",
            "",
            "`threefold.mixer(name, width=256)` makes one; `threefold mixers NAME` shows its "
            "options, its state and how it deviates from the paper; [parity.md](parity.md) "
            "compares each with other libraries' layers.",
            "",
            table(("name", "full name", "year", "family", "forms", "equation"), rows),
            "",
            "`S` is the memory and `S₋` the memory before the element; `q k v` are query, key and "
            "value; `⊗` is the outer product and `⊙` the elementwise one.",
            "",
            *lines[:-1],
            "",
        ]
    )


def configuration() -> str:
    """docs/configuration.md."""
    columns = ("key", "type", "default", "meaning")
    rows = [
        (f"`{row['key']}`", row["type"], shown(row["default"]), row["meaning"])
        for row in list_settings()
    ]
    return "\n".join(
        [
            "# Configuration",
            "",
            "Every setting of a run: on the command line (`--set training.save_every=50`), in a "
            "TOML file (`threefold train --config run.toml`, sections `[data]`, `[model]` and "
            "`[training]`) and in Python (`threefold.training.config.RunConfig`). `threefold "
            "config` prints this table.",
            "",
            table(columns, rows),
            "",
        ]
    )


DOCUMENTS: dict[str, Callable[[], str]] = {
    "docs/mixers.md": mixers,
    "docs/configuration.md": configuration,
}


def main() -> None:
    for path, text in DOCUMENTS.items():
        (ROOT / path).write_text(text(), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
