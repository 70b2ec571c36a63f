"""Copy chosen files out of a zip, tar or deb archive, and do nothing else.

Names that leave the target folder, links, devices and duplicates are refused; file modes and owners
are ignored.
"""

from __future__ import annotations

import fnmatch
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from threefold.errors import ThreefoldError

Member = tuple[str, IO[bytes]]


def unpack(archive: Path, kind: str, keep: tuple[str, ...], target: Path) -> None:
    """Copy the files of an archive whose names match into a new folder.

    `kind` is wheel, npm, sdist or debian.  Archives of npm and sdist have one top folder, which is
    removed from the names.
    """
    target.mkdir()
    copied = 0
    try:
        for name, content in _members(archive, kind):
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in keep):
                continue
            path = target / _inside(name, archive)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
            copied += 1
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ThreefoldError(f"{archive}: damaged ({error}); fetch it again") from error
    except OSError as error:
        raise ThreefoldError(
            f"{archive}: cannot be unpacked ({error.strerror or error})"
        ) from error
    if not copied:
        raise ThreefoldError(f"{archive}: contains no file {' or '.join(keep)}")


def _inside(name: str, archive: Path) -> PurePosixPath:
    """A name that stays inside the folder it is copied to."""
    path = PurePosixPath(name)
    odd = "\\" in name or ":" in name or "\0" in name
    if path.is_absolute() or ".." in path.parts or odd or not path.parts:
        raise ThreefoldError(
            f"{archive}: a file named {name!r} would be written outside of its folder; refused"
        )
    return path


def _members(archive: Path, kind: str) -> Iterator[Member]:
    if kind == "wheel":
        yield from _zipped(archive)
    elif kind == "debian":
        yield from _packed_by_debian(archive)
    else:
        with tarfile.open(archive, "r:*") as file:
            yield from _tarred(file, top=True)


def _zipped(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as file:
        for entry in file.infolist():
            if not entry.is_dir():
                with file.open(entry) as content:
                    yield entry.filename, content


def _tarred(file: tarfile.TarFile, top: bool) -> Iterator[Member]:
    """Regular files only; links are skipped."""
    for entry in file:
        content = file.extractfile(entry) if entry.isreg() else None
        if content is not None:
            name = entry.name.removeprefix("./")
            # An absolute name is left as it is, and refused later.
            yield (name.partition("/")[2] if top and not name.startswith("/") else name), content


def _packed_by_debian(archive: Path) -> Iterator[Member]:
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    with tempfile.TemporaryFile() as unpacked:
        try:
            done = subprocess.run(command, stdout=unpacked, stderr=subprocess.PIPE)
        except OSError as error:
            raise ThreefoldError(
                f"{archive}: needs dpkg-deb, which is not installed; Debian and Ubuntu have it"
            ) from error
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()
            raise ThreefoldError(f"{archive}: dpkg-deb cannot open it ({said})")
        unpacked.seek(0)
        with tarfile.open(fileobj=unpacked) as file:
            yield from _tarred(file, top=False)
