"""`threefold runs`: list, show and compare the runs of `threefold train`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from threefold.cli import options, output
from threefold.cli.hints import CommandGroup, HintedCommand
from threefold.errors import ThreefoldError

runs = typer.Typer(
    name="runs",
    cls=CommandGroup,
    help="List, show and compare the runs of `threefold train`.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@runs.command("list", cls=HintedCommand)
def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to search.")] = Path(
        "runs"
    ),
    as_json: options.AsJson = False,
) -> None:
    """List the runs in a folder, newest last.

    Subfolders are searched too; the runs of a race or of a table are left out.
    """
    if folder.exists() and not folder.is_dir():
        raise ThreefoldError(f"{folder}: is a file; expected a folder")
    rows = []
    for path in folder.rglob("config.toml"):
        plans = (parent / name for parent in path.parents for name in ("race.json", "table.json"))
        if any(plan.is_file() for plan in plans):
            continue
        try:
            rows.append(_read(path.parent))
        except ThreefoldError as error:
            print(f"note: skipped {error}", file=sys.stderr)
    rows.sort(key=lambda run: run["changed"])
    if as_json:
        output.say_json(rows)
        return
    if not rows:
        output.say(f"There are no runs in {folder}; start one with `threefold train DATA`.")
        return
    output.say_table(
        ("RUN", "MODEL AND DATA", "STEPS", "STATUS", "VALIDATION", "TEST"),
        [
            (
                run["folder"],
                run["title"],
                f"{run['steps']:,}",
                run["status"],
                _scores(run, "valid"),
                _scores(run, "test"),
            )
            for run in rows
        ],
        fold=("MODEL AND DATA",),
    )


@runs.command(cls=HintedCommand)
def show(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a run.")],
    as_json: options.AsJson = False,
) -> None:
    """Show the status, scores and settings of a run."""
    run = _read(folder)
    if as_json:
        output.say_json(run)
        return
    output.say_facts(_facts(run, folder))


def _facts(run: dict[str, Any], folder: Path) -> list[tuple[str, Any]]:
    """What `show` prints: names and values."""
    return [
        ("run", run["folder"]),
        ("model and data", run["title"]),
        ("status", run["status"]),
        ("steps", f"{run['steps']:,}"),
        ("training loss", "–" if run["loss"] is None else f"{run['loss']:.4f}"),
        ("validation", _scores(run, "valid")),
        ("test", _scores(run, "test")),
        ("checkpoints", [str(path) for path in run["checkpoints"]]),
        ("settings", (folder / "config.toml").read_text(encoding="utf-8").splitlines()),
    ]


@runs.command(cls=HintedCommand)
def diff(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER", help="Folders of runs.")],
    as_json: options.AsJson = False,
) -> None:
    """Compare the scores and the settings of runs."""
    from threefold.training.schema import flat

    if len(folders) < 2:
        raise ThreefoldError(f"{len(folders)} folder given; expected at least 2 runs to compare")
    rows = [_read(folder) for folder in folders]
    settings = [flat(run["configuration"]) for run in rows]
    keys = {key for values in settings for key in values}
    differ = sorted(
        key for key in keys if len({json.dumps(values.get(key)) for values in settings}) > 1
    )
    if as_json:
        output.say_json({"runs": rows, "differ": differ})
        return
    table = [
        ("steps", *(f"{run['steps']:,}" for run in rows)),
        ("training loss", *("–" if run["loss"] is None else f"{run['loss']:.4f}" for run in rows)),
        ("validation", *(_scores(run, "valid") for run in rows)),
        ("test", *(_scores(run, "test") for run in rows)),
        *((key, *(str(values.get(key, "–")) for values in settings)) for key in differ),
    ]
    output.say_table(("", *(run["folder"] for run in rows)), table)


def _read(folder: Path) -> dict[str, Any]:
    """Read the files of a run, whether it has ended or not."""
    from threefold.training.experiment import read_run_values

    configuration = read_run_values(folder)
    path, log = folder / "summary.json", folder / "log.jsonl"
    try:
        name = configuration["data"]["name"]
        summary: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
        text = log.read_bytes() if log.is_file() else b""
        lines = text[: text.rfind(b"\n") + 1].splitlines()  # the last line may be incomplete
        newest: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        status = _status(summary.get("stopped", ""))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ThreefoldError(
            f"{folder}: not a run, or its files are damaged ({error!r})"
        ) from error
    mixers = configuration.get("model", {}).get("mixers", [])
    return {
        "folder": str(folder),
        "title": summary.get("title") or f"{mixers} on {name}",
        "status": status,
        "steps": newest.get("step", 0),
        "loss": newest.get("loss"),
        "metric": summary.get("metric", ""),
        "valid": summary.get("valid"),
        "test": summary.get("test"),
        **({"by_target": summary["by_target"]} if "by_target" in summary else {}),
        "parameters": summary.get("parameters"),
        "checkpoints": sorted(map(str, (folder / "checkpoints").glob("step-*"))),
        "changed": (log if log.is_file() else folder / "config.toml").stat().st_mtime,
        "configuration": configuration,
    }


def _status(stopped: str) -> str:
    from threefold.training.result import STOP_REASONS

    if stopped in ("", "interrupted"):
        return "can be resumed"
    return f"finished: {STOP_REASONS.get(stopped, stopped)}"


def _scores(run: dict[str, Any], split: str) -> str:
    return output.scores_text(run, split) or "–"
