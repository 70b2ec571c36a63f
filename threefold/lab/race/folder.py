"""The folder of a race: its plan, its locks, and which files belong to it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from threefold.data.atomic_files import write_json
from threefold.errors import LockedError, ThreefoldError, option_name
from threefold.lab.race.planning import RacePlan
from threefold.lab.race.request import RaceRequest
from threefold.models.saving import RACE_MODEL, RACE_PLAN
from threefold.training.checkpoints import LOCK, lock_folder

COSTS, BASELINES, REFITTED = "costs.json", "baselines.json", "refitted.json"
RUNS, TUNING, PLANNING, REFIT = "runs", "tuning", "planning", "refit"
BEST_BASELINE = "best-baseline"
BASELINE_EXAMPLES = "baseline-examples.npz"  # scores of each test example
POLL_SECONDS = 0.5  # between two looks at the locks of other processes

Say = Callable[[str], None]


@dataclass(frozen=True)
class RaceFolder:
    """The folder of a race, and whether this process writes the report."""

    path: Path
    writes_report: bool = True

    def run(self, name: str, seed: int) -> Path:
        """The run folder of one contender and seed."""
        return self.path / RUNS / f"{name}-{seed}"

    @property
    def best(self) -> Path:
        """The best sequence model."""
        return self.path / RACE_MODEL

    @property
    def best_baseline(self) -> Path:
        """The best baseline, if it is better and can be saved."""
        return self.path / BEST_BASELINE


def default_folder(request: RaceRequest) -> Path:
    """The default folder of a race: the same for the same request, so that it can be continued."""
    digest = hashlib.sha256(json.dumps(asdict(request)).encode()).hexdigest()[:6]
    return Path("runs") / f"compare-{Path(request.data).stem}-{digest}"


def load_or_make_plan(
    request: RaceRequest, folder: Path, say: Say, make: Callable[[], RacePlan]
) -> RacePlan:
    """The plan in the folder; made if there is none, refused if it belongs to another race."""
    path = folder / RACE_PLAN
    with wait_for_lock(folder / PLANNING, say):
        if not path.is_file():
            refuse_other_files(folder, Path(request.data))
            plan = make()
            write_json(path, plan.to_dict())
            return plan
    plan = read_plan(path)
    before, now = (json.loads(json.dumps(asdict(item))) for item in (plan.request, request))
    changed = [
        f"{key} was {before[key]!r} and is now {now[key]!r}"
        for key in now
        if before[key] != now[key]
    ]
    if changed:
        raise ThreefoldError(
            f"{folder}: already contains a race with different settings: {'; '.join(changed)}; "
            f"choose another {option_name('folder')}, or use the same settings"
        )
    return plan


def read_plan(path: Path) -> RacePlan:
    """The content of race.json."""
    try:
        return RacePlan.from_json(path.read_text(encoding="utf-8"))
    except ThreefoldError as error:  # of an older version
        raise ThreefoldError(f"{path}: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ThreefoldError(
            f"{path}: this is not the plan of a race ({error}); choose another "
            f"{option_name('folder')}"
        ) from error


def refuse_other_files(folder: Path, data: Path) -> None:
    """A race is not mixed with files of the user's, but for its own data."""
    own = {folder / PLANNING, folder / BASELINES, folder / BASELINE_EXAMPLES, data}
    others = sorted(path.name for path in folder.iterdir() if path not in own)
    if others:
        raise ThreefoldError(
            f"{folder}: contains {others[0]} and no {RACE_PLAN}, so it is not the folder of a "
            f"race; choose another {option_name('folder')}"
        )


@contextmanager
def race_folder(folder: Path) -> Iterator[None]:
    """Make the folder of a race; one that is refused before it begins leaves nothing behind."""
    there = folder.exists()
    if there and not folder.is_dir():
        raise ThreefoldError(
            f"{folder} is a file; choose another {option_name('folder')}, which the race makes"
        )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except ThreefoldError:
        if not (folder / RACE_PLAN).exists():
            with suppress(OSError):  # the baselines, which were fitted before, may be there
                (folder / PLANNING / LOCK).unlink()
                (folder / PLANNING).rmdir()
                if not there:
                    folder.rmdir()
        raise


@contextmanager
def wait_for_lock(folder: Path, say: Say) -> Iterator[None]:
    """Lock a folder, waiting until no other process holds the lock."""
    while True:
        lock = lock_folder(folder)
        try:
            lock.__enter__()
            break
        except LockedError:
            say("waiting for another process")
            time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        lock.__exit__(None, None, None)
