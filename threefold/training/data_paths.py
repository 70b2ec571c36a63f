"""Where the data of a run are, also from another working directory.

config.toml keeps the name that the user gave, which may be relative, and notes the path it had.
"""

from __future__ import annotations

import json
from pathlib import Path

from threefold.errors import ThreefoldError
from threefold.tasks.table import TASKS
from threefold.training.config import read_toml

PATH_NOTE = "data_path"  # in config.toml


def path_note(name: str) -> str:
    """The line of config.toml that notes where a user's data are; empty for a task."""
    path = Path(name)
    return f"{PATH_NOTE} = {json.dumps(str(path.resolve()))}\n" if path.exists() else ""


def find_data(run: Path | None, name: str, hint: str) -> str:
    """Where the data of a run are: where they were, or at the same place relative to here.

    run: its folder, None if it has none.  hint: what to do if they are nowhere.
    """
    if name in TASKS and not Path(name).exists():
        return name
    candidates = [*_noted_path(run), name]
    for path in candidates:
        if Path(path).exists():
            return path
    if name in TASKS:
        return name
    raise ThreefoldError(
        f"{run}: was trained on {name}, but there is no "
        f"{' and no '.join(dict.fromkeys(candidates))}; {hint}"
    )


def _noted_path(run: Path | None) -> list[str]:
    try:
        path = None if run is None else read_toml(run / "config.toml").get(PATH_NOTE)
    except ThreefoldError:
        return []
    return [path] if isinstance(path, str) else []
