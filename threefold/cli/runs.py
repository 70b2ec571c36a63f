"""`threefold runs`: what was trained, how far it got, and how runs differ."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from threefold.cli import options, output
from threefold.errors import ThreefoldError

runs = typer.Typer(
    name="runs",
    help="List and show runs of `threefold train`, and what differs between them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@runs.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Folder to search.")] = Path("runs"),
    as_json: options.AsJson = False,
) -> None:
    """List every run below a folder, the newest last; runs inside a race are left out."""
    found = []
    for path in folder.rglob("config.toml"):
        if any((parent / "race.json").is_file() for parent in path.parents):
            continue
        try:
            found.append(_read(path.parent))
        except ThreefoldError as error:
            print(f"note: skipped {error}", file=sys.stderr)
    found.sort(key=lambda run: run["changed"])
    if as_json:
        output.say_json(found)
        return
    if not found:
        output.say(f"There are no runs in {folder}; `threefold train DATA` makes one.")
        return
    output.say_table(
        ("RUN", "MODEL AND DATA", "STEPS", "STATUS", "VALIDATION", "TEST"),
        [
            (
                run["folder"],
                run["title"],
                f"{run['steps']:,}",
                run["state"],
                _shown(run, "valid"),
                _shown(run, "test"),
            )
            for run in found
        ],
        fold=("MODEL AND DATA",),
    )


@runs.command()
def show(
    folder: Annotated[Path, typer.Argument(help="Folder of a run.")],
    as_json: options.AsJson = False,
) -> None:
    """Show the status, scores and settings of a run."""
    run = _read(folder)
    if as_json:
        output.say_json(run)
        return
    output.say_facts(
        [
            ("run", run["folder"]),
            ("model and data", run["title"]),
            ("status", run["state"]),
            ("steps", f"{run['steps']:,}"),
            ("loss", "–" if run["loss"] is None else f"{run['loss']:.4f}"),
            ("validation", _shown(run, "valid")),
            ("test", _shown(run, "test")),
            ("checkpoints", [str(path) for path in run["checkpoints"]]),
            ("settings", (folder / "config.toml").read_text(encoding="utf-8").splitlines()),
        ]
    )


@runs.command()
def diff(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    as_json: options.AsJson = False,
) -> None:
    """Show the scores of several runs side by side, and the settings in which they differ."""
    from threefold.training.schema import flat

    if len(folders) < 2:
        raise ThreefoldError(f"{len(folders)} folder given; expected at least 2 runs to compare")
    found = [_read(folder) for folder in folders]
    keys = [flat(run["configuration"]) for run in found]
    differ = sorted(
        key
        for key in {name for one in keys for name in one}
        if len({json.dumps(one.get(key)) for one in keys}) > 1
    )
    if as_json:
        output.say_json({"runs": found, "differ": differ})
        return
    rows = [
        ("steps", *(f"{run['steps']:,}" for run in found)),
        ("loss", *("–" if run["loss"] is None else f"{run['loss']:.4f}" for run in found)),
        *((split, *(_shown(run, split) for run in found)) for split in ("valid", "test")),
        *((key, *(str(one.get(key, "–")) for one in keys)) for key in differ),
    ]
    output.say_table(("", *(run["folder"] for run in found)), rows)


def _read(folder: Path) -> dict[str, Any]:
    """What the files of a run say, whether it has ended or not."""
    from threefold.training.experiment import read_run_values

    configuration = read_run_values(folder)
    path = folder / "config.toml"
    summary, log = folder / "summary.json", folder / "log.jsonl"
    try:
        name = configuration["data"]["name"]
        reached: dict[str, Any] = json.loads(summary.read_bytes()) if summary.is_file() else {}
        text = log.read_bytes() if log.is_file() else b""
        lines = text[: text.rfind(b"\n") + 1].splitlines()  # the last may be half written
        newest: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        stopped = reached.get("stopped", "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ThreefoldError(
            f"{folder}: not a run, or its files are damaged ({error!r})"
        ) from error
    mixers = configuration.get("model", {}).get("mixers", [])
    return {
        "folder": str(folder),
        "title": reached.get("title") or f"{mixers} on {name}",
        "state": f"ended by {stopped}" if stopped not in ("", "interrupted") else "can be resumed",
        "steps": newest.get("step", 0),
        "loss": newest.get("loss"),
        "metric": reached.get("metric", ""),
        "valid": reached.get("valid"),
        "test": reached.get("test"),
        "parameters": reached.get("parameters"),
        "checkpoints": sorted(map(str, (folder / "checkpoints").glob("step-*"))),
        "changed": (log if log.is_file() else path).stat().st_mtime,
        "configuration": configuration,
    }


def _shown(run: dict[str, Any], split: str) -> str:
    scores = run[split]
    if not scores or scores["loss"] is None:
        return "–"
    metric = "" if scores["metric"] is None else f", {run['metric']} {scores['metric']:.4f}"
    return f"{scores['loss']:.4f}{metric}"
