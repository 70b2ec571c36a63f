"""`threefold runs`: what was trained, how far it is, and how runs differ."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from threefold.cli import output
from threefold.errors import ThreefoldError

runs = typer.Typer(
    name="runs",
    help="List, show and compare runs of `threefold train`.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@runs.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """Every run below a folder, the newest last."""
    found = []
    for path in folder.rglob("config.toml"):
        try:
            found.append(_read(path.parent))
        except ThreefoldError as error:
            print(f"note: left out: {error}", file=sys.stderr)
    found.sort(key=lambda run: run["changed"])
    if as_json:
        output.say_json(found)
        return
    if not found:
        output.say(f"no runs in {folder}; `threefold train DATA_OR_TASK` makes one")
        return
    output.say_table(
        ("run", "what", "steps", "state", "valid", "test"),
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
        fold=("what",),
    )


@runs.command()
def show(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
    as_json: JsonOption = False,
) -> None:
    """All that is known of a run."""
    run = _read(folder)
    if as_json:
        output.say_json(run)
        return
    output.say_facts(
        [
            ("run", run["folder"]),
            ("what", run["title"]),
            ("state", run["state"]),
            ("steps", f"{run['steps']:,}"),
            ("loss", "–" if run["loss"] is None else f"{run['loss']:.4f}"),
            ("valid", _shown(run, "valid")),
            ("test", _shown(run, "test")),
            ("checkpoints", [str(path) for path in run["checkpoints"]]),
            ("configuration", (folder / "config.toml").read_text(encoding="utf-8").splitlines()),
        ]
    )


@runs.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    as_json: JsonOption = False,
) -> None:
    """What some runs reached, and the keys in which they differ."""
    from threefold.training.schema import flat

    if len(folders) < 2:
        raise ThreefoldError(f"{len(folders)} run to compare; expected at least 2")
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
    """What the files of a run say, whether it is over or not."""
    path = folder / "config.toml"
    if not path.is_file():
        raise ThreefoldError(f"{folder}: holds no config.toml; expected the folder of a run")
    from threefold.training.config import read_toml

    configuration = read_toml(path)
    summary, log = folder / "summary.json", folder / "log.jsonl"
    try:
        name = configuration["data"]["name"]
        reached: dict[str, Any] = json.loads(summary.read_bytes()) if summary.is_file() else {}
        text = log.read_bytes() if log.is_file() else b""
        lines = text[: text.rfind(b"\n") + 1].splitlines()  # the last may be half written
        newest: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        stopped = reached.get("stopped", "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ThreefoldError(f"{folder}: no run, or a damaged one ({error!r})") from error
    mixers = configuration.get("model", {}).get("mixers", [])
    return {
        "folder": str(folder),
        "title": reached.get("title") or f"{mixers} on {name}",
        "state": f"ended by {stopped}" if stopped not in ("", "interrupted") else "can go on",
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
